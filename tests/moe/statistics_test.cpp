#include <gtest/gtest.h>

#include <cmath>

#include "dsmoe/error.h"
#include "dsmoe/moe_statistics.h"

namespace dsmoe {
namespace {

Routing routing(std::vector<std::int32_t> experts, std::vector<float> weights, Index k) {
  const auto n = static_cast<Index>(experts.size());
  Routing r{Tensor(DType::kI32, {n / k, k}), Tensor(DType::kF32, {n / k, k}), {}};
  std::copy(experts.begin(), experts.end(), r.experts.data<std::int32_t>());
  std::copy(weights.begin(), weights.end(), r.weights.data<float>());
  return r;
}

TEST(MoeStatistics, CountsByHand) {
  RoutingStatistics s(4);
  EXPECT_EQ(s.entropy(), 0);
  EXPECT_EQ(s.imbalance(), 0);
  s.add(routing({0, 1, 1, 0}, {0.5f, 0.25f, 0.75f, 0.25f}, 2));
  s.add(routing({2, 1}, {0.5f, 0.5f}, 2));
  EXPECT_EQ(s.tokens(), 3);
  EXPECT_EQ(s.load(), (std::vector<std::int64_t>{2, 3, 1, 0}));
  EXPECT_EQ(s.unused(), std::vector<Index>{3});
  EXPECT_DOUBLE_EQ(s.imbalance(), 3.0 / (6.0 / 4));
  EXPECT_NEAR(s.entropy(), -(2 / 6. * std::log(2 / 6.) + 3 / 6. * std::log(3 / 6.) + 1 / 6. * std::log(1 / 6.)), 1e-12);
  EXPECT_EQ(s.mean_weight(), (std::vector<double>{0.375, 0.5, 0.5, 0}));
  EXPECT_EQ(s.coactivation(), (std::vector<std::vector<std::int64_t>>{{2, 2, 0, 0}, {2, 3, 1, 0}, {0, 1, 1, 0}, {}}));
}

TEST(MoeStatistics, EvenLoadHasTheLargestEntropy) {
  RoutingStatistics s(4);
  s.add(routing({0, 1, 2, 3}, {1, 1, 1, 1}, 1));
  EXPECT_NEAR(s.entropy(), std::log(4.0), 1e-12);
  EXPECT_DOUBLE_EQ(s.imbalance(), 1);
}

TEST(MoeStatistics, RefusesExpertsThatAreNotThere) {
  RoutingStatistics s(2);
  EXPECT_THROW(s.add(routing({2}, {1}, 1)), Error);
}

}  // namespace
}  // namespace dsmoe
