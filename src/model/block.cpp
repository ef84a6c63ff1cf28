#include "model/block.h"

#include "model/mlp.h"
#include "ops/elementwise.h"
#include "ops/rms_norm.h"

namespace dsmoe {

Block::Block(const ModelConfig& config, const LayerTensors<MoeWeights>& weights, Index layer, DType dtype)
    : config_(config), w_(weights), layer_(layer), dtype_(dtype) {
  if (config.is_moe_layer(layer)) moe_.emplace(config.moe(layer), weights.moe);
}

Tensor Block::norm(Context& ctx, const Tensor& x, const Tensor& weight) const {
  Tensor h(dtype_, x.shape());
  ops::rms_norm(ctx, x, weight, static_cast<float>(config_.rms_norm_eps), h);
  return h;
}

void Block::forward(Context& ctx, const ops::RopeTable& rope, Tensor& x, KvCache& cache, const RoutingProbe& probe) const {
  const auto layer = static_cast<std::size_t>(layer_);
  ops::add(ctx, attention_forward(ctx, config_, w_, rope, norm(ctx, x, w_.input_norm), cache, layer), x);
  const Tensor h = norm(ctx, x, w_.post_attention_norm);
  if (moe_) {
    const MoeForward out = moe_->forward(ctx, h);
    if (probe) probe(layer_, out.routing);
    ops::add(ctx, out.y, x);
  } else {
    ops::add(ctx, mlp_forward(ctx, w_.mlp, h, nullptr), x);
  }
}

void Block::train(Context& ctx, const ops::RopeTable& rope, Tensor& x, Index sequence_length, BlockSaved& saved) const {
  saved.x_in = x.clone();
  ops::add(ctx, attention_train(ctx, config_, w_, rope, norm(ctx, x, w_.input_norm), sequence_length, saved.attention), x);
  saved.x_mid = x.clone();
  const Tensor h = norm(ctx, x, w_.post_attention_norm);
  if (moe_) {
    saved.moe = moe_->forward(ctx, h, {.training = true, .sequence_length = sequence_length});
    ops::add(ctx, saved.moe.y, x);
    saved.moe.y = Tensor();
  } else {
    saved.mlp_input = h;
    ops::add(ctx, mlp_forward(ctx, w_.mlp, h, &saved.mlp), x);
  }
}

void Block::backward(Context& ctx, const ops::RopeTable& rope, Index sequence_length, const BlockSaved& saved, Tensor& dx,
                     LayerTensors<MoeGradients>& grads, float aux_scale) const {
  const DType dtype = dtype_;
  const auto eps = static_cast<float>(config_.rms_norm_eps);
  const Tensor dmlp = dx.to(dtype);
  const Tensor dh = moe_ ? moe_->backward(ctx, dmlp, saved.moe, grads.moe, aux_scale)
                         : mlp_backward(ctx, w_.mlp, saved.mlp_input, dmlp, saved.mlp, grads.mlp).to(dtype);
  ops::rms_norm_backward(ctx, dh, saved.x_mid, w_.post_attention_norm, eps, dx, grads.post_attention_norm);

  // The normed input is recomputed: it is cheap, and need not be kept.
  const Tensor h = norm(ctx, saved.x_in, w_.input_norm);
  const Tensor dattention =
      attention_backward(ctx, config_, w_, rope, h, sequence_length, saved.attention, dx.to(dtype), grads).to(dtype);
  ops::rms_norm_backward(ctx, dattention, saved.x_in, w_.input_norm, eps, dx, grads.input_norm);
}

}  // namespace dsmoe
