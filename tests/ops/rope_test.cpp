#include "ops/rope.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "support/expect_error.h"
#include "support/random_tensor.h"
#include "support/tolerance.h"

namespace dsmoe {
namespace {

using test::random_tensor;

constexpr double kTheta = 10000;

// Angles of `count` rows from a position on.
ops::RopeAngles angles_of(const ops::Rope& rope, Index first, Index count, Index context = 0) {
  Context ctx(2);
  const ops::Slice slice{.rows = count, .first_position = first, .context = context};
  return ops::rope_angles(ctx, rope, {&slice, 1});
}

ops::Rope plain(Index head_dim) { return ops::Rope(head_dim, kTheta, {}, 4096); }

// The angle's relative error: the exponent's (times the logarithm of the base), the power's, its inverse's, the product's.
double angle_limit(double angle, double base) {
  return angle * (3 + std::log(base)) * test::rounding_unit(DType::kF32) + test::rounding_unit(DType::kF32);
}

void expect_angles(const ops::Rope& rope, Index length, double base, double factor) {
  const ops::RopeAngles angles = angles_of(rope, 0, length, length);
  const Index half = rope.head_dim() / 2;
  for (Index p = 0; p < length; ++p) {
    for (Index i = 0; i < half; ++i) {
      const double angle =
          static_cast<double>(p) / factor * std::pow(base, -static_cast<double>(i) / static_cast<double>(half));
      EXPECT_NEAR(angles.cos.data<float>()[p * half + i], std::cos(angle), angle_limit(angle, base)) << p << " " << i;
      EXPECT_NEAR(angles.sin.data<float>()[p * half + i], std::sin(angle), angle_limit(angle, base)) << p << " " << i;
    }
  }
}

TEST(OpsRope, AnglesFollowTheFormulas) {
  expect_angles(plain(64), 300, kTheta, 1);
  expect_angles(ops::Rope(12, 1.4e6, {}, 4096), 20, 1.4e6, 1);
  expect_angles(ops::Rope(8, kTheta, {RopeScalingType::kLinear, 4.0}, 8), 24, kTheta, 4);
  // Dynamic: nothing up to the trained length, then base * (f * length / trained - (f - 1))^(d / (d - 2)).
  const ops::Rope dynamic(8, kTheta, {RopeScalingType::kDynamic, 2.0}, 8);
  expect_angles(dynamic, 8, kTheta, 1);
  expect_angles(dynamic, 21, kTheta * std::pow(2.0 * 21 / 8 - 1, 8.0 / 6), 1);
  // With an alpha: base * alpha^(d / (d - 2)), whatever the length and the factor (Hunyuan).
  const ops::Rope alpha(8, kTheta, {RopeScalingType::kDynamic, 2.0, 1000.0}, 8);
  expect_angles(alpha, 8, kTheta * std::pow(1000.0, 8.0 / 6), 1);
  expect_angles(alpha, 21, kTheta * std::pow(1000.0, 8.0 / 6), 1);
  EXPECT_FALSE(alpha.scaled_by(21));
}

// Frequencies that transformers gives for DeepSeek-V3's and Kimi-K2's, which know where the ramp begins and ends: pairs 10
// to 23 of 32, and the one pair 19 to 20.
TEST(OpsRope, YarnDividesSlowPairs) {
  RopeScaling yarn{
      .type = RopeScalingType::kYarn, .factor = 40, .original_max_positions = 4096, .mscale = 1, .mscale_all_dim = 1};
  const auto ratio = [&](const std::vector<float>& f, double theta, Index i) {
    return static_cast<double>(f[static_cast<std::size_t>(i)]) * std::pow(theta, static_cast<double>(i) / 32);
  };
  const std::vector<float> v3 = ops::Rope(64, kTheta, yarn, 163840).frequencies(0);
  for (Index i = 0; i < 32; ++i) {
    const double ramp = std::clamp(static_cast<double>(i - 10) / 13, 0.0, 1.0);
    EXPECT_NEAR(ratio(v3, kTheta, i), 1 - ramp + ramp / 40, 2e-6) << i;
  }
  yarn.factor = 32, yarn.beta_fast = 1;
  const std::vector<float> k2 = ops::Rope(64, 5e4, yarn, 131072).frequencies(0);
  for (Index i = 0; i < 32; ++i) EXPECT_NEAR(ratio(k2, 5e4, i), i < 20 ? 1 : 1.0 / 32, 2e-6) << i;
  EXPECT_EQ(ops::Rope(64, 5e4, yarn, 131072).angle_factor(), 1);
  // Both betas on one whole pair: the ramp is as steep as can be, and nothing is divided by zero.
  yarn.beta_fast = yarn.beta_slow = 4096 / (2 * std::numbers::pi);
  for (const float f : ops::Rope(64, kTheta, yarn, 4096).frequencies(0)) EXPECT_TRUE(std::isfinite(f));
  EXPECT_TRUE(testing::throws_error([&] { ops::Rope(64, 1.0, yarn, 4096); }, {"YaRN", "theta 1"}));
}

// Cosines and sines of the pairs that turn are scaled; the rest of a head stays what it is.
TEST(OpsRope, YarnScalesTheTurnedPartAlone) {
  const RopeScaling yarn{.type = RopeScalingType::kYarn, .factor = 4, .original_max_positions = 16};
  const auto factor = static_cast<float>(0.1 * std::log(4.0) + 1);
  for (const Backend backend : {Backend::kCpu, Backend::kRef}) {
    Context ctx(2, backend);
    const ops::Slice slice{.rows = 3, .first_position = 5};
    const ops::RopeAngles a = ops::rope_angles(ctx, ops::Rope(8, kTheta, yarn, 64, 4), {&slice, 1});
    for (Index i = 0; i < 4; ++i) {
      const double c = a.cos.data<float>()[i], s = a.sin.data<float>()[i];
      EXPECT_NEAR(c * c + s * s, i < 2 ? factor * factor : 1, 1e-6) << i;
    }
  }
}

// Sequences at different positions, some as those before them, some opened for more positions than a model with dynamic
// scaling was trained for: the angles of each are those it has alone.
TEST(OpsRope, AnglesOfABatchAreThoseOfEachSequence) {
  for (const RopeScaling& scaling : {RopeScaling{}, RopeScaling{RopeScalingType::kDynamic, 2.0}}) {
    const ops::Rope rope(8, kTheta, scaling, 16);
    const ops::Slice slices[] = {{0, 40, 0, {}, 40},  {40, 40, 0, {}, 50}, {80, 1, 7},         {81, 1, 7, {}, 50},
                                 {82, 3, 13, {}, 16}, {85, 3, 13},         {88, 0, 3, {}, 70}, {88, 2, 30, {}, 32}};
    for (const Backend backend : {Backend::kCpu, Backend::kRef}) {
      Context ctx(2, backend);
      const ops::RopeAngles all = ops::rope_angles(ctx, rope, slices);
      for (const ops::Slice& s : slices) {
        const ops::RopeAngles alone = angles_of(rope, s.first_position, s.rows, s.context);
        EXPECT_TRUE(test::same_bits(all.cos.rows(s.first_row, s.first_row + s.rows), alone.cos)) << s.first_row;
        EXPECT_TRUE(test::same_bits(all.sin.rows(s.first_row, s.first_row + s.rows), alone.sin)) << s.first_row;
      }
    }
  }
}

// Dynamic scaling turns by what a sequence was opened for, not by how far it has come: a later pass turns like the first.
TEST(OpsRope, DynamicScalingIsFixedByTheContext) {
  const ops::Rope rope(8, kTheta, {RopeScalingType::kDynamic, 2.0}, 8);
  const ops::RopeAngles whole = angles_of(rope, 0, 21, 21), early = angles_of(rope, 0, 5, 21);
  const ops::RopeAngles late = angles_of(rope, 5, 16, 21), unscaled = angles_of(rope, 0, 5);
  EXPECT_TRUE(test::same_bits(early.cos, whole.cos.rows(0, 5)));
  EXPECT_TRUE(test::same_bits(late.sin, whole.sin.rows(5, 21)));
  EXPECT_FALSE(test::same_bits(unscaled.cos, early.cos)) << "a context of 21 stretches the first tokens as well";
  EXPECT_TRUE(testing::throws_error([&] { angles_of(rope, 5, 16, 20); }, {"21 tokens", "opened for 20"}));
  EXPECT_TRUE(testing::throws_error([&] { angles_of(rope, 8, 1); }, {"9 tokens", "opened for 0"}));
}

TEST(OpsRope, CpuAgainstRef) {
  Context cpu(2), ref(1, Backend::kRef);
  test::Draw draw(31);
  for (std::uint64_t round = 0; round < 20; ++round) {
    const DType type = round % 2 ? DType::kBF16 : DType::kF32;
    const Index t = draw.between(0, 70), heads = draw.between(1, 5), dim = 2 * draw.between(1, 64);
    const ops::RopeAngles angles = angles_of(plain(dim), draw(30), t);
    Tensor x = random_tensor(type, {t, heads, dim}, round), want = x.clone();
    ops::apply_rope(cpu, x, angles, round % 3 == 0);
    ops::apply_rope(ref, want, angles, round % 3 == 0);
    EXPECT_TRUE(test::close(x, want, test::limit(type, 2))) << t << " " << heads << " " << dim;
  }
}

TEST(OpsRope, TurnsHalvesAndTurnsBack) {
  for (const Backend backend : {Backend::kCpu, Backend::kRef}) {
    Context ctx(1, backend);
    const ops::RopeAngles angles = angles_of(plain(4), 3, 1);
    Tensor x = Tensor::zeros(DType::kF32, {1, 4});
    x.data<float>()[0] = 1;
    ops::apply_rope(ctx, x, angles);
    EXPECT_FLOAT_EQ(x.data<float>()[0], std::cos(3.0f));
    EXPECT_EQ(x.data<float>()[1], 0);
    EXPECT_FLOAT_EQ(x.data<float>()[2], std::sin(3.0f)) << "element 0 turns with element head_dim / 2";
    ops::apply_rope(ctx, x, angles, true);
    const float before[] = {1, 0, 0, 0};
    EXPECT_TRUE(
        test::close(x, Tensor::wrap(static_cast<const void*>(before), DType::kF32, {1, 4}), test::limit(DType::kF32, 4)));
  }
}

TEST(OpsRope, BitsDependOnThePositionAlone) {
  const ops::Rope rope = plain(20);
  const Tensor x = random_tensor(DType::kF32, {100, 3 * 20}, 1);
  Context one(1), three(3);
  Tensor all = x.clone(), threads = x.clone(), last = x.rows(77, 78).clone();
  ops::apply_rope(one, all, angles_of(rope, 5, 100));
  ops::apply_rope(three, threads, angles_of(rope, 5, 100));
  ops::apply_rope(three, last, angles_of(rope, 5 + 77, 1));
  EXPECT_TRUE(test::same_bits(threads, all));
  EXPECT_TRUE(test::same_bits(last, all.rows(77, 78)));
}

TEST(OpsRope, RefusesWhatCannotWork) {
  Context ctx(1);
  Tensor x = random_tensor(DType::kF32, {2, 8}, 1), odd = random_tensor(DType::kF32, {2, 6}, 1);
  EXPECT_TRUE(testing::throws_error([&] { ops::apply_rope(ctx, x, angles_of(plain(4), 0, 3)); }, {"[2, 8]", "3 tokens"}));
  EXPECT_TRUE(testing::throws_error([&] { ops::apply_rope(ctx, odd, angles_of(plain(4), 0, 2)); }, {"heads of 4"}));
  EXPECT_TRUE(testing::throws_error([&] { angles_of(plain(4), -1, 2); }, {"position -1"}));
  const ops::Slice gap[] = {{0, 2, 0}, {3, 1, 0}};
  EXPECT_TRUE(testing::throws_error([&] { ops::rope_angles(ctx, plain(4), gap); }, {"row 3", "expected row 2"}));
  EXPECT_TRUE(testing::throws_error([] { ops::Rope(5, kTheta, {}, 8); }, {"head_dim is 5", "even"}));
  EXPECT_TRUE(testing::throws_error([] { ops::Rope(4, 0, {}, 8); }, {"theta is 0"}));
  const RopeScaling dynamic{RopeScalingType::kDynamic, 2.0}, small{RopeScalingType::kLinear, 0.5};
  EXPECT_TRUE(testing::throws_error([&] { angles_of(ops::Rope(2, kTheta, dynamic, 8), 0, 9, 9); }, {"head_dim over 2"}));
  EXPECT_TRUE(testing::throws_error([&] { ops::Rope(4, kTheta, small, 8); }, {"factor is 0.5"}));
}

}  // namespace
}  // namespace dsmoe
