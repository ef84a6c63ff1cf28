// The types with one scale for 32 numbers, and the choice between all types.
#include "ops/quantize.h"

#include <algorithm>
#include <cmath>

#include "core/fail.h"
#include "ops/quantize_k.h"

namespace dsmoe::ops {

namespace {

// The number with the largest magnitude, the first of several.
float largest(const float* x, int n) {
  float best = 0;
  for (int i = 0; i < n; ++i)
    if (std::fabs(x[i]) > std::fabs(best)) best = x[i];
  return best;
}

// Zero where the scale is zero, or so small that its inverse is infinite: as an f16 it is zero then.
float inverse(float scale) {
  const float i = scale == 0 ? 0 : 1 / scale;
  return std::isfinite(i) ? i : 0;
}

void quantize(const float* x, BlockQ8_0& b) {
  const float scale = std::fabs(largest(x, 32)) / 127, inv = inverse(scale);
  store_half(scale, b.scale);
  for (int i = 0; i < 32; ++i) b.q[i] = static_cast<std::int8_t>(std::round(x[i] * inv));
}

// The number of largest magnitude takes the lowest code, -levels / 2, whatever its sign: so the scale may be negative.
template <int kLevels>
int code(float x, float inv) {
  return std::min(kLevels - 1, static_cast<int>(x * inv + (static_cast<float>(kLevels / 2) + 0.5f)));
}

void quantize(const float* x, BlockQ4_0& b) {
  const float scale = largest(x, 32) / -8, inv = inverse(scale);
  store_half(scale, b.scale);
  for (int i = 0; i < 16; ++i) b.q[i] = static_cast<std::uint8_t>(code<16>(x[i], inv) | code<16>(x[i + 16], inv) << 4);
}

void quantize(const float* x, BlockQ5_0& b) {
  const float scale = largest(x, 32) / -16, inv = inverse(scale);
  store_half(scale, b.scale);
  std::uint32_t high = 0;
  for (int i = 0; i < 16; ++i) {
    const auto low_half = static_cast<std::uint32_t>(code<32>(x[i], inv));
    const auto high_half = static_cast<std::uint32_t>(code<32>(x[i + 16], inv));
    b.q[i] = static_cast<std::uint8_t>((low_half & 15) | (high_half & 15) << 4);
    high |= low_half >> 4 << i | high_half >> 4 << (i + 16);
  }
  for (int i = 0; i < 4; ++i) b.high[i] = static_cast<std::uint8_t>(high >> (8 * i));
}

void dequantize(const BlockQ8_0& b, float* x) {
  const float scale = load_half(b.scale);
  for (int i = 0; i < 32; ++i) x[i] = scale * b.q[i];
}

void dequantize(const BlockQ4_0& b, float* x) {
  const float scale = load_half(b.scale);
  for (int i = 0; i < 16; ++i) {
    x[i] = scale * static_cast<float>((b.q[i] & 15) - 8);
    x[i + 16] = scale * static_cast<float>((b.q[i] >> 4) - 8);
  }
}

void dequantize(const BlockQ5_0& b, float* x) {
  const float scale = load_half(b.scale);
  for (int i = 0; i < 32; ++i) {
    const int low = i < 16 ? b.q[i] & 15 : b.q[i - 16] >> 4;
    x[i] = scale * static_cast<float>((low | (b.high[i / 8] >> (i % 8) & 1) << 4) - 16);
  }
}

}  // namespace

void quantize_row(DType dtype, std::span<const float> x, void* blocks) {
  // Beyond this the scale of some type is past the largest f16.
  constexpr float kLargest = 8.0f * 65504;
  for (std::size_t i = 0; i < x.size(); ++i)
    require(std::fabs(x[i]) <= kLargest, "cannot quantize to {}: number {} of the row is {}", to_string(dtype), i, x[i]);
  with_block_type(dtype, [&]<class Block>(Block) {
    row_bytes(dtype, static_cast<std::int64_t>(x.size()));  // whole blocks
    for (std::size_t i = 0; i < x.size() / Block::kNumbers; ++i)
      quantize(x.data() + i * Block::kNumbers, static_cast<Block*>(blocks)[i]);
  });
}

void dequantize_row(DType dtype, const void* blocks, std::span<float> x) {
  with_block_type(dtype, [&]<class Block>(Block) {
    row_bytes(dtype, static_cast<std::int64_t>(x.size()));
    for (std::size_t i = 0; i < x.size() / Block::kNumbers; ++i)
      dequantize(static_cast<const Block*>(blocks)[i], x.data() + i * Block::kNumbers);
  });
}

}  // namespace dsmoe::ops
