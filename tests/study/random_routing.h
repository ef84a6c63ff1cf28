// Routings drawn at random, and a small model, for tests of what is computed from them.
#pragma once

#include <algorithm>
#include <numeric>
#include <vector>

#include "model/transformer.h"
#include "study/routing_batch.h"
#include "support/random_tensor.h"

namespace dsmoe::study {

inline RoutingShape small_shape(Index vocab = 50, Index experts = 8, Index k = 3) { return {vocab, experts, k, {1, 2, 5}}; }

inline RoutingBatch random_batch(const RoutingShape& shape, Index tokens, Index domain, Index position, test::Draw& draw) {
  RoutingBatch b;
  b.domain = domain;
  b.position = position;
  for (Index t = 0; t < tokens; ++t) b.tokens.push_back(static_cast<std::int32_t>(draw(shape.vocab_size)));
  const Index k = shape.experts_per_token;
  for (std::size_t l = 0; l < shape.layers.size(); ++l) {
    RoutingBatch::Layer layer{Tensor(DType::kI32, {tokens, k}), Tensor(DType::kF32, {tokens, k})};
    for (Index t = 0; t < tokens; ++t) {
      std::vector<std::int32_t> order(static_cast<std::size_t>(shape.routed_experts));
      std::iota(order.begin(), order.end(), 0);
      float weight = 1;
      for (Index j = 0; j < k; ++j) {
        std::swap(order[static_cast<std::size_t>(j)],
                  order[static_cast<std::size_t>(draw.between(j, shape.routed_experts - 1))]);
        layer.experts.data<std::int32_t>()[t * k + j] = order[static_cast<std::size_t>(j)];
        weight *= static_cast<float>(draw.between(50, 99)) / 100.0f;
        layer.weights.data<float>()[t * k + j] = weight;
      }
    }
    b.layers.push_back(layer);
  }
  return b;
}

// Two domains, sequences of one to three batches.
inline std::vector<RoutingBatch> random_batches(const RoutingShape& shape, int sequences, std::uint64_t seed) {
  test::Draw draw(seed);
  std::vector<RoutingBatch> out;
  for (int s = 0; s < sequences; ++s) {
    Index position = 0;
    for (Index parts = draw.between(1, 3); parts > 0; --parts) {
      out.push_back(random_batch(shape, draw.between(1, 40), s % 2, position, draw));
      position += out.back().size();
    }
  }
  return out;
}

inline ModelConfig small_config() {
  ModelConfig c;
  c.vocab_size = 50, c.hidden_size = 32, c.intermediate_size = 48, c.moe_intermediate_size = 16;
  c.num_hidden_layers = 3, c.num_attention_heads = 4, c.num_key_value_heads = 2, c.first_k_dense_replace = 1;
  c.n_routed_experts = 8, c.num_experts_per_tok = 3, c.n_shared_experts = 1;
  c.max_position_embeddings = 64, c.initializer_range = 0.3;
  c.bos_token_id = 0, c.eos_token_id = {1};
  return c;
}

inline Transformer small_model(std::uint64_t seed = 5) {
  Context ctx(1);
  return Transformer(small_config(), random_weights(small_config(), seed, DType::kF32, ctx));
}

}  // namespace dsmoe::study
