#include "model/attention.h"

#include <cmath>
#include <utility>

#include "core/fail.h"
#include "core/timeline.h"
#include "model/linear_layer.h"
#include "model/modules.h"
#include "ops/attention.h"
#include "ops/elementwise.h"
#include "ops/rms_norm.h"

namespace dsmoe {

namespace {

ops::AttentionShape shape_of(const GqaSpec& s) {
  return {s.heads, s.kv_heads, s.head_dim, static_cast<float>(1.0 / std::sqrt(static_cast<double>(s.head_dim)))};
}

struct Qkv {
  Tensor q, k, v;
  Tensor q_unnormed = {}, k_unnormed = {};  // f32; where they are normed, turned if that comes first
};

bool has_norms(const GqaSpec& s) { return s.qk_norm != QkNorm::kNone; }
bool turned_last(const GqaSpec& s) { return !has_norms(s) || !s.norm_turned; }

// x [T, heads * head_dim] as the rows that are normed.
Tensor norm_rows(const GqaSpec& s, const Tensor& x) {
  return s.qk_norm == QkNorm::kWidth ? x : x.reshape({x.numel() / s.head_dim, s.head_dim});
}

Tensor normed(Context& ctx, const GqaSpec& s, const Tensor& x, const Tensor& weight, DType dtype) {
  Tensor y = ctx.empty(dtype, x.shape()), rows = norm_rows(s, y);
  ops::rms_norm(ctx, norm_rows(s, x), weight, static_cast<float>(s.norm_eps), rows);
  return y;
}

// The gradient of the projection, from that of the norm's output.
Tensor normed_backward(Context& ctx, const GqaSpec& s, const Tensor& dy, const Tensor& x, const Tensor& weight,
                       Tensor& grad, bool add_grad) {
  Tensor dx = ctx.zeros(DType::kF32, x.shape()), rows = norm_rows(s, dx);
  if (!add_grad) ctx.fill_zero(grad);
  ops::rms_norm_backward(ctx, norm_rows(s, dy), norm_rows(s, x), weight, static_cast<float>(s.norm_eps), rows, grad);
  return ops::converted(ctx, dx, dy.dtype());
}

// Rotary positions, then norms: both in f32.
Qkv turned_tokens(Context& ctx, const GqaSpec& spec, const AttentionWeights& w, const Pass& pass, Index layer,
                  const Tensor& h) {
  std::vector<Tensor> qkv = linear_forward(ctx, h, {&w.q, &w.k, &w.v}, DType::kF32);
  for (const std::size_t i : {0, 1}) ops::apply_rope(ctx, qkv[i], pass.rope);
  Tensor q = normed(ctx, spec, qkv[0], w.q_norm, h.dtype()), k = normed(ctx, spec, qkv[1], w.k_norm, h.dtype());
  Tensor v = ops::converted(ctx, qkv[2], h.dtype());
  if (KvPool* const pool = pass.batch.pool()) {
    Tensor keys = pool->k(layer), values = pool->v(layer);
    ops::store_rows(ctx, k, pass.slices, keys);
    ops::store_rows(ctx, v, pass.slices, values);
    return {std::move(q), std::move(keys), std::move(values)};
  }
  return {std::move(q), std::move(k), std::move(v), qkv[0], qkv[1]};
}

// The norms are given f32.
Qkv normed_tokens(Context& ctx, const GqaSpec& spec, const AttentionWeights& w, const Pass& pass, Index layer,
                  const Tensor& h) {
  std::vector<Tensor> qkv = linear_forward(ctx, h, {&w.q, &w.k, &w.v}, DType::kF32);
  Tensor q = normed(ctx, spec, qkv[0], w.q_norm, h.dtype()), k = normed(ctx, spec, qkv[1], w.k_norm, h.dtype());
  Tensor v = ops::converted(ctx, qkv[2], h.dtype());
  if (KvPool* const pool = pass.batch.pool()) {
    Tensor keys = pool->k(layer), values = pool->v(layer);
    ops::rotate_and_store(ctx, q, k, v, pass.rope, pass.slices, keys, values);
    return {std::move(q), std::move(keys), std::move(values)};
  }
  for (Tensor* const t : {&q, &k}) ops::apply_rope(ctx, *t, pass.rope);
  return {std::move(q), std::move(k), std::move(v), qkv[0], qkv[1]};
}

// The projections of x, normed and turned. With a KV cache k and v are all that is in it, else those of x.
Qkv new_tokens(Context& ctx, const GqaSpec& spec, const AttentionWeights& w, const Pass& pass, Index layer,
               const ops::AddNorm& x) {
  KvPool* const pool = pass.batch.pool();
  if (pool && !spec.bias && !has_norms(spec)) {
    Tensor k = pool->k(layer), v = pool->v(layer);
    Tensor q = ops::project_and_store(ctx, x, {w.q.weight, w.k.weight, w.v.weight}, pass.rope, pass.slices, k, v);
    return {std::move(q), std::move(k), std::move(v)};
  }
  mark(ctx, "norms and sums");
  const Tensor h = ops::add_rms_norm(ctx, x);
  mark(ctx, "projections");
  if (has_norms(spec))
    return turned_last(spec) ? normed_tokens(ctx, spec, w, pass, layer, h) : turned_tokens(ctx, spec, w, pass, layer, h);
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
  constexpr ParameterTraits kNorm{.group = ParameterGroup::kNorm, .initial = InitialValue::kOnes, .decay = false};
  const auto turned = [&](ParameterTraits traits) {
    traits.head_dim = s.head_dim, traits.rotary = s.rotary > 0 ? s.rotary : s.head_dim;
    return traits;
  };
  const Index query = s.heads * s.head_dim, kv = s.kv_heads * s.head_dim;
  const auto bias = [&](std::string_view role, Index rows, const ParameterTraits& traits, LayerPlace at) {
    if (s.bias) r.add(role, {rows}, traits, at);
  };
  r.add("attention.q.weight", {query, width}, turned(kWeight), [](LayerTensors& l) -> Tensor& { return l.q.weight; });
  bias("attention.q.bias", query, turned(kBias), [](LayerTensors& l) -> Tensor& { return l.q.bias; });
  r.add("attention.k.weight", {kv, width}, turned(kWeight), [](LayerTensors& l) -> Tensor& { return l.k.weight; });
  bias("attention.k.bias", kv, turned(kBias), [](LayerTensors& l) -> Tensor& { return l.k.bias; });
  r.add("attention.v.weight", {kv, width}, kWeight, [](LayerTensors& l) -> Tensor& { return l.v.weight; });
  bias("attention.v.bias", kv, kBias, [](LayerTensors& l) -> Tensor& { return l.v.bias; });
  r.add("attention.o.weight", {width, query}, kWeight, [](LayerTensors& l) -> Tensor& { return l.o.weight; });
  if (s.output_bias) r.add("attention.o.bias", {width}, kBias, [](LayerTensors& l) -> Tensor& { return l.o.bias; });
  if (!has_norms(s)) return;
  const bool whole = s.qk_norm == QkNorm::kWidth;
  r.add("attention.q_norm.weight", {whole ? query : s.head_dim}, turned(kNorm),
        [](LayerTensors& l) -> Tensor& { return l.q_norm; });
  r.add("attention.k_norm.weight", {whole ? kv : s.head_dim}, turned(kNorm),
        [](LayerTensors& l) -> Tensor& { return l.k_norm; });
}

KvLayout kv_layout(const GqaSpec& s) {
  const Index width = s.kv_heads * s.head_dim;
  return {.k_width = width, .v_width = width, .head = s.head_dim};
}

Index rotary_width(const GqaSpec& s) { return s.head_dim; }

// The four projections; the scores, and the sum of values.
__int128 multiply_adds(const GqaSpec& s, Index width, Index context) {
  const __int128 query = s.heads * s.head_dim, kv = s.kv_heads * s.head_dim;
  return 2 * width * (query + kv) + 2 * query * context;
}

// q, k, v, out; lse; q and k before their norms.
KeptBytes kept_bytes(const GqaSpec& s, Index, Index element) {
  const Index query = s.heads * s.head_dim, kv = s.kv_heads * s.head_dim;
  KeptBytes bytes = {element * query, element * kv, element * kv, element * query, 4 * s.heads};
  if (has_norms(s)) bytes.insert(bytes.end(), {4 * query, 4 * kv});
  return bytes;
}

Tensor attention_forward(Context& ctx, const GqaSpec& spec, const AttentionWeights& w, const Pass& pass, Index layer,
                         const ops::AddNorm& x, AttentionSaved* saved) {
  mark(ctx, "projections");
  const auto [q_in, k, v, q_unnormed, k_unnormed] = new_tokens(ctx, spec, w, pass, layer, x);
  // Computed in bf16 where queries and cache both are, or the cache is q8_0 on a GPU; else in f32, with keys and values as
  // they are stored.
  const bool narrow =
      x.dtype == DType::kBF16 && (k.dtype() == DType::kBF16 || (k.dtype() == DType::kQ8_0 && k.device() == Device::kCuda));
  const Tensor q = ops::converted(ctx, q_in, narrow ? DType::kBF16 : DType::kF32);
  Tensor out = ctx.empty(q.dtype(), q.shape()), lse;
  if (saved) lse = ctx.empty(DType::kF32, {spec.heads, q.dim(0)});
  mark(ctx, "attention");
  ops::attention(ctx, shape_of(spec), q, k, v, pass.slices, out, saved ? &lse : nullptr);
  if (saved) *saved = {q, k, v, out, lse, q_unnormed, k_unnormed};
  mark(ctx, "projections");
  return linear_forward(ctx, ops::converted(ctx, out, x.dtype), w.o, DType::kF32);
}

Tensor attention_backward(Context& ctx, const GqaSpec& spec, const AttentionWeights& w, const Pass& pass, const Tensor& h,
                          const AttentionSaved& saved, const Tensor& dy, AttentionGrads& grads, bool add_grads) {
  mark(ctx, "projections, backward");
  Tensor dout = ctx.empty(h.dtype(), saved.out.shape());
  linear_backward(ctx, {{dy, w.o, grads.o}}, saved.out, add_grads, dout);

  Tensor dq = ctx.empty(h.dtype(), saved.q.shape()), dk = ctx.empty(h.dtype(), saved.k.shape());
  Tensor dv = ctx.empty(h.dtype(), saved.v.shape());
  mark(ctx, "attention, backward");
  ops::attention_backward(ctx, shape_of(spec), saved.q, saved.k, saved.v, pass.slices, saved.out, saved.lse, dout, dq, dk,
                          dv, turned_last(spec) ? &pass.rope : nullptr);

  mark(ctx, "projections, backward");
  if (has_norms(spec)) {
    dq = normed_backward(ctx, spec, dq, saved.q_unnormed, w.q_norm, grads.q_norm, add_grads);
    dk = normed_backward(ctx, spec, dk, saved.k_unnormed, w.k_norm, grads.k_norm, add_grads);
    if (!turned_last(spec))
      for (Tensor* const t : {&dq, &dk}) ops::apply_rope(ctx, *t, pass.rope, /*inverse=*/true);
  }
  Tensor dh = ctx.empty(h.dtype(), h.shape());
  linear_backward(ctx, {{dq, w.q, grads.q}, {dk, w.k, grads.k}, {dv, w.v, grads.v}}, h, add_grads, dh);
  return dh;
}

}  // namespace dsmoe
