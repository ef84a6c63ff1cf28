// Blocks worked out by hand, and the error that each type leaves.
#include "ops/quantize.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "core/random.h"
#include "dsmoe/error.h"
#include "support/expect_error.h"

namespace dsmoe {
namespace {

constexpr DType kTypes[] = {DType::kQ8_0, DType::kQ4_0, DType::kQ5_0, DType::kQ4_K, DType::kQ5_K, DType::kQ6_K};

std::vector<std::uint8_t> quantized(DType dtype, const std::vector<float>& x) {
  std::vector<std::uint8_t> blocks(row_bytes(dtype, static_cast<std::int64_t>(x.size())));
  ops::quantize_row(dtype, x, blocks.data());
  return blocks;
}

std::vector<float> dequantized(DType dtype, const std::vector<std::uint8_t>& blocks, std::size_t n) {
  std::vector<float> x(n);
  ops::dequantize_row(dtype, blocks.data(), x);
  return x;
}

std::vector<float> normals(std::size_t n, std::uint64_t seed) {
  std::vector<float> x(n);
  const Philox rng(seed, 0);
  for (std::size_t i = 0; i < n; ++i) x[i] = rng.normal(i);
  return x;
}

double relative_error(DType dtype, const std::vector<float>& x) {
  const std::vector<float> back = dequantized(dtype, quantized(dtype, x), x.size());
  double error = 0, norm = 0;
  for (std::size_t i = 0; i < x.size(); ++i) error += std::pow(back[i] - x[i], 2), norm += std::pow(x[i], 2);
  return std::sqrt(error / norm);
}

TEST(Quantize, Q8_0ByHand) {
  std::vector<float> x(32, 0.0f);
  x[0] = 127 * 0.25f, x[1] = -0.25f, x[2] = 0.125f, x[3] = -0.125f, x[4] = 0.1249f, x[31] = -127 * 0.25f;
  const auto b = quantized(DType::kQ8_0, x);
  ASSERT_EQ(b.size(), 34u);
  EXPECT_EQ(b[0], 0x00);
  EXPECT_EQ(b[1], 0x34);                              // 0.25 as an f16
  const std::vector<int> want = {127, -1, 1, -1, 0};  // halves go away from zero
  for (std::size_t i = 0; i < want.size(); ++i) EXPECT_EQ(static_cast<std::int8_t>(b[2 + i]), want[i]) << i;
  EXPECT_EQ(static_cast<std::int8_t>(b[33]), -127);
  EXPECT_EQ(dequantized(DType::kQ8_0, b, 32)[31], x[31]);
}

TEST(Quantize, Q4_0ByHand) {
  std::vector<float> x(32, 0.0f);
  x[0] = 4, x[1] = -4, x[2] = 0.5f, x[3] = -1.2f, x[16] = -0.5f, x[31] = 1.5f;
  const auto b = quantized(DType::kQ4_0, x);
  ASSERT_EQ(b.size(), 18u);
  EXPECT_EQ(b[0], 0x00);
  EXPECT_EQ(b[1], 0xb8);  // -0.5: the largest, +4, takes code 0
  EXPECT_EQ(b[2], 0x90);  // 4 -> 0, and number 16: -0.5 -> 9
  EXPECT_EQ(b[3], 0x8f);  // -4 would be 16: cut to 15; number 17 is zero: 8
  EXPECT_EQ(b[4], 0x87);
  EXPECT_EQ(b[5], 0x8a);  // -1.2 / -0.5 + 8 = 10.4
  EXPECT_EQ(b[17], 0x58);
  const auto back = dequantized(DType::kQ4_0, b, 32);
  EXPECT_EQ(back[0], 4);
  EXPECT_EQ(back[1], -3.5f);
  EXPECT_EQ(back[3], -1);
  EXPECT_EQ(back[16], -0.5f);
  EXPECT_EQ(back[31], 1.5f);
}

TEST(Quantize, Q5_0ByHand) {
  std::vector<float> x(32, 0.0f);
  x[0] = -16, x[1] = 15, x[2] = 1, x[17] = -1, x[31] = 7;
  const auto b = quantized(DType::kQ5_0, x);
  ASSERT_EQ(b.size(), 22u);
  EXPECT_EQ(b[0], 0x00);
  EXPECT_EQ(b[1], 0x3c);  // 1
  // Codes 0, 31, 17, then 16; number 17 is 15, the last is 23. The fifth bit is missing in numbers 0 and 17 alone.
  const std::uint8_t high[4] = {0xfe, 0xff, 0xfd, 0xff};
  EXPECT_EQ(std::memcmp(b.data() + 2, high, 4), 0);
  EXPECT_EQ(b[6], 0x00);
  EXPECT_EQ(b[7], 0xff);
  EXPECT_EQ(b[8], 0x01);
  EXPECT_EQ(b[21], 0x70);
  EXPECT_EQ(dequantized(DType::kQ5_0, b, 32), x);
}

// Codes, scales and minimums that are chosen freely, written to a block by the layout's rules and read back.
TEST(Quantize, KBlocksByHand) {
  std::vector<std::uint8_t> b(144, 0);
  b[0] = 0x00, b[1] = 0x38;  // scale 0.5
  b[2] = 0x00, b[3] = 0x34;  // minimum 0.25
  b[4 + 1] = 3 | 2 << 6;     // group 1: scale 3; upper bits of group 5's scale: 2
  b[4 + 5] = 7 | 1 << 6;     // group 1: minimum 7; upper bits of group 5's minimum: 1
  b[4 + 9] = 5 | 9 << 4;     // group 5: scale 5 + 32, minimum 9 + 16
  b[16 + 4] = 0xa6;          // number 4 of group 0: 6, of group 1: 10
  b[16 + 64 + 4] = 0xa6;     // groups 4 and 5
  auto x = dequantized(DType::kQ4_K, b, 256);
  EXPECT_EQ(x[4], 0) << "group 0 has no scale";
  EXPECT_EQ(x[32 + 4], 0.5f * 3 * 10 - 0.25f * 7);
  EXPECT_EQ(x[32], -0.25f * 7);
  EXPECT_EQ(x[160 + 4], 0.5f * 37 * 10 - 0.25f * 25);
  EXPECT_EQ(x[128 + 4], 0);

  std::vector<std::uint8_t> c(b.begin(), b.begin() + 16);
  c.resize(176);
  c[16 + 4] = 1 << 5;  // fifth bit of number 4 of group 5
  std::copy(b.begin() + 16, b.end(), c.begin() + 48);
  x = dequantized(DType::kQ5_K, c, 256);
  EXPECT_EQ(x[160 + 4], 0.5f * 37 * 26 - 0.25f * 25);
  EXPECT_EQ(x[32 + 4], 0.5f * 3 * 10 - 0.25f * 7);

  std::vector<std::uint8_t> d(210, 0);
  d[208] = 0x00, d[209] = 0x38;                // 0.5
  d[192 + 1] = static_cast<std::uint8_t>(-3);  // numbers 16-31
  d[192 + 12] = 4;                             // numbers 192-207
  d[17] = 0x0b, d[128 + 17] = 0x02;            // number 17: 11 + 32
  d[64 + 5] = 0x90, d[128 + 32 + 5] = 0x10;    // number 192 + 5: 9 + 16
  x = dequantized(DType::kQ6_K, d, 256);
  EXPECT_EQ(x[17], 0.5f * -3 * (43 - 32));
  EXPECT_EQ(x[16], 0.5f * -3 * -32);
  EXPECT_EQ(x[0], 0);
  EXPECT_EQ(x[197], 0.5f * 4 * (25 - 32));
  EXPECT_EQ(x[192], 0.5f * 4 * -32);
}

// What is on a type's grid comes back as it was: the packing of every field is the inverse of reading it.
TEST(Quantize, NumbersOnTheGridAreExact) {
  std::vector<float> x(256);
  for (std::size_t i = 0; i < 256; ++i) {
    const int group = static_cast<int>(i / 32);
    const int code = i % 32 == 0 ? 0 : i % 32 == 1 ? 15 : static_cast<int>(i * 7 % 16);
    x[i] = static_cast<float>(63 - 8 * group) * static_cast<float>(code) - static_cast<float>(63 - 9 * ((group + 3) % 8));
  }
  EXPECT_EQ(dequantized(DType::kQ4_K, quantized(DType::kQ4_K, x), 256), x);
  for (std::size_t i = 0; i < 256; ++i) {
    const int group = static_cast<int>(i / 32);
    const int code = i % 32 == 0 ? 0 : i % 32 == 1 ? 31 : static_cast<int>(i * 7 % 32);
    x[i] = static_cast<float>(63 - 8 * group) * static_cast<float>(code) - static_cast<float>(63 - 9 * ((group + 3) % 8));
  }
  EXPECT_EQ(dequantized(DType::kQ5_K, quantized(DType::kQ5_K, x), 256), x);
  for (std::size_t i = 0; i < 256; ++i) {
    const int group = static_cast<int>(i / 16);
    const int code = i % 16 == 0 ? -32 : i % 16 == 1 ? 31 : static_cast<int>(i * 11 % 64) - 32;
    x[i] = static_cast<float>(-128 + 13 * group) * static_cast<float>(code);
  }
  EXPECT_EQ(dequantized(DType::kQ6_K, quantized(DType::kQ6_K, x), 256), x);
}

// Normal numbers: the error of uniform steps, measured, with a few percent of room. A code that ended up in the wrong place
// would leave an error near 1.
TEST(Quantize, ErrorOfNormalNumbers) {
  const auto x = normals(256 * 64, 7);
  const double limit[] = {0.0055, 0.087, 0.044, 0.0705, 0.0350, 0.0171};
  for (std::size_t i = 0; i < 6; ++i) {
    const double error = relative_error(kTypes[i], x);
    EXPECT_LT(error, limit[i]) << to_string(kTypes[i]);
    EXPECT_GT(error, 0.8 * limit[i]) << to_string(kTypes[i]) << ": the limit is too loose";
  }
}

TEST(Quantize, HardBlocks) {
  for (const DType dtype : kTypes) {
    for (const float value : {0.0f, 1.0f, -3.0f, 1e-30f, -1e-42f, 60000.0f, -500000.0f}) {
      std::vector<float> x(256, value);
      auto back = dequantized(dtype, quantized(dtype, x), 256);
      for (const float y : back)
        ASSERT_NEAR(y, value, 1e-2f * std::fabs(value) + 1e-7f) << to_string(dtype) << " " << value;
      std::fill(x.begin() + 1, x.end(), 0.0f);  // one number alone
      back = dequantized(dtype, quantized(dtype, x), 256);
      ASSERT_NEAR(back[0], value, 1e-2f * std::fabs(value) + 1e-7f) << to_string(dtype);
      for (std::size_t i = 1; i < 256; ++i)
        ASSERT_NEAR(back[i], 0, 1e-2f * std::fabs(value)) << to_string(dtype) << " " << i;
    }
  }
}

TEST(Quantize, Refusals) {
  for (const DType dtype : kTypes) {
    std::vector<float> x = normals(256, 1);
    std::vector<std::uint8_t> room(1024);
    for (const float bad : {NAN, INFINITY, -INFINITY, 1e9f}) {
      x[77] = bad;
      EXPECT_THROW(ops::quantize_row(dtype, x, room.data()), Error) << bad;
    }
    EXPECT_THROW(ops::quantize_row(dtype, std::span(x).first(31), room.data()), Error);
    EXPECT_THROW(ops::dequantize_row(dtype, room.data(), std::span(x).first(33)), Error);
  }
  std::vector<float> x(32);
  EXPECT_THROW(ops::quantize_row(DType::kF16, x, x.data()), Error);
}

}  // namespace
}  // namespace dsmoe
