#include "ops/cross_entropy.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "support/expect_error.h"
#include "support/finite_differences.h"
#include "support/random_tensor.h"
#include "support/tolerance.h"

namespace dsmoe {
namespace {

struct Loss {
  double loss_sum;
  Index count;
};

// The op with targets in a vector and its two sums as numbers.
Loss cross_entropy(Context& ctx, const Tensor& logits, std::span<const std::int32_t> targets, Tensor* losses = nullptr,
                   Tensor* dlogits = nullptr, float scale = 1) {
  const Tensor sums = ops::cross_entropy(ctx, logits, Tensor::view_of(targets), losses, dlogits, scale);
  return {sums.data<double>()[0], static_cast<Index>(sums.data<double>()[1])};
}

using ops::kIgnoredTarget;
using test::random_tensor;

// Every fourth token has none.
std::vector<std::int32_t> random_targets(Index count, Index vocabulary, std::uint64_t seed) {
  test::Draw draw(seed);
  std::vector<std::int32_t> targets;
  for (Index i = 0; i < count; ++i)
    targets.push_back(i % 4 == 1 ? kIgnoredTarget : static_cast<std::int32_t>(draw(vocabulary)));
  return targets;
}

TEST(OpsCrossEntropy, CpuAgainstRef) {
  Context cpu(2), ref(1, Backend::kRef);
  test::Draw draw(41);
  for (std::uint64_t round = 0; round < 16; ++round) {
    const DType type = round % 2 ? DType::kBF16 : DType::kF32;
    const Index t = draw.between(0, 30), v = round % 3 ? draw.between(1, 100) : draw.between(1000, 3000);
    const Tensor logits = random_tensor(DType::kF32, {t, v}, round, 3.0f);
    const auto targets = random_targets(t, v, round);
    Tensor losses(DType::kF32, {t}), want_losses(DType::kF32, {t}), d(type, {t, v}), want_d(type, {t, v});
    const auto got = cross_entropy(cpu, logits, targets, &losses, &d, 0.25f);
    const auto want = cross_entropy(ref, logits, targets, &want_losses, &want_d, 0.25f);
    EXPECT_EQ(got.count, want.count);
    EXPECT_EQ(got.count, t - (t + 2) / 4);
    EXPECT_NEAR(got.loss_sum, want.loss_sum, test::limit(DType::kF32, v) * want.loss_sum);
    EXPECT_TRUE(test::close(losses, want_losses, test::limit(DType::kF32, v)));
    EXPECT_TRUE(test::close(d, want_d, test::limit(type, v)));
    EXPECT_EQ(cross_entropy(cpu, logits, targets).loss_sum, got.loss_sum) << "with or without a gradient";
    for (Index i = 1; i < t; i += 4) {
      EXPECT_EQ(losses.data<float>()[i], 0);
      EXPECT_EQ(test::value(d, i * v), 0) << "an ignored token has no gradient";
    }
  }
}

TEST(OpsCrossEntropy, UniformLogitsCostTheLogarithmOfTheirNumber) {
  Context ctx(1);
  const Tensor logits = Tensor::zeros(DType::kF32, {1, 1000});
  const std::int32_t target = 7;
  EXPECT_NEAR(cross_entropy(ctx, logits, {&target, 1}).loss_sum, std::log(1000.0), test::limit(DType::kF32, 1000));
}

TEST(OpsCrossEntropy, TheGradientMayOverwriteTheLogitsAndThreadsDoNotMatter) {
  const Index t = 37, v = 1100;
  const Tensor logits = random_tensor(DType::kF32, {t, v}, 1);
  const auto targets = random_targets(t, v, 2);
  Context one(1);
  Tensor apart(DType::kF32, {t, v});
  const double loss = cross_entropy(one, logits, targets, nullptr, &apart).loss_sum;
  for (const int threads : {1, 2, 3}) {
    Context ctx(threads);
    Tensor in_place = logits.clone();
    EXPECT_EQ(cross_entropy(ctx, in_place, targets, nullptr, &in_place).loss_sum, loss);
    EXPECT_TRUE(test::same_bits(in_place, apart));
  }
  Context ref(1, Backend::kRef);
  Tensor in_place = logits.clone();
  cross_entropy(ref, in_place, targets, nullptr, &in_place);
  EXPECT_TRUE(test::close(in_place, apart, test::limit(DType::kF32, v)));
}

TEST(OpsCrossEntropy, GradientAgainstFiniteDifferences) {
  for (const Backend backend : {Backend::kCpu, Backend::kRef}) {
    Context ctx(1, backend);
    Tensor logits = random_tensor(DType::kF32, {5, 9}, 1);
    const auto targets = random_targets(5, 9, 2);
    Tensor got(DType::kF32, {5, 9});
    cross_entropy(ctx, logits, targets, nullptr, &got, 0.5f);
    const auto objective = [&] { return 0.5 * cross_entropy(ctx, logits, targets).loss_sum; };
    EXPECT_TRUE(test::close(got, test::finite_differences(logits, objective), test::difference_limit(5)));
  }
}

TEST(OpsCrossEntropy, HugeLogitsAreFineNanAndInfinityAreErrors) {
  Context ctx(2);
  Tensor logits = random_tensor(DType::kF32, {6, 50}, 1);
  const std::vector<std::int32_t> targets{3, 3, 3, 3, 3, kIgnoredTarget};
  logits.data<float>()[3] = 1e30f;
  logits.data<float>()[50 + 4] = -INFINITY;  // a token that cannot come
  logits.data<float>()[5 * 50] = NAN;        // has no target
  Tensor losses(DType::kF32, {6});
  cross_entropy(ctx, logits, targets, &losses);
  EXPECT_EQ(losses.data<float>()[0], 0);
  for (const float bad : {NAN, INFINITY}) {
    logits.data<float>()[2 * 50 + 20] = bad;
    EXPECT_TRUE(testing::throws_error([&] { cross_entropy(ctx, logits, targets); }, {"token 2", "NaN"}));
  }
}

TEST(OpsCrossEntropy, RefusesWhatDoesNotFit) {
  Context ctx(1);
  const Tensor logits = random_tensor(DType::kF32, {2, 5}, 1);
  Tensor wrong(DType::kF32, {5, 2});
  for (const std::int32_t bad : {-1, 5}) {
    const std::vector<std::int32_t> targets{0, bad};
    const std::string name = fmt::format("target {}", bad);
    EXPECT_TRUE(testing::throws_error([&] { cross_entropy(ctx, logits, targets); },
                                      {"token 1", name.c_str(), "vocabulary has 5 tokens"}));
  }
  const std::vector<std::int32_t> targets{0, 1}, more{0, 1, 2};
  EXPECT_TRUE(testing::throws_error([&] { cross_entropy(ctx, logits, more); }, {"[2, 5]", "[3, V]"}));
  EXPECT_TRUE(testing::throws_error([&] { cross_entropy(ctx, logits.to(DType::kBF16), targets); }, {"bf16"}));
  EXPECT_TRUE(testing::throws_error([&] { cross_entropy(ctx, logits, targets, &wrong); }, {"losses"}));
  EXPECT_TRUE(testing::throws_error([&] { cross_entropy(ctx, logits, targets, nullptr, &wrong); }, {"gradient"}));
}

}  // namespace
}  // namespace dsmoe
