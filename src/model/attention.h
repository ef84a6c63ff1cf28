// Multi-head attention with shared key/value heads (GQA) or over a latent (MLA), with rotary positions, over the sequences
// of a batch.
#pragma once

#include "dsmoe/context.h"
#include "model/pass.h"
#include "model/spec.h"
#include "model/weights.h"

namespace dsmoe {

using AttentionWeights = LayerTensors;
using AttentionGrads = LayerTensors;

struct AttentionSaved {
  Tensor q, k, v;                 // [T, heads * head_dim], as they are multiplied: normed and rotated
  Tensor out;                     // [T, H * head_dim] before the output projection
  Tensor lse;                     // [H, T]
  Tensor q_unnormed, k_unnormed;  // f32, what the norms of queries and keys were given (turned, where that comes
                                  // first); empty without such norms
  // Latent attention: q is over the latent, k is what the cache has, v is a part of it; the norms are those before the
  // second projections.
  Tensor q_projected;  // [T, H * (nope + rope)], before it is turned
};

// The norm of x is what the batch's tokens bring along. Their keys and values go into the layer's pages of the batch's
// pool, if it has one. `saved` (may be null, and needs a batch without a pool) is filled for backward. Returns f32 [T, D].
Tensor attention_forward(Context& ctx, const GqaSpec& spec, const AttentionWeights& w, const Pass& pass, Index layer,
                         const ops::AddNorm& x, AttentionSaved* saved);
Tensor attention_forward(Context& ctx, const MlaSpec& spec, const AttentionWeights& w, const Pass& pass, Index layer,
                         const ops::AddNorm& x, AttentionSaved* saved);

// dy in the dtype of h: writes grads (adds with add_grads) and returns dh [T, D] in that dtype.
Tensor attention_backward(Context& ctx, const GqaSpec& spec, const AttentionWeights& w, const Pass& pass, const Tensor& h,
                          const AttentionSaved& saved, const Tensor& dy, AttentionGrads& grads, bool add_grads);
Tensor attention_backward(Context& ctx, const MlaSpec& spec, const AttentionWeights& w, const Pass& pass, const Tensor& h,
                          const AttentionSaved& saved, const Tensor& dy, AttentionGrads& grads, bool add_grads);

}  // namespace dsmoe
