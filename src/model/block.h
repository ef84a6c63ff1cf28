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
#include "ops/experts.h"

namespace dsmoe {

// What backward needs of a block.
struct BlockSaved {
  Tensor x_in, x_mid;  // the residual stream before attention and before the MLP
  AttentionSaved attention;
  Tensor mlp_input;  // [T, D] normed; dense layers only (a MoE layer keeps its own)
  ops::ExpertActivations mlp;
  MoeForward moe;  // with the balance losses
};

class Block {
 public:
  // `dtype`: that of the activations.
  Block(const ModelSpec& spec, const LayerTensors& weights, Index layer, DType dtype);

  // x and y: the residual stream, and what is still to be added to it, from the block before (empty for none) and for the
  // next, whose norm takes the sum in the same step. `saved` (null in inference) is filled for backward.
  void forward(Context& ctx, const Pass& pass, Tensor& x, Tensor& y, BlockSaved* saved) const;
  // dx: in the gradient of the block's output, out that of its input. Writes grads, or adds to them.
  void backward(Context& ctx, const Pass& pass, const BlockSaved& saved, Tensor& dx, LayerTensors& grads, bool add_grads,
                float aux_scale) const;

  Index routed_experts() const { return moe_ ? moe_->config().routed_experts : 0; }

 private:
  Tensor norm(Context& ctx, const Tensor& x, const Tensor& weight) const;
  Tensor add_norm(Context& ctx, const Tensor& y, Tensor& x, const Tensor& weight) const;  // of x += y
  Tensor feed_forward(Context& ctx, const Pass& pass, const Tensor& h, BlockSaved* saved) const;

  float eps_;
  const LayerSpec& spec_;
  const LayerTensors& w_;
  Index layer_;
  DType dtype_;
  std::optional<MoeLayer> moe_;
};

}  // namespace dsmoe
