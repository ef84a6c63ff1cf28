// Element i of a random permutation of [0, n), computed alone: shuffling needs no list, so any part of any epoch can be
// read at once. A Feistel network over the next power of four, walked until it lands below n (Black and Rogaway,
// "Ciphers with arbitrary finite domains", 2002).
#pragma once

#include <cstdint>

#include "core/random.h"

namespace dsmoe::train {

inline std::uint64_t permuted(std::uint64_t i, std::uint64_t n, std::uint64_t seed, std::uint64_t stream) {
  constexpr std::uint64_t kRounds = 6;
  int half = 1;  // bits
  while (half < 32 && (std::uint64_t{1} << (2 * half)) < n) ++half;
  const std::uint64_t mask = (std::uint64_t{1} << half) - 1;
  const Philox random(seed, stream);
  do {
    std::uint64_t left = i >> half, right = i & mask;
    for (std::uint64_t round = 0; round < kRounds; ++round) {
      const std::uint64_t mixed = left ^ (random.block((round << 32) | right)[0] & mask);
      left = right;
      right = mixed;
    }
    i = left << half | right;
  } while (i >= n);
  return i;
}

}  // namespace dsmoe::train
