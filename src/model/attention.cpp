#include "model/attention.h"

#include <cmath>
#include <utility>

#include "core/fail.h"
#include "core/timeline.h"
#include "model/linear_layer.h"
#include "model/modules.h"
#include "ops/attention.h"
#include "ops/elementwise.h"

namespace dsmoe {

namespace {

ops::AttentionShape shape_of(const GqaSpec& s) {
  return {s.heads, s.kv_heads, s.head_dim, static_cast<float>(1.0 / std::sqrt(static_cast<double>(s.head_dim)))};
}

struct Qkv {
  Tensor q, k, v;
};

// The projections of h, turned. With a KV cache k and v are all that is in it, else those of h.
Qkv new_tokens(Context& ctx, const GqaSpec& spec, const AttentionWeights& w, const Pass& pass, Index layer,
               const Tensor& h) {
  KvPool* const pool = pass.batch.pool();
  if (pool && !spec.bias) {
    Tensor k = pool->k(layer), v = pool->v(layer);
    Tensor q = ops::project_and_store(ctx, h, {w.q.weight, w.k.weight, w.v.weight}, pass.rope, pass.slices, k, v);
    return {std::move(q), std::move(k), std::move(v)};
  }
  std::vector<Tensor> qkv = linear_forward(ctx, h, {&w.q, &w.k, &w.v}, h.dtype());
  if (pool) {
    Tensor k = pool->k(layer), v = pool->v(layer);
    ops::rotate_and_store(ctx, qkv[0], qkv[1], qkv[2], pass.rope, pass.slices, k, v);
    return {qkv[0], std::move(k), std::move(v)};
  }
  ops::apply_rope(ctx, qkv[0], pass.rope);
  ops::apply_rope(ctx, qkv[1], pass.rope);
  return {qkv[0], qkv[1], qkv[2]};
}

}  // namespace

void register_parameters(const GqaSpec& s, Index width, ParameterRegistry& r) {
  constexpr ParameterTraits kWeight{.group = ParameterGroup::kAttention, .adapter = true};
  constexpr ParameterTraits kBias{.group = ParameterGroup::kAttention, .initial = InitialValue::kZeros, .decay = false};
  const Index query = s.heads * s.head_dim, kv = s.kv_heads * s.head_dim;
  const auto bias = [&](std::string_view role, Index rows, LayerPlace at) {
    if (s.bias) r.add(role, {rows}, kBias, at);
  };
  r.add("attention.q.weight", {query, width}, kWeight, [](LayerTensors& l) -> Tensor& { return l.q.weight; });
  bias("attention.q.bias", query, [](LayerTensors& l) -> Tensor& { return l.q.bias; });
  r.add("attention.k.weight", {kv, width}, kWeight, [](LayerTensors& l) -> Tensor& { return l.k.weight; });
  bias("attention.k.bias", kv, [](LayerTensors& l) -> Tensor& { return l.k.bias; });
  r.add("attention.v.weight", {kv, width}, kWeight, [](LayerTensors& l) -> Tensor& { return l.v.weight; });
  bias("attention.v.bias", kv, [](LayerTensors& l) -> Tensor& { return l.v.bias; });
  r.add("attention.o.weight", {width, query}, kWeight, [](LayerTensors& l) -> Tensor& { return l.o.weight; });
  bias("attention.o.bias", width, [](LayerTensors& l) -> Tensor& { return l.o.bias; });
}

KvLayout kv_layout(const GqaSpec& s) {
  const Index width = s.kv_heads * s.head_dim;
  return {.k_width = width, .v_width = width};
}

Index rotary_width(const GqaSpec& s) { return s.head_dim; }

// The four projections; the scores, and the sum of values.
__int128 multiply_adds(const GqaSpec& s, Index width, Index context) {
  const __int128 query = s.heads * s.head_dim, kv = s.kv_heads * s.head_dim;
  return 2 * width * (query + kv) + 2 * query * context;
}

// q, k, v, out; lse.
Index kept_bytes(const GqaSpec& s, Index, Index element) {
  return element * 2 * (s.heads + s.kv_heads) * s.head_dim + 4 * s.heads;
}

Tensor attention_forward(Context& ctx, const GqaSpec& spec, const AttentionWeights& w, const Pass& pass, Index layer,
                         const Tensor& h, AttentionSaved* saved) {
  mark(ctx, "projections");
  const auto [q_in, k, v] = new_tokens(ctx, spec, w, pass, layer, h);
  // Computed in bf16 where queries and cache both are; else in f32, with keys and values as they are stored.
  const bool narrow = h.dtype() == DType::kBF16 && k.dtype() == DType::kBF16;
  const Tensor q = ops::converted(ctx, q_in, narrow ? DType::kBF16 : DType::kF32);
  Tensor out = ctx.empty(q.dtype(), q.shape()), lse;
  if (saved) lse = ctx.empty(DType::kF32, {spec.heads, h.dim(0)});
  mark(ctx, "attention");
  ops::attention(ctx, shape_of(spec), q, k, v, pass.slices, out, saved ? &lse : nullptr);
  if (saved) *saved = {q, k, v, out, lse};
  mark(ctx, "projections");
  return linear_forward(ctx, ops::converted(ctx, out, h.dtype()), w.o, DType::kF32);
}

Tensor attention_backward(Context& ctx, const GqaSpec& spec, const AttentionWeights& w, const Pass& pass, const Tensor& h,
                          const AttentionSaved& saved, const Tensor& dy, AttentionGrads& grads, bool add_grads) {
  mark(ctx, "projections, backward");
  Tensor dout = ctx.empty(DType::kF32, saved.out.shape());
  linear_backward(ctx, dy, saved.out, w.o, grads.o, add_grads, dout, false);

  Tensor dq = ctx.empty(DType::kF32, saved.q.shape()), dk = ctx.empty(DType::kF32, saved.k.shape());
  Tensor dv = ctx.empty(DType::kF32, saved.v.shape());
  mark(ctx, "attention, backward");
  ops::attention_backward(ctx, shape_of(spec), saved.q, saved.k, saved.v, pass.slices, saved.out, saved.lse,
                          ops::converted(ctx, dout, h.dtype()), dq, dk, dv);
  ops::apply_rope(ctx, dq, pass.rope, /*inverse=*/true);
  ops::apply_rope(ctx, dk, pass.rope, /*inverse=*/true);

  mark(ctx, "projections, backward");
  Tensor dh = ctx.empty(DType::kF32, h.shape());
  linear_backward(ctx, ops::converted(ctx, dq, h.dtype()), h, w.q, grads.q, add_grads, dh, false);
  linear_backward(ctx, ops::converted(ctx, dk, h.dtype()), h, w.k, grads.k, add_grads, dh, true);
  linear_backward(ctx, ops::converted(ctx, dv, h.dtype()), h, w.v, grads.v, add_grads, dh, true);
  return dh;
}

}  // namespace dsmoe
