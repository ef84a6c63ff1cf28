#include "model/attention.h"

#include <cmath>

#include "core/threads.h"
#include "model/linear_layer.h"
#include "ops/attention.h"
#include "ops/elementwise.h"

namespace dsmoe {

namespace {

ops::AttentionShape shape_of(const ModelConfig& c) {
  return {c.num_attention_heads, c.kv_heads(), c.head_dim(),
          static_cast<float>(1.0 / std::sqrt(static_cast<double>(c.head_dim())))};
}

void rotate(Context& ctx, const ModelConfig& c, Tensor& x, const ops::RopeTable& rope,
            std::span<const std::int32_t> positions, bool inverse = false) {
  Tensor heads = x.reshape({x.dim(0), x.dim(1) / c.head_dim(), c.head_dim()});
  ops::apply_rope(ctx, heads, rope, positions, inverse);
}

// Positions first, first + 1, ..., starting again after `length`.
std::vector<std::int32_t> count_up(Index tokens, Index first, Index length) {
  std::vector<std::int32_t> positions(static_cast<std::size_t>(tokens));
  for (Index t = 0; t < tokens; ++t) positions[static_cast<std::size_t>(t)] = static_cast<std::int32_t>(first + t % length);
  return positions;
}

// fn(first, end) for the tokens of every sequence. Several sequences are tasks of their own, and what runs inside one of
// them runs on its thread; a few share the threads among their heads.
template <class Fn>
void each_sequence(Context& ctx, Index tokens, Index length, Fn fn) {
  const Index sequences = tokens / length;
  if (sequences >= 2 * ctx.threads()) {
    ctx.pool().run(sequences, [&](Index s, int) { fn(s * length, (s + 1) * length); });
  } else {
    for (Index s = 0; s < sequences; ++s) fn(s * length, (s + 1) * length);
  }
}

}  // namespace

Tensor attention_forward(Context& ctx, const ModelConfig& c, const AttentionWeights& w, const ops::RopeTable& rope,
                         const Tensor& h, KvCache& cache, std::size_t layer) {
  const Index tokens = h.dim(0), first = cache.length;
  const DType dtype = cache.k[layer].dtype();  // attention is computed in the dtype of the cache
  const std::vector<std::int32_t> positions = count_up(tokens, first, tokens);
  std::vector<Tensor> qkv = linear_forward(ctx, h, {&w.q, &w.k, &w.v}, h.dtype());
  rotate(ctx, c, qkv[0], rope, positions);
  rotate(ctx, c, qkv[1], rope, positions);
  Tensor k_rows = cache.k[layer].rows(first, first + tokens), v_rows = cache.v[layer].rows(first, first + tokens);
  ops::convert(ctx, qkv[1], k_rows);
  ops::convert(ctx, qkv[2], v_rows);
  const Tensor q = ops::converted(ctx, qkv[0], dtype);
  Tensor out(dtype, q.shape());
  ops::attention(ctx, shape_of(c), q, cache.k[layer], cache.v[layer], first, out, nullptr);
  return linear_forward(ctx, ops::converted(ctx, out, h.dtype()), w.o, DType::kF32);
}

Tensor attention_train(Context& ctx, const ModelConfig& c, const AttentionWeights& w, const ops::RopeTable& rope,
                       const Tensor& h, Index sequence_length, AttentionSaved& saved) {
  const Index tokens = h.dim(0);
  const std::vector<std::int32_t> positions = count_up(tokens, 0, sequence_length);
  std::vector<Tensor> qkv = linear_forward(ctx, h, {&w.q, &w.k, &w.v}, h.dtype());
  saved.q = qkv[0], saved.k = qkv[1], saved.v = qkv[2];
  rotate(ctx, c, saved.q, rope, positions);
  rotate(ctx, c, saved.k, rope, positions);
  saved.out = Tensor(h.dtype(), saved.q.shape());
  saved.lse.assign(static_cast<std::size_t>(tokens / sequence_length), Tensor());
  each_sequence(ctx, tokens, sequence_length, [&](Index t, Index end) {
    Tensor out = saved.out.rows(t, end), lse(DType::kF32, {c.num_attention_heads, sequence_length});
    ops::attention(ctx, shape_of(c), saved.q.rows(t, end), saved.k.rows(t, end), saved.v.rows(t, end), 0, out, &lse);
    saved.lse[static_cast<std::size_t>(t / sequence_length)] = lse;
  });
  return linear_forward(ctx, saved.out, w.o, DType::kF32);
}

Tensor attention_backward(Context& ctx, const ModelConfig& c, const AttentionWeights& w, const ops::RopeTable& rope,
                          const Tensor& h, Index sequence_length, const AttentionSaved& saved, const Tensor& dy,
                          AttentionGrads& grads) {
  const Index tokens = h.dim(0);
  const std::vector<std::int32_t> positions = count_up(tokens, 0, sequence_length);
  Tensor dout(DType::kF32, saved.out.shape());
  linear_backward(ctx, dy, saved.out, w.o, grads.o, dout, false);
  const Tensor dout_t = ops::converted(ctx, dout, h.dtype());
  Tensor dq(DType::kF32, saved.q.shape()), dk(DType::kF32, saved.k.shape()), dv(DType::kF32, saved.v.shape());
  each_sequence(ctx, tokens, sequence_length, [&](Index t, Index end) {
    Tensor dq_rows = dq.rows(t, end), dk_rows = dk.rows(t, end), dv_rows = dv.rows(t, end);
    ops::attention_backward(ctx, shape_of(c), saved.q.rows(t, end), saved.k.rows(t, end), saved.v.rows(t, end),
                            saved.out.rows(t, end), saved.lse[static_cast<std::size_t>(t / sequence_length)],
                            dout_t.rows(t, end), dq_rows, dk_rows, dv_rows);
  });
  rotate(ctx, c, dq, rope, positions, /*inverse=*/true);
  rotate(ctx, c, dk, rope, positions, /*inverse=*/true);
  Tensor dh(DType::kF32, h.shape());
  linear_backward(ctx, ops::converted(ctx, dq, h.dtype()), h, w.q, grads.q, dh, false);
  linear_backward(ctx, ops::converted(ctx, dk, h.dtype()), h, w.k, grads.k, dh, true);
  linear_backward(ctx, ops::converted(ctx, dv, h.dtype()), h, w.v, grads.v, dh, true);
  return dh;
}

}  // namespace dsmoe
