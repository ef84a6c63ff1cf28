#include "ops/rms_norm.h"

#include <gtest/gtest.h>

#include "support/expect_error.h"
#include "support/finite_differences.h"
#include "support/random_tensor.h"
#include "support/tolerance.h"

namespace dsmoe {
namespace {

using test::random_tensor;

constexpr float kEps = 1e-6f;
constexpr DType kTypes[] = {DType::kF32, DType::kBF16};

TEST(OpsRmsNorm, CpuAgainstRef) {
  Context cpu(2), ref(1, Backend::kRef);
  test::Draw draw(21);
  for (std::uint64_t round = 0; round < 24; ++round) {
    const DType weights = kTypes[round % 2], type = kTypes[round / 2 % 2];
    const Index t = draw.between(0, 70), d = draw.between(1, 300);
    const float eps = round % 3 ? kEps : 0.3f;
    const Tensor x = random_tensor(DType::kF32, {t, d}, round), w = random_tensor(weights, {d}, round + 50);
    const Tensor dy = random_tensor(type, {t, d}, round + 60);
    Tensor y(type, {t, d}), want(type, {t, d});
    ops::rms_norm(cpu, x, w, eps, y);
    ops::rms_norm(ref, x, w, eps, want);
    EXPECT_TRUE(test::close(y, want, test::limit(type, d))) << t << " " << d;

    Tensor dx = random_tensor(DType::kF32, {t, d}, round + 70), want_dx = dx.clone();
    Tensor dw = random_tensor(DType::kF32, {d}, round + 80), want_dw = dw.clone();
    ops::rms_norm_backward(cpu, dy, x, w, eps, dx, dw);
    ops::rms_norm_backward(ref, dy, x, w, eps, want_dx, want_dw);
    EXPECT_TRUE(test::close(dx, want_dx, test::limit(DType::kF32, d))) << t << " " << d;
    EXPECT_TRUE(test::close(dw, want_dw, test::limit(DType::kF32, t))) << t << " " << d;
  }
}

TEST(OpsRmsNorm, TheSameBitsForAnyNumberOfThreads) {
  const Index t = 150, d = 77;
  const Tensor x = random_tensor(DType::kF32, {t, d}, 1), w = random_tensor(DType::kBF16, {d}, 2);
  const Tensor dy = random_tensor(DType::kBF16, {t, d}, 3);
  const auto run = [&](int threads) {
    Context ctx(threads);
    std::array<Tensor, 3> r{Tensor(DType::kBF16, {t, d}), Tensor::zeros(DType::kF32, {t, d}),
                            Tensor::zeros(DType::kF32, {d})};
    ops::rms_norm(ctx, x, w, kEps, r[0]);
    ops::rms_norm_backward(ctx, dy, x, w, kEps, r[1], r[2]);
    return r;
  };
  const auto want = run(1);
  for (const int threads : {2, 3}) {
    const auto got = run(threads);
    for (std::size_t i = 0; i < got.size(); ++i) EXPECT_TRUE(test::same_bits(got[i], want[i])) << i;
  }
}

TEST(OpsRmsNorm, SumsElsewhereAndRoundedGradients) {
  Context ctx(2);
  const Index t = 9, d = 33;
  const Tensor x = random_tensor(DType::kF32, {t, d}, 1), y = random_tensor(DType::kBF16, {t, d}, 2);
  const Tensor w = random_tensor(DType::kF32, {d}, 3);
  Tensor in_place = x.clone(), sum(DType::kF32, {t, d}), a(DType::kBF16, {t, d}), b(DType::kBF16, {t, d});
  const Tensor before = x.clone();
  ops::add_rms_norm(ctx, y, in_place, w, kEps, in_place, a);
  ops::add_rms_norm(ctx, y, x, w, kEps, sum, b);
  EXPECT_TRUE(test::same_bits(x, before));
  EXPECT_TRUE(test::same_bits(sum, in_place));
  EXPECT_TRUE(test::same_bits(a, b));
  Tensor dx = random_tensor(DType::kF32, {t, d}, 4), dw = Tensor::zeros(DType::kF32, {d}), rounded(DType::kBF16, {t, d});
  ops::rms_norm_backward(ctx, y, x, w, kEps, dx, dw, &rounded);
  EXPECT_TRUE(test::same_bits(rounded, dx.to(DType::kBF16)));
  EXPECT_THROW(ops::rms_norm_backward(ctx, y, x, w, kEps, dx, dw, &sum), Error);
}

TEST(OpsRmsNorm, ATokenDoesNotDependOnTheOthers) {
  Context ctx(2);
  const Tensor x = random_tensor(DType::kF32, {60, 33}, 1), w = random_tensor(DType::kF32, {33}, 2);
  Tensor all(DType::kF32, {60, 33}), one(DType::kF32, {1, 33});
  ops::rms_norm(ctx, x, w, kEps, all);
  ops::rms_norm(ctx, x.rows(45, 46), w, kEps, one);
  EXPECT_TRUE(test::same_bits(one, all.rows(45, 46)));
}

TEST(OpsRmsNorm, BackwardAgainstFiniteDifferences) {
  for (const Backend backend : {Backend::kCpu, Backend::kRef}) {
    Context ctx(1, backend);
    Tensor x = random_tensor(DType::kF32, {3, 17}, 1), w = random_tensor(DType::kF32, {17}, 2);
    const Tensor dy = random_tensor(DType::kF32, {3, 17}, 3);
    Tensor dx = Tensor::zeros(DType::kF32, {3, 17}), dw = Tensor::zeros(DType::kF32, {17});
    ops::rms_norm_backward(ctx, dy, x, w, 0.1f, dx, dw);
    const auto objective = [&] {
      Tensor y(DType::kF32, {3, 17});
      ops::rms_norm(ctx, x, w, 0.1f, y);
      return test::inner_product(y, dy);
    };
    EXPECT_TRUE(test::close(dx, test::finite_differences(x, objective), test::difference_limit(3 * 17)));
    EXPECT_TRUE(test::close(dw, test::finite_differences(w, objective), test::difference_limit(3 * 17)));
  }
}

TEST(OpsRmsNorm, ZerosStayZero) {
  Context ctx(1);
  const Tensor x = Tensor::zeros(DType::kF32, {2, 40}), w = random_tensor(DType::kF32, {40}, 2);
  Tensor y(DType::kF32, {2, 40});
  ops::rms_norm(ctx, x, w, kEps, y);
  EXPECT_TRUE(test::close(y, x, 0));
}

TEST(OpsRmsNorm, RefusesWhatDoesNotFit) {
  Context ctx(1);
  const Tensor x = random_tensor(DType::kF32, {2, 4}, 1), w = random_tensor(DType::kF32, {5}, 1);
  Tensor y(DType::kF32, {2, 4}), dx(DType::kBF16, {2, 4}), dw(DType::kF32, {4});
  EXPECT_TRUE(testing::throws_error([&] { ops::rms_norm(ctx, x, w, kEps, y); }, {"weight is [5]", "[4]"}));
  EXPECT_TRUE(
      testing::throws_error([&] { ops::rms_norm(ctx, x.to(DType::kBF16), dw, kEps, y); }, {"bf16", "expected f32"}));
  EXPECT_TRUE(testing::throws_error([&] { ops::rms_norm_backward(ctx, y, x, dw, kEps, dx, dw); }, {"dx is bf16"}));
}

}  // namespace
}  // namespace dsmoe
