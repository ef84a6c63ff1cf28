#include "dsmoe/tensor.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "dsmoe/error.h"
#include "support/expect_error.h"

namespace dsmoe {
namespace {

TEST(Shape, RefusesWhatCannotBe) {
  EXPECT_EQ((Shape{2, 3}).numel(), 6);
  EXPECT_EQ((Shape{2, 3}).str(), "[2, 3]");
  EXPECT_EQ((Shape{2, 0, 5}).numel(), 0);
  EXPECT_THROW((Shape{1, -1}), Error);
  EXPECT_THROW((Shape{1, 1, 1, 1, 1}), Error);
  EXPECT_THROW((Shape{Index{1} << 40, Index{1} << 40}), Error);
}

TEST(Tensor, CopiesShareAndClonesDoNot) {
  Tensor a = Tensor::zeros(DType::kF32, {2, 3});
  Tensor b = a;
  Tensor c = a.clone();
  a.data<float>()[4] = 7;
  EXPECT_EQ(b.data<float>()[4], 7);
  EXPECT_EQ(c.data<float>()[4], 0);
  EXPECT_EQ(a.rows(1, 2).data<float>()[1], 7);
  EXPECT_EQ(a.reshape({3, 2}).data<float>()[4], 7);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(a.raw()) % 64, 0u);
}

TEST(Tensor, RefusesWrongUse) {
  Tensor a = Tensor::zeros(DType::kF32, {2, 3});
  EXPECT_THROW(a.data<BFloat16>(), Error);
  EXPECT_THROW(a.rows(1, 3), Error);
  EXPECT_THROW(a.reshape({5}), Error);
  const float numbers[2] = {1, 2};
  Tensor view = Tensor::wrap(static_cast<const void*>(numbers), DType::kF32, {2});
  EXPECT_EQ(std::as_const(view).data<float>()[1], 2);
  EXPECT_THROW(view.data<float>(), Error) << "a mapped file must not be written";
}

// The address is not followed, so this needs no GPU.
TEST(Tensor, AGpusMemoryIsNotOpenedOnTheCpu) {
  float numbers[6] = {};
  Tensor t = Tensor::wrap(numbers, DType::kF32, {2, 3}, {}, Device::kCuda);
  EXPECT_EQ(t.device(), Device::kCuda);
  EXPECT_EQ(t.rows(1, 2).device(), Device::kCuda);
  EXPECT_EQ(t.reshape({6}).device(), Device::kCuda);
  EXPECT_EQ(t.raw(), numbers);
  EXPECT_EQ(t.to(Device::kCuda).raw(), numbers);
  EXPECT_TRUE(testing::throws_error([&] { t.data<float>(); }, {"to(Device::kCpu)"}));
  EXPECT_THROW(t.to(DType::kBF16), Error);
}

TEST(Tensor, QuantizedRowsAreWholeBlocks) {
  const Tensor a(DType::kQ4_0, {3, 64});
  EXPECT_EQ(a.bytes(), 3u * 2 * 18);
  EXPECT_EQ(static_cast<const char*>(a.rows(1, 3).raw()) - static_cast<const char*>(a.raw()), 2 * 18);
  EXPECT_EQ(a.reshape({6, 32}).bytes(), a.bytes());
  EXPECT_THROW(a.reshape({12, 16}), Error) << "half a block has no address";
  EXPECT_THROW(Tensor(DType::kQ6_K, {2, 1408}), Error) << "1408 is no multiple of 256";
  EXPECT_THROW(size_of(DType::kQ8_0), Error);
  EXPECT_THROW(a.to(DType::kF32), Error);
  EXPECT_EQ(row_bytes(DType::kQ6_K, 512), 420u);
}

TEST(BFloat16, RoundsToNearestEven) {
  const auto round = [](float x) { return static_cast<float>(BFloat16(x)); };
  EXPECT_EQ(round(1.0f), 1.0f);
  EXPECT_EQ(round(1.0f + 0x1p-8f), 1.0f);                // a tie goes to the even neighbour
  EXPECT_EQ(round(1.0f + 3 * 0x1p-8f), 1.0f + 0x1p-6f);  // and so does this one
  EXPECT_EQ(round(1.0f + 0x1.8p-8f), 1.0f + 0x1p-7f);
  EXPECT_TRUE(std::isinf(round(std::numeric_limits<float>::max())));
  EXPECT_TRUE(std::isnan(round(std::numeric_limits<float>::quiet_NaN())));
  EXPECT_TRUE(std::isnan(round(std::bit_cast<float>(0x7f800001u)))) << "a NaN with low bits only must not become infinity";
}

TEST(Tensor, ConvertsBetweenF32AndBf16) {
  Tensor a(DType::kF32, {3});
  a.data<float>()[0] = 1.5f, a.data<float>()[1] = -2, a.data<float>()[2] = 0.1f;
  const Tensor b = a.to(DType::kBF16).to(DType::kF32);
  EXPECT_EQ(b.data<float>()[0], 1.5f);
  EXPECT_NEAR(b.data<float>()[2], 0.1f, 0.1f * 0x1p-8f);
}

TEST(Float16, EveryValueIsExact) {
  for (std::uint32_t bits = 0; bits < 0x10000u; ++bits) {
    const auto value = static_cast<float>(Float16::from_bits(static_cast<std::uint16_t>(bits)));
    const std::uint32_t exponent = (bits >> 10) & 31u;
    const std::uint32_t fraction = bits & 1023u;
    EXPECT_EQ(std::signbit(value), bits >= 0x8000u) << bits;
    if (exponent == 31) {
      EXPECT_TRUE(fraction != 0 ? std::isnan(value) : std::isinf(value)) << bits;
    } else {
      const int scale = exponent == 0 ? -24 : static_cast<int>(exponent) - 25;
      EXPECT_EQ(std::fabs(value), std::ldexp(exponent == 0 ? fraction : fraction + 1024u, scale)) << bits;
    }
  }
}

TEST(Float16, RoundsToNearestEven) {
  const auto half = [](float x) { return Float16(x).bits; };
  for (std::uint32_t bits = 0; bits < 0x10000u; ++bits) {
    const auto h = Float16::from_bits(static_cast<std::uint16_t>(bits));
    const auto x = static_cast<float>(h);
    if (std::isnan(x)) {
      EXPECT_TRUE(std::isnan(static_cast<float>(Float16(x)))) << bits;
      continue;
    }
    EXPECT_EQ(half(x), bits);
    const std::uint32_t next = bits + 1;  // the neighbour away from zero
    if ((bits & 0x7fffu) >= 0x7bffu) continue;
    const float middle =
        (x + static_cast<float>(Float16::from_bits(static_cast<std::uint16_t>(next)))) / 2;  // exact in f32
    EXPECT_EQ(half(middle), bits % 2 == 0 ? bits : next) << bits;
    EXPECT_EQ(half(std::nextafter(middle, 0.0f)), bits);
    EXPECT_EQ(half(std::nextafter(middle, 2 * middle)), next);
  }
  EXPECT_EQ(half(65519.996f), 0x7bff);
  EXPECT_EQ(half(65520.0f), 0x7c00);
  EXPECT_EQ(half(-1e30f), 0xfc00);
  EXPECT_EQ(half(std::numeric_limits<float>::denorm_min()), 0);
}

TEST(Tensor, ConvertsFromAndToF16) {
  const std::uint16_t bits[3] = {0x3e00, 0xc000, 0x3c01};  // 1.5, -2, 1 + 2^-10
  const Tensor half = Tensor::wrap(static_cast<const void*>(bits), DType::kF16, {3});
  const Tensor f32 = half.to(DType::kF32);
  EXPECT_EQ(f32.data<float>()[0], 1.5f);
  EXPECT_EQ(f32.data<float>()[1], -2.0f);
  EXPECT_EQ(f32.data<float>()[2], 1.0f + 0x1p-10f);
  const Tensor bf16 = half.to(DType::kBF16);
  EXPECT_EQ(static_cast<float>(bf16.data<BFloat16>()[2]), 1.0f) << "rounded";
  const Tensor back = f32.to(DType::kF16);
  for (Index i = 0; i < 3; ++i) EXPECT_EQ(back.data<Float16>()[i].bits, bits[i]);
  EXPECT_EQ(static_cast<float>(bf16.to(DType::kF16).data<Float16>()[2]), 1.0f);
  EXPECT_THROW(f32.to(DType::kI32), Error);
}

}  // namespace
}  // namespace dsmoe
