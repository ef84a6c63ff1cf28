// Whether a model and its context fit a GPU, before anything is loaded; and what would, when they do not.
#pragma once

#include <cstdint>
#include <string>

#include "dsmoe/model_config.h"

namespace dsmoe {

struct FitRequest {
  std::uint64_t weights = 0;   // bytes in GPU memory
  DType dtype = DType::kBF16;  // of most of them
  Index context = 0;           // tokens that the KV cache is to hold
  DType cache = DType::kBF16;
};

// Bytes of the KV cache, in whole pages.
std::uint64_t cache_bytes(const ModelConfig& config, Index tokens, DType dtype);
// Of what a pass needs besides, about: activations and logits of a few thousand tokens, captured passes, and of a quantized
// model the unpacked experts of one layer.
std::uint64_t working_bytes(const ModelConfig& config, DType weights);
std::uint64_t needed_bytes(const ModelConfig& config, const FitRequest& request);

// Empty when `free` bytes are enough. Else one line: what is needed for what, what there is, and each of these that would
// fit: a shorter context, a cache of q8_0, smaller weights, the CPU.
std::string why_it_does_not_fit(const ModelConfig& config, const FitRequest& request, std::uint64_t free);

}  // namespace dsmoe
