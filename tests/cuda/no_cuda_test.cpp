// A build without CUDA says so, and which option is missing.
#include <gtest/gtest.h>

#include "dsmoe/moe.h"
#include "ops/adamw.h"
#include "ops/attention.h"
#include "ops/cross_entropy.h"
#include "ops/cuda/device.h"
#include "ops/elementwise.h"
#include "ops/embedding.h"
#include "ops/experts.h"
#include "ops/linear.h"
#include "ops/rms_norm.h"
#include "support/expect_error.h"
#include "support/moe_case.h"

namespace dsmoe {
namespace {

template <class Call>
::testing::AssertionResult names_the_option(Call&& call) {
  return testing::throws_error(call, {"DSMOE_CUDA"});
}

TEST(NoCuda, ErrorsNameTheOption) {
  EXPECT_FALSE(cuda::available());
  EXPECT_NE(cuda::describe_device().find("DSMOE_CUDA"), std::string::npos);
  EXPECT_TRUE(names_the_option([] { cuda::force_path(cuda::Path::kMma); }));
  EXPECT_TRUE(names_the_option([] { Context ctx(1, Backend::kCuda); }));
  EXPECT_TRUE(names_the_option([] { Tensor t(DType::kF32, {4}, Device::kCuda); }));
  EXPECT_TRUE(names_the_option([] { Tensor::zeros(DType::kF32, {4}).to(Device::kCuda); }));
  const MoeConfig config = test::moe_config(8, 4, 2, 1, 1);
  const MoeWeights weights = MoeWeights::random(config, DType::kF32, 1);
  EXPECT_TRUE(names_the_option([&] { weights.to(Device::kCuda); }));
}

TEST(NoCuda, OpsNameTheOption) {
  Context ctx(1);
  const MoeConfig config = test::moe_config(8, 4, 2, 1, 1);
  const MoeWeights w = MoeWeights::random(config, DType::kF32, 1);
  const Tensor x = test::random_tensor(DType::kF32, {3, 8}, 1);
  const ops::Gated gated = ops::gate(ctx, config, x, w.gate, w.gate_bias, 1, true);
  const ops::Chosen& chosen = gated.chosen;
  const ops::Plan& plan = gated.plan;
  ops::ExpertRowGrads d;
  Experts grads = Experts::zeros(3, 4, 8, DType::kF32);
  Tensor dgate = Tensor::zeros(DType::kF32, {2, 8});
  EXPECT_TRUE(names_the_option([&] { ops::cuda::gate(ctx, config, x, w.gate, w.gate_bias, 1, true); }));
  EXPECT_TRUE(names_the_option([&] { ops::cuda::balance_losses(ctx, config, chosen, 3, nullptr); }));
  EXPECT_TRUE(names_the_option([&] { ops::cuda::gate_backward(ctx, config, x, w.gate, {chosen, plan, x}, dgate); }));
  EXPECT_TRUE(names_the_option([&] { ops::cuda::experts_gate_up(ctx, w.experts, plan, x, nullptr); }));
  EXPECT_TRUE(names_the_option([&] { ops::cuda::experts_down_combine(ctx, w.experts, plan, x); }));
  EXPECT_TRUE(names_the_option([&] { ops::cuda::experts_down_backward(ctx, w.experts, plan, x, {}); }));
  EXPECT_TRUE(names_the_option([&] { ops::cuda::experts_weight_backward(ctx, plan, x, x, d, grads, true); }));
  EXPECT_TRUE(names_the_option([&] { ops::cuda::experts_gate_up_backward(ctx, w.experts, plan, d, x); }));
  const std::vector<ops::Slice> slices(1);
  Tensor to = Tensor::zeros(DType::kF32, {3, 8});
  EXPECT_TRUE(names_the_option([&] { ops::cuda::make_tables(ctx, slices); }));
  EXPECT_TRUE(names_the_option([&] { ops::cuda::linear_backward_input(ctx, x, x, to, false); }));
  EXPECT_TRUE(names_the_option([&] { ops::cuda::linear_backward_weight(ctx, x, x, to, false); }));
  EXPECT_TRUE(names_the_option([&] { ops::cuda::rms_norm_backward(ctx, x, x, x, 0, to, to, nullptr); }));
  EXPECT_TRUE(names_the_option([&] { ops::cuda::embedding_backward(ctx, x, x, to); }));
  EXPECT_TRUE(names_the_option([&] { ops::cuda::cross_entropy(ctx, x, x, nullptr, nullptr, 1); }));
  EXPECT_TRUE(names_the_option([&] { ops::cuda::adamw(ctx, {}, {}); }));
  EXPECT_TRUE(names_the_option([&] { ops::cuda::gradient_square(ctx, {}, to); }));
  EXPECT_TRUE(names_the_option([&] { ops::cuda::clip_scale(ctx, to, 1, to); }));
  EXPECT_TRUE(names_the_option([&] { ops::cuda::add_bias_backward(ctx, x, to); }));
  EXPECT_TRUE(names_the_option([&] { ops::cuda::scale(ctx, 2, to); }));
  EXPECT_TRUE(names_the_option([&] { ops::cuda::attention(ctx, {1, 1, 8, 1.0f}, x, x, x, slices, to, nullptr); }));
}

// A GPU's tensor on a CPU's context is refused before anyone follows its address.
TEST(NoCuda, AGpuTensorOnTheCpuIsRefused) {
  const MoeConfig config = test::moe_config(8, 4, 2, 1, 1);
  const MoeLayer layer(config, MoeWeights::random(config, DType::kF32, 1));
  float numbers[8] = {};
  Context ctx(1);
  EXPECT_TRUE(testing::throws_error(
      [&] {
        layer.forward(ctx, Tensor::wrap(numbers, DType::kF32, {1, 8}, {}, Device::kCuda));
      },
      {"x is elsewhere"}));
}

}  // namespace
}  // namespace dsmoe
