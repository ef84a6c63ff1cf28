#include "ops/linear.h"

#include <gtest/gtest.h>

#include "dsmoe/error.h"
#include "support/random_tensor.h"
#include "support/sanitized.h"
#include "support/tolerance.h"

namespace dsmoe {
namespace {

using test::random_tensor;

TEST(OpsLinear, CpuAgainstRef) {
  Context cpu(2), ref(1, Backend::kRef);
  test::Draw draw(11);
  for (std::uint64_t round = 0; round < test::rounds(24u); ++round) {
    const DType dtype = round % 2 ? DType::kBF16 : DType::kF32;
    const Index t = draw(round % 3 ? 60 : 4), n = draw.between(1, 300), k = draw.between(1, 300);
    const Tensor x = random_tensor(dtype, {t, k}, round), w = random_tensor(dtype, {n, k}, round + 50);
    const Tensor dy = random_tensor(dtype, {t, n}, round + 90);
    for (const DType out : {DType::kF32, dtype}) {
      Tensor y(out, {t, n}), want(out, {t, n});
      ops::linear(cpu, x, w, y);
      ops::linear(ref, x, w, want);
      EXPECT_TRUE(test::close(y, want, test::limit(out, k))) << t << " " << n << " " << k;
    }
    for (const bool accumulate : {false, true}) {
      Tensor dx = random_tensor(DType::kF32, {t, k}, round + 7), want = dx.clone();
      ops::linear_backward_input(cpu, dy, w, dx, accumulate);
      ops::linear_backward_input(ref, dy, w, want, accumulate);
      EXPECT_TRUE(test::close(dx, want, test::limit(DType::kF32, n)));
    }
    Tensor dw = random_tensor(DType::kF32, {n, k}, round + 8), want = dw.clone();
    ops::linear_backward_weight(cpu, dy, x, dw);
    ops::linear_backward_weight(ref, dy, x, want);
    EXPECT_TRUE(test::close(dw, want, test::limit(DType::kF32, t)));
  }
}

// The sum of several products is that of one after another, rounded once.
TEST(OpsLinear, BackwardOfSeveral) {
  Context cpu(2);
  const Index t = 33, n = 40, k = 70;
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const Tensor dy = random_tensor(dtype, {t, n}, 1), other = random_tensor(dtype, {t, 2 * n}, 2);
    const Tensor w = random_tensor(dtype, {n, k}, 3), wide = random_tensor(dtype, {2 * n, k}, 4);
    Tensor sum(DType::kF32, {t, k}), f32(DType::kF32, {t, k}), rounded(dtype, {t, k});
    ops::linear_backward_input(cpu, dy, w, sum, /*accumulate=*/false);
    ops::linear_backward_input(cpu, other, wide, sum, /*accumulate=*/true);
    const ops::ProjectionGrad products[] = {{&dy, &w}, {&other, &wide}};
    ops::linear_backward_input(cpu, products, f32);
    ops::linear_backward_input(cpu, products, rounded);
    EXPECT_TRUE(test::same_bits(f32, sum));
    EXPECT_TRUE(test::same_bits(rounded, sum.to(dtype)));
    Tensor narrow(dtype, {t, k - 1});
    EXPECT_THROW(ops::linear_backward_input(cpu, products, narrow), Error);
    EXPECT_THROW(ops::linear_backward_input(cpu, std::span<const ops::ProjectionGrad>(), rounded), Error);
  }
}

TEST(OpsLinear, RefusesShapesThatDoNotFit) {
  Context ctx(1);
  Tensor x = random_tensor(DType::kF32, {2, 3}, 1), w = random_tensor(DType::kF32, {4, 5}, 1), y(DType::kF32, {2, 4});
  EXPECT_THROW(ops::linear(ctx, x, w, y), Error);
  EXPECT_THROW(ops::linear(ctx, x.to(DType::kBF16), w.rows(0, 4), y), Error);
  EXPECT_THROW(ops::linear_backward_weight(ctx, x, w, y), Error);
}

}  // namespace
}  // namespace dsmoe
