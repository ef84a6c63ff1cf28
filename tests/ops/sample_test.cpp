#include "ops/sample.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <numeric>

#include "support/expect_error.h"
#include "support/sample_case.h"
#include "support/sanitized.h"

namespace dsmoe::test {
namespace {

using Tokens = std::vector<std::int32_t>;

Tokens choose(const SampleCase& c, int times, Backend backend = Backend::kCpu) {
  Context ctx(1, backend);
  return sampled(ctx, {c}, times)[0];
}

// How often each token comes in n draws with the same history.
std::map<int, int> histogram(const SampleCase& c, int n) {
  SampleCase same = c;
  same.options.repetition_window = std::min<Index>(c.options.repetition_window, static_cast<Index>(c.history.size()));
  std::map<int, int> count;
  for (int i = 0; i < n; ++i) {
    same.options.seed = c.options.seed + static_cast<std::uint64_t>(i);
    count[choose(same, 1)[0]]++;
  }
  return count;
}

TEST(Sample, DrawsByProbability) {
  std::map<int, int> count;
  for (const std::int32_t id : choose({plain_sampling(), {std::log(0.1f), std::log(0.6f), std::log(0.3f)}}, 20000))
    count[id]++;
  // Six standard deviations of a binomial count.
  EXPECT_NEAR(count.at(0), 2000, 6 * std::sqrt(20000 * 0.1 * 0.9));
  EXPECT_NEAR(count.at(1), 12000, 6 * std::sqrt(20000 * 0.6 * 0.4));
  EXPECT_NEAR(count.at(2), 6000, 6 * std::sqrt(20000 * 0.3 * 0.7));
}

// Pearson's statistic over many tokens: its mean is the number of them less one, its deviation the root of twice that.
TEST(Sample, FrequenciesFollowProbabilities) {
  for (const float temperature : {0.5f, 1.0f, 2.0f}) {
    SampleCase c{plain_sampling(), {}};
    c.options.temperature = temperature;
    const Tensor x = random_tensor(DType::kF32, {50}, 8);
    c.logits.assign(x.span<float>().begin(), x.span<float>().end());
    constexpr int kDraws = 40000;
    std::vector<double> count(50), p;
    for (const std::int32_t id : choose(c, kDraws)) count[static_cast<std::size_t>(id)]++;
    for (const float l : c.logits) p.push_back(std::exp(static_cast<double>(l) / temperature));
    const double sum = std::accumulate(p.begin(), p.end(), 0.0);
    double statistic = 0;
    for (std::size_t i = 0; i < p.size(); ++i) {
      const double want = kDraws * p[i] / sum;
      statistic += (count[i] - want) * (count[i] - want) / want;
    }
    EXPECT_NEAR(statistic, 49, 6 * std::sqrt(2 * 49.0)) << temperature;
  }
}

// The same in double, with a sort and std::exp: what the arithmetic in whole numbers stands for.
std::int32_t by_formula(const SampleCase& c, std::uint64_t drawn) {
  struct Candidate {
    std::int32_t id;
    double logit, probability;
  };
  std::vector<Candidate> all;
  for (std::size_t i = 0; i < c.logits.size(); ++i) all.push_back({static_cast<std::int32_t>(i), c.logits[i], 0});
  std::stable_sort(all.begin(), all.end(), [](const Candidate& a, const Candidate& b) { return a.logit > b.logit; });
  const auto normalise = [&](double temperature) {
    double sum = 0;
    for (Candidate& a : all) sum += a.probability = std::exp((a.logit - all.front().logit) / temperature);
    for (Candidate& a : all) a.probability /= sum;
  };
  const SamplerOptions& o = c.options;
  if (o.top_k > 0) all.resize(std::min(all.size(), static_cast<std::size_t>(o.top_k)));
  normalise(1);
  std::size_t n = 0;
  for (double sum = 0; n < all.size() && (n == 0 || sum < o.top_p); ++n) sum += all[n].probability;
  all.resize(n);
  while (all.back().probability < static_cast<double>(o.min_p) * all.front().probability) all.pop_back();
  normalise(o.temperature);
  double left = Philox(o.seed, 1).uniform(drawn);
  for (const Candidate& a : all)
    if ((left -= a.probability) < 0) return a.id;
  return all.back().id;
}

TEST(Sample, ChoosesAsTheFormulaDoes) {
  Draw draw(1);
  for (int i = 0; i < 60; ++i) {
    SampleCase c = random_case(draw, draw.between(1, 2000));
    const Tensor x = random_tensor(DType::kF32, {static_cast<Index>(c.logits.size())}, static_cast<std::uint64_t>(i), 3);
    c.logits.assign(x.span<float>().begin(), x.span<float>().end());
    c.banned.clear();
    c.options.repetition_window = 0;
    c.options.temperature = std::clamp(c.options.temperature, 0.5f, 2.0f);
    // A sum that falls within rounding of its target may go either way; no draw here does.
    const Tokens got = choose(c, 20);
    for (std::uint64_t d = 0; d < 20; ++d) ASSERT_EQ(got[d], by_formula(c, d)) << "case " << i << ", draw " << d;
  }
}

TEST(Sample, BackendsAndBatchesChooseTheSame) {
  Draw draw(2);
  for (const Index vocab : {1, 2, 7, 64, 1000, 4099})
    for (int i = 0; i < 12; ++i) {
      std::vector<SampleCase> cases;
      for (int r = 0; r < 5; ++r) cases.push_back(random_case(draw, vocab));
      Context several(3);
      const auto together = sampled(several, cases, 4);
      for (std::size_t r = 0; r < cases.size(); ++r) {
        ASSERT_EQ(choose(cases[r], 4), together[r]) << vocab << " tokens, round " << i << ", row " << r;
        ASSERT_EQ(choose(cases[r], 4, Backend::kRef), together[r]) << vocab << " tokens, round " << i << ", row " << r;
      }
    }
}

TEST(Sample, PowersOfOneHalf) {
  EXPECT_EQ(ops::power_of_half(0), ops::kOneMass);
  std::uint64_t before = ops::kOneMass;
  constexpr std::uint32_t kOne = 1u << 25;
  for (std::uint32_t z = 0; z < 3 * kOne; z += test::kSanitized ? 301 : 3) {
    const std::uint64_t now = ops::power_of_half(z);
    ASSERT_LE(now, before) << z;
    before = now;
  }
  for (std::uint32_t z = 0; z < 41 * kOne; z += kOne / 101) {
    const double want = std::exp2(-static_cast<double>(z) / kOne) * static_cast<double>(ops::kOneMass);
    ASSERT_NEAR(static_cast<double>(ops::power_of_half(z)), want, 1 + want * 0x1p-26) << z;
  }
}

TEST(Sample, TheSameSeedGivesTheSameTokens) {
  SampleCase c{plain_sampling(), std::vector<float>(50, 0.0f)};
  const Tokens once = choose(c, 100);
  EXPECT_EQ(choose(c, 100), once);
  c.options.seed = 4;
  const Tokens other = choose(c, 100);
  int different = 0;
  for (std::size_t i = 0; i < once.size(); ++i) different += once[i] != other[i];
  EXPECT_GT(different, 50);
}

TEST(Sample, TemperatureZeroTakesTheBestAndTheLowerIdAmongEquals) {
  SampleCase c{plain_sampling(), {1, 3, 3, 2}};
  c.options.temperature = 0;
  EXPECT_EQ(choose(c, 1), Tokens{1});
  c.logits = {-1, -0.0f, 0.0f};
  EXPECT_EQ(choose(c, 1), Tokens{1}) << "both are zero";
}

TEST(Sample, CutsOff) {
  SampleCase c{plain_sampling(), {std::log(0.5f), std::log(0.3f), std::log(0.15f), std::log(0.05f)}};
  c.options.top_k = 2;
  EXPECT_EQ(histogram(c, 500).size(), 2u);
  c.options = plain_sampling();
  c.options.top_p = 0.6f;
  EXPECT_EQ(histogram(c, 500).size(), 2u) << "0.5 is not enough, 0.5 + 0.3 is";
  c.options = plain_sampling();
  c.options.min_p = 0.25f;
  EXPECT_EQ(histogram(c, 500).size(), 3u) << "0.05 is under a quarter of 0.5";
}

TEST(Sample, PenaltiesWorkOnBothSigns) {
  SampleCase c{plain_sampling(), {4, 3}, {0, 0}};
  c.options.temperature = 0;
  c.options.repetition_penalty = 2;
  EXPECT_EQ(choose(c, 1), Tokens{1}) << "4 / 2 < 3, once only";
  c = {c.options, {-1, -1.5f}, {0}};
  EXPECT_EQ(choose(c, 1), Tokens{1}) << "-1 * 2 < -1.5";
  c = {c.options, {4, 3}, {0, 1}};
  c.options.repetition_window = 1;
  EXPECT_EQ(choose(c, 1), Tokens{0}) << "out of the window";

  c = {plain_sampling(), {4, 3}, {0, 0}};
  c.options.temperature = 0;
  c.options.presence_penalty = 0.9f;
  EXPECT_EQ(choose(c, 1), Tokens{0}) << "4 - 0.9 > 3, once only";
  c.options.frequency_penalty = 0.1f;
  EXPECT_EQ(choose(c, 1), Tokens{1}) << "4 - 0.9 - 0.2 < 3";
}

TEST(Sample, ItsOwnTokensArePenalised) {
  SampleCase c{plain_sampling(), {4, 3, 2}};
  c.options.temperature = 0;
  c.options.frequency_penalty = 1.5f;
  c.options.repetition_window = 3;
  // The logits are 4 3 2, then 2.5 3 2, 2.5 1.5 2, 1 1.5 2, and with the first token out of the window 2.5 1.5 0.5, 1 3
  // 0.5.
  EXPECT_EQ(choose(c, 6), (Tokens{0, 1, 0, 2, 0, 1}));
}

TEST(Sample, BannedTokens) {
  SampleCase c{plain_sampling(), {4, 3, 2}, {}, {0, 99}};
  EXPECT_EQ(histogram(c, 200).count(0), 0u);
  c.options.temperature = 0;
  EXPECT_EQ(choose(c, 1), Tokens{1});
  c.banned = {0, 1, 2};
  EXPECT_EQ(choose(c, 1), Tokens{0}) << "nothing is left";
}

TEST(Sample, RefusesBadOptions) {
  for (const auto change :
       {+[](SamplerOptions& o) { o.temperature = -1; }, +[](SamplerOptions& o) { o.top_p = 0; },
        +[](SamplerOptions& o) { o.min_p = 2; }, +[](SamplerOptions& o) { o.top_k = -1; },
        +[](SamplerOptions& o) { o.repetition_penalty = 0; }, +[](SamplerOptions& o) { o.presence_penalty = NAN; }}) {
    SampleCase c{plain_sampling(), {1}};
    change(c.options);
    EXPECT_THROW(choose(c, 1), Error);
  }
  EXPECT_THROW(choose({plain_sampling(), {1}, {}, {1, 2, 3, 4, 5}}, 1), Error) << "room for four";
}

TEST(Sample, RefusesLogitsThatAreNotFinite) {
  SamplerOptions greedy = plain_sampling();
  greedy.temperature = 0;
  for (const SamplerOptions& o : {plain_sampling(), greedy})
    for (const float bad : {NAN, INFINITY, -INFINITY})
      EXPECT_TRUE(::dsmoe::testing::throws_error(
          [&] {
            choose({o, {1, bad}}, 1);
          },
          {"token 1", "damaged"}, ErrorCode::kNumeric))
          << bad;
}

TEST(Sample, AnExtremePenaltyMakesNoInfinity) {
  SampleCase c{plain_sampling(), {100, 200, 300}, {0, 1}};
  c.options.repetition_penalty = 1e-38f;
  // Both become the largest float: they are equally likely, the third is not.
  const auto count = histogram(c, 100);
  EXPECT_EQ(count.size(), 2u);
  EXPECT_EQ(count.count(2), 0u);
}

}  // namespace
}  // namespace dsmoe::test
