// What the engine has done so far, for those who watch it.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "infer/request.h"

namespace dsmoe::infer {

// Seconds, in buckets as Prometheus has them.
struct Histogram {
  static constexpr std::array kBounds = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25,
                                         0.5,   1.0,    2.5,   5.0,  10.0,  30.0, 60.0};
  std::array<std::uint64_t, kBounds.size() + 1> counts = {};  // the last: above all bounds
  double sum = 0;
  std::uint64_t count = 0;

  void add(double seconds) {
    const auto at = std::lower_bound(kBounds.begin(), kBounds.end(), seconds) - kBounds.begin();
    ++counts[static_cast<std::size_t>(at)];
    sum += seconds;
    ++count;
  }
};

struct EngineStats {
  Index running = 0, waiting = 0;  // requests
  Index pages = 0, free_pages = 0, cached_pages = 0;
  std::uint64_t submitted = 0, refused = 0;
  std::array<std::uint64_t, static_cast<std::size_t>(End::kError) + 1> ended = {};  // by reason
  std::uint64_t prompt_tokens = 0, cached_tokens = 0, generated_tokens = 0;
  std::uint64_t steps = 0, step_tokens = 0, preemptions = 0;
  Histogram first_token, between_tokens, request;
  std::vector<std::vector<std::uint64_t>> load;  // [L][E] tokens that chose each expert; empty for a dense layer
};

}  // namespace dsmoe::infer
