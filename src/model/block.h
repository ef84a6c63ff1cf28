// One decoder block: x += attention(norm(x)); x += mlp(norm(x)), the second a dense or a MoE layer.
// The residual stream x is f32 [T, D], whatever the dtype of the weights.
#pragma once

#include <functional>
#include <initializer_list>
#include <optional>

#include "dsmoe/context.h"
#include "dsmoe/moe.h"
#include "model/attention.h"
#include "model/weights.h"
#include "ops/experts.h"

namespace dsmoe {

// Hears what each MoE layer chose; empty when nobody asks.
using RoutingProbe = std::function<void(Index layer, const Routing& routing)>;

struct BlockSaved {
  Tensor x_in, x_mid;  // the residual stream before attention and before the MLP
  AttentionSaved attention;
  Tensor mlp_input;  // [T, D] normed; dense layers only (a MoE layer keeps its own)
  ops::ExpertActivations mlp;
  MoeForward moe;
};

class Block {
 public:
  // `dtype`: that of the activations.
  Block(const ModelConfig& config, const LayerTensors& weights, Index layer, DType dtype);

  // `then` are weights that are read after this block: hints for threads that wait.
  void forward(Context& ctx, const ops::RopeTable& rope, Tensor& x, KvCache& cache, const RoutingProbe& probe,
               const RoutingOverrides* overrides, std::initializer_list<const Tensor*> then) const;

  // Over sequences of S tokens; the balance losses are in saved.moe.losses.
  void train(Context& ctx, const ops::RopeTable& rope, Tensor& x, Index sequence_length, BlockSaved& saved) const;
  // dx: in the gradient of the block's output, out that of its input.
  void backward(Context& ctx, const ops::RopeTable& rope, Index sequence_length, const BlockSaved& saved, Tensor& dx,
                LayerTensors& grads, float aux_scale) const;

 private:
  Tensor norm(Context& ctx, const Tensor& x, const Tensor& weight) const;

  const ModelConfig& config_;
  const LayerTensors& w_;
  Index layer_;
  DType dtype_;
  std::optional<MoeLayer> moe_;
};

}  // namespace dsmoe
