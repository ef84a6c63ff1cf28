// Multi-head latent attention (MLA) in its absorbed form, for prompts, decoding and training alike: a head's query is taken
// through its part of kv_b to the latent, attends to what the cache has of a token, [latent | rope], as one key and value
// that all heads share, and what comes back is taken through the values' part of kv_b. docs/design/latent-attention.md
#include <utility>

#include "core/timeline.h"
#include "model/attention.h"
#include "model/linear_layer.h"
#include "model/modules.h"
#include "ops/attention.h"
#include "ops/elementwise.h"
#include "ops/heads.h"
#include "ops/linear.h"
#include "ops/rms_norm.h"

namespace dsmoe {

namespace {

using ops::HeadNumbers;
using ops::HeadRows;
using ops::Part;

// Values are the first numbers of the keys. The op's results are as wide as keys; what is there beside the latent is not
// read.
ops::AttentionShape shape_of(const MlaSpec& s) { return {s.heads, 1, s.cached(), static_cast<float>(s.scale), s.kv_rank}; }

// Parts of a head's query, of the same over the latent, of kv_b's rows; and of one row [latent | rope].
struct Parts {
  Part query_nope, query_rope, latent, latent_rope, keys, values, row_latent, row_rope;

  explicit Parts(const MlaSpec& s)
      : query_nope{s.heads, 0, s.nope},
        query_rope{s.heads, s.nope, s.rope},
        latent{s.heads, 0, s.kv_rank},
        latent_rope{s.heads, s.kv_rank, s.rope},
        keys{s.heads, 0, s.nope},
        values{s.heads, s.nope, s.value},
        row_latent{1, 0, s.kv_rank},
        row_rope{1, s.kv_rank, s.rope} {}
};

// All of every head.
HeadNumbers whole(const Tensor& x, Index heads = 1) { return {x, {heads, 0, x.dim(1) / heads}}; }

Tensor part_of(Context& ctx, const Tensor& x, const Part& part, DType dtype) {
  Tensor out = ctx.empty(dtype, {x.dim(0), part.heads * part.width});
  ops::copy_heads(ctx, {x, part}, whole(out, part.heads));
  return out;
}

Tensor normed(Context& ctx, const MlaSpec& s, const Tensor& x, const Tensor& weight, DType dtype) {
  Tensor y = ctx.empty(dtype, x.shape());
  ops::rms_norm(ctx, x, weight, static_cast<float>(s.norm_eps), y);
  return y;
}

Tensor normed_backward(Context& ctx, const MlaSpec& s, const Tensor& dy, const Tensor& x, const Tensor& weight,
                       Tensor& grad, bool add_grad) {
  Tensor dx = ctx.zeros(DType::kF32, x.shape());
  if (!add_grad) ctx.fill_zero(grad);
  ops::rms_norm_backward(ctx, dy, x, weight, static_cast<float>(s.norm_eps), dx, grad);
  return ops::converted(ctx, dx, dy.dtype());
}

// A part of x, turned as `dtype`, in its place in `to`.
void turn_part(Context& ctx, const Tensor& x, const Part& from, const Pass& pass, DType dtype, Tensor& to, const Part& at,
               bool backward = false) {
  Tensor rope = part_of(ctx, x, from, dtype);
  ops::apply_rope(ctx, rope, pass.rope, backward);
  ops::copy_heads(ctx, whole(rope, from.heads), {to, at});
}

// What a token itself is projected to.
struct Projected {
  Tensor query;   // [T, H * (nope + rope)]; f32 [T, q_rank] where there is q_a
  Tensor latent;  // f32 [T, kv_rank + rope]
};

Projected projected(Context& ctx, const MlaSpec& s, const AttentionWeights& w, const ops::AddNorm& x) {
  const Index rows = x.x.dim(0);
  const bool narrow = s.q_rank > 0;
  Projected p{narrow ? ctx.empty(DType::kF32, {rows, s.q_rank}) : ctx.empty(x.dtype, {rows, s.heads * s.query()}),
              ctx.empty(DType::kF32, {rows, s.cached()})};
  const ops::Projection both[] = {{narrow ? &w.q_a.weight : &w.q.weight, &p.query}, {&w.kv_a.weight, &p.latent}};
  ops::linear(ctx, x, both);
  return p;
}

struct Queries {
  Tensor absorbed;   // [T, H * (kv_rank + rope)]
  Tensor projected;  // [T, H * (nope + rope)]
  Tensor unnormed;   // f32 [T, q_rank]; empty where the token itself is projected
};

// Without the turned parts. absorbed: the dtype of that; parts of kv_b give any.
Queries queries_of(Context& ctx, const MlaSpec& s, const AttentionWeights& w, const Tensor& query, DType dtype,
                   DType absorbed) {
  const Parts parts(s);
  Queries q;
  if (s.q_rank > 0) {
    q.unnormed = query;
    q.projected = linear_forward(ctx, normed(ctx, s, query, w.q_a_norm, dtype), w.q, dtype);
  } else {
    q.projected = query;
  }
  q.absorbed = ctx.empty(absorbed, {query.dim(0), s.heads * s.cached()});
  const HeadNumbers from{q.projected, parts.query_nope}, to{q.absorbed, parts.latent};
  if (w.kv_b.in_parts())
    ops::head_linear(ctx, from, {w.kv_b.keys, {s.heads, 0, s.kv_rank}}, to);
  else
    ops::head_linear_backward_input(ctx, from, {w.kv_b.weight, parts.keys}, to);
  return q;
}

struct Latents {
  Tensor rows;      // [T, kv_rank + rope], as the cache has them
  Tensor unnormed;  // f32 [T, kv_rank]
};

Latents latents_of(Context& ctx, const MlaSpec& s, const AttentionWeights& w, const Pass& pass, const Tensor& projected,
                   DType dtype) {
  const Parts parts(s);
  Latents l{ctx.empty(dtype, projected.shape()), part_of(ctx, projected, parts.row_latent, DType::kF32)};
  ops::copy_heads(ctx, whole(normed(ctx, s, l.unnormed, w.kv_a_norm, dtype)), {l.rows, parts.row_latent});
  turn_part(ctx, projected, parts.row_rope, pass, dtype, l.rows, parts.row_rope);
  return l;
}

// What attention computes in. As in the other attention (attention.cpp); and in bf16 over a cache of bf16 where that is
// faster, whatever the rest is: 16 heads and more of 576 numbers are worth it, and queries lose no more than keys did.
DType attention_dtype(const Context& ctx, DType rest, DType keys) {
  if (keys == DType::kBF16) return rest == DType::kBF16 || ops::prefers_bf16(ctx) ? DType::kBF16 : DType::kF32;
  return rest == DType::kBF16 && keys == DType::kQ8_0 && ctx.device() == Device::kCuda ? DType::kBF16 : DType::kF32;
}

// The values of what attention mixed of the latents, [T, H * value]. Parts of kv_b take any dtype.
Tensor values_of(Context& ctx, const MlaSpec& s, const AttentionWeights& w, const Tensor& mixed, DType dtype) {
  const Parts parts(s);
  Tensor values = ctx.empty(dtype, {mixed.dim(0), s.heads * s.value});
  const HeadRows rows =
      w.kv_b.in_parts() ? HeadRows{w.kv_b.values, {s.heads, 0, s.value}} : HeadRows{w.kv_b.weight, parts.values};
  ops::head_linear(ctx, {mixed, parts.latent}, rows, whole(values, s.heads));
  return values;
}

}  // namespace

void register_parameters(const MlaSpec& s, Index width, ParameterRegistry& r) {
  constexpr ParameterTraits kWeight{.group = ParameterGroup::kAttention, .adapter = true};
  constexpr ParameterTraits kNorm{.group = ParameterGroup::kNorm, .initial = InitialValue::kOnes, .decay = false};
  const auto turned = [&](Index before) {
    ParameterTraits traits = kWeight;
    traits.head_dim = before + s.rope, traits.rotary = s.rope, traits.before = before;
    return traits;
  };
  ParameterTraits dense = kWeight;  // heads multiply with parts of it, forward with some of them turned round
  dense.dense = true;
  const Index queries = s.heads * s.query();
  const LayerPlace q = [](LayerTensors& l) -> Tensor& { return l.q.weight; };
  if (s.q_rank > 0) {
    r.add("attention.q_a.weight", {s.q_rank, width}, kWeight, [](LayerTensors& l) -> Tensor& { return l.q_a.weight; });
    r.add("attention.q_a_norm.weight", {s.q_rank}, kNorm, [](LayerTensors& l) -> Tensor& { return l.q_a_norm; });
    r.add("attention.q_b.weight", {queries, s.q_rank}, turned(s.nope), q);
  } else {
    r.add("attention.q.weight", {queries, width}, turned(s.nope), q);
  }
  r.add("attention.kv_a.weight", {s.cached(), width}, turned(s.kv_rank),
        [](LayerTensors& l) -> Tensor& { return l.kv_a.weight; });
  r.add("attention.kv_a_norm.weight", {s.kv_rank}, kNorm, [](LayerTensors& l) -> Tensor& { return l.kv_a_norm; });
  r.add(
      "attention.kv_b.weight", {s.heads * (s.nope + s.value), s.kv_rank}, dense,
      [](LayerTensors& l) -> Tensor& { return l.kv_b.weight; }, [](LayerTensors& l) -> LatentWeights& { return l.kv_b; });
  r.add("attention.o.weight", {width, s.heads * s.value}, kWeight, [](LayerTensors& l) -> Tensor& { return l.o.weight; });
}

KvLayout kv_layout(const MlaSpec& s) { return {.k_width = s.cached(), .v_width = 0, .head = s.cached()}; }

Index rotary_width(const MlaSpec& s) { return s.rope; }

// The projections; queries and values through kv_b; scores, and the sum of latents.
__int128 multiply_adds(const MlaSpec& s, Index width, Index context) {
  const __int128 from = s.q_rank > 0 ? s.q_rank : width;
  const __int128 projections = (s.q_rank > 0 ? s.q_rank * width : 0) + from * s.heads * s.query() + width * s.cached();
  const __int128 heads = static_cast<__int128>(s.heads) * s.kv_rank * (s.nope + s.value);
  return projections + heads + static_cast<__int128>(s.heads) * s.value * width +
         static_cast<__int128>(s.heads) * (s.cached() + s.kv_rank) * context;
}

// q, out, k, the queries as they were projected; lse; what the norms were given.
KeptBytes kept_bytes(const MlaSpec& s, Index, Index element) {
  const Index heads = element * s.heads * s.cached();
  return {heads, heads, element * s.cached(), element * s.heads * s.query(), 4 * s.heads, 4 * s.q_rank, 4 * s.kv_rank};
}

Tensor attention_forward(Context& ctx, const MlaSpec& spec, const AttentionWeights& w, const Pass& pass, Index layer,
                         const ops::AddNorm& x, AttentionSaved* saved) {
  mark(ctx, "projections");
  const Parts parts(spec);
  const Projected of = projected(ctx, spec, w, x);
  KvPool* const pool = pass.batch.pool();
  Tensor keys;
  Latents latents;
  if (pool) keys = pool->k(layer);
  const DType computed = attention_dtype(ctx, x.dtype, pool ? keys.dtype() : x.dtype);
  Queries queries = queries_of(ctx, spec, w, of.query, x.dtype, w.kv_b.in_parts() ? computed : x.dtype);
  if (!pool || saved ||
      !ops::store_latents(ctx, {queries.projected, parts.query_rope}, {queries.absorbed, parts.latent_rope}, of.latent,
                          {w.kv_a_norm, static_cast<float>(spec.norm_eps)}, pass.rope, pass.slices, keys)) {
    turn_part(ctx, queries.projected, parts.query_rope, pass, x.dtype, queries.absorbed, parts.latent_rope);
    latents = latents_of(ctx, spec, w, pass, of.latent, x.dtype);
    pool ? ops::store_rows(ctx, latents.rows, pass.slices, keys) : void(keys = latents.rows);
  }
  const Tensor q = ops::converted(ctx, queries.absorbed, computed);
  Tensor out = ctx.empty(q.dtype(), q.shape()), lse;
  if (saved) lse = ctx.empty(DType::kF32, {spec.heads, x.x.dim(0)});
  mark(ctx, "attention");
  ops::attention(ctx, shape_of(spec), q, keys, keys, pass.slices, out, saved ? &lse : nullptr);
  if (saved) *saved = {q, keys, {}, out, lse, queries.unnormed, latents.unnormed, queries.projected};
  mark(ctx, "projections");
  const Tensor mixed = w.kv_b.in_parts() ? out : ops::converted(ctx, out, x.dtype);
  return linear_forward(ctx, values_of(ctx, spec, w, mixed, x.dtype), w.o, DType::kF32);
}

Tensor attention_backward(Context& ctx, const MlaSpec& spec, const AttentionWeights& w, const Pass& pass, const Tensor& h,
                          const AttentionSaved& saved, const Tensor& dy, AttentionGrads& grads, bool add_grads) {
  const Parts parts(spec);
  const DType dtype = h.dtype();
  mark(ctx, "projections, backward");
  if (!add_grads) ctx.fill_zero(grads.kv_b.weight);
  const Tensor values = values_of(ctx, spec, w, saved.out, dtype);
  Tensor dvalues = ctx.empty(dtype, values.shape());
  linear_backward(ctx, {{dy, w.o, grads.o}}, values, add_grads, dvalues);
  const HeadNumbers value_grads = whole(dvalues, spec.heads);
  Tensor dout = ctx.zeros(dtype, saved.out.shape());  // what is mixed beside the latent goes nowhere
  ops::head_linear_backward_input(ctx, value_grads, {w.kv_b.weight, parts.values}, {dout, parts.latent});
  ops::head_linear_backward_weight(ctx, value_grads, {saved.out, parts.latent}, {grads.kv_b.weight, parts.values});

  Tensor dq = ctx.empty(dtype, saved.q.shape()), dk = ctx.empty(dtype, saved.k.shape());
  Tensor dv = ctx.empty(dtype, saved.k.shape());
  mark(ctx, "attention, backward");
  ops::attention_backward(ctx, shape_of(spec), saved.q, saved.k, saved.k, pass.slices, saved.out, saved.lse, dout, dq, dk,
                          dv);

  mark(ctx, "projections, backward");
  Tensor dprojected = ctx.empty(dtype, saved.q_projected.shape());
  const HeadNumbers absorbed_grads{dq, parts.latent};
  ops::head_linear(ctx, absorbed_grads, {w.kv_b.weight, parts.keys}, {dprojected, parts.query_nope});
  ops::head_linear_backward_weight(ctx, {saved.q_projected, parts.query_nope}, absorbed_grads,
                                   {grads.kv_b.weight, parts.keys});
  turn_part(ctx, dq, parts.latent_rope, pass, dtype, dprojected, parts.query_rope, /*backward=*/true);

  // A row is key and value: its gradient is the sum of both.
  Tensor drows = ops::converted(ctx, dk, DType::kF32);
  ops::add(ctx, dv, drows);
  const Tensor dlatent = normed_backward(ctx, spec, part_of(ctx, drows, parts.row_latent, dtype), saved.k_unnormed,
                                         w.kv_a_norm, grads.kv_a_norm, add_grads);
  Tensor dkv_a = ctx.empty(dtype, drows.shape());
  ops::copy_heads(ctx, whole(dlatent), {dkv_a, parts.row_latent});
  turn_part(ctx, drows, parts.row_rope, pass, dtype, dkv_a, parts.row_rope, /*backward=*/true);

  Tensor dh = ctx.empty(dtype, h.shape());
  if (spec.q_rank == 0) {
    linear_backward(ctx, {{dprojected, w.q, grads.q}, {dkv_a, w.kv_a, grads.kv_a}}, h, add_grads, dh);
    return dh;
  }
  const Tensor x = normed(ctx, spec, saved.q_unnormed, w.q_a_norm, dtype);
  Tensor dx = ctx.empty(dtype, x.shape());
  linear_backward(ctx, {{dprojected, w.q, grads.q}}, x, add_grads, dx);
  const Tensor dq_a = normed_backward(ctx, spec, dx, saved.q_unnormed, w.q_a_norm, grads.q_a_norm, add_grads);
  linear_backward(ctx, {{dq_a, w.q_a, grads.q_a}, {dkv_a, w.kv_a, grads.kv_a}}, h, add_grads, dh);
  return dh;
}

}  // namespace dsmoe
