// The blocks of GGUF's quantized types, byte by byte as they lie in a file. Bytes only, so that a block may lie anywhere.
// Scales are IEEE halves, the low byte first.
#pragma once

#include <cstdint>

namespace dsmoe::ops {

struct BlockQ8_0 {  // x = scale * q
  static constexpr int kNumbers = 32;
  std::uint8_t scale[2];
  std::int8_t q[32];
};

struct BlockQ4_0 {  // x = scale * (q - 8); number i is the low half of byte i, number i + 16 the high half
  static constexpr int kNumbers = 32;
  std::uint8_t scale[2];
  std::uint8_t q[16];
};

struct BlockQ5_0 {  // x = scale * (q - 16); bit i of `high` is the fifth bit of number i
  static constexpr int kNumbers = 32;
  std::uint8_t scale[2];
  std::uint8_t high[4];
  std::uint8_t q[16];
};

// x = scale * s * q - minimum * m, with s and m of six bits for every 32 numbers. Numbers [64j, 64j + 32) are the low
// halves of q[32j, 32j + 32), the next 32 the high halves.
struct BlockQ4_K {
  static constexpr int kNumbers = 256;
  std::uint8_t scale[2], minimum[2];
  std::uint8_t scales[12];  // see six_bits()
  std::uint8_t q[128];
};

struct BlockQ5_K {  // the same with a fifth bit: for numbers [32j, 32j + 32) it is bit j of high[0, 32)
  static constexpr int kNumbers = 256;
  std::uint8_t scale[2], minimum[2];
  std::uint8_t scales[12];
  std::uint8_t high[32];
  std::uint8_t q[128];
};

// x = scale * s * (q - 32), with s for every 16 numbers. In either half of 128: numbers 0-63 are the low halves of
// low[0, 64), numbers 64-127 the high halves; bits 4 and 5 of number 32j + i are bits 2j and 2j + 1 of high[i].
struct BlockQ6_K {
  static constexpr int kNumbers = 256;
  std::uint8_t low[128];
  std::uint8_t high[64];
  std::int8_t scales[16];
  std::uint8_t scale[2];
};

static_assert(sizeof(BlockQ8_0) == 34 && sizeof(BlockQ4_0) == 18 && sizeof(BlockQ5_0) == 22);
static_assert(sizeof(BlockQ4_K) == 144 && sizeof(BlockQ5_K) == 176 && sizeof(BlockQ6_K) == 210);

}  // namespace dsmoe::ops
