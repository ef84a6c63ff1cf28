#include "dsmoe/segmentation.h"

#include <gtest/gtest.h>

#include "core/big_uint.h"
#include "support/expect_error.h"

namespace dsmoe {
namespace {

using testing::throws_error;

TEST(BigUint, MultipliesDividesAndPrints) {
  EXPECT_EQ(BigUint(0).str(), "0");
  EXPECT_EQ(BigUint(18446744073709551615u).str(), "18446744073709551615");
  BigUint x(18446744073709551615u);
  x *= 18446744073709551615u;
  EXPECT_EQ(x.str(), "340282366920938463426481119284349108225");
  EXPECT_EQ(x.divide(1000000007), 114944269u);
  EXPECT_EQ(x.str(), "340282364538961911653747737708");
  x *= 0;
  EXPECT_TRUE(x.is_zero());
  EXPECT_EQ(x.str(), "0");
  BigUint power(1);  // zeros inside and at the end of the 19-digit chunks
  for (int i = 0; i < 40; ++i) power *= 10;
  EXPECT_EQ(power.str(), "1" + std::string(40, '0'));
}

TEST(Segmentation, GivesTheThreeArchitecturesOfThePaper) {
  const Segmentation s{.experts = 16, .active = 2, .split = 4, .shared = 1, .expert_size = 3392};
  EXPECT_EQ(s.conventional(), (Architecture{16, 2, 0, 3392}));
  EXPECT_EQ(s.fine_grained(), (Architecture{64, 8, 0, 848}));
  EXPECT_EQ(s.deepseek_moe(), (Architecture{63, 7, 1, 848}));
}

TEST(Segmentation, KeepsExpertParametersAndWork) {
  for (const Index split : {1, 2, 4, 8}) {
    for (const Index shared : {0, 1}) {
      const Segmentation s{8, 2, split, shared, 64};
      for (const Architecture& a : {s.conventional(), s.fine_grained(), s.deepseek_moe()}) {
        EXPECT_EQ((a.routed + a.shared) * a.width, 8 * 64) << split << " " << shared;
        EXPECT_EQ((a.active + a.shared) * a.width, 2 * 64) << split << " " << shared;
      }
    }
  }
}

TEST(Segmentation, SizesAreOptional) { EXPECT_EQ((Segmentation{16, 2, 4, 1}.deepseek_moe()), (Architecture{63, 7, 1, 0})); }

TEST(Segmentation, AppliesToALayer) {
  MoeConfig base;
  base.hidden_size = 32;
  base.norm_topk_prob = true;
  const MoeConfig c = Segmentation{4, 2, 2, 1, 48}.deepseek_moe().apply(base);
  EXPECT_EQ(c.routed_experts, 7);
  EXPECT_EQ(c.experts_per_token, 3);
  EXPECT_EQ(c.shared_experts, 1);
  EXPECT_EQ(c.expert_size, 24);
  EXPECT_EQ(c.hidden_size, 32);
  EXPECT_TRUE(c.norm_topk_prob);
  EXPECT_NO_THROW(c.validate());
}

TEST(Segmentation, RefusesWhatCannotBe) {
  const auto refused = [](Segmentation s, std::initializer_list<std::string_view> words) {
    return throws_error([&] { s.validate(); }, words);
  };
  EXPECT_TRUE(refused({0, 1}, {"N", "is 0"}));
  EXPECT_TRUE(refused({16, 0}, {"K", "is 0"}));
  EXPECT_TRUE(refused({16, 17}, {"K", "17", "16"}));
  EXPECT_TRUE(refused({16, 2, 0}, {"m", "is 0"}));
  EXPECT_TRUE(refused({16, 2, 4, -1}, {"Ks", "-1"}));
  EXPECT_TRUE(refused({16, 2, 4, 8}, {"Ks", "is 8", "mK = 8", "Ks <= 7"}));
  EXPECT_TRUE(refused({16, 2, 4, 1, 1001}, {"F", "1001", "m = 4", "1004"}));
  EXPECT_TRUE(refused({16, 2, 4, 1, -4}, {"F", "-4"}));
  EXPECT_TRUE(refused({Index{1} << 40, 2, Index{1} << 40}, {"N", "m", "65536"}));
  EXPECT_FALSE(refused({16, 2, 4, 7, 1000}, {})) << "the largest Ks that works";
}

TEST(Segmentation, FindsTheLayerThatWasSplit) {
  const Architecture paper{63, 7, 1, 848};
  EXPECT_EQ(Segmentation::coarsest_split(paper), 4);  // not 8, which would leave one active expert
  EXPECT_EQ(Segmentation::of(paper, 4).conventional(), (Architecture{16, 2, 0, 3392}));
  EXPECT_EQ(Segmentation::of(paper, 4).deepseek_moe(), paper);
  EXPECT_EQ(Segmentation::coarsest_split({64, 6, 2, 1408}), 2);
  EXPECT_EQ(Segmentation::coarsest_split({5, 2, 0, 8}), 1);
  EXPECT_TRUE(throws_error([] { Segmentation::of({64, 6, 2, 1408}, 4); }, {"m (split) is 4", "66", "8", "divisor of 2"}));
}

TEST(ExpertCombinations, AreExact) {
  EXPECT_EQ(expert_combinations(16, 2), "120");
  EXPECT_EQ(expert_combinations(64, 8), "4426165368");
  EXPECT_EQ(expert_combinations(63, 7), "553270671");
  EXPECT_EQ(expert_combinations(64, 6), "74974368");
  EXPECT_EQ(expert_combinations(256, 8), "409663695276000");
  EXPECT_EQ(expert_combinations(8, 0), "1");
  EXPECT_EQ(expert_combinations(8, 8), "1");
  EXPECT_EQ(expert_combinations(8, 1), "8");
}

// Far past 64 bits; the literals are math.comb of Python.
TEST(ExpertCombinations, AreExactPastMachineWords) {
  EXPECT_EQ(expert_combinations(512, 32), "702814253655938225018039814641109516123603866169840");
  EXPECT_EQ(expert_combinations(512, 480), expert_combinations(512, 32));
  EXPECT_EQ(
      expert_combinations(1000, 500),
      "270288240945436569515614693625975275496152008446548287007392875106625428705522193898612483924502370165362606085021"
      "546104802209750050679917549894219699518475423665484263751733356162464079737887344364574161119497604571044985756287"
      "880514600994219426752366915856603136862602484428109296905863799821216320");
}

TEST(ExpertCombinations, RefusesWhatCannotBeChosen) {
  EXPECT_TRUE(throws_error([] { expert_combinations(8, 9); }, {"9", "8"}));
  EXPECT_TRUE(throws_error([] { expert_combinations(-1, 0); }, {"-1"}));
  EXPECT_TRUE(throws_error([] { expert_combinations(Index{1} << 40, 5); }, {"65536"}));
}

}  // namespace
}  // namespace dsmoe
