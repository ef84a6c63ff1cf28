#include "model/block.h"

#include <utility>

#include "core/timeline.h"
#include "model/mlp.h"
#include "model/modules.h"
#include "ops/elementwise.h"
#include "ops/rms_norm.h"

namespace dsmoe {

namespace {

// Calls one of the overloads of modules.h for what the layer has.
template <class Fn>
auto of_attention(const LayerSpec& spec, Fn fn) {
  return std::visit(fn, spec.attention);
}
template <class Fn>
auto of_feed_forward(const LayerSpec& spec, Fn fn) {
  return std::visit(fn, spec.feed_forward);
}

// Those who listen look at it on this machine.
Routing fetched(Context& ctx, const Routing& r) {
  return {ctx.fetch(r.experts), ctx.fetch(r.weights), ctx.fetch(r.scores)};
}

}  // namespace

void register_parameters(const LayerSpec& spec, Index width, ParameterRegistry& r) {
  of_attention(spec, [&](const auto& s) { register_parameters(s, width, r); });
  of_feed_forward(spec, [&](const auto& s) { register_parameters(s, width, r); });
  constexpr ParameterTraits kNorm{.group = ParameterGroup::kNorm, .initial = InitialValue::kOnes, .decay = false};
  r.add("attention_norm.weight", {width}, kNorm, [](LayerTensors& l) -> Tensor& { return l.input_norm; });
  r.add("feed_forward_norm.weight", {width}, kNorm, [](LayerTensors& l) -> Tensor& { return l.post_attention_norm; });
}

KvLayout kv_layout(const LayerSpec& spec) {
  return of_attention(spec, [](const auto& s) { return kv_layout(s); });
}

Index rotary_width(const LayerSpec& spec) {
  return of_attention(spec, [](const auto& s) { return rotary_width(s); });
}

ExpertsShape experts_shape(const LayerSpec& spec) {
  return of_feed_forward(spec, [](const auto& s) { return experts_shape(s); });
}

__int128 multiply_adds(const LayerSpec& spec, Index width, Index context) {
  const auto count = [&](const auto& s) { return multiply_adds(s, width, context); };
  return of_attention(spec, count) + of_feed_forward(spec, count);
}

// Besides what the modules keep, x_in and x_mid.
Index kept_bytes(const LayerSpec& spec, Index width, Index element) {
  const auto count = [&](const auto& s) { return kept_bytes(s, width, element); };
  return 2 * 4 * width + of_attention(spec, count) + of_feed_forward(spec, count);
}

Block::Block(const ModelSpec& spec, const LayerTensors& weights, Index layer, DType dtype)
    : eps_(static_cast<float>(spec.norm_eps)),
      spec_(spec.layers[static_cast<std::size_t>(layer)]),
      w_(weights),
      layer_(layer),
      dtype_(dtype) {
  if (const auto* const moe = std::get_if<MoeConfig>(&spec_.feed_forward)) moe_.emplace(*moe, weights.moe());
}

Tensor Block::norm(Context& ctx, const Tensor& x, const Tensor& weight) const {
  Tensor h = ctx.empty(dtype_, x.shape());
  ops::rms_norm(ctx, x, weight, eps_, h);
  return h;
}

Tensor Block::add_norm(Context& ctx, const Tensor& y, Tensor& x, const Tensor& weight) const {
  if (y.numel() == 0) return norm(ctx, x, weight);
  Tensor h = ctx.empty(dtype_, x.shape());
  ops::add_rms_norm(ctx, y, x, weight, eps_, h);
  return h;
}

void Block::forward(Context& ctx, const Pass& pass, Tensor& x, Tensor& y, BlockSaved* saved) const {
  pass.prefetch.before_attention(layer_);
  mark(ctx, "norms and sums");
  const Tensor h = add_norm(ctx, y, x, w_.input_norm);
  if (saved) saved->x_in = x.clone();
  const Tensor attended = of_attention(spec_, [&](const auto& spec) {
    return attention_forward(ctx, spec, w_, pass, layer_, h, saved ? &saved->attention : nullptr);
  });
  mark(ctx, "norms and sums");
  const Tensor h_mid = add_norm(ctx, attended, x, w_.post_attention_norm);
  if (saved) saved->x_mid = x.clone();
  pass.prefetch.before_feed_forward(layer_);
  mark(ctx, moe_ ? "experts" : "dense layers");
  y = feed_forward(ctx, pass, h_mid, saved);
  pass.prefetch.before_next_layer(layer_);
}

Tensor Block::feed_forward(Context& ctx, const Pass& pass, const Tensor& h, BlockSaved* saved) const {
  if (!moe_) {
    if (saved) saved->mlp_input = h;
    return mlp_forward(ctx, w_.experts, h, saved ? &saved->mlp : nullptr);
  }
  MoeForward out = moe_->forward(
      ctx, h,
      {.training = saved != nullptr, .sequence_length = pass.batch.sequence_length(), .overrides = pass.hooks.overrides});
  if (pass.hooks.routing) pass.hooks.routing(layer_, fetched(ctx, out.routing));
  Tensor y = std::exchange(out.y, Tensor());
  if (saved) saved->moe = std::move(out);
  return y;
}

void Block::backward(Context& ctx, const Pass& pass, const BlockSaved& saved, Tensor& dx, LayerTensors& grads,
                     bool add_grads, float aux_scale) const {
  if (!add_grads)
    for (Tensor* t : {&grads.input_norm, &grads.post_attention_norm}) ctx.fill_zero(*t);
  const DType dtype = dtype_;
  mark(ctx, "norms and sums, backward");
  const Tensor dmlp = ops::converted(ctx, dx, dtype);
  mark(ctx, moe_ ? "experts, backward" : "dense layers, backward");
  MoeGradients moe_grads = grads.moe_gradients();
  const Tensor dh = moe_
                        ? moe_->backward(ctx, dmlp, saved.moe, moe_grads, {.aux_scale = aux_scale, .accumulate = add_grads})
                        : mlp_backward(ctx, w_.experts, saved.mlp_input, dmlp, saved.mlp, grads.experts, add_grads);
  mark(ctx, "norms and sums, backward");
  ops::rms_norm_backward(ctx, dh, saved.x_mid, w_.post_attention_norm, eps_, dx, grads.post_attention_norm);

  // The normed input is recomputed: it is cheap, and need not be kept.
  const Tensor h = norm(ctx, saved.x_in, w_.input_norm);
  const Tensor dy = ops::converted(ctx, dx, dtype);
  const Tensor dattention = of_attention(spec_, [&](const auto& spec) {
    return attention_backward(ctx, spec, w_, pass, h, saved.attention, dy, grads, add_grads);
  });
  mark(ctx, "norms and sums, backward");
  ops::rms_norm_backward(ctx, ops::converted(ctx, dattention, dtype), saved.x_in, w_.input_norm, eps_, dx,
                         grads.input_norm);
}

}  // namespace dsmoe
