// A build without CUDA says so, and which option is missing.
#include <gtest/gtest.h>

#include "dsmoe/error.h"
#include "dsmoe/moe.h"
#include "ops/cuda/moe_layer.h"

namespace dsmoe {
namespace {

template <class Fn>
void expect_named(Fn&& fn) {
  try {
    fn();
    FAIL() << "no error";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::kUnsupported);
    EXPECT_NE(std::string(e.what()).find("DSMOE_CUDA"), std::string::npos) << e.what();
  }
}

TEST(NoCuda, ErrorsNameTheOption) {
  EXPECT_FALSE(cuda::available());
  expect_named([] { cuda::forward({}, {}, nullptr); });
  expect_named([] { Context ctx(1, Backend::kCuda); });
  expect_named([] { Tensor t(DType::kF32, {4}, Device::kCuda); });
  expect_named([] { Tensor::zeros(DType::kF32, {4}).to(Device::kCuda); });
  MoeConfig config;
  config.hidden_size = 8;
  config.expert_size = 4;
  config.routed_experts = 2;
  config.experts_per_token = 1;
  const MoeWeights weights = MoeWeights::random(config, DType::kF32, 1);
  expect_named([&] { weights.to(config, Device::kCuda); });

  // A GPU's tensor on a CPU's context is refused before anyone follows its address.
  float numbers[8] = {};
  Context ctx(1);
  const MoeLayer layer(config, weights);
  EXPECT_THROW(layer.forward(ctx, Tensor::wrap(numbers, DType::kF32, {1, 8}, {}, Device::kCuda)), Error);
}

}  // namespace
}  // namespace dsmoe
