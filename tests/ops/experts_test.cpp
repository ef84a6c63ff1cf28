// The grouped products against their plain reference, over random shapes, loads and dtypes.
#include "ops/experts.h"

#include <gtest/gtest.h>

#include "support/expert_tensors.h"
#include "support/random_tensor.h"
#include "support/sanitized.h"
#include "support/tolerance.h"

namespace dsmoe {
namespace {

using test::limit;
using test::random_tensor;

struct Case {
  Experts weights;
  ops::Plan plan;
};

// Experts of which some have no rows; every third is a slice of a wider MLP.
Case random_case(DType dtype, Index tokens, Index model, Index width, Index experts, Index most, std::uint64_t seed) {
  test::Draw draw(seed);
  const Philox rng(seed, 3);
  std::vector<ExpertSlice> list;
  std::vector<std::int32_t> offset = {0}, token;
  std::vector<float> weight;
  for (Index e = 0; e < experts; ++e) {
    const bool sliced = e % 3 == 0;
    const Index wide = sliced ? width + 5 : width;
    const std::uint64_t stream = seed * 1000 + static_cast<std::uint64_t>(e) * 3;
    list.push_back({{random_tensor(dtype, {wide, model}, stream), random_tensor(dtype, {wide, model}, stream + 1),
                     random_tensor(dtype, {model, wide}, stream + 2)},
                    sliced ? 2 : 0,
                    width});
    const Index rows = tokens == 0 || draw(4) == 0 ? 0 : draw.between(1, most);
    for (Index r = 0; r < rows; ++r) {
      token.push_back(static_cast<std::int32_t>(draw(tokens)));
      weight.push_back(rng.uniform(weight.size()));
    }
    offset.push_back(static_cast<std::int32_t>(token.size()));
  }
  return {Experts(std::move(list)), test::plan_of_rows(tokens, offset, token, weight)};
}

struct Results {
  Tensor h, y, dx, kept;
  ops::ExpertRowGrads d;
  Experts grads;
};

Results run(Context& ctx, const Case& c, std::uint64_t seed) {
  const Experts& w = c.weights;
  const Index tokens = c.plan.tokens, model = w.model_width(), width = w.width(0);
  const Tensor x = random_tensor(w.dtype(), {tokens, model}, seed + 1);
  const Tensor dy = random_tensor(w.dtype(), {tokens, model}, seed + 2);
  Results r;
  ops::ExpertActivations kept;
  r.h = ops::experts_gate_up(ctx, w, c.plan, x, &kept);
  r.kept = kept.gate_up.clone();
  r.y = ops::experts_down_combine(ctx, w, c.plan, r.h);
  r.d = ops::experts_down_backward(ctx, w, c.plan, dy, kept);
  r.dx = ops::experts_gate_up_backward(ctx, w, c.plan, r.d, random_tensor(DType::kF32, {tokens, model}, seed + 3));
  r.grads = Experts(random_tensor(DType::kF32, {w.count(), 2, width, model}, seed + 4),
                    random_tensor(DType::kF32, {w.count(), model, width}, seed + 5));
  ops::experts_weight_backward(ctx, c.plan, x, dy, r.d, r.grads, /*accumulate=*/true);
  return r;
}

TEST(OpsExperts, CpuAgainstRef) {
  Context cpu(2), ref(1, Backend::kRef);
  test::Draw draw(3);
  for (std::uint64_t round = 0; round < test::rounds(20u); ++round) {
    const DType dtype = round % 2 ? DType::kBF16 : DType::kF32;
    const Index tokens = draw.between(1, 40), model = draw.between(1, 150), width = draw.between(1, 150);
    const Case c = random_case(dtype, tokens, model, width, draw.between(1, 9), round % 5 == 0 ? 200 : 25, round);
    const Results got = run(cpu, c, round), want = run(ref, c, round);
    // Errors of one step are inputs of the next, so lengths add up; three steps of storage rounding at most.
    const Index length = model + width + 200;
    EXPECT_TRUE(test::close(got.kept, want.kept, limit(dtype, model)));
    EXPECT_TRUE(test::close(got.h, want.h, 2 * limit(dtype, model)));
    EXPECT_TRUE(test::close(got.y, want.y, 3 * limit(dtype, length)));
    EXPECT_TRUE(test::close(got.d.gate_up, want.d.gate_up, 3 * limit(dtype, length)));
    EXPECT_TRUE(test::close(got.d.scaled_h, want.d.scaled_h, 3 * limit(dtype, length)));
    EXPECT_TRUE(test::close(got.dx, want.dx, 3 * limit(dtype, length)));
    EXPECT_TRUE(test::close(got.grads.gate_up(), want.grads.gate_up(), 3 * limit(dtype, length)));
    EXPECT_TRUE(test::close(got.grads.down(), want.grads.down(), 3 * limit(dtype, length)));
    EXPECT_TRUE(test::close(got.d.weight, want.d.weight, 3 * limit(dtype, length)));
  }
}

TEST(OpsExperts, TheSameBitsForAnyNumberOfThreads) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const Case c = random_case(dtype, 30, 130, 70, 7, 60, 5);
    Context one(1);
    const Results want = run(one, c, 9);
    for (const int threads : {2, 3}) {
      Context ctx(threads);
      const Results got = run(ctx, c, 9);
      EXPECT_TRUE(test::same_bits(got.y, want.y));
      EXPECT_TRUE(test::same_bits(got.dx, want.dx));
      EXPECT_TRUE(test::same_bits(got.d.weight, want.d.weight));
      EXPECT_TRUE(test::same_bits(got.grads.gate_up(), want.grads.gate_up()));
      EXPECT_TRUE(test::same_bits(got.grads.down(), want.grads.down()));
    }
  }
}

TEST(OpsExperts, NoTokens) {
  Context ctx(2);
  const Case c = random_case(DType::kF32, 0, 8, 4, 3, 5, 1);
  const Results r = run(ctx, c, 1);
  EXPECT_EQ(r.y.numel(), 0);
  EXPECT_TRUE(test::same_bits(r.grads.gate_up(), random_tensor(DType::kF32, {3, 2, 4, 8}, 5)))
      << "gradients must stay as they were";
}

}  // namespace
}  // namespace dsmoe
