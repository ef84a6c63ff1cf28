#include "ops/routing.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "support/expect_error.h"
#include "support/random_tensor.h"
#include "support/tolerance.h"

namespace dsmoe {
namespace {

MoeConfig gate(Index experts, Index k) {
  MoeConfig c;
  c.hidden_size = 4, c.expert_size = 4, c.routed_experts = experts, c.experts_per_token = k;
  return c;
}

Tensor row(std::vector<float> v) {
  Tensor t(DType::kF32, {1, static_cast<Index>(v.size())});
  std::copy(v.begin(), v.end(), t.data<float>());
  return t;
}

std::vector<int> chosen(const ops::Chosen& c) {
  const auto s = c.experts.span<std::int32_t>();
  return {s.begin(), s.end()};
}

TEST(OpsRouting, TheLowerIndexWinsTies) {
  Context ctx(1);
  EXPECT_EQ(chosen(ops::route(ctx, gate(6, 3), row({1, 5, 1, 5, 1, 1}), {})), (std::vector<int>{1, 3, 0}));
  EXPECT_EQ(chosen(ops::route(ctx, gate(5, 5), row({2, 2, 2, 2, 2}), {})), (std::vector<int>{0, 1, 2, 3, 4}));
}

TEST(OpsRouting, AgainstAFullSortForManyShapes) {
  Context cpu(2), ref(1, Backend::kRef);
  test::Draw draw(2);
  for (std::uint64_t round = 0; round < 30; ++round) {
    MoeConfig c = gate(draw.between(1, 600), 1);
    c.experts_per_token = draw.between(1, std::min<Index>(c.routed_experts, 64));
    c.score = draw(2) ? ScoreFunction::kSigmoid : ScoreFunction::kSoftmax;
    c.norm_topk_prob = draw(2) == 1;
    c.routed_scaling_factor = 2.5f;
    c.selection_bias = draw(2) == 1;
    const Index tokens = draw(70);
    const Tensor logits = test::random_tensor(DType::kF32, {tokens, c.routed_experts}, round);
    const Tensor bias = c.selection_bias ? test::random_tensor(DType::kF32, {c.routed_experts}, round + 9, 0.1f) : Tensor();
    const ops::Chosen got = ops::route(cpu, c, logits, bias), want = ops::route(ref, c, logits, bias);
    EXPECT_TRUE(test::close(got.scores, want.scores, test::limit(DType::kF32, c.routed_experts)));
    for (Index t = 0; t < tokens; ++t) {
      const float* s = got.scores.data<float>() + t * c.routed_experts;
      const auto key = [&](Index i) { return s[i] + (c.selection_bias ? bias.data<float>()[i] : 0.0f); };
      std::vector<Index> order(static_cast<std::size_t>(c.routed_experts));
      std::iota(order.begin(), order.end(), 0);
      std::stable_sort(order.begin(), order.end(), [&](Index a, Index b) { return key(a) > key(b); });
      double sum = 0;
      for (Index j = 0; j < c.experts_per_token; ++j) sum += s[order[static_cast<std::size_t>(j)]];
      const double norm = c.norm_topk_prob && c.experts_per_token > 1 ? sum + 1e-20 : 1;
      for (Index j = 0; j < c.experts_per_token; ++j) {
        const Index at = t * c.experts_per_token + j;
        ASSERT_EQ(got.experts.data<std::int32_t>()[at], order[static_cast<std::size_t>(j)]);
        EXPECT_NEAR(got.weights.data<float>()[at], 2.5 * s[order[static_cast<std::size_t>(j)]] / norm, 1e-6);
      }
    }
  }
}

TEST(OpsRouting, OnlyTheBestGroupsAreChosenFrom) {
  Context ctx(1);
  MoeConfig c = gate(6, 2);
  c.groups = 3, c.groups_per_token = 1;
  c.group_score = GroupScore::kMax;
  EXPECT_EQ(chosen(ops::route(ctx, c, row({5, 0, 4, 4, 1, 1}), {})), (std::vector<int>{0, 1})) << "the best expert decides";
  c.group_score = GroupScore::kTop2Sum;
  c.score = ScoreFunction::kSigmoid;
  EXPECT_EQ(chosen(ops::route(ctx, c, row({5, -5, 1, 1, 0, 0}), {})), (std::vector<int>{2, 3})) << "the best two decide";
}

// Biases below zero (GLM has them): what is outside the best groups is out of the choice, not 0, which would beat them.
TEST(OpsRouting, BiasesBelowZeroDoNotLetOtherGroupsIn) {
  Context ctx(1);
  MoeConfig c = gate(6, 2);
  c.score = ScoreFunction::kSigmoid, c.selection_bias = true;
  c.groups = 3, c.groups_per_token = 1, c.group_score = GroupScore::kTop2Sum;
  Tensor bias(DType::kF32, {6});
  for (float& b : bias.span<float>()) b = -3;
  EXPECT_EQ(chosen(ops::route(ctx, c, row({0, 0, 2, 1, -1, -1}), bias)), (std::vector<int>{2, 3}));
}

// A bias can choose experts whose scores are all 0; their weights are divided by 1e-20 and not by 0.
TEST(OpsRouting, ChosenScoresOfZeroAreNormalisedToZero) {
  for (const Backend backend : {Backend::kCpu, Backend::kRef}) {
    Context ctx(1, backend);
    MoeConfig c = gate(4, 2);
    c.score = ScoreFunction::kSigmoid, c.selection_bias = true, c.norm_topk_prob = true;
    Tensor bias = Tensor::zeros(DType::kF32, {4});
    bias.data<float>()[2] = bias.data<float>()[3] = 5;
    const ops::Chosen out = ops::route(ctx, c, row({1, 1, -500, -600}), bias);
    EXPECT_EQ(chosen(out), (std::vector<int>{2, 3}));
    for (const float w : out.weights.span<float>()) EXPECT_EQ(w, 0);
  }
}

TEST(OpsRouting, NanAndInfinityNameLayerAndToken) {
  Context ctx(2);
  for (const float bad : {NAN, INFINITY, -INFINITY}) {
    MoeConfig c = gate(4, 2);
    c.layer_index = 7;
    Tensor logits = test::random_tensor(DType::kF32, {100, 4}, 1);
    logits.data<float>()[41 * 4 + 2] = bad;
    logits.data<float>()[90 * 4 + 2] = bad;
    EXPECT_TRUE(testing::throws_error([&] { ops::route(ctx, c, logits, {}); }, {"layer 7, token 41"}, ErrorCode::kNumeric));
  }
}

TEST(OpsRouting, ABiasThatIsNotFiniteNamesLayerAndExpert) {
  Context cpu(2), ref(1, Backend::kRef);
  MoeConfig c = gate(4, 2);
  c.layer_index = 7, c.selection_bias = true;
  const Tensor logits = test::random_tensor(DType::kF32, {3, 4}, 1);
  Tensor bias = Tensor::zeros(DType::kF32, {4});
  EXPECT_NO_THROW(ops::route(cpu, c, logits, bias));
  for (Context* ctx : {&cpu, &ref})
    for (const float bad : {NAN, INFINITY, -INFINITY}) {
      bias.data<float>()[2] = bad;
      EXPECT_TRUE(testing::throws_error([&] { ops::route(*ctx, c, logits, bias); }, {"layer 7", "bias of expert 2"},
                                        ErrorCode::kNumeric));
    }
}

// Finite differences of <weights, a> + <scores, b> with the chosen experts held.
TEST(OpsRouting, BackwardAgainstFiniteDifferences) {
  Context ctx(1, Backend::kRef);
  for (const ScoreFunction score : {ScoreFunction::kSoftmax, ScoreFunction::kSigmoid}) {
    for (const bool norm : {false, true}) {
      MoeConfig c = gate(7, 3);
      c.score = score, c.norm_topk_prob = norm, c.routed_scaling_factor = 1.5f;
      Tensor logits = test::random_tensor(DType::kF32, {4, 7}, 3);
      const Tensor a = test::random_tensor(DType::kF32, {4, 3}, 4), b = test::random_tensor(DType::kF32, {4, 7}, 5);
      const ops::Chosen base = ops::route(ctx, c, logits, {});
      const Tensor got = ops::route_backward(ctx, c, base, a, b);
      Tensor want(DType::kF32, {4, 7});
      const auto objective = [&] {
        const ops::Chosen now = ops::route(ctx, c, logits, {});
        double sum = 0;
        for (Index i = 0; i < 28; ++i) sum += static_cast<double>(now.scores.data<float>()[i]) * b.data<float>()[i];
        for (Index i = 0; i < 12; ++i) {
          EXPECT_EQ(now.experts.data<std::int32_t>()[i], base.experts.data<std::int32_t>()[i]);
          sum += static_cast<double>(now.weights.data<float>()[i]) * a.data<float>()[i];
        }
        return sum;
      };
      for (Index i = 0; i < 28; ++i) {
        constexpr float kStep = 1e-2f;
        float& x = logits.data<float>()[i];
        const float at = x;
        x = at + kStep;
        const double up = objective();
        x = at - kStep;
        const double down = objective();
        x = at;
        want.data<float>()[i] = static_cast<float>((up - down) / (2 * kStep));
      }
      EXPECT_TRUE(test::close(got, want, 1e-3));  // step² of the third derivative; measured 5e-5 on 2026-11-15
    }
  }
}

}  // namespace
}  // namespace dsmoe
