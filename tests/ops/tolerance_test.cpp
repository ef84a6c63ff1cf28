// The checkers themselves must be able to fail.
#include "support/tolerance.h"

#include <gtest/gtest.h>

#include "support/finite_differences.h"
#include "support/random_tensor.h"

namespace dsmoe::test {
namespace {

TEST(Tolerance, ChecksCanFail) {
  const Tensor want = random_tensor(DType::kF32, {40}, 1);
  EXPECT_TRUE(close(want, want, 0));
  EXPECT_TRUE(same_bits(want, want.clone()));

  Tensor off = want.clone();
  off.data<float>()[7] *= -10;  // both signs, both directions
  EXPECT_FALSE(close(off, want, limit(DType::kBF16, 1000)));
  EXPECT_FALSE(close(want, off, limit(DType::kBF16, 1000)));

  Tensor nan = want.clone();
  nan.data<float>()[3] = NAN;
  EXPECT_FALSE(close(nan, want, 1e9));
  EXPECT_FALSE(close(want, nan, 1e9));

  Tensor last_bit = want.clone();
  last_bit.data<float>()[5] = std::nextafter(last_bit.data<float>()[5], 9.0f);
  EXPECT_FALSE(same_bits(last_bit, want));
  EXPECT_FALSE(close(want.rows(0, 39), want, 1));

  const Tensor zero = Tensor::zeros(DType::kF32, {40});
  EXPECT_FALSE(close(zero, want, 0.5)) << "an output that was never written";
  EXPECT_FALSE(close(want, zero, 0.5));
}

TEST(Tolerance, LimitsAreTight) {
  // A matrix product of length 1000 that is right to one part in 10^4 is wrong in f32 and fine in bf16.
  EXPECT_LT(limit(DType::kF32, 1000), 1e-4);
  EXPECT_GT(limit(DType::kBF16, 1000), 1e-4);
  EXPECT_LT(limit(DType::kBF16, 1000), 1e-2);
}

TEST(Tolerance, LimitsOfALayerAreTight) {
  // Of the 16B layer: five roundings to bf16 are under 2%, sums in f32 far under 0.1%.
  const LayerSizes sizes{512, 2048, 1408, 64};
  const LayerLimits bf16 = layer_limits(DType::kBF16, sizes), f32 = layer_limits(DType::kF32, sizes);
  EXPECT_LT(bf16.y, 0.012);
  EXPECT_LT(bf16.dx, 0.015);
  EXPECT_LT(bf16.gate, 0.04);
  EXPECT_LT(f32.gate, 2e-4);
  EXPECT_GT(layer_limits(DType::kBF16, sizes, DType::kBF16).experts, bf16.experts) << "a gradient that is stored once more";
  EXPECT_EQ(layer_limits(DType::kBF16, sizes, DType::kBF16).dx, bf16.dx);
  EXPECT_LT(requantized_limit(2048, 2 * 8 * 1408), 1e-3);
}

TEST(Tolerance, WorstRowsAreSeen) {
  Tensor right(DType::kF32, {8, 8});
  for (float& v : right.span<float>()) v = 1;
  Tensor wrong = right.clone();
  EXPECT_EQ(worst_row_error(wrong, right, 8), 0);
  EXPECT_EQ(worst_row_error(wrong, right, 8, 2), 0.5);
  wrong.data<float>()[5] = 1.1f;
  EXPECT_GT(worst_row_error(wrong, right, 8), chain_limit(DType::kBF16, 5, 1000));
  EXPECT_LT(relative_error(wrong, right), chain_limit(DType::kBF16, 5, 1000)) << "over all rows it is not";
  wrong.data<float>()[5] = NAN;
  EXPECT_EQ(worst_row_error(wrong, right, 8), INFINITY);
  EXPECT_EQ(worst_row_error(right.rows(0, 7), right, 8), INFINITY);
  // A row of zeros among others is measured against those.
  for (Index i = 0; i < 8; ++i) right.data<float>()[i] = 0;
  EXPECT_GT(worst_row_error(wrong.rows(1, 8), right.rows(0, 7), 8), 1);
}

TEST(Tolerance, FiniteDifferencesTellARightGradientFromAWrongOne) {
  Tensor x = random_tensor(DType::kF32, {40}, 1), right(DType::kF32, {40}), wrong(DType::kF32, {40});
  for (Index i = 0; i < 40; ++i) {
    right.data<float>()[i] = std::cos(x.data<float>()[i]);
    wrong.data<float>()[i] = 1.001f * right.data<float>()[i];
  }
  const auto objective = [&] {
    double sum = 0;
    for (Index i = 0; i < 40; ++i) sum += std::sin(x.data<float>()[i]);  // each rounded to f32
    return sum;
  };
  const Tensor slope = finite_differences(x, objective);
  EXPECT_TRUE(close(right, slope, difference_limit(40)));
  EXPECT_FALSE(close(wrong, slope, difference_limit(40)));
}

}  // namespace
}  // namespace dsmoe::test
