#include "infer/sampler.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "support/expect_error.h"

namespace dsmoe {
namespace {

// How often each token comes in n draws.
std::map<int, int> histogram(const SamplerOptions& options, const std::vector<float>& logits, int n,
                             const std::vector<std::int32_t>& history = {}) {
  Sampler sampler(options);
  std::map<int, int> count;
  for (int i = 0; i < n; ++i) count[sampler.sample(logits, history)]++;
  return count;
}

SamplerOptions plain() {
  return {
      .repetition_penalty = 1, .repetition_window = 64, .top_k = 0, .top_p = 1, .min_p = 0, .temperature = 1, .seed = 3};
}

TEST(Sampler, DrawsByProbability) {
  const auto count = histogram(plain(), {std::log(0.1f), std::log(0.6f), std::log(0.3f)}, 20000);
  // Six standard deviations of a binomial count.
  EXPECT_NEAR(count.at(0), 2000, 6 * std::sqrt(20000 * 0.1 * 0.9));
  EXPECT_NEAR(count.at(1), 12000, 6 * std::sqrt(20000 * 0.6 * 0.4));
  EXPECT_NEAR(count.at(2), 6000, 6 * std::sqrt(20000 * 0.3 * 0.7));
}

TEST(Sampler, TheSameSeedGivesTheSameTokens) {
  const std::vector<float> logits(50, 0.0f);
  Sampler a(plain()), b(plain());
  SamplerOptions other = plain();
  other.seed = 4;
  Sampler c(other);
  int different = 0;
  for (int i = 0; i < 100; ++i) {
    const std::int32_t id = a.sample(logits, {});
    EXPECT_EQ(id, b.sample(logits, {}));
    different += id != c.sample(logits, {});
  }
  EXPECT_GT(different, 50);
}

TEST(Sampler, TemperatureZeroTakesTheBestAndTheLowerIdAmongEquals) {
  SamplerOptions o = plain();
  o.temperature = 0;
  EXPECT_EQ(Sampler(o).sample(std::vector<float>{1, 3, 3, 2}, {}), 1);
}

TEST(Sampler, CutsOff) {
  const std::vector<float> logits = {std::log(0.5f), std::log(0.3f), std::log(0.15f), std::log(0.05f)};
  SamplerOptions o = plain();
  o.top_k = 2;
  EXPECT_EQ(histogram(o, logits, 500).size(), 2u);
  o = plain();
  o.top_p = 0.6f;
  EXPECT_EQ(histogram(o, logits, 500).size(), 2u) << "0.5 is not enough, 0.5 + 0.3 is";
  o = plain();
  o.min_p = 0.25f;
  EXPECT_EQ(histogram(o, logits, 500).size(), 3u) << "0.05 is under a quarter of 0.5";
}

TEST(Sampler, RepetitionPenaltyWorksOnBothSigns) {
  SamplerOptions o = plain();
  o.temperature = 0;
  o.repetition_penalty = 2;
  EXPECT_EQ(Sampler(o).sample(std::vector<float>{4, 3}, std::vector<std::int32_t>{0, 0}), 1) << "4 / 2 < 3, once only";
  EXPECT_EQ(Sampler(o).sample(std::vector<float>{-1, -1.5f}, std::vector<std::int32_t>{0}), 1) << "-1 * 2 < -1.5";
  o.repetition_window = 1;
  EXPECT_EQ(Sampler(o).sample(std::vector<float>{4, 3}, std::vector<std::int32_t>{0, 1}), 0) << "out of the window";
}

TEST(Sampler, RefusesBadOptions) {
  for (const auto change : {+[](SamplerOptions& o) { o.temperature = -1; }, +[](SamplerOptions& o) { o.top_p = 0; },
                            +[](SamplerOptions& o) { o.min_p = 2; }, +[](SamplerOptions& o) { o.top_k = -1; },
                            +[](SamplerOptions& o) { o.repetition_penalty = 0; }}) {
    SamplerOptions o = plain();
    change(o);
    EXPECT_THROW(Sampler{o}, Error);
  }
}

TEST(Sampler, RefusesLogitsThatAreNotFinite) {
  SamplerOptions greedy = plain();
  greedy.temperature = 0;
  for (const SamplerOptions& o : {plain(), greedy})
    for (const float bad : {NAN, INFINITY, -INFINITY})
      EXPECT_TRUE(testing::throws_error(
          [&] {
            Sampler(o).sample(std::vector<float>{1, bad}, {});
          },
          {"token 1", "damaged"}, ErrorCode::kNumeric))
          << bad;
}

TEST(Sampler, AnExtremePenaltyMakesNoInfinity) {
  SamplerOptions o = plain();
  o.repetition_penalty = 1e-38f;
  const std::vector<std::int32_t> history = {0, 1};
  // Both become the largest float: they are equally likely, the third is not.
  const auto count = histogram(o, {100, 200, 300}, 100, history);
  EXPECT_EQ(count.size(), 2u);
  EXPECT_EQ(count.count(2), 0u);
}

}  // namespace
}  // namespace dsmoe
