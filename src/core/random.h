// Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011): a counter-based
// generator. Number i of a stream depends on (seed, stream, i) alone, so any part of a tensor can be drawn
// by any thread, in any order, with the same bits.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>

namespace dsmoe {

class Philox {
 public:
  constexpr Philox(std::uint64_t seed, std::uint64_t stream) : seed_(seed), stream_(stream) {}

  // The 128-bit block with number `index`.
  constexpr std::array<std::uint32_t, 4> block(std::uint64_t index) const {
    std::array<std::uint32_t, 4> c{static_cast<std::uint32_t>(index), static_cast<std::uint32_t>(index >> 32),
                                   static_cast<std::uint32_t>(stream_), static_cast<std::uint32_t>(stream_ >> 32)};
    auto k0 = static_cast<std::uint32_t>(seed_);
    auto k1 = static_cast<std::uint32_t>(seed_ >> 32);
    for (int round = 0; round < 10; ++round) {
      const std::uint64_t p0 = 0xD2511F53ull * c[0];
      const std::uint64_t p1 = 0xCD9E8D57ull * c[2];
      c = {static_cast<std::uint32_t>(p1 >> 32) ^ c[1] ^ k0, static_cast<std::uint32_t>(p1),
           static_cast<std::uint32_t>(p0 >> 32) ^ c[3] ^ k1, static_cast<std::uint32_t>(p0)};
      k0 += 0x9E3779B9u;
      k1 += 0xBB67AE85u;
    }
    return c;
  }

  constexpr std::uint32_t word(std::uint64_t i) const { return block(i / 4)[i % 4]; }

  // Number i of the stream, uniform in [0, 1) with 24 bits.
  float uniform(std::uint64_t i) const { return to_unit(word(i)); }

  // Numbers 4i to 4i + 3 of the stream, normal with mean 0 and deviation 1 (Box-Muller on two pairs of words).
  std::array<float, 4> normals(std::uint64_t i) const {
    const auto b = block(i);
    std::array<float, 4> out{};
    for (std::size_t pair = 0; pair < 4; pair += 2) {
      // (0, 1] keeps the logarithm finite.
      const double u = (static_cast<double>(b[pair]) + 1.0) / 4294967296.0;
      const double angle = 6.283185307179586 * static_cast<double>(b[pair + 1]) / 4294967296.0;
      const double radius = std::sqrt(-2.0 * std::log(u));
      out[pair] = static_cast<float>(radius * std::cos(angle));
      out[pair + 1] = static_cast<float>(radius * std::sin(angle));
    }
    return out;
  }
  float normal(std::uint64_t i) const { return normals(i / 4)[i % 4]; }

  // Number i of the stream, uniform in [0, n). The bias is at most n / 2^64.
  std::uint64_t below(std::uint64_t i, std::uint64_t n) const {
    const auto b = block(i / 2);
    const std::size_t pair = (i % 2) * 2;
    const std::uint64_t word = (static_cast<std::uint64_t>(b[pair]) << 32) | b[pair + 1];
    return static_cast<std::uint64_t>((static_cast<__uint128_t>(word) * n) >> 64);
  }

 private:
  static float to_unit(std::uint32_t word) { return static_cast<float>(word >> 8) * 0x1p-24f; }

  std::uint64_t seed_;
  std::uint64_t stream_;
};

}  // namespace dsmoe
