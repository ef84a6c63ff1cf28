// The dispatch plan: every (token, slot) once, sorted by expert, stable.
#include "ops/plan.h"

#include <gtest/gtest.h>

#include <set>

#include "ops/routing.h"
#include "support/moe_case.h"

namespace dsmoe {
namespace {

TEST(OpsPlan, HoldsEveryTokenAndSlotOnceInOrder) {
  Context ctx(1);
  test::Draw draw(1);
  for (std::uint64_t round = 0; round < 30; ++round) {
    MoeConfig c = test::moe_config(4, 4, draw.between(1, 70), 1, draw(4));
    c.experts_per_token = draw.between(1, std::min<Index>(8, c.routed_experts));
    const Index tokens = draw(90);
    const ops::Chosen chosen =
        ops::route(ctx, c, test::random_tensor(DType::kF32, {tokens, c.routed_experts}, round), Tensor());
    const ops::Plan made = ops::make_plan(c, chosen, c.shared_experts);
    const ops::ExpertRows plan = made.view();
    const std::span<const std::int32_t> slot_row = made.slot_row.span<std::int32_t>();
    ASSERT_EQ(plan.rows(), tokens * c.slots());
    ASSERT_EQ(plan.offset.front(), 0);
    ASSERT_EQ(plan.offset.back(), plan.rows());
    EXPECT_EQ(made.slot_weight.raw(), chosen.weights.raw());
    for (Index e = 0; e < c.all_experts(); ++e) {
      const Index begin = plan.offset[static_cast<std::size_t>(e)], end = plan.offset[static_cast<std::size_t>(e) + 1];
      for (Index r = begin; r < end; ++r) {
        const auto row = static_cast<std::size_t>(r);
        if (r > begin) {
          EXPECT_LT(plan.token[row - 1], plan.token[row]) << "stable, and no token twice";
        }
        if (e < c.shared_experts) {
          EXPECT_EQ(plan.weight[row], 1.0f);
          EXPECT_EQ(end - begin, tokens);
        }
      }
    }
    std::set<std::int32_t> rows;
    for (Index i = 0; i < tokens * c.experts_per_token; ++i) {
      const std::int32_t r = slot_row[static_cast<std::size_t>(i)];
      const Index e = c.shared_experts + chosen.experts.data<std::int32_t>()[i];
      EXPECT_TRUE(rows.insert(r).second);
      EXPECT_EQ(plan.token[static_cast<std::size_t>(r)], i / c.experts_per_token);
      EXPECT_EQ(plan.weight[static_cast<std::size_t>(r)], chosen.weights.data<float>()[i]);
      EXPECT_GE(r, plan.offset[static_cast<std::size_t>(e)]);
      EXPECT_LT(r, plan.offset[static_cast<std::size_t>(e) + 1]);
    }
  }
}

}  // namespace
}  // namespace dsmoe
