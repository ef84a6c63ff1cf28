// What the busiest rank has more than its share, against drawn routers.
#include "train/expert_loads.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include "support/expect_error.h"
#include "train/support.h"

namespace dsmoe::train {
namespace {

constexpr int kDraws = 2000;
constexpr double kManyTokens = 1e12;

MoeConfig layer_of(Index routed, Index chosen) {
  MoeConfig c;
  c.hidden_size = 8, c.expert_size = 8, c.routed_experts = routed, c.experts_per_token = chosen;
  return c;
}

double largest_share(const std::vector<double>& shares, Index ranks) {
  const auto n = static_cast<Index>(shares.size());
  double largest = 0;
  for (Index r = 0; r < ranks; ++r)
    largest = std::max(largest, std::accumulate(shares.begin() + n * r / ranks, shares.begin() + n * (r + 1) / ranks, 0.0));
  return largest * static_cast<double>(ranks) / std::accumulate(shares.begin(), shares.end(), 0.0);
}

// Given how busy the busiest expert is on average, how busy the busiest rank is follows.
TEST(TrainExpertLoads, TheBusiestRankOfDrawnRouters) {
  std::mt19937 random(1);
  std::normal_distribution<double> normal;
  for (const double spread : {0.2, 0.5, 0.8})
    for (const Index routed : {30, 64, 256}) {
      const std::vector<Index> groups = {2, 4, 8, 32};
      double expert = 0;
      std::vector<double> rank(groups.size());
      std::vector<double> shares(static_cast<std::size_t>(routed));
      for (int i = 0; i < kDraws; ++i) {
        for (double& s : shares) s = std::exp(spread * normal(random));
        expert += largest_share(shares, routed) / kDraws;
        for (std::size_t g = 0; g < groups.size(); ++g) rank[g] += largest_share(shares, groups[g]) / kDraws;
      }
      for (std::size_t g = 0; g < groups.size(); ++g) {
        if (groups[g] > routed) continue;
        EXPECT_NEAR(busiest_rank(layer_of(routed, 6), groups[g], kManyTokens, expert) / rank[g], 1, 0.05)
            << spread << ", " << groups[g] << " of " << routed << ": " << rank[g];
      }
    }
}

// Also tokens that use all experts alike do so by chance: few of them not evenly.
TEST(TrainExpertLoads, FewTokens) {
  std::mt19937 random(2);
  const MoeConfig moe = layer_of(16, 4);
  for (const int tokens : {8, 64}) {
    double rank = 0;
    std::vector<double> load(16);
    std::vector<std::size_t> order(16);
    for (int i = 0; i < kDraws; ++i) {
      std::ranges::fill(load, 0);
      for (int t = 0; t < tokens; ++t) {
        std::iota(order.begin(), order.end(), std::size_t{0});
        std::ranges::shuffle(order, random);
        for (std::size_t k = 0; k < 4; ++k) ++load[order[k]];
      }
      rank += largest_share(load, 4) / kDraws;
    }
    EXPECT_NEAR(busiest_rank(moe, 4, tokens, 1) / rank, 1, 0.02) << tokens << ": " << rank;
  }
  EXPECT_DOUBLE_EQ(busiest_rank(moe, 1, 8, 4), 1);
  EXPECT_LE(busiest_rank(moe, 16, 1, 4), 4);  // each rank has one expert of four that a token takes
  EXPECT_NEAR(busiest_rank(moe, 3, kManyTokens, 1), 18.0 / 16, 1e-5);  // 6 of 16 experts, not 5 and a third
}

TEST(TrainExpertLoads, Counted) {
  EXPECT_DOUBLE_EQ(busiest_rank({1, 2, 3, 6}, 2), 1.5);
  EXPECT_DOUBLE_EQ(busiest_rank({1, 2, 3, 6}, 4), 2);
  EXPECT_DOUBLE_EQ(busiest_rank({1, 2, 3, 6}, 1), 1);
  EXPECT_DOUBLE_EQ(busiest_rank({4, 0, 0, 0, 8}, 2), 8 * 2 / 12.0);  // two, then three of them
}

TEST(TrainExpertLoads, WhatCannotBe) {
  const ModelConfig config = test::small_config();  // 8 experts
  const auto refused = [&](const ExpertLoads& loads, const char* why) {
    EXPECT_TRUE(testing::throws_error([&] { loads.check(config); }, {why})) << why;
  };
  const auto layers = static_cast<std::size_t>(config.moe_layers());
  const auto all = [&](std::vector<std::int64_t> load) {
    return ExpertLoads{.counted = std::vector<std::vector<std::int64_t>>(layers, std::move(load))};
  };
  refused({.busiest_expert = 0.5}, "expert-load-max is 0.5");
  refused({.busiest_expert = 9}, "expert-load-max is 9");
  refused({.busiest_expert = std::nan("")}, "expert-load-max is nan");
  refused({.counted = {{}}}, "the loads are of ");
  refused(all({1, 2, 3}), "3 experts in a layer, but the model has 8");
  refused(all({1, 2, 3, 4, 5, 6, 7, -1}), "a load of an expert is -1");
  refused(all(std::vector<std::int64_t>(8)), "all 0");
  refused(all(std::vector<std::int64_t>(8, std::numeric_limits<std::int64_t>::max())), "a load of an expert");
  EXPECT_NO_THROW(all({1, 2, 3, 4, 5, 6, 7, 8}).check(config));
}

}  // namespace
}  // namespace dsmoe::train
