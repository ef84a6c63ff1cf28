// The layer whose experts may be on other ranks, with all of them here: the same ops, and the bits of MoeLayer. With
// several ranks it is tested under mpirun (tests/multi/gpu_checks.cpp).
#include "moe/spread_layer.h"

#include <gtest/gtest.h>

#include "cuda/layer_case.h"
#include "ops/elementwise.h"
#include "support/tolerance.h"

namespace dsmoe::test {
namespace {

class CudaSpread : public GpuTest {};

void check_spread(Context& ctx, const Inputs& in, cuda::Path path) {
  SCOPED_TRACE(::testing::Message() << to_string(in.dtype()) << " " << cuda::to_string(path));
  const Forced forced(path);
  const Outputs want = train_on_gpu(ctx, in);
  const parallel::Mesh mesh = parallel::one_rank();
  const SpreadMoeLayer layer(in.config, in.weights.to(Device::kCuda), mesh);
  SpreadMoeLayer::Forward forward = layer.forward(ctx, ctx.place(in.x), {.training = true, .sequence_length = in.sequence});
  MoeGradients grads(in.config, Device::kCuda);
  const Tensor dx = layer.backward(ctx, ctx.place(in.dy), *forward.saved, grads, {});
  EXPECT_TRUE(same_bits(ctx.fetch(forward.out.y), want.y));
  EXPECT_TRUE(same_bits(ctx.fetch(dx), want.dx));
  const MoeGradients got = fetch(ctx, grads);
  EXPECT_TRUE(same_bits(got.gate, want.grads.gate));
  const auto routed = [&](const Tensor& t) { return t.rows(in.config.shared_experts, t.dim(0)); };
  EXPECT_TRUE(same_bits(routed(got.experts.gate_up()), routed(want.grads.experts.gate_up())));
  EXPECT_TRUE(same_bits(routed(got.experts.down()), routed(want.grads.experts.down())));
  // Over the tokens of shared experts: in parts whose number depends on what else there is to compute.
  EXPECT_TRUE(close(got.experts.gate_up(), want.grads.experts.gate_up(), in.limits().experts));
  EXPECT_TRUE(close(got.experts.down(), want.grads.experts.down(), in.limits().experts));
}

TEST_F(CudaSpread, BitsOfTheLayer) {
  for (const Case& c : fixed_cases())
    for (const DType dtype : {DType::kBF16, DType::kF32}) {
      SCOPED_TRACE(c.name);
      const Inputs in = random_inputs(c, dtype, 5);
      for (const cuda::Path path : paths_for(dtype, c.d, c.f)) check_spread(ctx(), in, path);
    }
}

// Parts of a batch whose load is known: their losses add up to those of the whole, and so do the gate's gradients.
TEST_F(CudaSpread, PartsOfABatch) {
  for (const char* name : {"sixteen_b_small", "v3_like"}) {
    const Inputs in = random_inputs(fixed_case(name), DType::kF32, 5);
    MoeConfig c = in.config;
    if (c.score == ScoreFunction::kSoftmax) c.router_z_alpha = 0.01f;
    const MoeWeights w = in.weights.to(Device::kCuda);
    const Index half = in.tokens() / 2, half_sequences = half / in.sequence;
    ASSERT_EQ(half_sequences * in.sequence * 2, in.tokens());
    // Each part: losses, and the gate's gradient for no other gradient than theirs.
    const auto part = [&](Index first, Index last, const ops::BatchLoad* whole, Tensor& grad) {
      const Tensor x = ctx().place(in.x.rows(first, last));
      const ops::Gated gated = ops::gate(ctx(), c, x, w.gate, w.gate_bias, c.shared_experts, true);
      const Tensor none = ctx().zeros(DType::kF32, {gated.plan.rows(), 1});
      ops::gate_backward(ctx(), c, x, w.gate, {gated.chosen, gated.plan, none, in.sequence, 1.0f, true, whole}, grad);
      return ctx().fetch(ops::balance_losses(ctx(), c, gated.chosen, in.sequence, whole));
    };
    Tensor want_grad = ctx().zeros(DType::kF32, w.gate.shape()), grad = ctx().zeros(DType::kF32, w.gate.shape());
    const Tensor want = part(0, in.tokens(), nullptr, want_grad);
    ops::BatchLoad whole;
    whole.tokens = in.tokens(), whole.sequences = 2 * half_sequences;
    const ops::Gated all = ops::gate(ctx(), c, ctx().place(in.x), w.gate, w.gate_bias, c.shared_experts, true);
    const Tensor offset = ctx().fetch(all.plan.offset);
    for (Index e = c.shared_experts; e < c.all_experts(); ++e)
      whole.load.push_back(offset.data<std::int32_t>()[e + 1] - offset.data<std::int32_t>()[e]);
    const Tensor a = part(0, half, &whole, grad), b = part(half, in.tokens(), &whole, grad);
    for (int i = 0; i < 4; ++i)
      EXPECT_NEAR(a.data<double>()[i] + b.data<double>()[i], want.data<double>()[i],
                  limit(DType::kF32, in.tokens()) * want.data<double>()[i])
          << i;
    EXPECT_TRUE(close(ctx().fetch(grad), ctx().fetch(want_grad), in.limits().gate));
  }
}

TEST_F(CudaSpread, AddUp) {
  const Tensor parts = random_tensor(DType::kF32, {5, 1001}, 3);
  Tensor want(DType::kF32, {1001}), got = ctx().empty(DType::kF32, {1001});
  Context cpu(1);
  ops::add_up(cpu, parts, want);
  ops::add_up(ctx(), ctx().place(parts), got);
  EXPECT_TRUE(same_bits(ctx().fetch(got), want));
}

}  // namespace
}  // namespace dsmoe::test
