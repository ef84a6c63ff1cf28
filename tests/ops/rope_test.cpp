#include "ops/rope.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <vector>

#include "support/expect_error.h"
#include "support/random_tensor.h"
#include "support/tolerance.h"

namespace dsmoe {
namespace {

using test::random_tensor;

constexpr double kTheta = 10000;

std::vector<std::int32_t> range(Index first, Index count) {
  std::vector<std::int32_t> p(static_cast<std::size_t>(count));
  std::iota(p.begin(), p.end(), static_cast<std::int32_t>(first));
  return p;
}

// The angle's relative error: the exponent's (times the logarithm of the base), the power's, its inverse's, the product's.
double angle_limit(double angle, double base) {
  return angle * (3 + std::log(base)) * test::rounding_unit(DType::kF32) + test::rounding_unit(DType::kF32);
}

void expect_angles(const ops::RopeTable& table, double base, double factor) {
  const Index half = table.head_dim() / 2;
  for (Index p = 0; p < table.positions(); ++p) {
    for (Index i = 0; i < half; ++i) {
      const double angle =
          static_cast<double>(p) / factor * std::pow(base, -static_cast<double>(i) / static_cast<double>(half));
      EXPECT_NEAR(table.cos.data<float>()[p * half + i], std::cos(angle), angle_limit(angle, base)) << p << " " << i;
      EXPECT_NEAR(table.sin.data<float>()[p * half + i], std::sin(angle), angle_limit(angle, base)) << p << " " << i;
    }
  }
}

TEST(OpsRope, TablesFollowTheFormulas) {
  expect_angles(ops::make_rope_table(64, kTheta, {}, 4096, 300), kTheta, 1);
  expect_angles(ops::make_rope_table(12, 1.4e6, {}, 4096, 20), 1.4e6, 1);
  expect_angles(ops::make_rope_table(8, kTheta, {RopeScalingType::kLinear, 4.0}, 8, 24), kTheta, 4);
  // Dynamic: nothing up to the trained length, then base * (f * length / trained - (f - 1))^(d / (d - 2)).
  expect_angles(ops::make_rope_table(8, kTheta, {RopeScalingType::kDynamic, 2.0}, 8, 8), kTheta, 1);
  expect_angles(ops::make_rope_table(8, kTheta, {RopeScalingType::kDynamic, 2.0}, 8, 21),
                kTheta * std::pow(2.0 * 21 / 8 - 1, 8.0 / 6), 1);
}

TEST(OpsRope, CpuAgainstRef) {
  Context cpu(2), ref(1, Backend::kRef);
  test::Draw draw(31);
  for (std::uint64_t round = 0; round < 20; ++round) {
    const DType type = round % 2 ? DType::kBF16 : DType::kF32;
    const Index t = draw.between(0, 70), heads = draw.between(1, 5), dim = 2 * draw.between(1, 64);
    const ops::RopeTable table = ops::make_rope_table(dim, kTheta, {}, 4096, 100);
    const std::vector<std::int32_t> positions = range(draw(30), t);
    Tensor x = random_tensor(type, {t, heads, dim}, round), want = x.clone();
    ops::apply_rope(cpu, x, table, positions, round % 3 == 0);
    ops::apply_rope(ref, want, table, positions, round % 3 == 0);
    EXPECT_TRUE(test::close(x, want, test::limit(type, 2))) << t << " " << heads << " " << dim;
  }
}

TEST(OpsRope, TurnsHalvesAndTurnsBack) {
  for (const Backend backend : {Backend::kCpu, Backend::kRef}) {
    Context ctx(1, backend);
    const ops::RopeTable table = ops::make_rope_table(4, kTheta, {}, 4096, 10);
    Tensor x = Tensor::zeros(DType::kF32, {1, 4});
    x.data<float>()[0] = 1;
    const std::int32_t position = 3;
    ops::apply_rope(ctx, x, table, {&position, 1});
    EXPECT_FLOAT_EQ(x.data<float>()[0], std::cos(3.0f));
    EXPECT_EQ(x.data<float>()[1], 0);
    EXPECT_FLOAT_EQ(x.data<float>()[2], std::sin(3.0f)) << "element 0 turns with element head_dim / 2";
    ops::apply_rope(ctx, x, table, {&position, 1}, true);
    const float before[] = {1, 0, 0, 0};
    EXPECT_TRUE(
        test::close(x, Tensor::wrap(static_cast<const void*>(before), DType::kF32, {1, 4}), test::limit(DType::kF32, 4)));
  }
}

TEST(OpsRope, BitsDependOnThePositionAlone) {
  const ops::RopeTable table = ops::make_rope_table(20, kTheta, {}, 4096, 120);
  const Tensor x = random_tensor(DType::kF32, {100, 3 * 20}, 1);
  Context one(1), three(3);
  Tensor all = x.clone(), threads = x.clone(), last = x.rows(77, 78).clone();
  ops::apply_rope(one, all, table, range(5, 100));
  ops::apply_rope(three, threads, table, range(5, 100));
  ops::apply_rope(three, last, table, range(5 + 77, 1));
  EXPECT_TRUE(test::same_bits(threads, all));
  EXPECT_TRUE(test::same_bits(last, all.rows(77, 78)));
}

TEST(OpsRope, RefusesWhatCannotWork) {
  Context ctx(1);
  const ops::RopeTable table = ops::make_rope_table(4, kTheta, {}, 4096, 10);
  Tensor x = random_tensor(DType::kF32, {2, 8}, 1), odd = random_tensor(DType::kF32, {2, 6}, 1);
  EXPECT_TRUE(testing::throws_error([&] { ops::apply_rope(ctx, x, table, range(9, 2)); }, {"token 1", "position 10"}));
  EXPECT_TRUE(testing::throws_error([&] { ops::apply_rope(ctx, x, table, range(-1, 2)); }, {"token 0", "position -1"}));
  EXPECT_TRUE(testing::throws_error([&] { ops::apply_rope(ctx, x, table, range(0, 3)); }, {"[2, 8]", "3 tokens"}));
  EXPECT_TRUE(testing::throws_error([&] { ops::apply_rope(ctx, odd, table, range(0, 2)); }, {"heads of 4"}));
  EXPECT_TRUE(testing::throws_error([] { ops::make_rope_table(5, kTheta, {}, 8, 8); }, {"head_dim is 5", "even"}));
  EXPECT_TRUE(testing::throws_error([] { ops::make_rope_table(4, 0, {}, 8, 8); }, {"theta is 0"}));
  EXPECT_TRUE(testing::throws_error([] { ops::make_rope_table(4, kTheta, {}, 8, -1); }, {"length is -1"}));
  const RopeScaling dynamic{RopeScalingType::kDynamic, 2.0}, small{RopeScalingType::kLinear, 0.5};
  EXPECT_TRUE(testing::throws_error([&] { ops::make_rope_table(2, kTheta, dynamic, 8, 9); }, {"head_dim over 2"}));
  EXPECT_TRUE(testing::throws_error([&] { ops::make_rope_table(4, kTheta, small, 8, 9); }, {"factor is 0.5"}));
}

}  // namespace
}  // namespace dsmoe
