#include "train/memory.h"

#include <gtest/gtest.h>

#include "train/support.h"

namespace dsmoe::train {
namespace {

TrainOptions options_of(Recompute recompute, Index batch = 16, Index length = 2048) {
  TrainOptions o;
  o.dtype = DType::kBF16;
  o.batch_size = batch, o.seq_len = length;
  o.recompute = recompute;
  return o;
}

TEST(TrainMemory, RecomputingTakesLess) {
  const ModelConfig c = ModelConfig::preset("paper-2b");
  const auto bytes = [&](Recompute r) { return gpu_training_bytes(c, options_of(r)); };
  const auto kept = [&](Recompute r) { return kept_activation_bytes(c, DType::kBF16, 16, 2048, r); };
  EXPECT_LT(bytes(Recompute::kMoe), bytes(Recompute::kNone));
  EXPECT_LT(bytes(Recompute::kBlock), bytes(Recompute::kMoe));
  EXPECT_LT(kept(Recompute::kMoe), kept(Recompute::kNone));
  EXPECT_LT(kept(Recompute::kBlock), kept(Recompute::kMoe));
}

// Peaks on an H200, 18 November 2026, in GiB: `dsmoe bench train --device cuda --dtype bf16 --json` (peak_bytes).
TEST(TrainMemory, PredictsThePeakOnAGpu) {
  ModelConfig large = ModelConfig::preset("deepseek-moe-16b"), small = large;
  large.num_hidden_layers = 8;
  small.vocab_size = 16384;
  small.hidden_size = 512;
  small.num_hidden_layers = 8;
  small.num_attention_heads = small.num_key_value_heads.emplace(8);
  small.intermediate_size = 1408;
  small.moe_intermediate_size = 176;
  const ModelConfig paper = ModelConfig::preset("paper-2b");
  struct Peak {
    const ModelConfig& config;
    Index batch, length;
    Recompute recompute;
    double gib;
  };
  using enum Recompute;
  for (const Peak& p : {Peak{large, 4, 4096, kNone, 94.86},
                        {large, 4, 4096, kMoe, 89.23},
                        {large, 4, 4096, kBlock, 85.62},
                        {paper, 16, 2048, kNone, 53.20},
                        {paper, 16, 2048, kMoe, 45.57},
                        {paper, 16, 2048, kBlock, 42.08},
                        {paper, 8, 2048, kNone, 44.36},
                        {small, 32, 1024, kNone, 8.56},
                        {small, 32, 1024, kMoe, 6.82},
                        {small, 32, 1024, kBlock, 4.86},
                        {small, 8, 2048, kNone, 6.41}})
    EXPECT_NEAR(static_cast<double>(gpu_training_bytes(p.config, options_of(p.recompute, p.batch, p.length))) / (1 << 30),
                p.gib, 0.05 * p.gib)
        << p.config.hidden_size << ' ' << option_name(p.recompute);
}

TEST(TrainMemory, SaysWhatFits) {
  const ModelConfig c = ModelConfig::preset("paper-2b");
  const TrainOptions o = options_of(Recompute::kNone);
  const auto bytes = [&](Recompute r, Index batch) { return gpu_training_bytes(c, options_of(r, batch)); };
  EXPECT_EQ(what_fits(c, o, bytes(Recompute::kMoe, 16)), "recompute moe");
  EXPECT_EQ(what_fits(c, o, bytes(Recompute::kBlock, 16)), "recompute block");
  EXPECT_EQ(what_fits(c, options_of(Recompute::kBlock), bytes(Recompute::kBlock, 8)), "batch-size 8, grad-accum 2");
  EXPECT_EQ(what_fits(c, options_of(Recompute::kBlock, 5), bytes(Recompute::kBlock, 2)), "batch-size 2");
  EXPECT_EQ(what_fits(c, o, 1), "");
}

}  // namespace
}  // namespace dsmoe::train
