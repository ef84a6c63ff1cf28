// Multi-head attention with shared key/value heads (GQA) and rotary positions: forward for inference over a cache,
// and forward and backward for training over whole sequences.
#pragma once

#include <vector>

#include "dsmoe/context.h"
#include "dsmoe/model_config.h"
#include "model/kv_cache.h"
#include "model/weights.h"
#include "ops/rope.h"

namespace dsmoe {

using AttentionWeights = LayerTensors;
using AttentionGrads = LayerTensors;

// h [T, D] are the normed inputs of the tokens at positions [cache.length, cache.length + T). Their keys and values
// go into the cache; its length is left for the caller to advance once all layers have run. Returns f32 [T, D].
Tensor attention_forward(Context& ctx, const ModelConfig& config, const AttentionWeights& w, const ops::RopeTable& rope,
                         const Tensor& h, KvCache& cache, std::size_t layer);

struct AttentionSaved {
  Tensor q, k, v;           // [T, heads * head_dim], rotated
  Tensor out;               // [T, H * head_dim] before the output projection
  std::vector<Tensor> lse;  // per sequence, [H, S]
};

// h [B * S, D]: sequences of S tokens one after another, each at positions [0, S).
Tensor attention_train(Context& ctx, const ModelConfig& config, const AttentionWeights& w, const ops::RopeTable& rope,
                       const Tensor& h, Index sequence_length, AttentionSaved& saved);

// dy in the dtype of h: adds to grads and returns dh f32 [B * S, D].
Tensor attention_backward(Context& ctx, const ModelConfig& config, const AttentionWeights& w, const ops::RopeTable& rope,
                          const Tensor& h, Index sequence_length, const AttentionSaved& saved, const Tensor& dy,
                          AttentionGrads& grads);

}  // namespace dsmoe
