#include "model/attention.h"

#include <cmath>

#include "core/fail.h"
#include "model/linear_layer.h"
#include "ops/attention.h"
#include "ops/elementwise.h"

namespace dsmoe {

namespace {

ops::AttentionShape shape_of(const ModelConfig& c) {
  return {c.num_attention_heads, c.kv_heads(), c.head_dim(),
          static_cast<float>(1.0 / std::sqrt(static_cast<double>(c.head_dim())))};
}

}  // namespace

KvLayout attention_kv_layout(const ModelConfig& c) {
  const Index width = c.kv_heads() * c.head_dim();
  return {.k_width = width, .v_width = width};
}

Tensor attention_forward(Context& ctx, const ModelConfig& c, const AttentionWeights& w, const ForwardBatch& batch,
                         const ops::RopeAngles& rope, Index layer, const Tensor& h, AttentionSaved* saved) {
  std::vector<Tensor> qkv = linear_forward(ctx, h, {&w.q, &w.k, &w.v}, h.dtype());
  ops::apply_rope(ctx, qkv[0], rope);
  ops::apply_rope(ctx, qkv[1], rope);

  Tensor k = qkv[1], v = qkv[2];
  if (KvPool* const pool = batch.pool()) {
    k = pool->k(layer), v = pool->v(layer);
    ops::store_rows(ctx, qkv[1], batch.slices(), k);
    ops::store_rows(ctx, qkv[2], batch.slices(), v);
  }
  const Tensor q = ops::converted(ctx, qkv[0], k.dtype());  // attention is computed in the dtype of the cache
  Tensor out = ctx.empty(q.dtype(), q.shape()), lse;
  if (saved) lse = ctx.empty(DType::kF32, {c.num_attention_heads, h.dim(0)});
  ops::attention(ctx, shape_of(c), q, k, v, batch.slices(), out, saved ? &lse : nullptr);
  if (saved) *saved = {q, k, v, out, lse};
  return linear_forward(ctx, ops::converted(ctx, out, h.dtype()), w.o, DType::kF32);
}

Tensor attention_backward(Context& ctx, const ModelConfig& c, const AttentionWeights& w, const ForwardBatch& batch,
                          const ops::RopeAngles& rope, const Tensor& h, const AttentionSaved& saved, const Tensor& dy,
                          AttentionGrads& grads) {
  Tensor dout = ctx.empty(DType::kF32, saved.out.shape());
  linear_backward(ctx, dy, saved.out, w.o, grads.o, dout, false);

  Tensor dq = ctx.empty(DType::kF32, saved.q.shape()), dk = ctx.empty(DType::kF32, saved.k.shape());
  Tensor dv = ctx.empty(DType::kF32, saved.v.shape());
  ops::attention_backward(ctx, shape_of(c), saved.q, saved.k, saved.v, batch.slices(), saved.out, saved.lse,
                          ops::converted(ctx, dout, h.dtype()), dq, dk, dv);
  ops::apply_rope(ctx, dq, rope, /*inverse=*/true);
  ops::apply_rope(ctx, dk, rope, /*inverse=*/true);

  Tensor dh = ctx.empty(DType::kF32, h.shape());
  linear_backward(ctx, ops::converted(ctx, dq, h.dtype()), h, w.q, grads.q, dh, false);
  linear_backward(ctx, ops::converted(ctx, dk, h.dtype()), h, w.k, grads.k, dh, true);
  linear_backward(ctx, ops::converted(ctx, dv, h.dtype()), h, w.v, grads.v, dh, true);
  return dh;
}

}  // namespace dsmoe
