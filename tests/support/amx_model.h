// What the instructions of AMX do, once more and differently: loops over numbers, with sums of floats that are exact until
// they are rounded once. Tests hold the emulator against it, and a processor with AMX where they find one.
#pragma once

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "support/amx_instructions.h"

namespace dsmoe::test::model {

using Bytes = std::vector<std::uint8_t>;

// One tile: [rows, bytes]
struct Tile {
  int rows = 0, bytes = 0;
  Bytes data;

  Tile() = default;
  Tile(int rows_, int bytes_) : rows(rows_), bytes(bytes_), data(static_cast<std::size_t>(rows_ * bytes_)) {}
  std::uint8_t& at(int row, int byte) { return data[static_cast<std::size_t>(row * bytes + byte)]; }
  std::uint8_t at(int row, int byte) const { return data[static_cast<std::size_t>(row * bytes + byte)]; }
  std::uint32_t word(int row, int column) const {
    std::uint32_t value;
    std::memcpy(&value, &data[static_cast<std::size_t>(row * bytes + 4 * column)], 4);
    return value;
  }
  void set_word(int row, int column, std::uint32_t value) {
    std::memcpy(&data[static_cast<std::size_t>(row * bytes + 4 * column)], &value, 4);
  }
};

inline void dot_bytes(Tile& c, const Tile& a, const Tile& b, bool a_is_signed, bool b_is_signed) {
  const auto value = [](std::uint8_t byte, bool is_signed) { return is_signed && byte > 127 ? byte - 256 : int{byte}; };
  for (int m = 0; m < c.rows; ++m)
    for (int n = 0; n < c.bytes / 4; ++n) {
      std::int64_t sum = c.word(m, n);
      for (int k = 0; k < a.bytes; ++k)
        sum += value(a.at(m, k), a_is_signed) * value(b.at(k / 4, 4 * n + k % 4), b_is_signed);
      c.set_word(m, n, static_cast<std::uint32_t>(sum));  // modulo 2^32
    }
}

// Subnormal numbers are zeros.
inline double operand(std::uint32_t bits) {
  if ((bits & 0x7f800000) == 0) bits &= 0x80000000;
  return std::bit_cast<float>(bits);
}

// x + y, where each has few enough bits to be exact: of products of bf16, or f32. Rounded to a double that is odd where it
// is not exact, and from that to 24 bits: of all that is lost, an odd last bit tells enough. What is less than 2^-126 with
// 24 bits and any exponent is zero: what lies under the middle between 2^-126 and the next of these numbers below it.
inline std::uint32_t rounded_sum(double x, double y) {
  double sum = x + y;
  if (std::isfinite(sum)) {
    const double y_in_sum = sum - x;
    const double lost = (x - (sum - y_in_sum)) + (y - y_in_sum);
    auto bits = std::bit_cast<std::uint64_t>(sum);
    if (lost != 0 && (bits & 1) == 0) bits += (lost > 0) == (sum > 0) ? 1u : ~std::uint64_t{0};
    sum = std::bit_cast<double>(bits);
    if (std::abs(sum) < std::ldexp(1.0, -126) - std::ldexp(1.0, -151)) sum = std::copysign(0.0, sum);
  }
  return std::bit_cast<std::uint32_t>(static_cast<float>(sum));
}

// The numbers of either half of all pairs are one chain from zero; then their sum, then that and C.
inline void dot_bf16(Tile& c, const Tile& a, const Tile& b) {
  for (int m = 0; m < c.rows; ++m)
    for (int n = 0; n < c.bytes / 4; ++n) {
      std::array<std::uint32_t, 2> chain{};
      for (int k = 0; k < a.bytes / 4; ++k)
        for (const int half : {0, 1}) {
          const auto number = [&](std::uint32_t pair) { return operand(half == 0 ? pair << 16 : pair & 0xffff0000); };
          chain[static_cast<std::size_t>(half)] =
              rounded_sum(number(a.word(m, k)) * number(b.word(k, n)), operand(chain[static_cast<std::size_t>(half)]));
        }
      const std::uint32_t both = rounded_sum(operand(chain[0]), operand(chain[1]));
      c.set_word(m, n, rounded_sum(operand(c.word(m, n)), operand(both)));
    }
}

inline void dot(TileDot kind, Tile& c, const Tile& a, const Tile& b) {
  if (kind == TileDot::kBf16) return dot_bf16(c, a, b);
  dot_bytes(c, a, b, kind == TileDot::kSS || kind == TileDot::kSU, kind == TileDot::kSS || kind == TileDot::kUS);
}

}  // namespace dsmoe::test::model
