#include "dsmoe/moe_config.h"

#include <gtest/gtest.h>

#include <functional>
#include <limits>

#include "support/expect_error.h"

namespace dsmoe {
namespace {

MoeConfig good() {
  MoeConfig c;
  c.hidden_size = 32;
  c.expert_size = 24;
  c.routed_experts = 8;
  c.shared_experts = 1;
  c.experts_per_token = 3;
  return c;
}

::testing::AssertionResult refused(const std::function<void(MoeConfig&)>& spoil,
                                   std::initializer_list<std::string_view> words) {
  MoeConfig c = good();
  spoil(c);
  return testing::throws_error([&] { c.validate(); }, words);
}

TEST(MoeConfig, AcceptsWhatWorks) {
  EXPECT_NO_THROW(good().validate());
  EXPECT_FALSE(refused([](MoeConfig&) {}, {})) << "the checker must be able to fail";
  EXPECT_FALSE(refused([](MoeConfig& c) { c.experts_per_token = 8; }, {})) << "all experts may be active";
  EXPECT_FALSE(refused([](MoeConfig& c) { c.shared_experts = 0; }, {}));
  EXPECT_FALSE(
      refused([](MoeConfig& c) { c.groups = 4, c.groups_per_token = 2, c.group_score = GroupScore::kTop2Sum; }, {}));
  EXPECT_FALSE(refused([](MoeConfig& c) { c.device_balance_alpha = 0.05f, c.devices = 4; }, {}));
  EXPECT_FALSE(refused([](MoeConfig& c) { c.routed_experts = 1, c.experts_per_token = 1; }, {}));
}

TEST(MoeConfig, RefusesSizes) {
  EXPECT_TRUE(refused([](MoeConfig& c) { c.hidden_size = 0; }, {"hidden_size is 0"}));
  EXPECT_TRUE(refused([](MoeConfig& c) { c.expert_size = 0; }, {"expert_size is 0"}));
  EXPECT_TRUE(refused([](MoeConfig& c) { c.expert_size = -3; }, {"expert_size is -3"}));
  EXPECT_TRUE(refused([](MoeConfig& c) { c.routed_experts = 0; }, {"routed_experts is 0"}));
  EXPECT_TRUE(refused([](MoeConfig& c) { c.shared_experts = -1; }, {"shared_experts is -1"}));
  EXPECT_TRUE(refused([](MoeConfig& c) { c.experts_per_token = 0; }, {"experts_per_token is 0"}));
  EXPECT_TRUE(
      refused([](MoeConfig& c) { c.experts_per_token = 9; }, {"experts_per_token is 9", "8 routed_experts", "at most 8"}));
  EXPECT_TRUE(refused([](MoeConfig& c) { c.hidden_size = Index{1} << 40; }, {"hidden_size", "2147483647"}));
  EXPECT_TRUE(refused([](MoeConfig& c) { c.shared_experts = 2147483647; }, {"routed_experts", "shared_experts"}));
}

TEST(MoeConfig, RefusesCoefficients) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float inf = std::numeric_limits<float>::infinity();
  EXPECT_TRUE(refused([](MoeConfig& c) { c.seq_balance_alpha = -0.5f; }, {"seq_balance_alpha is -0.5"}));
  EXPECT_TRUE(refused([&](MoeConfig& c) { c.batch_balance_alpha = nan; }, {"batch_balance_alpha is nan"}));
  EXPECT_TRUE(refused([&](MoeConfig& c) { c.device_balance_alpha = inf; }, {"device_balance_alpha is inf"}));
  EXPECT_TRUE(refused([](MoeConfig& c) { c.routed_scaling_factor = 0; }, {"routed_scaling_factor is 0"}));
  EXPECT_TRUE(refused([&](MoeConfig& c) { c.routed_scaling_factor = nan; }, {"routed_scaling_factor is nan"}));
}

TEST(MoeConfig, RefusesGroups) {
  EXPECT_TRUE(refused([](MoeConfig& c) { c.groups = 0; }, {"groups is 0"}));
  EXPECT_TRUE(refused([](MoeConfig& c) { c.groups = 3; }, {"groups is 3", "8 routed_experts"}));
  EXPECT_TRUE(refused([](MoeConfig& c) { c.groups_per_token = 0; }, {"groups_per_token is 0"}));
  EXPECT_TRUE(refused([](MoeConfig& c) { c.groups_per_token = 2; }, {"groups_per_token is 2", "1 groups"}));
  EXPECT_TRUE(refused([](MoeConfig& c) { c.groups = 4; }, {"groups_per_token is 1", "experts_per_token 3", "at least 2"}));
  EXPECT_TRUE(refused([](MoeConfig& c) { c.groups = 8, c.groups_per_token = 4, c.group_score = GroupScore::kTop2Sum; },
                      {"group_score", "groups is 8", "at most 4"}));
  EXPECT_TRUE(refused([](MoeConfig& c) { c.group_score = static_cast<GroupScore>(7); }, {"group_score 7"}));
  EXPECT_TRUE(refused([](MoeConfig& c) { c.score = static_cast<ScoreFunction>(7); }, {"score function 7"}));
  EXPECT_TRUE(refused([](MoeConfig& c) { c.devices = 0; }, {"devices is 0"}));
  EXPECT_TRUE(refused([](MoeConfig& c) { c.devices = 3; }, {"devices is 3", "8 routed_experts"}));
}

TEST(MoeConfig, NamesTheLayer) {
  EXPECT_TRUE(refused([](MoeConfig& c) { c.layer_index = 5, c.expert_size = 0; }, {"layer 5: expert_size is 0"}));
  EXPECT_TRUE(refused([](MoeConfig& c) { c.layer_index = -2; }, {"layer_index is -2"}));
}

}  // namespace
}  // namespace dsmoe
