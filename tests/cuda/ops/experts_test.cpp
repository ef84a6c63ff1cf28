// Each grouped product on a GPU against ops/ref with the same inputs.
#include "ops/experts.h"

#include <gtest/gtest.h>

#include "cuda/layer_case.h"
#include "dsmoe/error.h"
#include "support/tolerance.h"

namespace dsmoe::test {
namespace {

using cuda::Path;

// What one backend makes of a plan; every op gets the same inputs on all of them, so errors do not add up.
struct Results {
  Tensor h, gate_up, y, dgate_up, scaled_h, weight, dx;
  Experts grads;
};

struct ExpertInputs {
  Experts experts;
  ops::Plan plan;
  Tensor x, dy, h, gate_up, gate_dx;
};

ExpertInputs placed(Context& ctx, const ExpertInputs& in, const ops::Plan& plan) {
  return {in.experts.to(ctx.device()), plan, ctx.place(in.x), ctx.place(in.dy), ctx.place(in.h), ctx.place(in.gate_up),
          ctx.place(in.gate_dx)};
}

// A copy on this Context's stream: ops use up what they are given.
Tensor copy_of(Context& ctx, const Tensor& t) { return ctx.place(ctx.fetch(t).clone()); }

Results run(Context& ctx, const ExpertInputs& in, DType grad_dtype, bool accumulate) {
  Results r;
  ops::ExpertActivations kept;
  r.h = ctx.fetch(ops::experts_gate_up(ctx, in.experts, in.plan, in.x, &kept));
  r.gate_up = ctx.fetch(kept.gate_up);
  r.y = ctx.fetch(ops::experts_down_combine(ctx, in.experts, in.plan, in.h));
  ops::ExpertRowGrads d = ops::experts_down_backward(ctx, in.experts, in.plan, in.dy, {copy_of(ctx, in.gate_up)});
  r.dgate_up = ctx.fetch(d.gate_up).clone();
  r.scaled_h = ctx.fetch(d.scaled_h).clone();
  const Tensor parts = ctx.fetch(d.weight);
  r.weight = Tensor::zeros(DType::kF32, {parts.dim(0)});
  for (Index i = 0; i < parts.numel(); ++i) r.weight.data<float>()[i / parts.dim(1)] += parts.data<float>()[i];
  const Experts& w = in.experts;
  const Tensor gate_up = random_tensor(grad_dtype, w.gate_up().shape(), 21),
               down = random_tensor(grad_dtype, w.down().shape(), 22);
  r.grads = Experts(ctx.place(gate_up), ctx.place(down));
  ops::experts_weight_backward(ctx, in.plan, in.x, in.dy, d, r.grads, accumulate);
  r.grads = Experts(ctx.fetch(r.grads.gate_up()), ctx.fetch(r.grads.down()));
  r.dx = ctx.fetch(ops::experts_gate_up_backward(ctx, in.experts, in.plan, d, copy_of(ctx, in.gate_dx)));
  return r;
}

class CudaExperts : public GpuTest {
 protected:
  void check(const Case& c, DType dtype, DType grad_dtype, bool accumulate) {
    const Inputs layer = random_inputs(c, dtype, 7 + static_cast<std::uint64_t>(c.t));
    const MoeWeights& w = layer.weights;
    const Tensor bias = layer.config.selection_bias ? ctx().place(w.gate_bias) : Tensor();
    for (const Path path : paths_for(dtype, c.d, c.f)) {
      SCOPED_TRACE(::testing::Message() << c.name << " " << to_string(dtype) << " gradients " << to_string(grad_dtype)
                                        << (accumulate ? " added" : " overwritten") << " " << cuda::to_string(path));
      const Forced forced(path);
      const ops::Plan plan =
          ops::gate(ctx(), layer.config, ctx().place(layer.x), ctx().place(w.gate), bias, c.s, true).plan;
      const Index rows = plan.rows();
      const ExpertInputs in{w.experts,
                            fetch(ctx(), plan),
                            layer.x,
                            layer.dy,
                            random_tensor(dtype, {rows, c.f}, 31),
                            random_tensor(dtype, {rows, 2 * c.f}, 32),
                            random_tensor(dtype, {c.t, c.d}, 33)};
      Context ref(1, Backend::kRef);
      ExpertInputs plain = in;
      plain.gate_dx = in.gate_dx.to(DType::kF32);  // as the CPU's gate leaves it
      const Results want = run(ref, plain, grad_dtype, accumulate);
      const Results got = run(ctx(), placed(ctx(), in, plan), grad_dtype, accumulate);
      // The longest sum of each op, one or two roundings to the dtype, and bf16's fast exponential.
      EXPECT_TRUE(close(got.gate_up, want.gate_up, limit(dtype, c.d)));
      EXPECT_TRUE(close(got.h, want.h, 2 * limit(dtype, c.d)));
      EXPECT_TRUE(close(got.y, want.y, 2 * limit(dtype, c.f + c.k)));
      EXPECT_TRUE(close(got.dgate_up, want.dgate_up, 2 * limit(dtype, c.d)));
      EXPECT_TRUE(close(got.scaled_h, want.scaled_h, limit(dtype, 1)));
      EXPECT_TRUE(close(got.weight, want.weight, 2 * limit(dtype, c.d + c.f)));
      EXPECT_TRUE(close(got.dx, want.dx, 2 * limit(dtype, 2 * c.f + c.k)));
      EXPECT_TRUE(close(got.grads.gate_up(), want.grads.gate_up(), 2 * limit(dtype, c.d + c.t)));
      EXPECT_TRUE(close(got.grads.down(), want.grads.down(), 2 * limit(dtype, c.d + c.t)));
    }
  }
};

TEST_F(CudaExperts, MatchReference) {
  for (const char* name : {"one_token", "no_tokens", "tile_sizes", "odd", "no_shared", "sixteen_b_small", "many_experts",
                           "hot_expert", "unaligned", "unaligned_wide", "pairs_along_d"}) {
    check(fixed_case(name), DType::kBF16, DType::kF32, true);
    check(fixed_case(name), DType::kF32, DType::kF32, true);
  }
}

TEST_F(CudaExperts, GradientsOfEveryKind) {
  for (const char* name : {"odd", "sixteen_b_small", "unaligned", "pairs_along_d", "no_tokens"}) {
    check(fixed_case(name), DType::kBF16, DType::kF32, false);
    check(fixed_case(name), DType::kBF16, DType::kBF16, false);
    check(fixed_case(name), DType::kBF16, DType::kBF16, true);
  }
}

// Rows of D in parts, as large batches in training have them: the same bits.
TEST_F(CudaExperts, ColumnPartsGiveTheSameBits) {
  const Case c{"parts", 200, 512, 72, 8, 2, 3};
  const Inputs layer = random_inputs(c, DType::kBF16, 1);
  if (cuda::choose_path(DType::kBF16, c.d, c.f) != Path::kHopper) GTEST_SKIP() << "other paths have no parts";
  const Experts w = layer.weights.experts.to(Device::kCuda);
  ops::Plan plan =
      ops::gate(ctx(), layer.config, ctx().place(layer.x), ctx().place(layer.weights.gate), Tensor(), c.s, true).plan;
  ASSERT_EQ(plan.tiles.column_parts, 1);
  const Tensor h = ctx().place(random_tensor(DType::kBF16, {plan.rows(), c.f}, 2));
  ops::ExpertRowGrads d;
  d.gate_up = ctx().place(random_tensor(DType::kBF16, {plan.rows(), 2 * c.f}, 3));
  const Tensor start = random_tensor(DType::kBF16, {c.t, c.d}, 4);
  const Tensor y = ctx().fetch(ops::experts_down_combine(ctx(), w, plan, h));
  const Tensor dx = ctx().fetch(ops::experts_gate_up_backward(ctx(), w, plan, d, ctx().place(start)));
  for (const int parts : {2, 4}) {
    plan.tiles.column_parts = parts;
    EXPECT_TRUE(same_bits(ctx().fetch(ops::experts_down_combine(ctx(), w, plan, h)), y)) << parts;
    EXPECT_TRUE(same_bits(ctx().fetch(ops::experts_gate_up_backward(ctx(), w, plan, d, ctx().place(start))), dx)) << parts;
  }
}

TEST_F(CudaExperts, ListedExpertsAreRefused) {
  const Case c = fixed_case("one_token");
  const Inputs layer = random_inputs(c, DType::kBF16, 1);
  const ops::Plan plan =
      ops::gate(ctx(), layer.config, ctx().place(layer.x), ctx().place(layer.weights.gate), Tensor(), c.s, true).plan;
  EXPECT_THROW(ops::experts_gate_up(ctx(), layer.weights.experts, plan, ctx().place(layer.x), nullptr), Error);
}

}  // namespace
}  // namespace dsmoe::test
