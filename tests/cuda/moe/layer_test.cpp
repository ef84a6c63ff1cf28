// MoeLayer on a GPU against the plain loops of ops/ref, over fixed and random shapes.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <future>

#include "cuda/layer_case.h"
#include "support/tolerance.h"

namespace dsmoe::test {
namespace {

using cuda::Path;

void expect_close_gradients(const MoeGradients& got, const MoeGradients& want, double times, const LayerLimits& limits) {
  const auto error = [&](const Tensor& a, const Tensor& b) { return worst_row_error(a, b, b.numel(), times); };
  EXPECT_LT(error(got.gate, want.gate), limits.gate);
  if (want.shared_gate.numel() > 0) {
    EXPECT_LT(error(got.shared_gate, want.shared_gate), limits.gate);
  }
  EXPECT_LT(error(got.experts.gate_up(), want.experts.gate_up()), limits.experts);
  EXPECT_LT(error(got.experts.down(), want.experts.down()), limits.experts);
}

void check_case(Context& ctx, const Inputs& in, const Outputs& want, Path path) {
  SCOPED_TRACE(::testing::Message() << to_string(in.dtype()) << " " << cuda::to_string(path));
  const Forced forced(path);
  const Index d = in.config.hidden_size;
  const double scores = limit(DType::kF32, in.forward_length());
  const LayerLimits limits = in.limits();

  const Outputs got = train_on_gpu(ctx, in);
  ASSERT_TRUE(same_bits(got.routing.experts, want.routing.experts)) << "other experts were chosen";
  EXPECT_TRUE(close(got.routing.scores, want.routing.scores, scores));
  EXPECT_TRUE(close(got.routing.weights, want.routing.weights, 2 * scores));
  EXPECT_LT(worst_row_error(got.y, want.y, d), 2 * limits.y);  // a row is measured against half a mean one, or more
  EXPECT_TRUE(close(got.y, want.y, limits.y));
  const double loss = chain_limit(DType::kF32, 3, in.backward_length());
  EXPECT_NEAR(got.losses.sequence, want.losses.sequence, loss * want.losses.sequence);
  EXPECT_NEAR(got.losses.batch, want.losses.batch, loss * want.losses.batch);
  EXPECT_NEAR(got.losses.device, want.losses.device, loss * want.losses.device);
  EXPECT_EQ(got.losses.router_z, 0);
  EXPECT_LT(worst_row_error(got.dx, want.dx, d), 2 * limits.dx);
  EXPECT_TRUE(close(got.dx, want.dx, limits.dx));
  expect_close_gradients(got.grads, want.grads, 1, limits);
  // Again: the same bits, and twice the gradients.
  const Outputs twice = train_on_gpu(ctx, in, 2);
  EXPECT_TRUE(same_bits(twice.y, got.y));
  EXPECT_TRUE(same_bits(twice.dx, got.dx));
  EXPECT_TRUE(same_bits(twice.routing.weights, got.routing.weights));
  expect_close_gradients(twice.grads, want.grads, 2, limits);
}

class CudaLayer : public GpuTest {
 protected:
  // The references take most of the time: all at once, in the background.
  void check_cases(const std::vector<Case>& cases, DType dtype, bool plain = false) {
    std::vector<Inputs> inputs;
    std::vector<std::future<Outputs>> want;
    for (const Case& c : cases) inputs.push_back(random_inputs(c, dtype, 7 + static_cast<std::uint64_t>(c.t)));
    for (const Inputs& in : inputs) want.push_back(std::async(std::launch::async, [&in] { return reference(in); }));
    for (std::size_t i = 0; i < cases.size(); ++i) {
      const Case& c = cases[i];
      SCOPED_TRACE(::testing::Message() << c.name << " T=" << c.t << " D=" << c.d << " F=" << c.f << " E=" << c.e
                                        << " S=" << c.s << " K=" << c.k);
      const Outputs expected = want[i].get();
      for (const Path path : plain ? std::vector<Path>{Path::kPlain} : paths_for(dtype, c.d, c.f))
        check_case(ctx(), inputs[i], expected, path);
    }
  }
};

std::vector<Case> all_cases() {
  constexpr int kRandomCases = 24;
  std::vector<Case> cases = fixed_cases();
  for (int i = 0; i < kRandomCases; ++i) cases.push_back(random_case(i));
  return cases;
}

TEST_F(CudaLayer, Bf16MatchesReference) { check_cases(all_cases(), DType::kBF16); }
TEST_F(CudaLayer, F32MatchesReference) { check_cases(all_cases(), DType::kF32); }

// Their rows are weighed in a step of their own, which rounds them once more.
TEST_F(CudaLayer, SharedExpertsBehindAGate) {
  for (const DType dtype : {DType::kBF16, DType::kF32}) check_cases(gated_cases(), dtype);
  check_cases(gated_cases(), DType::kBF16, true);
}

// The bits of training, in any batch: those of a token alone, which has kernels of its own.
TEST_F(CudaLayer, SharedExpertsBehindAGateHaveTheSameBitsAnywhere) {
  Case c = fixed_case("sixteen_b_small");
  c.gated = true;
  const Inputs in = random_inputs(c, DType::kBF16, 11);
  const Tensor all = infer_on_gpu(ctx(), in);
  EXPECT_TRUE(same_bits(all, train_on_gpu(ctx(), in).y));
  for (const auto& [first, count] : {std::pair<Index, Index>{0, 1}, {7, 1}, {3, 5}, {20, 33}, {100, 100}}) {
    Inputs part = in;
    part.x = in.x.rows(first, first + count), part.sequence = 0;
    EXPECT_TRUE(same_bits(infer_on_gpu(ctx(), part), all.rows(first, first + count))) << count << " from " << first;
  }
}

// What a device older than sm_80 would run.
TEST_F(CudaLayer, PlainMatchesReference) {
  check_cases({fixed_case("one_token"), fixed_case("odd"), fixed_case("v3_like"), fixed_case("unaligned")}, DType::kBF16,
              true);
}

// bf16 gradients that are overwritten: what was there before, NaN here, must not matter.
TEST_F(CudaLayer, Bf16GradientsAreOverwritten) {
  for (const char* name : {"sixteen_b_small", "odd", "unaligned", "no_tokens"}) {
    const Inputs in = random_inputs(fixed_case(name), DType::kBF16, 5);
    const Outputs want = reference(in);
    const Index d = in.config.hidden_size, f = in.config.expert_size;
    for (const Path path : paths_for(DType::kBF16, d, f)) {
      SCOPED_TRACE(::testing::Message() << name << " " << cuda::to_string(path));
      const Forced forced(path);
      const GpuLayer gpu(ctx(), in);
      MoeGradients grads(in.config, Device::kCuda, DType::kBF16);
      const auto fill = [&](Tensor& t) {
        Tensor nan(DType::kF32, t.shape());
        for (float& v : nan.span<float>()) v = NAN;
        t = ctx().place(nan.to(DType::kBF16));
      };
      fill(grads.gate), fill(grads.experts.gate_up()), fill(grads.experts.down());
      const MoeForward out = gpu.forward(ctx(), true);
      gpu.layer.backward(ctx(), gpu.dy, out, grads, {.accumulate = false});
      const MoeGradients got = fetch(ctx(), grads);
      EXPECT_EQ(got.gate.dtype(), DType::kBF16);
      expect_close_gradients(got, want.grads, 1, in.limits(DType::kBF16));
    }
  }
}

// f32 gradients written over what was there are those that are added to zero.
TEST_F(CudaLayer, F32GradientsAreOverwritten) {
  const Inputs in = random_inputs(fixed_case("sixteen_b_small"), DType::kBF16, 5);
  const Outputs added = train_on_gpu(ctx(), in);
  const GpuLayer gpu(ctx(), in);
  MoeGradients grads(in.config, Device::kCuda);
  for (int i = 0; i < 2; ++i) gpu.layer.backward(ctx(), gpu.dy, gpu.forward(ctx(), true), grads, {.accumulate = false});
  const MoeGradients got = fetch(ctx(), grads);
  EXPECT_TRUE(same_bits(got.gate, added.grads.gate));
  EXPECT_TRUE(same_bits(got.experts.gate_up(), added.grads.experts.gate_up()));
  EXPECT_TRUE(same_bits(got.experts.down(), added.grads.experts.down()));
}

TEST_F(CudaLayer, ScaledBalanceLosses) {
  for (const char* name : {"v3_like", "odd"}) {
    Inputs in = random_inputs(fixed_case(name), DType::kF32, 3);
    if (in.config.score == ScoreFunction::kSoftmax) in.config.router_z_alpha = 0.3f;
    Context ref(1, Backend::kRef);
    const MoeLayer plain(in.config, in.weights);
    const GpuLayer gpu(ctx(), in);
    for (const float scale : {0.0f, 100.0f}) {
      SCOPED_TRACE(::testing::Message() << name << " times " << scale);
      MoeGradients want(in.config), got(in.config, Device::kCuda);
      const MoeForward a = plain.forward(ref, in.x, {.training = true, .sequence_length = in.sequence});
      plain.backward(ref, in.dy, a, want, {.aux_scale = scale});
      gpu.layer.backward(ctx(), gpu.dy, gpu.forward(ctx(), true), got, {.aux_scale = scale});
      const double limit = 2 * chain_limit(DType::kF32, 5, in.backward_length());
      EXPECT_TRUE(close(ctx().fetch(got.gate), want.gate, limit));
      // A part of it that only the GPU's memory knows.
      Tensor half(DType::kF32, {1});
      half.data<float>()[0] = scale / 2;
      MoeGradients again(in.config, Device::kCuda);
      gpu.layer.backward(ctx(), gpu.dy, gpu.forward(ctx(), true), again,
                         {.aux_scale = 2, .aux_scale_factor = ctx().place(half)});
      EXPECT_TRUE(close(ctx().fetch(again.gate), want.gate, limit));
    }
  }
}

// With balance losses and without, on all paths.
TEST_F(CudaLayer, RouterZLoss) {
  for (const char* name : {"odd", "unaligned"})  // so few tokens that the gate's gradient shows it
    for (const DType dtype : {DType::kBF16, DType::kF32}) {
      Inputs in = random_inputs(fixed_case(name), dtype, 3);
      in.config.router_z_alpha = 0.7f;
      const Outputs want = reference(in);
      Inputs without = in;
      without.config.router_z_alpha = 0;
      const Outputs none = reference(without);
      for (const Path path : paths_for(dtype, in.config.hidden_size, in.config.expert_size)) {
        SCOPED_TRACE(::testing::Message() << name << " " << to_string(dtype) << " " << cuda::to_string(path));
        const Forced forced(path);
        const Outputs got = train_on_gpu(ctx(), in);
        const double loss = chain_limit(DType::kF32, 3, in.backward_length());
        EXPECT_GT(want.losses.router_z, 0);
        EXPECT_NEAR(got.losses.router_z, want.losses.router_z, loss * want.losses.router_z);
        EXPECT_NEAR(got.losses.sequence, want.losses.sequence, loss * want.losses.sequence);
        EXPECT_TRUE(close(got.dx, want.dx, in.limits().dx));
        expect_close_gradients(got.grads, want.grads, 1, in.limits());
        EXPECT_FALSE(close(got.grads.gate, none.grads.gate, 0.01)) << "the loss has no gradient";
      }
    }
}

}  // namespace
}  // namespace dsmoe::test
