#include "model/fit.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "model/families/family.h"
#include "model/kv_pool.h"
#include "model/modules.h"
#include "model/plan.h"

namespace dsmoe {

namespace {

std::string gigabytes(std::uint64_t bytes) { return fmt::format("{:.1f} GB", static_cast<double>(bytes) * 1e-9); }

std::uint64_t page_bytes(const ModelConfig& config, DType dtype) {
  std::uint64_t bytes = 0;
  for (const LayerSpec& layer : spec_of(config).layers) {
    const KvLayout kv = kv_layout(layer);
    bytes += static_cast<std::uint64_t>(row_bytes(dtype, kv.k_width) + row_bytes(dtype, kv.v_width));
  }
  return bytes * static_cast<std::uint64_t>(KvPool::kPageTokens);
}

// The most tokens of a cache of `dtype` in so many bytes, in whole pages.
Index tokens_in(const ModelConfig& config, DType dtype, std::uint64_t bytes) {
  return static_cast<Index>(bytes / std::max<std::uint64_t>(page_bytes(config, dtype), 1)) * KvPool::kPageTokens;
}

bool takes_blocks(const ModelConfig& config) {
  const ModelSpec spec = spec_of(config);
  return std::all_of(spec.layers.begin(), spec.layers.end(),
                     [](const LayerSpec& layer) { return kv_layout(layer).head % block_of(DType::kQ8_0).numbers == 0; });
}

}  // namespace

std::uint64_t cache_bytes(const ModelConfig& config, Index tokens, DType dtype) {
  return page_bytes(config, dtype) * static_cast<std::uint64_t>(KvPool::pages_for(tokens));
}

std::uint64_t working_bytes(const ModelConfig& config, DType weights) {
  // A chunk of a prompt at a time, and logits of as many sequences as decode together.
  constexpr std::uint64_t kRows = 2048, kLogits = 256, kReserve = std::uint64_t{256} << 20;
  const ModelSpec spec = spec_of(config);
  std::uint64_t largest = 0, unpacked = 0;
  for (const LayerSpec& layer : spec.layers) {
    const ExpertsShape e = experts_shape(layer);
    const auto width = static_cast<std::uint64_t>(spec.width), hidden = static_cast<std::uint64_t>(e.width);
    unpacked = std::max(unpacked, 6 * width * hidden * static_cast<std::uint64_t>(e.whole + e.routed));
    const auto chosen = static_cast<std::uint64_t>(e.whole + std::min(e.routed, config.experts_per_token()));
    largest = std::max(largest, kRows * (24 * width + chosen * 2 * (3 * hidden + width)));
  }
  return kReserve + largest + kLogits * 4 * static_cast<std::uint64_t>(spec.vocab) + (is_quantized(weights) ? unpacked : 0);
}

std::uint64_t needed_bytes(const ModelConfig& config, const FitRequest& r) {
  return r.weights + cache_bytes(config, r.context, r.cache) + working_bytes(config, r.dtype);
}

std::string why_it_does_not_fit(const ModelConfig& config, const FitRequest& r, std::uint64_t free) {
  const std::uint64_t needed = needed_bytes(config, r), cache = cache_bytes(config, r.context, r.cache);
  if (needed <= free) return "";
  std::vector<std::string> would;
  const std::uint64_t fixed = needed - cache, room = free > fixed ? free - fixed : 0;
  if (const Index tokens = tokens_in(config, r.cache, room); tokens > 0)
    would.push_back(fmt::format("a context of {} tokens", tokens));
  if (r.cache != DType::kQ8_0 && takes_blocks(config) && r.context > 0) {
    if (cache_bytes(config, r.context, DType::kQ8_0) <= room)
      would.push_back("a KV cache of kv-type q8_0");
    else if (const Index tokens = tokens_in(config, DType::kQ8_0, room); tokens > 0)
      would.push_back(fmt::format("kv-type q8_0 with a context of {}", tokens));
  }
  const InferenceMemory sizes = inference_memory(config, 1);
  const auto smaller = [&](const char* name, Index weights, DType dtype) {
    const auto bytes = static_cast<std::uint64_t>(weights);
    if (bytes < r.weights && needed_bytes(config, {bytes, dtype, r.context, r.cache}) <= free)
      would.push_back(fmt::format("weights in {} ({})", name, gigabytes(bytes)));
  };
  if (r.dtype == DType::kF32) smaller("bf16", sizes.weights_bf16, DType::kBF16);
  smaller("q8_0", sizes.weights_q8_0, DType::kQ8_0);
  smaller("q4_0", sizes.weights_q4_0, DType::kQ4_0);
  would.push_back("the device cpu");
  return fmt::format(
      "the model needs {} of GPU memory ({} of weights in {}, {} for {} tokens of context in {}, {} to work with) and {} "
      "are free; what would fit: {}",
      gigabytes(needed), gigabytes(r.weights), to_string(r.dtype), gigabytes(cache), r.context, to_string(r.cache),
      gigabytes(needed - cache - r.weights), gigabytes(free), fmt::join(would, "; "));
}

}  // namespace dsmoe
