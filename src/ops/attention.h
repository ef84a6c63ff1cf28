// Causal attention over a cache of keys and values. T queries, H heads of which H / KVH neighbours share one head
// of keys and values. All tensors have one dtype (f32 or bf16) unless said otherwise.
//
// No T x T matrix per head: keys are taken in tiles at fixed positions, the softmax of each tile is computed on
// its own and the tiles are put together in order. So a query's bits depend on its own keys and values alone, and
// are the same whether a text comes in one go, in chunks or token by token. (As long as all values are finite: 0
// times the infinity of a later token, which the mask hides, is NaN.)
#pragma once

#include "dsmoe/context.h"
#include "dsmoe/tensor.h"

namespace dsmoe::ops {

struct AttentionShape {
  Index heads = 0;     // H
  Index kv_heads = 0;  // KVH, divides H
  Index head_dim = 0;
  float scale = 1.0f;  // of the scores before the softmax, over 0: 1 / sqrt(head_dim)
};

// Query i, at position first_position + i, attends to rows [0, first_position + i] of the caches.
// q, out [T, H * head_dim], k_cache, v_cache [at least first_position + T, KVH * head_dim].
// lse (optional) [H, T] f32: log of the sum of e^score, for the gradient.
void attention(Context& ctx, const AttentionShape& shape, const Tensor& q, const Tensor& k_cache, const Tensor& v_cache,
               Index first_position, Tensor& out, Tensor* lse = nullptr);

// The gradient of attention() over one sequence from position 0: q, k, v, out, lse as there (k and v [T, KVH *
// head_dim]), dout [T, H * head_dim]. dq, dk, dv are f32 in the shapes of q, k, v, and overwritten.
void attention_backward(Context& ctx, const AttentionShape& shape, const Tensor& q, const Tensor& k, const Tensor& v,
                        const Tensor& out, const Tensor& lse, const Tensor& dout, Tensor& dq, Tensor& dk, Tensor& dv);

namespace ref {
void attention(const AttentionShape& shape, const Tensor& q, const Tensor& k_cache, const Tensor& v_cache,
               Index first_position, Tensor& out, Tensor* lse);
void attention_backward(const AttentionShape& shape, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& dout,
                        Tensor& dq, Tensor& dk, Tensor& dv);
}  // namespace ref

namespace cpu {
void attention(Context& ctx, const AttentionShape& shape, const Tensor& q, const Tensor& k_cache, const Tensor& v_cache,
               Index first_position, Tensor& out, Tensor* lse);
void attention_backward(Context& ctx, const AttentionShape& shape, const Tensor& q, const Tensor& k, const Tensor& v,
                        const Tensor& out, const Tensor& lse, const Tensor& dout, Tensor& dq, Tensor& dk, Tensor& dv);
}  // namespace cpu

}  // namespace dsmoe::ops
