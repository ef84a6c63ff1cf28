#include "core/random.h"

#include <gtest/gtest.h>

#include <cmath>

namespace dsmoe {
namespace {

// The known-answer vectors of the authors' Random123 library for philox4x32-10.
TEST(Random, PhiloxKnownAnswers) {
  EXPECT_EQ(Philox(0, 0).block(0), (std::array<std::uint32_t, 4>{0x6627e8d5u, 0xe169c58du, 0xbc57ac4cu, 0x9b00dbd8u}));
  EXPECT_EQ(Philox(~0ull, ~0ull).block(~0ull),
            (std::array<std::uint32_t, 4>{0x408f276du, 0x41c83b0eu, 0xa20bc7c6u, 0x6d5451fdu}));
}

TEST(Random, NormalHasTheRightMoments) {
  const Philox rng(1, 2);
  double sum = 0, square = 0, fourth = 0;
  constexpr int kN = 200000;
  for (int i = 0; i < kN; ++i) {
    const double x = rng.normal(static_cast<std::uint64_t>(i));
    sum += x, square += x * x, fourth += x * x * x * x;
  }
  // Six standard errors of each estimate: sqrt(1/n), sqrt(2/n), sqrt(96/n).
  EXPECT_NEAR(sum / kN, 0, 6 * std::sqrt(1.0 / kN));
  EXPECT_NEAR(square / kN, 1, 6 * std::sqrt(2.0 / kN));
  EXPECT_NEAR(fourth / kN, 3, 6 * std::sqrt(96.0 / kN));
}

TEST(Random, UniformAndBelowStayInRange) {
  const Philox rng(3, 4);
  int histogram[10] = {};
  for (std::uint64_t i = 0; i < 100000; ++i) {
    const float u = rng.uniform(i);
    ASSERT_TRUE(u >= 0 && u < 1);
    histogram[rng.below(i, 10)]++;
  }
  for (const int n : histogram) EXPECT_NEAR(n, 10000, 6 * std::sqrt(9000.0));
}

}  // namespace
}  // namespace dsmoe
