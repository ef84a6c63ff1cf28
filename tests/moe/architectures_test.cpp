// The paper's three architectures hold equal parameters and do equal work: counted from tensors and plans.
#include <gtest/gtest.h>

#include "dsmoe/segmentation.h"
#include "ops/gate.h"
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
  n.parameters = w.experts.gate_up().numel() + w.experts.down().numel();
  Context ctx(1);
  const Tensor x = test::random_tensor(DType::kF32, {tokens, hidden}, 2);
  const ops::Plan plan = ops::gate(ctx, c, x, w.gate, w.gate_bias, c.shared_experts, /*training=*/false).plan;
  // A row of the plan meets every entry of one expert's three matrices once.
  n.multiply_adds = plan.rows() * 3 * a.width * hidden;
  EXPECT_EQ(plan.experts(), c.all_experts());
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
