#include "study/ablation.h"

#include <gtest/gtest.h>

#include "study/random_routing.h"
#include "support/expect_error.h"

namespace dsmoe::study {
namespace {

using dsmoe::testing::throws_error;

const std::vector<std::vector<std::int32_t>> kText = {{3, 9, 27, 31, 4, 12, 36, 8, 24}, {7, 7, 20, 1, 0, 44}};

TEST(Ablation, PlansWhatIsAsked) {
  const std::vector<Ablation> plan = plan_ablations(
      {.mask_top = {"1/8", "0.25"}, .top_k = {1, 8}, .disable = {"2:7", "1:0", "2:7"}, .no_shared = true}, small_config());
  ASSERT_EQ(plan.size(), 7u);
  EXPECT_EQ(plan[0].kind, AblationKind::kNone);
  EXPECT_EQ(plan[1].overrides.skip_best, 1);
  EXPECT_EQ(plan[2].overrides.skip_best, 2);
  EXPECT_TRUE(plan[3].overrides.drop_shared);
  EXPECT_EQ(plan[5].overrides.experts_per_token, 8);
  EXPECT_EQ(plan[6].overrides.disabled, (std::vector<std::pair<Index, Index>>{{1, 0}, {2, 7}}));
  EXPECT_EQ(plan[6].label, "1:0, 2:7 off");
}

TEST(Ablation, RefusesWhatMakesNoSense) {
  const auto refused = [](const AblationRequest& r, std::initializer_list<std::string_view> words,
                          ModelConfig c = small_config()) { return throws_error([&] { plan_ablations(r, c); }, words); };
  for (const char* text : {"", "1/", "x", "1/0", "-1/8", "3/2", "1", "nan"})
    EXPECT_TRUE(refused({.mask_top = {text}}, {"1/16"})) << text;
  EXPECT_TRUE(refused({.mask_top = {"7/8"}}, {"1 of 8"}));
  EXPECT_TRUE(refused({.top_k = {9}}, {"9 experts"}));
  EXPECT_TRUE(refused({.disable = {"0:1"}}, {"layer 0", "not a MoE layer"})) << "the first layer is dense";
  EXPECT_TRUE(refused({.disable = {"1:8"}}, {"no expert 8"}));
  for (const char* text : {"1", "1:", ":1", "a:b"}) EXPECT_TRUE(refused({.disable = {text}}, {"LAYER:EXPERT"})) << text;
  ModelConfig no_shared = small_config();
  no_shared.n_shared_experts = {};
  EXPECT_TRUE(refused({.no_shared = true}, {"no shared experts"}, no_shared));
  ModelConfig dense = small_config();
  dense.n_routed_experts = dense.num_experts_per_tok = dense.n_shared_experts = {};
  EXPECT_TRUE(refused({.top_k = {1}}, {"no MoE layer"}, dense));
}

TEST(Ablation, LossesAreThoseOfAModelBuiltThatWay) {
  const Transformer model = small_model();
  Context ctx(2);
  std::int64_t heard = 0;
  const std::vector<AblationResult> got =
      run_ablations(ctx, model, DType::kF32, kText,
                    plan_ablations({.mask_top = {"0/8", "1/8"}, .top_k = {5}, .no_shared = true}, small_config()),
                    [&](std::int64_t n) { heard = n; });
  EXPECT_EQ(heard, 5 * 15);
  EXPECT_EQ(got[0].loss.mean(), got[1].loss.mean()) << "nothing masked";
  EXPECT_NE(got[0].loss.mean(), got[2].loss.mean());

  ModelConfig more = small_config();
  more.num_experts_per_tok = 5;
  const Transformer five(more, random_weights(more, 5, DType::kF32, ctx));
  Evaluator want(ctx, five, DType::kF32);
  for (const auto& s : kText) want.add(s);
  EXPECT_EQ(got[4].loss.mean(), want.result().mean());

  ModelWeights w = random_weights(small_config(), 5, DType::kF32, ctx);
  for (auto& layer : w.layers)
    if (layer.gate.numel() > 0)
      layer.experts = layer.experts.range(layer.experts.count() - layer.gate.dim(0), layer.experts.count());
  ModelConfig unshared = small_config();
  unshared.n_shared_experts = {}, unshared.num_experts_per_tok = 4;
  const Transformer without(unshared, std::move(w));
  Evaluator routed(ctx, without, DType::kF32);
  for (const auto& s : kText) routed.add(s);
  EXPECT_EQ(got[3].loss.mean(), routed.result().mean());
}

TEST(Ablation, PlotsHaveTheModelAsItIsInTheirPlace) {
  const auto result = [](AblationKind kind, double value, double loss) {
    return AblationResult{{kind, "", value, {}}, {.loss_sum = loss, .predicted = 1}};
  };
  const std::vector<Plot> plots = ablation_plots(
      {{"m",
        {result(AblationKind::kNone, 0, 1), result(AblationKind::kMaskTop, 0.1, 2), result(AblationKind::kTopK, 2, 3),
         result(AblationKind::kTopK, 4, 0.5), result(AblationKind::kNoShared, 0, 9)},
        3}});
  ASSERT_EQ(plots.size(), 2u);
  EXPECT_EQ(plots[0].lines[0].points.size(), 2u);
  EXPECT_EQ(plots[0].lines[0].points[0].y, 1);
  ASSERT_EQ(plots[1].lines[0].points.size(), 3u);
  EXPECT_EQ(plots[1].lines[0].points[1].x, 3);
  EXPECT_TRUE(ablation_plots({{"m", {result(AblationKind::kNone, 0, 1)}, 3}}).empty());
}

}  // namespace
}  // namespace dsmoe::study
