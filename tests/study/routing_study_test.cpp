// Streamed statistics against brute force over all choices held in memory.
#include "study/routing_study.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <set>

#include "dsmoe/error.h"
#include "study/random_routing.h"
#include "support/peak_memory.h"

namespace dsmoe::study {
namespace {

// One choice of one token.
struct Choice {
  std::size_t layer;
  Index token, domain, expert;
  std::size_t place;  // number of the token in the stream
  double weight;
};

std::vector<Choice> all_choices(const RoutingShape& shape, const std::vector<RoutingBatch>& batches) {
  std::vector<Choice> out;
  std::size_t place = 0;
  for (const RoutingBatch& b : batches) {
    for (Index t = 0; t < b.size(); ++t, ++place)
      for (std::size_t l = 0; l < shape.layers.size(); ++l)
        for (Index j = 0; j < shape.experts_per_token; ++j) {
          const Index at = t * shape.experts_per_token + j;
          out.push_back({l, b.tokens[static_cast<std::size_t>(t)], b.domain, b.layers[l].experts.data<std::int32_t>()[at],
                         place, b.layers[l].weights.data<float>()[at]});
        }
  }
  return out;
}

RoutingStudy studied(const RoutingShape& shape, const std::vector<RoutingBatch>& batches,
                     const StudyOptions& options = {}) {
  Context ctx(2);
  RoutingStudy study(shape, options);
  for (const RoutingBatch& b : batches) study.add(ctx, b);
  return study;
}

TEST(RoutingStudy, AgainstBruteForce) {
  const RoutingShape shape = small_shape();
  const std::vector<RoutingBatch> batches = random_batches(shape, 12, 8);
  const RoutingStudy study = studied(shape, batches);
  const std::vector<Choice> all = all_choices(shape, batches);
  const auto total = static_cast<double>(study.tokens());
  EXPECT_EQ(study.sequences(), 12);
  EXPECT_EQ(all.size(), static_cast<std::size_t>(study.tokens()) * 3 * 3);
  EXPECT_EQ(study.domain_tokens().size(), 2u);

  for (std::size_t l = 0; l < 3; ++l) {
    const LayerStudy& layer = study.layers()[l];
    std::map<std::size_t, std::set<Index>> sets;
    for (const Choice& c : all)
      if (c.layer == l) sets[c.place].insert(c.expert);
    std::set<std::set<Index>> combinations;
    for (const auto& [place, set] : sets) combinations.insert(set);
    EXPECT_TRUE(layer.combinations().exact());
    EXPECT_EQ(layer.combinations().count(), static_cast<double>(combinations.size()));

    double information = 0, choices = 0;
    for (const Choice& c : all) choices += c.layer == l;
    for (Index e = 0; e < 8; ++e) {
      double load = 0, weight = 0, in_domain[2] = {}, tokens_of[2] = {};
      for (const auto& b : batches) tokens_of[b.domain] += static_cast<double>(b.size());
      for (const Choice& c : all)
        if (c.layer == l && c.expert == e) load += 1, weight += c.weight, in_domain[c.domain] += 1;
      EXPECT_EQ(static_cast<double>(layer.statistics().load()[static_cast<std::size_t>(e)]), load);
      EXPECT_NEAR(layer.statistics().mean_weight()[static_cast<std::size_t>(e)], weight / load, 1e-12);
      for (Index d = 0; d < 2; ++d) {
        EXPECT_NEAR(layer.domain_lift(e, d, study.domain_tokens()), (in_domain[d] / tokens_of[d]) / (load / total), 1e-12);
        // p(e,d) log2(p(e,d) / (p(e) p(d))), over choices
        information +=
            in_domain[d] / choices * std::log2((in_domain[d] / choices) / (load / choices * (tokens_of[d] / total)));
      }
      for (Index o = 0; o < 8; ++o) {
        std::int64_t both = 0;
        for (const auto& [place, set] : sets) both += set.contains(e) && set.contains(o);
        EXPECT_EQ(layer.statistics().coactivation()[static_cast<std::size_t>(e)].at(static_cast<std::size_t>(o)), both);
      }
    }
    EXPECT_NEAR(layer.domain_information(study.domain_tokens()), information, 1e-12);
  }
}

TEST(RoutingStudy, TopTokensAgainstBruteForce) {
  const RoutingShape shape = small_shape(20);
  const std::vector<RoutingBatch> batches = random_batches(shape, 20, 4);
  const RoutingStudy study = studied(shape, batches);
  const std::vector<Choice> all = all_choices(shape, batches);
  for (Index e = 0; e < 8; ++e) {
    struct Want {
      double order;
      ExpertToken token;
    };
    double load = 0;
    for (const Choice& c : all) load += c.layer == 1 && c.expert == e;
    const double base = load / static_cast<double>(study.tokens());
    std::vector<Want> want;
    for (std::int32_t id = 0; id < 20; ++id) {
      std::int64_t count = 0, occurs = 0;
      for (const Choice& c : all) count += c.layer == 1 && c.expert == e && c.token == id;
      for (const RoutingBatch& b : batches) occurs += std::count(b.tokens.begin(), b.tokens.end(), id);
      const double order = (static_cast<double>(count) + 10 * base) / (static_cast<double>(occurs) + 10) / base;
      const double share = static_cast<double>(count) / static_cast<double>(occurs);
      if (order > 1 && count > 0) want.push_back({order, {id, count, share, share / base}});
    }
    std::stable_sort(want.begin(), want.end(), [](const Want& a, const Want& b) { return a.order > b.order; });
    if (want.size() > 5) want.resize(5);
    const std::vector<ExpertToken> got = study.layers()[1].top_tokens(e, 5, study.token_counts());
    ASSERT_EQ(got.size(), want.size());
    for (std::size_t i = 0; i < got.size(); ++i) {
      EXPECT_EQ(got[i].id, want[i].token.id);
      EXPECT_EQ(got[i].count, want[i].token.count);
      EXPECT_NEAR(got[i].lift, want[i].token.lift, 1e-12);
    }
  }
}

TEST(RoutingStudy, FindsTheTokenThatAnExpertServes) {
  // Token 7 goes to expert 2 always, all else at random: expert 2 must name it first, exact or not.
  const RoutingShape shape = small_shape(2000, 8, 1);
  std::vector<RoutingBatch> batches = random_batches(shape, 30, 6);
  for (RoutingBatch& b : batches)
    for (Index t = 0; t < b.size(); ++t)
      if (t % 4 == 0) {
        b.tokens[static_cast<std::size_t>(t)] = 7;
        for (RoutingBatch::Layer& l : b.layers) l.experts.data<std::int32_t>()[t] = 2;
      }
  for (const std::size_t memory : {std::size_t{1} << 20, std::size_t{0}}) {
    const RoutingStudy study = studied(shape, batches, {.token_memory = memory});
    EXPECT_EQ(study.layers()[0].token_counts_exact(), memory > 0);
    const std::vector<ExpertToken> top = study.layers()[0].top_tokens(2, 3, study.token_counts());
    ASSERT_FALSE(top.empty());
    EXPECT_EQ(top[0].id, 7);
    EXPECT_EQ(top[0].share, 1.0);
    EXPECT_GT(top[0].lift, 2);
  }
}

// A shape may come from a file that holds nothing else: memory follows the tokens.
TEST(RoutingStudy, AShapeAloneTakesLittleMemory) {
  RoutingShape wide{1 << 22, 4096, 512, {0, 1}}, deep{1 << 20, 64, 8, {}}, exact{1 << 20, 32, 8, {0, 1}};
  for (Index l = 0; l < 4096; ++l) deep.layers.push_back(l);
  for (const RoutingShape& shape : {wide, deep, exact}) {
    const std::size_t grown = testing::peak_growth([&] { RoutingStudy{shape}; });
    EXPECT_LT(grown, std::size_t{48} << 20) << shape.routed_experts << " experts in " << shape.layers.size() << " layers";
  }
  test::Draw draw(1);
  exact.experts_per_token = 2;
  const std::vector<RoutingBatch> few = {random_batch(exact, 10, 0, 0, draw)};
  EXPECT_LT(testing::peak_growth([&] { EXPECT_TRUE(studied(exact, few).layers()[0].token_counts_exact()); }),
            std::size_t{24} << 20);
}

TEST(RoutingStudy, DeadAndOverloadedExperts) {
  const RoutingShape shape{10, 4, 1, {0}};
  RoutingBatch b;
  b.tokens = {1, 2, 3, 4, 5};
  b.layers = {{Tensor::zeros(DType::kI32, {5, 1}), Tensor::zeros(DType::kF32, {5, 1})}};
  b.layers[0].experts.data<std::int32_t>()[4] = 3;
  const RoutingStudy study = studied(shape, {b});
  EXPECT_EQ(study.layers()[0].statistics().unused(), (std::vector<Index>{1, 2}));
  EXPECT_EQ(study.layers()[0].overloaded(), (std::vector<Index>{0}));
  EXPECT_TRUE(study.layers()[0].overloaded(4).empty());
}

TEST(RoutingStudy, ManyDomainsShareTheLastPlace) {
  const RoutingShape shape = small_shape();
  test::Draw draw(1);
  std::vector<RoutingBatch> batches;
  for (Index d = 0; d < kMaxStudyDomains + 5; ++d) batches.push_back(random_batch(shape, 3, d, 0, draw));
  const RoutingStudy study = studied(shape, batches);
  EXPECT_EQ(static_cast<Index>(study.domain_tokens().size()), kMaxStudyDomains);
  EXPECT_EQ(study.domain_tokens().back(), 18);
}

TEST(RoutingStudy, RefusesWhatDoesNotFit) {
  Context ctx(1);
  test::Draw draw(1);
  RoutingStudy study(small_shape());
  RoutingBatch b = random_batch(small_shape(), 3, 0, 0, draw);
  b.tokens[1] = 50;
  EXPECT_THROW(study.add(ctx, b), Error);
  b = random_batch(small_shape(), 3, 0, 0, draw);
  b.layers[1].experts.data<std::int32_t>()[0] = 8;
  EXPECT_THROW(study.add(ctx, b), Error);
}

}  // namespace
}  // namespace dsmoe::study
