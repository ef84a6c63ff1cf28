#include "ops/elementwise.h"

#include <gtest/gtest.h>

#include "support/expect_error.h"
#include "support/random_tensor.h"
#include "support/tolerance.h"

namespace dsmoe {
namespace {

using test::random_tensor;

constexpr DType kTypes[] = {DType::kF32, DType::kBF16};

TEST(OpsElementwise, CpuIsRefToTheBit) {
  Context ref(1, Backend::kRef);
  for (const int threads : {1, 3}) {
    Context cpu(threads);
    for (const Index n : {0, 1, 37, 40000}) {
      for (const DType type : kTypes) {
        const Tensor y = random_tensor(type, {n, 3}, 1);
        Tensor x = random_tensor(DType::kF32, {n, 3}, 2), want = x.clone();
        ops::add(cpu, y, x);
        ops::add(ref, y, want);
        EXPECT_TRUE(test::same_bits(x, want)) << n;
        for (const DType other : kTypes) {
          Tensor converted(other, {n, 3});
          ops::convert(cpu, y, converted);
          EXPECT_TRUE(test::same_bits(converted, y.to(other))) << n;
          ops::convert(ref, y, converted);
          EXPECT_TRUE(test::same_bits(converted, y.to(other))) << n;
        }
      }
    }
  }
}

TEST(OpsElementwise, BiasAndItsGradient) {
  Context cpu(3), ref(1, Backend::kRef);
  test::Draw draw(4);
  for (std::uint64_t round = 0; round < 12; ++round) {
    const DType type = kTypes[round % 2], bias_type = kTypes[round / 2 % 2];
    const Index t = draw.between(0, 70), n = draw.between(1, 300);
    const Tensor bias = random_tensor(bias_type, {n}, round);
    Tensor y = random_tensor(type, {t, n}, round + 20), want = y.clone();
    ops::add_bias(cpu, bias, y);
    ops::add_bias(ref, bias, want);
    EXPECT_TRUE(test::same_bits(y, want));
    Tensor db = random_tensor(DType::kF32, {n}, round + 30), want_db = db.clone();
    ops::add_bias_backward(cpu, y, db);
    ops::add_bias_backward(ref, y, want_db);
    EXPECT_TRUE(test::close(db, want_db, test::limit(DType::kF32, t)));
  }
}

// In the order of the parts: in another one, the 1 would be lost beside 2^30.
TEST(OpsElementwise, AddsUpInOrder) {
  Tensor parts(DType::kF32, {3, 2});
  const float numbers[] = {0x1p30f, 1, -0x1p30f, 2, 1, 4};
  std::copy(std::begin(numbers), std::end(numbers), parts.data<float>());
  for (const Backend backend : {Backend::kCpu, Backend::kRef}) {
    Context ctx(1, backend);
    Tensor sum(DType::kF32, {2});
    ops::add_up(ctx, parts, sum);
    EXPECT_EQ(sum.data<float>()[0], 1);
    EXPECT_EQ(sum.data<float>()[1], 7);
    Tensor short_one(DType::kF32, {1});
    EXPECT_TRUE(testing::throws_error([&] { ops::add_up(ctx, parts, short_one); }, {"[add_up]", "[3, 2]"}));
  }
}

TEST(OpsElementwise, RefusesWhatDoesNotFit) {
  Context ctx(1);
  Tensor a = random_tensor(DType::kF32, {2, 3}, 1), b = random_tensor(DType::kF32, {3, 2}, 1), c(DType::kBF16, {2, 3});
  EXPECT_TRUE(testing::throws_error([&] { ops::add(ctx, a, b); }, {"[2, 3]", "[3, 2]"}));
  EXPECT_TRUE(testing::throws_error([&] { ops::add(ctx, a, c); }, {"bf16", "expected f32"}));
  EXPECT_TRUE(testing::throws_error([&] { ops::convert(ctx, a, b); }, {"[2, 3]", "[3, 2]"}));
  EXPECT_TRUE(testing::throws_error([&] { ops::add_bias(ctx, a, b); }, {"bias [2, 3]"}));
  EXPECT_TRUE(testing::throws_error([&] { ops::add_bias_backward(ctx, a, b); }, {"dbias"}));
  const Tensor ids(DType::kI32, {2, 3});
  EXPECT_TRUE(testing::throws_error([&] { ops::convert(ctx, ids, a); }, {"no arithmetic on i32"}));
}

}  // namespace
}  // namespace dsmoe
