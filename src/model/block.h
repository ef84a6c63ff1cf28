// One decoder block: x += attention(norm(x)); x += mlp(norm(x)), the second a dense or a MoE layer.
// The residual stream x is f32 [T, D], whatever the dtype of the weights.
#pragma once

#include <optional>

#include "dsmoe/context.h"
#include "dsmoe/moe.h"
#include "model/attention.h"
#include "model/pass.h"
#include "model/spec.h"
#include "model/weights.h"
#include "moe/spread_layer.h"
#include "ops/experts.h"

namespace dsmoe {

// What backward needs of a block.
struct BlockSaved {
  Tensor x_in, x_mid;  // the residual stream before attention and before the MLP
  AttentionSaved attention;
  Tensor mlp_input;  // [T, D] normed; dense layers only (a MoE layer keeps its own)
  ops::ExpertActivations mlp;
  MoeForward moe;                                 // with the balance losses
  bool keeps_experts = true;                      // of a MoE layer on one rank; else backward computes them again
  std::shared_ptr<SpreadMoeLayer::Saved> spread;  // of a MoE layer whose experts are spread over ranks
};

// A norm's part of dx (+=) and of the weight's gradient (+=); returns dx in `dtype`, in f32 dx itself.
Tensor norm_backward(Context& ctx, const Tensor& dh, const Tensor& x, const Tensor& weight, float eps, DType dtype,
                     Tensor& dx, Tensor& grad);

class Block {
 public:
  // `dtype`: that of the activations. `mesh`: null for a process alone.
  Block(const ModelSpec& spec, const LayerTensors& weights, Index layer, DType dtype, const parallel::Mesh* mesh = nullptr);

  // x and y: the residual stream, and what is still to be added to it, from the block before (empty for none) and for the
  // next, whose norm takes the sum in the same step. `saved` (null in inference) is filled for backward.
  void forward(Context& ctx, const Pass& pass, Tensor& x, Tensor& y, BlockSaved* saved) const;
  // dx: in the gradient of the block's output, out that of its input, both with a copy in the dtype of the activations, as
  // norm_backward() gives it. Writes grads, or adds to them.
  void backward(Context& ctx, const Pass& pass, const BlockSaved& saved, Tensor& dx, Tensor& rounded, LayerTensors& grads,
                bool add_grads, float aux_scale) const;

  Index routed_experts() const { return is_moe() ? std::get<MoeConfig>(spec_.feed_forward).routed_experts : 0; }

 private:
  bool is_moe() const { return std::holds_alternative<MoeConfig>(spec_.feed_forward); }
  Tensor norm(Context& ctx, const Tensor& x, const Tensor& weight) const;
  Tensor norm_backward(Context& ctx, const Tensor& dh, const Tensor& x, const Tensor& weight, Tensor& dx,
                       Tensor& grad) const;
  Tensor feed_forward(Context& ctx, const Pass& pass, const ops::AddNorm& in, BlockSaved* saved) const;

  float eps_;
  const LayerSpec& spec_;
  const LayerTensors& w_;
  Index layer_;
  DType dtype_;
  const parallel::Mesh* mesh_;
  std::optional<MoeLayer> moe_;           // a MoE layer, or
  std::optional<SpreadMoeLayer> spread_;  // one with its experts on several ranks
};

}  // namespace dsmoe
