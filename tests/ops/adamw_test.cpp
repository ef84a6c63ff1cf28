#include "ops/adamw.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "support/expect_error.h"
#include "support/random_tensor.h"
#include "support/tolerance.h"

namespace dsmoe {
namespace {

using test::random_tensor;

std::vector<ops::AdamTensor> make_tensors(DType stored) {
  std::vector<ops::AdamTensor> all;
  std::uint64_t seed = 1;
  for (const Index n : {1, 37, 70000}) {
    Tensor v = random_tensor(DType::kF32, {n}, seed + 3);
    for (float& x : v.span<float>()) x *= x;
    all.push_back({random_tensor(DType::kF32, {n}, seed), random_tensor(DType::kF32, {n}, seed + 1),
                   random_tensor(DType::kF32, {n}, seed + 2), v,
                   stored == DType::kBF16 ? Tensor(DType::kBF16, {n}) : Tensor(), n != 37});
    seed += 10;
  }
  return all;
}

TEST(OpsAdamw, CpuIsRef) {
  for (const DType stored : {DType::kF32, DType::kBF16}) {
    Context cpu(3), one(1), ref(1, Backend::kRef);
    const ops::AdamOptions options{.rate = 0.01, .weight_decay = 0.3, .grad_scale = 0.7, .step = 3};
    auto got = make_tensors(stored), again = make_tensors(stored), want = make_tensors(stored);
    const auto square = [](Context& ctx, std::span<const ops::AdamTensor> tensors) {
      return ops::gradient_square(ctx, tensors).data<double>()[0];
    };
    EXPECT_NEAR(square(cpu, got) / square(ref, want), 1, 1e-6);
    EXPECT_EQ(square(cpu, got), square(one, got));
    for (int step = 0; step < 3; ++step) {
      for (auto* tensors : {&got, &again, &want})
        for (ops::AdamTensor& t : *tensors)
          t.gradient = random_tensor(DType::kF32, t.weight.shape(), 90 + static_cast<std::uint64_t>(step));
      ops::adamw(cpu, got, options);
      ops::adamw(one, again, options);
      ops::adamw(ref, want, options);
    }
    for (std::size_t i = 0; i < want.size(); ++i) {
      EXPECT_TRUE(test::close(got[i].weight, want[i].weight, 1e-6));
      EXPECT_TRUE(test::close(got[i].m, want[i].m, 1e-6));
      EXPECT_TRUE(test::close(got[i].v, want[i].v, 1e-6));
      EXPECT_TRUE(test::same_bits(got[i].weight, again[i].weight));
      EXPECT_FALSE(test::close(make_tensors(stored)[i].weight, want[i].weight, 1e-3));
      for (const float g : got[i].gradient.span<float>()) ASSERT_EQ(g, 0.0f);
      if (stored == DType::kBF16) {
        EXPECT_TRUE(test::same_bits(got[i].stored, got[i].weight.to(DType::kBF16)));
      }
    }
  }
}

Tensor number(double x) {
  Tensor t(DType::kF64, {1});
  t.data<double>()[0] = x;
  return t;
}

TEST(OpsAdamw, ClipsToTheNorm) {
  for (const Backend backend : {Backend::kRef, Backend::kCpu}) {
    Context ctx(1, backend);
    const auto scale = [&](double square, double clip) {
      Tensor result = number(0);
      ops::clip_scale(ctx, number(square), clip, result);
      return result.data<double>()[0];
    };
    EXPECT_EQ(scale(16, 2), 2 / (4 + 1e-6));
    EXPECT_EQ(scale(16, 5), 1);
    EXPECT_EQ(scale(16, 0), 1);
    EXPECT_TRUE(std::isnan(scale(std::numeric_limits<double>::infinity(), 0)));
  }
}

TEST(OpsAdamw, ChangesNothingOnceANormWasNotFinite) {
  Context ctx(1);
  Tensor scale = number(0);
  for (const double square : {4.0, std::nan(""), 4.0}) {
    ops::clip_scale(ctx, number(square), 1, scale);
    const bool first = !std::isnan(scale.data<double>()[0]);
    auto tensors = make_tensors(DType::kBF16);
    const auto before = make_tensors(DType::kBF16);
    ops::adamw(ctx, tensors, {.scale = scale});
    EXPECT_EQ(static_cast<bool>(test::same_bits(tensors[2].weight, before[2].weight)), !first);
    EXPECT_EQ(static_cast<bool>(test::same_bits(tensors[2].m, before[2].m)), !first);
  }
  EXPECT_TRUE(std::isnan(scale.data<double>()[0]));
}

TEST(OpsAdamw, RefusesWhatDoesNotFit) {
  Context ctx(1);
  auto tensors = make_tensors(DType::kF32);
  EXPECT_TRUE(testing::throws_error([&] { ops::adamw(ctx, tensors, {.step = 0}); }, {"step 0"}));
  tensors[0].m = Tensor(DType::kF32, {2});
  EXPECT_TRUE(testing::throws_error([&] { ops::adamw(ctx, tensors, {}); }, {"[2]", "[1]"}));
  Tensor scale = random_tensor(DType::kF32, {1}, 1);
  EXPECT_TRUE(testing::throws_error([&] { ops::clip_scale(ctx, number(1), 1, scale); }, {"f32", "f64 [1]"}));
}

}  // namespace
}  // namespace dsmoe
