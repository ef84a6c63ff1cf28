#include "model/block.h"

#include <utility>

#include "model/mlp.h"
#include "ops/elementwise.h"
#include "ops/rms_norm.h"

namespace dsmoe {

Block::Block(const ModelConfig& config, const LayerTensors& weights, Index layer, DType dtype)
    : config_(config), w_(weights), layer_(layer), dtype_(dtype) {
  if (config.is_moe_layer(layer)) moe_.emplace(config.moe(layer), weights.moe());
}

Tensor Block::norm(Context& ctx, const Tensor& x, const Tensor& weight) const {
  Tensor h = ctx.empty(dtype_, x.shape());
  ops::rms_norm(ctx, x, weight, static_cast<float>(config_.rms_norm_eps), h);
  return h;
}

void Block::forward(Context& ctx, const Pass& pass, Tensor& x, BlockSaved* saved) const {
  if (saved) saved->x_in = x.clone();
  pass.prefetch.before_attention(layer_);
  ops::add(ctx,
           attention_forward(ctx, config_, w_, pass.batch, pass.rope, layer_, norm(ctx, x, w_.input_norm),
                             saved ? &saved->attention : nullptr),
           x);
  if (saved) saved->x_mid = x.clone();
  pass.prefetch.before_feed_forward(layer_);
  const Tensor y = feed_forward(ctx, pass, norm(ctx, x, w_.post_attention_norm), saved);
  pass.prefetch.before_next_layer(layer_);
  ops::add(ctx, y, x);
}

Tensor Block::feed_forward(Context& ctx, const Pass& pass, const Tensor& h, BlockSaved* saved) const {
  if (!moe_) {
    if (saved) saved->mlp_input = h;
    return mlp_forward(ctx, w_.experts, h, saved ? &saved->mlp : nullptr);
  }
  MoeForward out = moe_->forward(
      ctx, h,
      {.training = saved != nullptr, .sequence_length = pass.batch.sequence_length(), .overrides = pass.hooks.overrides});
  if (pass.hooks.routing) pass.hooks.routing(layer_, out.routing);
  Tensor y = std::exchange(out.y, Tensor());
  if (saved) saved->moe = std::move(out);
  return y;
}

void Block::backward(Context& ctx, const Pass& pass, const BlockSaved& saved, Tensor& dx, LayerTensors& grads,
                     float aux_scale) const {
  const DType dtype = dtype_;
  const auto eps = static_cast<float>(config_.rms_norm_eps);
  const Tensor dmlp = ops::converted(ctx, dx, dtype);
  MoeGradients moe_grads = grads.moe_gradients();
  const Tensor dh = moe_ ? moe_->backward(ctx, dmlp, saved.moe, moe_grads, {.aux_scale = aux_scale})
                         : mlp_backward(ctx, w_.experts, saved.mlp_input, dmlp, saved.mlp, grads.experts);
  ops::rms_norm_backward(ctx, dh, saved.x_mid, w_.post_attention_norm, eps, dx, grads.post_attention_norm);

  // The normed input is recomputed: it is cheap, and need not be kept.
  const Tensor h = norm(ctx, saved.x_in, w_.input_norm);
  const Tensor dattention = attention_backward(ctx, config_, w_, pass.batch, pass.rope, h, saved.attention,
                                               ops::converted(ctx, dx, dtype), grads);
  ops::rms_norm_backward(ctx, ops::converted(ctx, dattention, dtype), saved.x_in, w_.input_norm, eps, dx, grads.input_norm);
}

}  // namespace dsmoe
