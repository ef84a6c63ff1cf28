// One block of 256 numbers of the K types.
#pragma once

#include "dsmoe/dtype.h"
#include "ops/quant_blocks.h"

namespace dsmoe::ops {

inline float load_half(const std::uint8_t* bytes) {
  return static_cast<float>(Float16::from_bits(static_cast<std::uint16_t>(bytes[0] | bytes[1] << 8)));
}
inline float store_half(float value, std::uint8_t* bytes) {  // returns what was stored
  const Float16 half(value);
  bytes[0] = static_cast<std::uint8_t>(half.bits);
  bytes[1] = static_cast<std::uint8_t>(half.bits >> 8);
  return static_cast<float>(half);
}

// The six-bit scale and minimum of group j < 8. Groups 0-3 have a byte each, whose upper two bits hold the upper bits of
// groups 4-7; the lower four of those share a byte.
struct SixBits {
  int scale, minimum;
};
inline SixBits six_bits(const std::uint8_t* scales, int j) {
  if (j < 4) return {scales[j] & 63, scales[j + 4] & 63};
  return {(scales[j + 4] & 15) | scales[j - 4] >> 6 << 4, scales[j + 4] >> 4 | scales[j] >> 6 << 4};
}

void quantize(const float* x, BlockQ4_K& b);
void quantize(const float* x, BlockQ5_K& b);
void quantize(const float* x, BlockQ6_K& b);
void dequantize(const BlockQ4_K& b, float* x);
void dequantize(const BlockQ5_K& b, float* x);
void dequantize(const BlockQ6_K& b, float* x);

}  // namespace dsmoe::ops
