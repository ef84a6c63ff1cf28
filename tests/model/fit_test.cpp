// Whether a model fits a GPU: the sums, and an answer that says what would.
#include "model/fit.h"

#include <gtest/gtest.h>

#include "model/plan.h"
#include "model/transformer.h"

namespace dsmoe {
namespace {

constexpr std::uint64_t kGigabyte = 1'000'000'000;

FitRequest request(const ModelConfig& c, Index context, DType cache = DType::kBF16) {
  return {static_cast<std::uint64_t>(inference_memory(c, 1).weights_bf16), DType::kBF16, context, cache};
}

TEST(Fit, TheCacheIsWhatAPoolTakes) {
  ModelConfig c = ModelConfig::preset("tiny");
  Context ctx(1);
  const Transformer model(c, random_weights(c, 1, DType::kF32, ctx));
  for (const Index tokens : {1, 256, 257, 1000})
    for (const DType dtype : {DType::kF32, DType::kBF16, DType::kQ8_0}) {
      if (c.head_dim() % block_of(dtype).numbers != 0) continue;
      const auto pool = model.make_kv_pool(tokens, dtype);
      std::uint64_t bytes = 0;
      for (Index l = 0; l < pool->layers(); ++l) bytes += pool->k(l).bytes() + pool->v(l).bytes();
      EXPECT_EQ(cache_bytes(c, tokens, dtype), bytes) << tokens << " " << to_string(dtype);
    }
}

TEST(Fit, SaysNothingWhenThereIsRoom) {
  const ModelConfig c = ModelConfig::preset("deepseek-moe-16b");
  const FitRequest r = request(c, 4096);
  EXPECT_EQ(why_it_does_not_fit(c, r, needed_bytes(c, r)), "");
  EXPECT_NE(why_it_does_not_fit(c, r, needed_bytes(c, r) - 1), "");
  EXPECT_GT(needed_bytes(c, r), r.weights + cache_bytes(c, 4096, DType::kBF16));
}

TEST(Fit, NamesWhatWouldFit) {
  const ModelConfig c = ModelConfig::preset("deepseek-moe-16b");
  const auto has = [&](const FitRequest& r, std::uint64_t free, const std::string& words) {
    const std::string why = why_it_does_not_fit(c, r, free);
    EXPECT_EQ(why.find('\n'), std::string::npos) << why;
    return why.find(words) != std::string::npos;
  };
  // 33 GB of weights and 15 GB of cache on a card of 45: the cache has to give way.
  const FitRequest long_text = request(c, 65536);
  EXPECT_TRUE(has(long_text, 45 * kGigabyte, "a context of "));
  EXPECT_TRUE(has(long_text, 45 * kGigabyte, "kv-type q8_0"));
  EXPECT_TRUE(has(long_text, 45 * kGigabyte, "weights in q8_0"));
  // On a card of 24 GB the weights have to.
  const FitRequest chat = request(c, 4096);
  EXPECT_FALSE(has(chat, 24 * kGigabyte, "a context of "));
  EXPECT_TRUE(has(chat, 24 * kGigabyte, "weights in q8_0 (17."));
  EXPECT_TRUE(has(chat, 24 * kGigabyte, "the device cpu"));
  EXPECT_TRUE(has(chat, 14 * kGigabyte, "weights in q4_0"));
  EXPECT_FALSE(has(chat, 14 * kGigabyte, "weights in q8_0"));
  // Nothing but the CPU on one of 2 GB.
  EXPECT_TRUE(has(chat, 2 * kGigabyte, "what would fit: the device cpu"));
  EXPECT_TRUE(has(chat, 2 * kGigabyte, "32.8 GB of weights in bf16"));
}

// What the answer recommends does fit.
TEST(Fit, WhatItRecommendsFits) {
  const ModelConfig c = ModelConfig::preset("deepseek-moe-16b");
  for (const std::uint64_t free : {36 * kGigabyte, 40 * kGigabyte, 44 * kGigabyte}) {
    FitRequest r = request(c, 131072);
    const std::string why = why_it_does_not_fit(c, r, free);
    const std::string words = "a context of ";
    const std::size_t at = why.find(words);
    ASSERT_NE(at, std::string::npos) << why;
    r.context = std::stoll(why.substr(at + words.size()));
    EXPECT_EQ(why_it_does_not_fit(c, r, free), "");
    r.context += 256;
    EXPECT_NE(why_it_does_not_fit(c, r, free), "");
  }
}

}  // namespace
}  // namespace dsmoe
