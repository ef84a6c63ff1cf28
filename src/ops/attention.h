// Causal attention over cached keys and values, for all sequences of a batch at once. T queries, H heads of which
// H / KVH neighbours share one head of keys and values. All tensors have one dtype (f32 or bf16) unless said otherwise;
// with f32 queries a cache of keys and values may be stored as bf16 or q8_0, and is computed with as the f32 it stands for.
// On a GPU bf16 queries take q8_0, too, which is rounded to bf16 then where tensor cores do the work.
//
// No T x T matrix per head: keys are taken in tiles at fixed positions, the softmax of each tile is computed on
// its own and the tiles are put together in order. So a query's bits depend on its own keys and values alone: they
// are the same whether a text comes in one go, in chunks or token by token, alone or beside other sequences, and
// wherever its tiles are stored. (As long as all values are finite: 0 times the infinity of a later token, which the mask
// hides, is NaN.)
#pragma once

#include "dsmoe/context.h"
#include "dsmoe/tensor.h"
#include "ops/heads.h"
#include "ops/rms_norm.h"
#include "ops/rope.h"
#include "ops/slice.h"

namespace dsmoe::ops {

struct AttentionShape {
  Index heads = 0;     // H
  Index kv_heads = 0;  // KVH, divides H
  Index head_dim = 0;
  float scale = 1.0f;  // of the scores before the softmax, over 0: 1 / sqrt(head_dim)
  // Over 0: k and v are the same tensor, and of a head's result these first numbers are wanted. The others are finite.
  Index values = 0;

  Index mixed() const { return values > 0 ? values : head_dim; }  // numbers of a result that are computed
};

// Writes the rows of a batch, [T, N] f32 or bf16, to the places of their positions in `cache` (another f32, bf16 or q8_0
// [tokens, N]): position p of a slice goes to row tiles[p / kAttentionTile] + p % kAttentionTile.
void store_rows(Context& ctx, const Tensor& rows, const Slices& slices, Tensor& cache);

// What attention does with new tokens before it looks at them: turns q and k in place, and stores k and v in their caches.
void rotate_and_store(Context& ctx, Tensor& q, Tensor& k, const Tensor& v, const RopeAngles& angles, const Slices& slices,
                      Tensor& k_cache, Tensor& v_cache);

// The same for latent attention (MLA), in one go: what a head has of q in `from` is turned and goes to `to` of absorbed;
// the cache's rows are the norm of the first numbers of `projected` f32 [T, rank + rope], and the others turned. False:
// this backend, or these dtypes and sizes, take the steps.
struct LatentNorm {
  const Tensor& weight;
  float eps;
};
bool store_latents(Context& ctx, const HeadNumbers& from, const HeadNumbers& to, const Tensor& projected,
                   const LatentNorm& norm, const RopeAngles& angles, const Slices& slices, Tensor& cache);

// Projects new tokens x [T, K] with the weights [heads * head_dim, K] of q, k and v, then rotate_and_store(). Returns q, in
// the dtype of x.
struct QkvWeights {
  const Tensor &q, &k, &v;
};
Tensor project_and_store(Context& ctx, const Tensor& x, const QkvWeights& w, const RopeAngles& angles, const Slices& slices,
                         Tensor& k_cache, Tensor& v_cache);
// The same of x = the norm of a sum.
Tensor project_and_store(Context& ctx, const AddNorm& x, const QkvWeights& w, const RopeAngles& angles,
                         const Slices& slices, Tensor& k_cache, Tensor& v_cache);

// The query at position p of a sequence attends to the keys and values at positions [0, p] of that sequence. The slices
// follow one another and cover all rows of q. q, out [T, H * head_dim]; k, v [tokens, KVH * head_dim], of which only the
// tiles of the slices are read, up to their lengths. lse (optional) [H, T] f32: log of the sum of e^score, for the
// gradient.
void attention(Context& ctx, const AttentionShape& shape, const Tensor& q, const Tensor& k, const Tensor& v,
               const Slices& slices, Tensor& out, Tensor* lse = nullptr);

// Whether attention over a cache of bf16 takes less time with queries that are rounded to bf16 than with f32 ones.
bool prefers_bf16(const Context& ctx);

// The gradient of attention() over whole sequences whose keys and values are in the batch: every slice is from position
// 0, with tiles first_row + i * kAttentionTile. q, k, v, out, lse as there (k and v [T, KVH * head_dim]), dout [T, H *
// head_dim]. dq, dk, dv are in the shapes of q, k, v, and overwritten: f32, or all three in the dtype of q, which the f32
// gradients are rounded to. `turned`: q and k are results of apply_rope() with these angles, and dq and dk are of what it
// was given. A sequence's gradients depend on itself alone, as long as all values of the batch are finite.
void attention_backward(Context& ctx, const AttentionShape& shape, const Tensor& q, const Tensor& k, const Tensor& v,
                        const Slices& slices, const Tensor& out, const Tensor& lse, const Tensor& dout, Tensor& dq,
                        Tensor& dk, Tensor& dv, const RopeAngles* turned = nullptr);

namespace ref {
void store_rows(const Tensor& rows, const Slices& slices, Tensor& cache);
void attention(const AttentionShape& shape, const Tensor& q, const Tensor& k, const Tensor& v, const Slices& slices,
               Tensor& out, Tensor* lse);
void attention_backward(const AttentionShape& shape, const Tensor& q, const Tensor& k, const Tensor& v,
                        const Slices& slices, const Tensor& dout, Tensor& dq, Tensor& dk, Tensor& dv);
}  // namespace ref

namespace cpu {
bool prefers_bf16();
void store_rows(Context& ctx, const Tensor& rows, const Slices& slices, Tensor& cache);
void attention(Context& ctx, const AttentionShape& shape, const Tensor& q, const Tensor& k, const Tensor& v,
               const Slices& slices, Tensor& out, Tensor* lse);
void attention_backward(Context& ctx, const AttentionShape& shape, const Tensor& q, const Tensor& k, const Tensor& v,
                        const Slices& slices, const Tensor& out, const Tensor& lse, const Tensor& dout, Tensor& dq,
                        Tensor& dk, Tensor& dv);
}  // namespace cpu

namespace cuda {
void store_rows(Context& ctx, const Tensor& rows, const Slices& slices, Tensor& cache);
void rotate_and_store(Context& ctx, Tensor& q, Tensor& k, const Tensor& v, const RopeAngles& angles, const Slices& slices,
                      Tensor& k_cache, Tensor& v_cache);
// False, and nothing done, where no kernel does it in one go.
bool store_latents(Context& ctx, const HeadNumbers& from, const HeadNumbers& to, const Tensor& projected,
                   const LatentNorm& norm, const RopeAngles& angles, const Slices& slices, Tensor& cache);
bool project_and_store(Context& ctx, const Tensor& x, const QkvWeights& w, const RopeAngles& angles, const Slices& slices,
                       Tensor& q, Tensor& k_cache, Tensor& v_cache);
bool project_and_store(Context& ctx, const AddNorm& x, const QkvWeights& w, const RopeAngles& angles, const Slices& slices,
                       Tensor& q, Tensor& k_cache, Tensor& v_cache);
void attention(Context& ctx, const AttentionShape& shape, const Tensor& q, const Tensor& k, const Tensor& v,
               const Slices& slices, Tensor& out, Tensor* lse);
void attention_backward(Context& ctx, const AttentionShape& shape, const Tensor& q, const Tensor& k, const Tensor& v,
                        const Slices& slices, const Tensor& out, const Tensor& lse, const Tensor& dout, Tensor& dq,
                        Tensor& dk, Tensor& dv, const RopeAngles* turned);
}  // namespace cuda

}  // namespace dsmoe::ops
