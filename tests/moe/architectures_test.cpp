// The paper's three architectures hold equal parameters and do equal work: counted from tensors and plans.
#include <gtest/gtest.h>

#include "dsmoe/segmentation.h"
#include "moe/gate.h"
#include "moe/plan.h"
#include "support/moe_case.h"

namespace dsmoe {
namespace {

struct Count {
  Index parameters = 0, multiply_adds = 0;
};

Count count(const Architecture& a, Index hidden, Index tokens) {
  const MoeConfig c = test::moe_config(hidden, a.width, a.routed, a.active, a.shared);
  const MoeWeights w = test::moe_weights(c, DType::kF32, 1);
  Count n;
  const auto add = [&](const ExpertTensors& e) {
    n.parameters += e.gate_proj.numel() + e.up_proj.numel() + e.down_proj.numel();
  };
  for (const ExpertTensors& e : w.routed) add(e);
  if (a.shared > 0) add(w.shared);
  Context ctx(1);
  const Plan plan =
      make_plan(c, gate_forward(ctx, c, test::random_tensor(DType::kF32, {tokens, hidden}, 2), w.gate, w.gate_bias));
  // A row of the plan meets every entry of one expert's three matrices once.
  for (Index e = 0; e < c.all_experts(); ++e) n.multiply_adds += plan.count(e) * 3 * a.width * hidden;
  return n;
}

TEST(MoeArchitectures, EqualParametersAndEqualWork) {
  struct {
    Index n, k, m, ks, f;
  } cases[] = {{16, 2, 4, 1, 32}, {16, 2, 2, 2, 24}, {8, 1, 4, 1, 16}, {16, 2, 4, 2, 8}};
  for (const auto& p : cases) {
    const Segmentation s{.experts = p.n, .active = p.k, .split = p.m, .shared = p.ks, .expert_size = p.f};
    const Count a = count(s.conventional(), 10, 23);
    const Count b = count(s.fine_grained(), 10, 23);
    const Count c = count(s.deepseek_moe(), 10, 23);
    EXPECT_EQ(a.parameters, b.parameters);
    EXPECT_EQ(a.parameters, c.parameters);
    EXPECT_EQ(a.multiply_adds, b.multiply_adds);
    EXPECT_EQ(a.multiply_adds, c.multiply_adds);
    EXPECT_EQ(a.multiply_adds, 23 * p.k * 3 * p.f * 10);
  }
}

}  // namespace
}  // namespace dsmoe
