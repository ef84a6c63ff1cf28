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
KeptBytes kept_bytes(const LayerSpec& spec, Index width, Index element) {
  const auto list = [&](const auto& s) { return kept_bytes(s, width, element); };
  KeptBytes bytes = {4 * width, 4 * width};
  for (const KeptBytes& more : {of_attention(spec, list), of_feed_forward(spec, list)})
    bytes.insert(bytes.end(), more.begin(), more.end());
  return bytes;
}

Tensor norm_backward(Context& ctx, const Tensor& dh, const Tensor& x, const Tensor& weight, float eps, DType dtype,
                     Tensor& dx, Tensor& grad) {
  Tensor rounded = dtype == DType::kF32 ? dx : ctx.empty(dtype, dx.shape());
  ops::rms_norm_backward(ctx, dh, x, weight, eps, dx, grad, dtype == DType::kF32 ? nullptr : &rounded);
  return rounded;
}

Block::Block(const ModelSpec& spec, const LayerTensors& weights, Index layer, DType dtype, const parallel::Mesh* mesh)
    : eps_(static_cast<float>(spec.norm_eps)),
      spec_(spec.layers[static_cast<std::size_t>(layer)]),
      w_(weights),
      layer_(layer),
      dtype_(dtype),
      mesh_(mesh) {
  const auto* const moe = std::get_if<MoeConfig>(&spec_.feed_forward);
  if (moe && mesh && mesh->spreads_experts())
    spread_.emplace(*moe, weights.moe(), *mesh);
  else if (moe)
    moe_.emplace(*moe, weights.moe());
}

Tensor Block::norm(Context& ctx, const Tensor& x, const Tensor& weight) const {
  Tensor h = ctx.empty(dtype_, x.shape());
  ops::rms_norm(ctx, x, weight, eps_, h);
  return h;
}

void Block::forward(Context& ctx, const Pass& pass, Tensor& x, Tensor& y, BlockSaved* saved) const {
  pass.prefetch.before_attention(layer_);
  // Both halves begin with their norm, of the sum of what is there so far.
  const bool keep = saved != nullptr;
  const Tensor attended = of_attention(spec_, [&](const auto& spec) {
    const ops::AddNorm in{y, x, w_.input_norm, eps_, dtype_, keep};
    return attention_forward(ctx, spec, w_, pass, layer_, in, saved ? &saved->attention : nullptr);
  });
  if (saved) saved->x_in = x;
  pass.prefetch.before_feed_forward(layer_);
  y = feed_forward(ctx, pass, {attended, x, w_.post_attention_norm, eps_, dtype_, keep}, saved);
  if (saved) saved->x_mid = x;
  pass.prefetch.before_next_layer(layer_);
}

Tensor Block::feed_forward(Context& ctx, const Pass& pass, const ops::AddNorm& in, BlockSaved* saved) const {
  if (moe_ && !saved && !pass.hooks.overrides) {
    mark(ctx, "experts");
    const MoeForward out = moe_->forward(ctx, in, {});
    if (pass.hooks.routing) pass.hooks.routing(layer_, fetched(ctx, out.routing));
    return out.y;
  }
  mark(ctx, "norms and sums");
  const Tensor h = ops::add_rms_norm(ctx, in);
  mark(ctx, is_moe() ? "experts" : "dense layers");
  if (!is_moe()) {
    if (saved) saved->mlp_input = h;
    return mlp_forward(ctx, w_.experts, h, saved ? &saved->mlp : nullptr);
  }
  const MoeForwardOptions options{.training = saved != nullptr,
                                  .keep_experts = saved == nullptr || saved->keeps_experts,
                                  .sequence_length = pass.batch.sequence_length(),
                                  .overrides = pass.hooks.overrides,
                                  .others = saved && mesh_ ? mesh_->world.get() : nullptr};
  MoeForward out;
  if (spread_) {
    SpreadMoeLayer::Forward forward = spread_->forward(ctx, h, options);
    out = std::move(forward.out);
    if (saved) saved->spread = std::move(forward.saved);
  } else {
    out = moe_->forward(ctx, h, options);
  }
  if (pass.hooks.routing) pass.hooks.routing(layer_, fetched(ctx, out.routing));
  Tensor y = std::exchange(out.y, Tensor());
  if (saved) saved->moe = std::move(out);
  return y;
}

Tensor Block::norm_backward(Context& ctx, const Tensor& dh, const Tensor& x, const Tensor& weight, Tensor& dx,
                            Tensor& grad) const {
  return dsmoe::norm_backward(ctx, dh, x, weight, eps_, dtype_, dx, grad);
}

void Block::backward(Context& ctx, const Pass& pass, const BlockSaved& saved, Tensor& dx, Tensor& rounded,
                     LayerTensors& grads, bool add_grads, float aux_scale) const {
  if (!add_grads)
    for (Tensor* t : {&grads.input_norm, &grads.post_attention_norm}) ctx.fill_zero(*t);
  mark(ctx, is_moe() ? "experts, backward" : "dense layers, backward");
  MoeGradients moe_grads = grads.moe_gradients();
  MoeBackwardOptions options{.aux_scale = aux_scale, .accumulate = add_grads};
  if (moe_ && !saved.keeps_experts) options.x = norm(ctx, saved.x_mid, w_.post_attention_norm);
  const Tensor dh = spread_ ? spread_->backward(ctx, rounded, *saved.spread, moe_grads, options)
                    : moe_  ? moe_->backward(ctx, rounded, saved.moe, moe_grads, options)
                            : mlp_backward(ctx, w_.experts, saved.mlp_input, rounded, saved.mlp, grads.experts, add_grads);
  mark(ctx, "norms and sums, backward");
  rounded = norm_backward(ctx, dh, saved.x_mid, w_.post_attention_norm, dx, grads.post_attention_norm);

  // The normed input is recomputed: it is cheap, and need not be kept.
  const Tensor h = norm(ctx, saved.x_in, w_.input_norm);
  const Tensor dattention = of_attention(spec_, [&](const auto& spec) {
    return attention_backward(ctx, spec, w_, pass, h, saved.attention, rounded, grads, add_grads);
  });
  mark(ctx, "norms and sums, backward");
  rounded = norm_backward(ctx, dattention, saved.x_in, w_.input_norm, dx, grads.input_norm);
}

}  // namespace dsmoe
