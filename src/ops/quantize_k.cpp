// The K types: a block has one f16 scale for small integer scales of groups, so a code depends on three roundings. Each
// group first gets its best real scale (and minimum); those are rounded, and the integers beside the nearest are tried too.
#include "ops/quantize_k.h"

#include <algorithm>
#include <cmath>

namespace dsmoe::ops {

namespace {

// To nearest, ties to even, for |x| < 2^22; unlike rint() it is vectorised everywhere.
float nearest(float x) { return (x + 12582912.0f) - 12582912.0f; }

// The sum of fn(0) ... fn(n - 1), n a multiple of 8, in eight chains.
template <class Fn>
float sum_of(int n, Fn fn) {
  float lane[8] = {};
  for (int i = 0; i < n; i += 8)
    for (int j = 0; j < 8; ++j) lane[j] += fn(i + j);
  return ((lane[0] + lane[4]) + (lane[2] + lane[6])) + ((lane[1] + lane[5]) + (lane[3] + lane[7]));
}

// Codes of x ≈ scale * q - minimum with q in [0, most]; returns the squared error.
float encode(const float* x, float scale, float minimum, int most, float* q) {
  const float inv = scale > 0 ? 1 / scale : 0;
  for (int i = 0; i < 32; ++i) q[i] = std::min(std::max(nearest((x[i] + minimum) * inv), 0.0f), static_cast<float>(most));
  return sum_of(32, [&](int i) {
    const float d = scale * q[i] - minimum - x[i];
    return d * d;
  });
}

struct Line {
  float scale = 0, minimum = 0;  // both >= 0
};

// The line through given codes with the least squared error.
Line through(const float* x, const float* q, float sum_x) {
  const float sq = sum_of(32, [&](int i) { return q[i]; });
  const float sqq = sum_of(32, [&](int i) { return q[i] * q[i]; });
  const float sqx = sum_of(32, [&](int i) { return q[i] * x[i]; });
  const float det = 32 * sqq - sq * sq;
  if (det <= 0) return {};
  const Line line{(32 * sqx - sum_x * sq) / det, (sq * sqx - sqq * sum_x) / det};
  if (line.minimum >= 0 && line.scale > 0) return line;
  return {std::max(0.0f, sqx / sqq), 0};  // the minimum can only be subtracted
}

// From several starts, codes and line by turns.
Line best_line(const float* x, int most) {
  const float low = std::min(0.0f, *std::min_element(x, x + 32)), high = *std::max_element(x, x + 32);
  if (high <= low) return {0, -low};
  const float sum_x = sum_of(32, [&](int i) { return x[i]; });
  Line best;
  float best_error = INFINITY, q[32];
  for (int start = -2; start <= 5; ++start) {
    // Steps a little shorter than the range asks for cut its ends off, which pays when few numbers lie there.
    Line line{(high - low) / (static_cast<float>(most) + 0.3f * static_cast<float>(start)), -low};
    for (int turn = 0; turn < 3; ++turn) {
      const float error = encode(x, line.scale, line.minimum, most, q);
      if (error < best_error) best_error = error, best = line;
      line = through(x, q, sum_x);
      if (line.scale <= 0) break;
    }
  }
  return best;
}

void store_six_bits(std::uint8_t* scales, int j, SixBits v) {
  if (j < 4) {
    scales[j] = static_cast<std::uint8_t>(scales[j] | v.scale);
    scales[j + 4] = static_cast<std::uint8_t>(scales[j + 4] | v.minimum);
  } else {
    scales[j + 4] = static_cast<std::uint8_t>((v.scale & 15) | (v.minimum & 15) << 4);
    scales[j - 4] = static_cast<std::uint8_t>(scales[j - 4] | v.scale >> 4 << 6);
    scales[j] = static_cast<std::uint8_t>(scales[j] | v.minimum >> 4 << 6);
  }
}

// The part that Q4_K and Q5_K share: scales, minimums and the codes [256] of a block.
template <class Block>
void quantize_with_minimum(const float* x, int most, Block& b, std::uint8_t* codes) {
  Line line[8];
  Line top;
  for (int j = 0; j < 8; ++j) {
    line[j] = best_line(x + 32 * j, most);
    top = {std::max(top.scale, line[j].scale), std::max(top.minimum, line[j].minimum)};
  }
  b = Block{};
  const float scale = store_half(top.scale / 63, b.scale), minimum = store_half(top.minimum / 63, b.minimum);
  const auto around = [](float value, float unit, int by) {
    return std::clamp(unit > 0 ? static_cast<int>(nearest(std::min(value / unit, 63.0f))) + by : 0, 0, 63);
  };
  for (int j = 0; j < 8; ++j) {
    SixBits best{};
    float best_error = INFINITY, q[32], best_q[32] = {};
    for (int step = 0; step < 9; ++step) {
      const SixBits s{around(line[j].scale, scale, step / 3 - 1), around(line[j].minimum, minimum, step % 3 - 1)};
      const float error =
          encode(x + 32 * j, scale * static_cast<float>(s.scale), minimum * static_cast<float>(s.minimum), most, q);
      if (error < best_error) best_error = error, best = s, std::copy(q, q + 32, best_q);
    }
    store_six_bits(b.scales, j, best);
    for (int i = 0; i < 32; ++i) codes[32 * j + i] = static_cast<std::uint8_t>(best_q[i]);
  }
}

template <class Block>
void pack_halves(const std::uint8_t* codes, Block& b) {
  for (int j = 0; j < 4; ++j)
    for (int i = 0; i < 32; ++i)
      b.q[32 * j + i] = static_cast<std::uint8_t>((codes[64 * j + i] & 15) | (codes[64 * j + 32 + i] & 15) << 4);
}

// Codes of x ≈ scale * q with q in [-32, 31]; returns the squared error.
float encode_signed(const float* x, float scale, float* q) {
  const float inv = scale != 0 ? 1 / scale : 0;
  for (int i = 0; i < 16; ++i) q[i] = std::min(std::max(nearest(x[i] * inv), -32.0f), 31.0f);
  return sum_of(16, [&](int i) {
    const float d = scale * q[i] - x[i];
    return d * d;
  });
}

float best_scale(const float* x) {
  float largest = 0;
  for (int i = 0; i < 16; ++i)
    if (std::fabs(x[i]) > std::fabs(largest)) largest = x[i];
  float best = 0, best_error = INFINITY, q[16];
  for (int start = 0; start < 12 && largest != 0; ++start) {
    // The code -32 has no counterpart: the largest number takes it, or 31 under the other sign.
    float scale = largest / (start % 2 == 0 ? -32.5f + 0.35f * static_cast<float>(start)
                                            : 31.5f - 0.35f * static_cast<float>(start - 1));
    for (int turn = 0; turn < 2; ++turn) {
      const float error = encode_signed(x, scale, q);
      if (error < best_error) best_error = error, best = scale;
      const float qq = sum_of(16, [&](int i) { return q[i] * q[i]; });
      if (qq == 0) break;
      scale = sum_of(16, [&](int i) { return q[i] * x[i]; }) / qq;
    }
  }
  return best;
}

}  // namespace

void quantize(const float* x, BlockQ4_K& b) {
  std::uint8_t codes[256];
  quantize_with_minimum(x, 15, b, codes);
  pack_halves(codes, b);
}

void quantize(const float* x, BlockQ5_K& b) {
  std::uint8_t codes[256];
  quantize_with_minimum(x, 31, b, codes);
  pack_halves(codes, b);
  for (int i = 0; i < 256; ++i) b.high[i % 32] = static_cast<std::uint8_t>(b.high[i % 32] | codes[i] >> 4 << (i / 32));
}

void quantize(const float* x, BlockQ6_K& b) {
  float scales[16], top = 0;
  for (int j = 0; j < 16; ++j) {
    scales[j] = best_scale(x + 16 * j);
    if (std::fabs(scales[j]) > std::fabs(top)) top = scales[j];
  }
  b = BlockQ6_K{};
  const float scale = store_half(top / -128, b.scale);
  for (int j = 0; j < 16; ++j) {
    float best_error = INFINITY, q[16], best_q[16] = {};
    for (int by = -1; by <= 1; ++by) {
      const int s = scale == 0 ? 0
                               : std::clamp(static_cast<int>(nearest(std::clamp(scales[j] / scale, -128.0f, 127.0f))) + by,
                                            -128, 127);
      const float error = encode_signed(x + 16 * j, scale * static_cast<float>(s), q);
      if (error < best_error) best_error = error, b.scales[j] = static_cast<std::int8_t>(s), std::copy(q, q + 16, best_q);
    }
    for (int i = 0; i < 16; ++i) {
      const int n = 16 * j + i, part = n % 128 / 32, l = n % 32, base = n / 128;
      const int code = static_cast<int>(best_q[i]) + 32;
      std::uint8_t& low = b.low[64 * base + part % 2 * 32 + l];
      std::uint8_t& high = b.high[32 * base + l];
      low = static_cast<std::uint8_t>(low | (code & 15) << (part / 2 * 4));
      high = static_cast<std::uint8_t>(high | code >> 4 << (2 * part));
    }
  }
}

void dequantize(const BlockQ4_K& b, float* x) {
  const float scale = load_half(b.scale), minimum = load_half(b.minimum);
  for (int j = 0; j < 8; ++j) {
    const SixBits s = six_bits(b.scales, j);
    const float step = scale * static_cast<float>(s.scale), low = minimum * static_cast<float>(s.minimum);
    for (int i = 0; i < 32; ++i) x[32 * j + i] = step * static_cast<float>(b.q[j / 2 * 32 + i] >> (j % 2 * 4) & 15) - low;
  }
}

void dequantize(const BlockQ5_K& b, float* x) {
  const float scale = load_half(b.scale), minimum = load_half(b.minimum);
  for (int j = 0; j < 8; ++j) {
    const SixBits s = six_bits(b.scales, j);
    const float step = scale * static_cast<float>(s.scale), low = minimum * static_cast<float>(s.minimum);
    for (int i = 0; i < 32; ++i) {
      const int code = (b.q[j / 2 * 32 + i] >> (j % 2 * 4) & 15) | (b.high[i] >> j & 1) << 4;
      x[32 * j + i] = step * static_cast<float>(code) - low;
    }
  }
}

void dequantize(const BlockQ6_K& b, float* x) {
  const float scale = load_half(b.scale);
  for (int n = 0; n < 256; ++n) {
    const int part = n % 128 / 32, l = n % 32, base = n / 128;
    const int code =
        (b.low[64 * base + part % 2 * 32 + l] >> (part / 2 * 4) & 15) | (b.high[32 * base + l] >> (2 * part) & 3) << 4;
    x[n] = scale * static_cast<float>(b.scales[n / 16]) * static_cast<float>(code - 32);
  }
}

}  // namespace dsmoe::ops
