// The keys (after rotation) and values of the tokens seen so far, per layer: [capacity, kv heads * head_dim] each.
#pragma once

#include <vector>

#include "dsmoe/model_config.h"
#include "dsmoe/tensor.h"

namespace dsmoe {

struct KvCache {
  KvCache(const ModelConfig& config, Index tokens, DType dtype) : capacity(tokens) {
    const Shape shape{tokens, config.kv_heads() * config.head_dim()};
    for (Index l = 0; l < config.num_hidden_layers; ++l) {
      k.emplace_back(dtype, shape);
      v.emplace_back(dtype, shape);
    }
  }

  Index capacity;
  Index length = 0;  // tokens that are in it; may be set back to forget the rest
  std::vector<Tensor> k, v;
};

}  // namespace dsmoe
