// The time of a step is that of its operations and bytes, and the best layout is one that fits and that no other beats.
#include "train/rank_time.h"

#include <gtest/gtest.h>

#include "model/plan.h"
#include "support/expect_error.h"
#include "train/memory.h"

namespace dsmoe::train {
namespace {

TrainOptions options(Index sequences, Index length) {
  TrainOptions o;
  o.dtype = DType::kBF16, o.batch_size = sequences, o.seq_len = length;
  return o;
}

const Cluster kCluster{card_named("h100"), 50e9, 0.5};

TEST(TrainRankTime, IsThatOfOperationsAndBytes) {
  const ModelConfig config = ModelConfig::preset("deepseek-moe-16b");
  const TrainOptions o = options(64, 4096);
  const Index tokens = 64 * 4096;
  RankLayout layout{16, 8, 1};
  const StepTime t = step_time(config, o, layout, kCluster);
  EXPECT_DOUBLE_EQ(t.compute,
                   static_cast<double>(tokens / 16) * static_cast<double>(training_flops(config, 4096)) / (0.5 * 989.5e12));
  layout.device = Device::kCuda;
  const RankTraffic traffic = rank_traffic(config, o.dtype, layout, tokens);
  EXPECT_DOUBLE_EQ(t.tokens, traffic.tokens / 50e9);
  EXPECT_DOUBLE_EQ(t.gradients, traffic.gradients / 50e9);
  EXPECT_GT(t.hidden, 0);
  EXPECT_LT(t.hidden, t.tokens / 2);  // what comes back is waited for
  EXPECT_DOUBLE_EQ(t.total(), t.compute + t.tokens + t.gradients - t.hidden - t.hidden_gradients + t.uneven);
  EXPECT_GT(t.hidden_gradients, 0);
  EXPECT_LT(t.hidden_gradients, traffic.gradients / 50e9 * 4 / 6);  // 2 of 6 bytes are weights, after the update
  layout.overlap = false;
  EXPECT_EQ(step_time(config, o, layout, kCluster).hidden_gradients, 0);
  TrainOptions again = o;
  again.recompute = Recompute::kBlock;
  EXPECT_DOUBLE_EQ(step_time(config, again, layout, kCluster).compute, t.compute * 4 / 3);
  EXPECT_EQ(step_time(config, o, {16, 1}, kCluster).tokens, 0);
  EXPECT_EQ(step_time(config, o, {16, 1}, kCluster).hidden, 0);
}

// With a fast enough link the way of the tokens is hidden but for what comes back.
TEST(TrainRankTime, HidesNoMoreThanTheSharedExpertsTake) {
  const ModelConfig config = ModelConfig::preset("deepseek-moe-16b");
  const TrainOptions o = options(64, 4096);
  Cluster slow = kCluster, fast = kCluster;
  slow.link = 1e6, fast.link = 1e15;
  const double shared = 3 * 6.0 * 2 * 1408 * 2048 * 27 * (64 * 4096 / 16) / (0.5 * 989.5e12);
  EXPECT_NEAR(step_time(config, o, {16, 8}, slow).hidden / shared, 1, 1e-9);
  const StepTime t = step_time(config, o, {16, 8}, fast);
  EXPECT_LT(t.hidden, t.tokens / 2);
  EXPECT_GT(t.hidden, t.tokens / 10);
}

// What stays in a machine has a link of its own, and both are used at the same time.
TEST(TrainRankTime, TwoKindsOfLinks) {
  const ModelConfig config = ModelConfig::preset("deepseek-moe-16b");
  const TrainOptions o = options(64, 4096);
  RankLayout layout{16, 8, 1};
  const StepTime one = step_time(config, o, layout, kCluster);
  layout.per_machine = 8;
  Cluster cluster = kCluster;
  EXPECT_GT(one.total(), step_time(config, o, layout, cluster).total());  // two links of the same speed
  cluster.inside = 900e9;
  const StepTime t = step_time(config, o, layout, cluster);
  EXPECT_NEAR(t.tokens, one.tokens * 50 / 900, 1e-9);  // a group of experts is a machine
  layout.device = Device::kCuda;
  const RankTraffic traffic = rank_traffic(config, o.dtype, layout, 64 * 4096);
  EXPECT_EQ(traffic.tokens_between, 0);
  EXPECT_NEAR(t.gradients, traffic.gradients_between / 50e9, 1e-9);
  const auto best = best_layout(config, o, 16, cluster, {}, 8);
  ASSERT_TRUE(best);
  EXPECT_EQ(best->layout.per_machine, 8);
}

// All wait in each layer for the rank that has the most to do: for its products, and for the tokens that it gets.
TEST(TrainRankTime, TheBusiestRankDecides) {
  const ModelConfig config = ModelConfig::preset("deepseek-moe-16b");
  const TrainOptions o = options(64, 4096);
  const RankLayout layout{16, 8};
  const std::int64_t n = 1000;
  std::vector<std::int64_t> even(64, n), busy = even;
  std::fill(busy.begin() + 8, busy.begin() + 16, 2 * n);  // the second rank's
  const auto time_of = [&](const std::vector<std::int64_t>& layer) {
    return step_time(config, o, layout, kCluster, {.counted = std::vector<std::vector<std::int64_t>>(27, layer)});
  };
  EXPECT_EQ(time_of(even).uneven, 0);
  const StepTime t = time_of(busy);
  const double busiest = 2.0 * 8 / 9, tokens = 64 * 4096 / 16;
  EXPECT_DOUBLE_EQ(t.busiest_rank, busiest);
  const double products = 3 * 6.0 * 6 * 1408 * 2048 * 27 * tokens / (0.5 * 989.5e12);
  EXPECT_NEAR(t.uneven / ((busiest - 1) * (products + t.tokens)), 1, 1e-12);
  EXPECT_DOUBLE_EQ(t.total() - t.uneven, time_of(even).total());
  EXPECT_GT(step_time(config, o, layout, kCluster).uneven, 0);
  EXPECT_GT(step_time(config, o, layout, kCluster, {.busiest_expert = 3}).uneven,
            step_time(config, o, layout, kCluster).uneven);
  EXPECT_EQ(step_time(config, o, {16, 1}, kCluster).uneven, 0);
}

// One link carries tokens and gradients, and the embedding's gradients are the last: nothing is left to hide them under.
TEST(TrainRankTime, HidesNothingTwice) {
  const TrainOptions o = options(64, 4096);
  ModelConfig shared = ModelConfig::preset("deepseek-moe-16b").with({"n_shared_experts=32"});
  for (const double link : {1e8, 1e9, 1e10, 1e11}) {
    Cluster cluster = kCluster;
    cluster.link = link;
    const StepTime t = step_time(shared, o, {16, 8}, cluster);
    EXPECT_GE(t.total(), (t.tokens + t.gradients) * (1 - 1e-12)) << link;
    EXPECT_GE(t.total(), t.compute * (1 - 1e-12)) << link;
  }
  const ModelConfig wide = ModelConfig::preset("tiny").with({"num_hidden_layers=2", "vocab_size=1000000"});
  Cluster fast = kCluster;
  fast.link = 1e12;
  const StepTime t = step_time(wide, o, {16, 1}, fast);
  const double embedding = 1e6 * static_cast<double>(wide.hidden_size) * 8 * 15 / 16 / fast.link;
  EXPECT_LE(t.hidden_gradients, t.gradients - embedding);
  EXPECT_GT(t.hidden_gradients, 0);
}

TEST(TrainRankTime, TheBestLayoutFitsAndNoOtherIsFaster) {
  const ModelConfig config = ModelConfig::preset("deepseek-moe-16b");
  const TrainOptions o = options(64, 4096);
  const auto best = best_layout(config, o, 16, kCluster);
  ASSERT_TRUE(best);
  EXPECT_LE(static_cast<double>(best->memory), kCluster.card.memory);
  TrainOptions as_it = o;
  as_it.recompute = best->recompute;
  for (const Index group : {1, 2, 4, 8, 16})
    for (const Index zero : {0, 1, 2}) {
      const RankLayout other{16, group, zero};
      if (static_cast<double>(gpu_training_bytes(config, as_it, other)) > kCluster.card.memory) continue;
      EXPECT_GE(step_time(config, as_it, other, kCluster).total(), best->time.total()) << group << zero;
    }
  EXPECT_FALSE(best_layout(config, o, 1, kCluster));  // 290 GB of weights, gradients and moments
}

// Ranks on CPUs send f32 rows, and move bytes with the cores that compute.
TEST(TrainRankTime, OfCpus) {
  const Card card = card_named("250GFLOPS");
  EXPECT_EQ(card.flops, 250e9);
  const ModelConfig config = ModelConfig::preset("tiny");
  const TrainOptions o = options(8, 128);
  const RankLayout layout{2, 2};
  const StepTime t = step_time(config, o, layout, {card, 1e9, 1});
  EXPECT_DOUBLE_EQ(t.total(), t.compute + t.tokens + t.gradients + t.uneven);
  EXPECT_DOUBLE_EQ(t.tokens, rank_traffic(config, o.dtype, layout, 8 * 128).tokens / 1e9);
  for (const char* name : {"0GFLOPS", "250", "GFLOPS", "nanGFLOPS", "1e308TFLOPS", "1e-320GFLOPS"})
    EXPECT_TRUE(testing::throws_error([&] { card_named(name); }, {"230GFLOPS"})) << name;
}

TEST(TrainRankTime, WhatCannotBe) {
  EXPECT_TRUE(testing::throws_error([] { card_named("abacus"); }, {"device is \"abacus\"", "h100"}));
  const ModelConfig config = ModelConfig::preset("deepseek-moe-16b");
  for (const auto& [link, efficiency] : {std::pair{0.0, 1.0}, {1.0, 0.0}, {1.0, 1.5}})
    EXPECT_TRUE(testing::throws_error(
        [&, l = link, e = efficiency] {
          step_time(config, options(2, 16), {2, 1}, {card_named("h100"), l, e});
        },
        {"link is ", "efficiency"}));
}

}  // namespace
}  // namespace dsmoe::train
