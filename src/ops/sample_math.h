// The arithmetic of sampling, the same on every backend: whatever the order of the sums and the number of threads, the same
// token is chosen. Probabilities are whole numbers (sums of them commute), their exponential is a polynomial in whole
// numbers, and the few operations on floats are single IEEE operations. docs/design/sampling.md has the rules.
// Everything is constexpr, which is what lets CUDA code call it.
#pragma once

#include <bit>
#include <cstdint>
#include <limits>

#include "core/random.h"

namespace dsmoe::ops {

// How one row is sampled, and how far it has come.
struct SampleRow {
  std::uint64_t seed = 0;
  std::uint64_t drawn = 0;       // random numbers used so far
  std::uint64_t least_mass = 0;  // min-p, of kOneMass
  float scale = 0;               // log2(e) / temperature; 0: the best token
  float top_p = 1;
  float repetition = 1, presence = 0, frequency = 0;
  std::int32_t top_k = 0;    // 0: all
  std::int32_t window = 0;   // tokens that penalties look back on
  std::int32_t history = 0;  // tokens so far; token i is number i % window of the row's ring
  std::int32_t banned = 0;

  constexpr bool penalises() const { return repetition != 1 || presence != 0 || frequency != 0; }
  constexpr std::int32_t recent() const { return history < window ? history : window; }
};

inline constexpr float kLog2E = 1.44269504f;
inline constexpr std::uint64_t kOneMass = std::uint64_t{1} << 40;   // of the best token
inline constexpr std::int64_t kMostLogits = std::int64_t{1} << 23;  // a row's masses fit 64 bits

// Codes are ordered as tokens are: the larger logit first, the lower id among equals. -0 is 0.
constexpr std::uint64_t code_of(float logit, std::uint32_t id) {
  const auto bits = std::bit_cast<std::uint32_t>(logit + 0.0f);
  const std::uint32_t ascending = bits >> 31 ? ~bits : bits | 0x80000000u;
  return static_cast<std::uint64_t>(~ascending) << 32 | id;
}
constexpr std::int32_t id_of(std::uint64_t code) { return static_cast<std::int32_t>(code & 0xffffffffu); }
constexpr float logit_of(std::uint64_t code) {
  const auto ascending = ~static_cast<std::uint32_t>(code >> 32);
  return std::bit_cast<float>(ascending >> 31 ? ascending & 0x7fffffffu : ~ascending);
}

// 2^-z of z with 25 fractional bits, z < 41, in units of 2^-40: right to 2^-26 of the value and 2^-40, and never
// increasing. The polynomial interpolates (1 - 2^-f) / f at six points of (0, 1], the last of which is 1.
constexpr std::uint64_t power_of_half(std::uint32_t z) {
  constexpr std::uint32_t kCoefficients[] = {0x00077e69, 0x0054902c, 0x0274e24d, 0x0e352d1c, 0x3d7f746f, 0xb17217dc};
  const std::uint32_t f = z << 7;  // what is left of the point falls off
  const auto times_f = [f](std::uint32_t x) { return static_cast<std::uint32_t>(static_cast<std::uint64_t>(f) * x >> 32); };
  std::uint32_t sum = kCoefficients[0];
  for (int i = 1; i < 6; ++i) sum = kCoefficients[i] - times_f(sum);
  const std::uint64_t power = (std::uint64_t{1} << 32) - times_f(sum);
  return power << 8 >> (z >> 25);
}

// exp((logit - largest) / temperature) for scale = log2(e) / temperature, in units of 2^-40.
constexpr std::uint64_t mass_of(float logit, float largest, float scale) {
  const float z = (largest - logit) * scale;
  return z < 41.0f ? power_of_half(static_cast<std::uint32_t>(z * 0x1p25f)) : 0;
}

// A logit whose token is among the recent ones `count` times. It stays finite.
constexpr float penalised(const SampleRow& row, float logit, std::int32_t count) {
  const auto finite = [](float x) {
    constexpr float kMost = std::numeric_limits<float>::max();
    return x > kMost ? kMost : x < -kMost ? -kMost : x;
  };
  const float x = finite(logit > 0 ? logit / row.repetition : logit * row.repetition);
  const float less = static_cast<float>(count) * row.frequency;
  return finite(x - (less + row.presence));
}

// Choosing is finding the token at which the sum of the weights, in the order of the codes, exceeds a target.
enum class Weighing {
  kCount,  // top-k: every token weighs 1
  kMass,   // top-p: by probability at temperature 1
  kDraw,   // the choice: by probability at the row's temperature, without what min-p drops
};

// Of the tokens up to `last`, which is where the cuts so far were made.
struct Weigher {
  Weighing weighing;
  float largest;
  float scale;
  std::uint64_t least_mass;
  std::uint64_t last;

  constexpr std::uint64_t operator()(std::uint64_t code) const { return (*this)(code, logit_of(code)); }
  constexpr std::uint64_t operator()(std::uint64_t code, float logit) const {
    if (code > last) return 0;
    if (weighing == Weighing::kCount) return 1;
    if (weighing == Weighing::kMass) return mass_of(logit, largest, kLog2E);
    return least_mass > 0 && mass_of(logit, largest, kLog2E) < least_mass ? 0 : mass_of(logit, largest, scale);
  }
};

// `total` is the sum of all weights, and greater than 0.
constexpr std::uint64_t target_of(const SampleRow& row, Weighing weighing, std::uint64_t total) {
  if (weighing == Weighing::kCount) return static_cast<std::uint64_t>(row.top_k) - 1;
  if (weighing == Weighing::kMass) {
    const double wanted = static_cast<double>(total) * static_cast<double>(row.top_p);
    auto whole = static_cast<std::uint64_t>(wanted);
    if (static_cast<double>(whole) == wanted && whole > 0) --whole;  // exceeded as soon as `wanted` is reached
    return whole < total ? whole : total - 1;
  }
  const std::uint32_t word = Philox(row.seed, /*stream=*/1).word(row.drawn) >> 8;  // what uniform() is made of
  return static_cast<std::uint64_t>(static_cast<__uint128_t>(total) * word >> 24);
}

}  // namespace dsmoe::ops
