// The gate, the plan and their gradients on a GPU against ops/ref, apart from the experts.
#include "ops/gate.h"

#include <gtest/gtest.h>

#include "core/device.h"
#include "cuda/layer_case.h"
#include "ops/rms_norm.h"
#include "support/expect_error.h"
#include "support/tolerance.h"

namespace dsmoe::test {
namespace {

using cuda::Path;

class CudaGate : public GpuTest {
 protected:
  ops::Gated on_gpu(const Inputs& in, bool training) {
    const MoeWeights& w = in.weights;
    const Tensor bias = in.config.selection_bias ? ctx().place(w.gate_bias) : Tensor();
    return ops::gate(ctx(), in.config, ctx().place(in.x), ctx().place(w.gate), bias, in.config.shared_experts, training);
  }
  ops::Gated on_ref(const Inputs& in) {
    return ops::gate(ref_, in.config, in.x, in.weights.gate, in.weights.gate_bias, in.config.shared_experts, true);
  }
  Context ref_{1, Backend::kRef};
};

// Every routed row is in one tile, of its expert, in order, and gathered rows start at multiples of 64.
void check_tiles(const ops::Plan& p) {
  const std::int32_t* offset = p.offset.data<std::int32_t>();
  const std::int32_t* sorted = p.tiles.sorted_offset.data<std::int32_t>();
  const std::int32_t* list = p.tiles.list.data<std::int32_t>();
  std::int32_t row = offset[p.shared];
  for (Index i = 0; i < p.tiles.count.data<std::int32_t>()[0]; ++i) {
    const std::int32_t expert = list[4 * i], first = list[4 * i + 1], rows = list[4 * i + 2], gathered = list[4 * i + 3];
    EXPECT_EQ(first, row);
    EXPECT_GT(rows, 0);
    EXPECT_LE(rows, p.tiles.rows);
    ASSERT_GE(expert, p.shared);
    ASSERT_LT(expert, p.experts());
    EXPECT_GE(first, offset[expert]);
    EXPECT_LE(first + rows, offset[expert + 1]);
    EXPECT_EQ(gathered - sorted[expert - p.shared], first - offset[expert]);
    row += rows;
  }
  EXPECT_EQ(row, offset[p.experts()]);
  EXPECT_EQ(row, p.rows());
  for (Index e = 0; e < p.routed; ++e) {
    EXPECT_EQ(sorted[e] % 64, 0);
    EXPECT_GE(sorted[e + 1] - sorted[e], offset[p.shared + e + 1] - offset[p.shared + e]);
  }
}

TEST_F(CudaGate, ScoresChoiceAndPlanMatchReference) {
  for (const DType dtype : {DType::kF32, DType::kBF16})
    for (const Case& c : fixed_cases()) {
      const Inputs in = random_inputs(c, dtype, 7 + static_cast<std::uint64_t>(c.t));
      const ops::Gated want = on_ref(in);
      for (const Path path : paths_for(dtype, c.d, c.f)) {
        SCOPED_TRACE(::testing::Message() << c.name << " " << to_string(dtype) << " " << cuda::to_string(path));
        const Forced forced(path);
        const ops::Gated got = on_gpu(in, true);
        const ops::Plan plan = fetch(ctx(), got.plan);
        const double scores = limit(DType::kF32, in.forward_length());
        ASSERT_TRUE(same_bits(ctx().fetch(got.chosen.experts), want.chosen.experts));
        EXPECT_TRUE(close(ctx().fetch(got.chosen.scores), want.chosen.scores, scores));
        EXPECT_TRUE(close(ctx().fetch(got.chosen.weights), want.chosen.weights, 2 * scores));
        EXPECT_TRUE(same_bits(plan.offset, want.plan.offset));
        EXPECT_TRUE(same_bits(plan.token, want.plan.token));
        EXPECT_TRUE(same_bits(plan.slot_row, want.plan.slot_row));
        EXPECT_TRUE(close(plan.weight, want.plan.weight, 2 * scores));
        EXPECT_TRUE(same_bits(plan.slot_weight, ctx().fetch(got.chosen.weights)));
        check_tiles(plan);
      }
    }
}

// Up to 64 tokens have a kernel of their own for gate and plan, and more tokens larger blocks: the same bits.
TEST_F(CudaGate, TheSameBitsForAnyNumberOfTokens) {
  const Case c{"all", 9000, 256, 64, 64, 2, 6, ScoreFunction::kSoftmax, true, 2.5f};
  const Inputs all = random_inputs(c, DType::kBF16, 3);
  const ops::Gated want = on_gpu(all, true);
  const Tensor scores = ctx().fetch(want.chosen.scores), experts = ctx().fetch(want.chosen.experts),
               weights = ctx().fetch(want.chosen.weights);
  for (const Index tokens : {1, 2, 33, 64, 65, 1500}) {
    Inputs part = all;
    part.x = all.x.rows(100, 100 + tokens);
    const ops::Gated got = on_gpu(part, false), trained = on_gpu(part, true);
    EXPECT_TRUE(same_bits(ctx().fetch(got.chosen.scores), scores.rows(100, 100 + tokens))) << tokens;
    EXPECT_TRUE(same_bits(ctx().fetch(got.chosen.experts), experts.rows(100, 100 + tokens))) << tokens;
    EXPECT_TRUE(same_bits(ctx().fetch(got.chosen.weights), weights.rows(100, 100 + tokens))) << tokens;
    EXPECT_TRUE(same_bits(ctx().fetch(got.plan.offset), ctx().fetch(trained.plan.offset))) << tokens;
    EXPECT_TRUE(same_bits(ctx().fetch(got.plan.token), ctx().fetch(trained.plan.token))) << tokens;
    EXPECT_TRUE(same_bits(ctx().fetch(got.plan.slot_row), ctx().fetch(trained.plan.slot_row))) << tokens;
  }
}

// The residual sum, the norm and the gate as one op: one launch for one token of some layers, with the bits of the steps.
class CudaNormedGate : public CudaGate {
 protected:
  struct Result {
    Tensor x, h;
    ops::Gated gated;
  };
  // y and x [1, D] f32.
  void set(const Case& c) {
    in = random_inputs(c, DType::kBF16, 5);
    experts = in.weights.experts.to(Device::kCuda);
    gate = ctx().place(in.weights.gate), bias = in.config.selection_bias ? ctx().place(in.weights.gate_bias) : Tensor();
    weight = ctx().place(random_tensor(DType::kBF16, {c.d}, 8));
  }
  Result run(const Tensor& y, const Tensor& start, bool together) {
    Result r{.x = start};
    const ops::AddNorm sum{y, r.x, weight, 1e-6f, DType::kBF16, true};
    if (together) {
      r.gated = ops::gate(ctx(), in.config, sum, gate, bias, in.config.shared_experts, experts, r.h);
    } else {
      r.h = ops::add_rms_norm(ctx(), sum);
      r.gated = ops::gate(ctx(), in.config, r.h, gate, bias, in.config.shared_experts, false);
    }
    return r;
  }
  void expect_same(const Result& got, const Result& want) {
    const auto same = [&](const Tensor& a, const Tensor& b) { return same_bits(ctx().fetch(a), ctx().fetch(b)); };
    EXPECT_TRUE(same(got.x, want.x));
    EXPECT_TRUE(same(got.h, want.h));
    const ops::Gated &g = got.gated, &w = want.gated;
    EXPECT_TRUE(same(g.chosen.scores, w.chosen.scores));
    EXPECT_TRUE(same(g.chosen.experts, w.chosen.experts));
    EXPECT_TRUE(same(g.chosen.weights, w.chosen.weights));
    EXPECT_TRUE(same(g.plan.offset, w.plan.offset));
    EXPECT_TRUE(same(g.plan.token, w.plan.token));
    EXPECT_TRUE(same(g.plan.slot_row, w.plan.slot_row));
    EXPECT_TRUE(same(g.plan.tiles.count, w.plan.tiles.count));
    EXPECT_TRUE(same(g.plan.tiles.list.rows(0, in.config.experts_per_token),
                     w.plan.tiles.list.rows(0, in.config.experts_per_token)));
  }

  Inputs in;
  Experts experts;
  Tensor gate, bias, weight;
};

TEST_F(CudaNormedGate, HasTheBitsOfItsSteps) {
  using enum ScoreFunction;
  const Case cases[] = {{"16b", 1, 2048, 16, 64, 2, 6},
                        {"normalised", 1, 576, 16, 64, 2, 6, kSoftmax, true, 2.5f},
                        {"odd", 1, 640, 16, 33, 1, 5, kSoftmax, true},
                        {"few", 1, 1024, 16, 7, 0, 7},
                        {"sigmoid, bias", 1, 1088, 16, 48, 1, 4, kSigmoid, true, 2.5f, true},
                        {"softmax, bias", 1, 640, 16, 64, 1, 6, kSoftmax, false, 1, true},
                        {"one", 1, 640, 16, 1, 0, 1, kSigmoid},
                        // These take the steps.
                        {"narrow", 1, 512, 16, 64, 2, 6},
                        {"wider", 1, 2112, 16, 64, 2, 6},
                        {"many experts", 1, 640, 16, 65, 2, 6},
                        {"groups", 1, 640, 16, 32, 1, 4, kSoftmax, true, 1, false, 8, 3},
                        {"two tokens", 2, 640, 16, 64, 2, 6}};
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    set(c);
    for (std::uint64_t seed = 0; seed < 20; ++seed) {
      const Tensor y = ctx().place(random_tensor(DType::kF32, {c.t, c.d}, 50 + seed)),
                   start = ctx().place(random_tensor(DType::kF32, {c.t, c.d}, 100 + seed));
      expect_same(run(y, start, true), run(y, start, false));
    }
  }
}

TEST_F(CudaNormedGate, TiesAndNumbersThatAreNotFinite) {
  for (const bool zeros : {true, false}) {  // all alike; or every fourth expert like another
    set({"ties", 1, 640, 16, 64, 2, 6});
    Tensor w = in.weights.gate.clone();
    for (Index e = 0; e < 64; ++e)
      for (Index i = 0; i < 640; ++i)
        w.data<BFloat16>()[e * 640 + i] = zeros ? BFloat16(0.0f) : w.data<BFloat16>()[e / 4 * 4 * 640 + i];
    gate = ctx().place(w);
    const Tensor y = ctx().place(random_tensor(DType::kF32, {1, 640}, 1)),
                 start = ctx().place(random_tensor(DType::kF32, {1, 640}, 2));
    expect_same(run(y, start, true), run(y, start, false));
  }
  for (const float bad : {NAN, INFINITY}) {
    Tensor y = random_tensor(DType::kF32, {1, 640}, 1);
    y.data<float>()[77] = bad;
    const Tensor placed = ctx().place(y), start = ctx().place(random_tensor(DType::kF32, {1, 640}, 2));
    const Result r = run(placed, start, true);
    EXPECT_TRUE(dsmoe::testing::throws_error([&] { ctx().synchronize(); }, {"token 0"}, ErrorCode::kNumeric)) << bad;
    for (Index k = 0; k < 6; ++k) {
      EXPECT_EQ(ctx().fetch(r.gated.chosen.experts).data<std::int32_t>()[k], k);
      EXPECT_TRUE(std::isnan(ctx().fetch(r.gated.chosen.weights).data<float>()[k]));
    }
  }
}

TEST_F(CudaGate, TiesGoToTheLowerIndex) {
  for (const DType dtype : {DType::kBF16, DType::kF32})
    for (const bool training : {false, true}) {
      Inputs in = random_inputs({"ties", 9, 64, 32, 100, 1, 5}, dtype, 1);
      in.weights.gate = Tensor::zeros(dtype, in.weights.gate.shape());
      const Tensor ids = ctx().fetch(on_gpu(in, training).chosen.experts);
      for (Index i = 0; i < ids.numel(); ++i) EXPECT_EQ(value(ids, i), static_cast<double>(i % 5));
    }
}

TEST_F(CudaGate, LossesMatchReference) {
  for (const char* name : {"sixteen_b_small", "v3_like", "many_tokens", "no_tokens", "odd"}) {
    const Inputs in = random_inputs(fixed_case(name), DType::kF32, 11);
    const Index length = in.sequence > 0 ? in.sequence : in.tokens();
    const Tensor want = ops::balance_losses(ref_, in.config, on_ref(in).chosen, length);
    const Tensor got = ctx().fetch(ops::balance_losses(ctx(), in.config, on_gpu(in, true).chosen, length));
    ASSERT_EQ(got.numel(), 4);
    for (Index i = 0; i < 4; ++i) {
      const double w = want.data<double>()[i];
      EXPECT_NEAR(got.data<double>()[i], w, chain_limit(DType::kF32, 3, in.backward_length()) * w) << name << " " << i;
    }
  }
}

TEST_F(CudaGate, BackwardMatchesReference) {
  for (const DType dtype : {DType::kF32, DType::kBF16})
    for (const char* name : {"one_token", "odd", "sixteen_b_small", "v3_like", "no_shared", "many_tokens", "unaligned"}) {
      const Case c = fixed_case(name);
      const Inputs in = random_inputs(c, dtype, 7 + static_cast<std::uint64_t>(c.t));
      const ops::Gated want_gate = on_ref(in);
      const Index length = in.sequence > 0 ? in.sequence : in.tokens();
      // A GPU's products leave them in parts, to be added up.
      const Tensor parts = random_tensor(DType::kF32, {want_gate.plan.rows(), 3}, 5);
      Tensor grads = Tensor::zeros(DType::kF32, {want_gate.plan.rows(), 1});
      for (Index i = 0; i < parts.numel(); ++i) grads.data<float>()[i / 3] += parts.data<float>()[i];
      Tensor want = random_tensor(DType::kF32, in.weights.gate.shape(), 6);
      const Tensor before = ctx().place(want.clone());
      const Tensor want_dx = ops::gate_backward(ref_, in.config, in.x, in.weights.gate,
                                                {want_gate.chosen, want_gate.plan, grads, length, 2.0f, true}, want);
      for (const Path path : paths_for(dtype, c.d, c.f)) {
        SCOPED_TRACE(::testing::Message() << name << " " << to_string(dtype) << " " << cuda::to_string(path));
        const Forced forced(path);
        const ops::Gated g = on_gpu(in, true);
        Tensor got = before.clone();
        device::wait(device::default_stream());
        const Tensor dx = ops::gate_backward(ctx(), in.config, ctx().place(in.x), ctx().place(in.weights.gate),
                                             {g.chosen, g.plan, ctx().place(parts), length, 2.0f, true}, got);
        EXPECT_EQ(dx.dtype(), dtype);
        // The logits' gradient is kept as two bf16, which have 16 bits together: sums of f32 and one rounding of dx.
        const double logits = chain_limit(DType::kF32, 5, in.backward_length()) + 4 * 0x1p-17;
        EXPECT_TRUE(close(ctx().fetch(got), want, dtype == DType::kF32 ? logits : 2 * logits));
        EXPECT_TRUE(close(ctx().fetch(dx).to(DType::kF32), want_dx.to(DType::kF32), limit(dtype, 1) + 2 * logits));
      }
    }
}

TEST_F(CudaGate, NoTokens) {
  const Inputs in = random_inputs(fixed_case("no_tokens"), DType::kBF16, 1);
  const ops::Gated g = on_gpu(in, true);
  EXPECT_EQ(g.plan.rows(), 0);
  Tensor dgate = ctx().place(random_tensor(DType::kF32, in.weights.gate.shape(), 1));
  const Tensor before = ctx().fetch(dgate), none(DType::kF32, {0, 1});
  const auto backward = [&](bool accumulate) {
    return ops::gate_backward(ctx(), in.config, ctx().place(in.x), ctx().place(in.weights.gate),
                              {g.chosen, g.plan, ctx().place(none), 0, 1.0f, accumulate}, dgate);
  };
  EXPECT_EQ(backward(true).numel(), 0);
  EXPECT_TRUE(same_bits(ctx().fetch(dgate), before));
  backward(false);
  EXPECT_TRUE(same_bits(ctx().fetch(dgate), Tensor::zeros(DType::kF32, before.shape())));
}

}  // namespace
}  // namespace dsmoe::test
