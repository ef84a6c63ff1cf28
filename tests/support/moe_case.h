// A layer of chosen sizes with random weights and inputs.
#pragma once

#include "dsmoe/moe.h"
#include "support/random_tensor.h"

namespace dsmoe::test {

inline MoeConfig moe_config(Index d, Index f, Index e, Index k, Index s) {
  MoeConfig c;
  c.hidden_size = d, c.expert_size = f, c.routed_experts = e, c.experts_per_token = k, c.shared_experts = s;
  return c;
}

// Weights large enough that every part of the layer matters.
inline MoeWeights moe_weights(const MoeConfig& c, DType dtype, std::uint64_t seed) {
  return MoeWeights::random(c, dtype, seed, 0.5f);
}

}  // namespace dsmoe::test
