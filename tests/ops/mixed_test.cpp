// f32 rows with matrices in every dtype that a file may have: the CPU against the plain reference.
#include "ops/mixed.h"

#include <gtest/gtest.h>

#include "dsmoe/error.h"
#include "ops/cpu/mixed_product.h"
#include "ops/embedding.h"
#include "ops/linear.h"
#include "ops/repack.h"
#include "support/expect_error.h"
#include "support/expert_tensors.h"
#include "support/random_tensor.h"
#include "support/sanitized.h"
#include "support/tolerance.h"

namespace dsmoe {
namespace {

using test::random_tensor;
using test::random_weights;

constexpr DType kTypes[] = {DType::kF16,  DType::kBF16, DType::kQ8_0, DType::kQ4_0,
                            DType::kQ5_0, DType::kQ4_K, DType::kQ5_K, DType::kQ6_K};

double limit_of(DType dtype, Index length) {
  return is_quantized(dtype) ? test::quantized_limit(length) : test::limit(DType::kF32, length);
}

TEST(OpsMixed, LinearCpuAgainstRef) {
  Context cpu(2), ref(1, Backend::kRef);
  test::Draw draw(31);
  for (const DType dtype : kTypes) {
    const Index unit = block_of(dtype).numbers;
    for (std::uint64_t round = 0; round < test::rounds(6u); ++round) {
      const Index t = draw(round % 2 ? 40 : 5), n = draw.between(1, 200),
                  k = unit * draw.between(1, unit == 256 ? 3
                                             : unit == 1 ? 300
                                                         : 20);
      const Tensor x = random_tensor(DType::kF32, {t, k}, round), w = random_weights(dtype, {n, k}, round + 50);
      Tensor y(DType::kF32, {t, n}), want(DType::kF32, {t, n});
      ops::linear(cpu, x, w, y);
      ops::linear(ref, x, w, want);
      EXPECT_TRUE(test::close(y, want, limit_of(dtype, k))) << to_string(dtype) << " " << t << " " << n << " " << k;
    }
  }
}

TEST(OpsMixed, LinearOfARowDoesNotDependOnTheOthersOrTheThreads) {
  Context one(1), three(3);
  for (const DType dtype : kTypes) {
    const Index t = 514, n = 70, k = 512;  // more rows than one product takes, and few in the last
    const Tensor x = random_tensor(DType::kF32, {t, k}, 1), w = random_weights(dtype, {n, k}, 2);
    Tensor all(DType::kF32, {t, n});
    ops::linear(one, x, w, all);
    for (const Index first : {0, 509, 513})
      for (const Index count : {1, 4, 5, 9}) {
        if (first + count > t) continue;
        Tensor some(DType::kF32, {count, n});
        ops::linear(three, x.rows(first, first + count), w, some);
        EXPECT_TRUE(test::same_bits(some, all.rows(first, first + count)))
            << to_string(dtype) << " " << first << " " << count;
      }
  }
}

TEST(OpsMixed, SeveralProjectionsAreEachAlone) {
  Context ctx(2);
  const Index k = 512;
  const std::vector<Tensor> w = {random_weights(DType::kQ4_0, {70, k}, 1), random_weights(DType::kF16, {33, k}, 2),
                                 random_weights(DType::kQ6_K, {300, k}, 3)};
  for (const Index t : {0, 1, 6, 130}) {
    const Tensor x = random_tensor(DType::kF32, {t, k}, 4);
    std::vector<Tensor> together;
    std::vector<ops::Projection> projections;
    for (const Tensor& m : w) together.emplace_back(DType::kF32, Shape{t, m.dim(0)});
    for (std::size_t i = 0; i < w.size(); ++i) projections.push_back({&w[i], &together[i]});
    ops::linear(ctx, x, projections);
    for (std::size_t i = 0; i < w.size(); ++i) {
      Tensor alone(DType::kF32, together[i].shape());
      ops::linear(ctx, x, w[i], alone);
      EXPECT_TRUE(test::same_bits(together[i], alone)) << t << " " << i;
    }
  }
}

TEST(OpsMixed, CutsCoverAllColumns) {
  for (const int threads : {1, 2, 3, 8}) {
    Context ctx(threads);
    for (const Index n : {0, 1, 15, 16, 100, 2048, 102400}) {
      for (const bool few : {true, false}) {
        const std::vector<Index> cuts = cpu::StreamCuts::of(ctx, n, few);
        EXPECT_EQ(cuts.front(), 0);
        EXPECT_EQ(cuts.back(), n);
        for (std::size_t i = 1; i < cuts.size(); ++i) EXPECT_GT(cuts[i], cuts[i - 1]);
      }
    }
  }
}

TEST(OpsMixed, StreamsAreLongAtFirstAndShortAtTheEnd) {
  Context ctx(2);
  const std::vector<Index> cuts = cpu::StreamCuts::of(ctx, 2048, true);
  const std::vector<Index> begin = {0, 512, 1024, 1280, 1536, 1664, 1792};
  ASSERT_GT(cuts.size(), begin.size());
  EXPECT_TRUE(std::equal(begin.begin(), begin.end(), cuts.begin()));
  EXPECT_EQ(cuts[cuts.size() - 2], 2048 - 32);

  // Of three matrices of 1000 columns, past the end of which no task goes: rounds of 3000 / 4, then of half of what is
  // left.
  cpu::StreamCuts streams(ctx, 3000, true);
  EXPECT_EQ(streams.take(1000), 736);
  EXPECT_EQ(streams.take(264), 264);
  EXPECT_EQ(streams.take(1000), 480);
  EXPECT_EQ(streams.take(520), 480);
  EXPECT_EQ(streams.take(8), 8);
}

TEST(OpsMixed, EmbeddingRowsAreTheDequantizedOnes) {
  Context cpu(2), ref(1, Backend::kRef);
  for (const DType dtype : kTypes) {
    const Tensor table = random_weights(dtype, {9, 256}, 3);
    const std::vector<std::int32_t> ids = {8, 0, 3, 3};
    Tensor x(DType::kF32, {4, 256}), want(DType::kF32, {4, 256}), row(DType::kF32, {1, 256});
    ops::embedding(cpu, table, Tensor::view_of(std::span<const std::int32_t>(ids)), x);
    ops::embedding(ref, table, Tensor::view_of(std::span<const std::int32_t>(ids)), want);
    EXPECT_TRUE(test::same_bits(x, want)) << to_string(dtype);
    ops::to_floats(dtype, table.rows(8, 9).raw(), row.span<float>());
    EXPECT_TRUE(test::same_bits(x.rows(0, 1), row)) << to_string(dtype);
  }
}

struct Case {
  Experts weights;
  ops::Plan plan;
  Index hidden = 0;
};

// Expert 0 is twice as wide as the others and has every token; types differ from matrix to matrix.
Case random_case(Index tokens, Index most, std::uint64_t seed) {
  const Index model = 512, width = 256, experts = 6;
  test::Draw draw(seed);
  const Philox rng(seed, 3);
  std::uint64_t made = 0;
  const auto matrix = [&](Index rows, Index cols) {
    return random_weights(kTypes[draw(std::size(kTypes))], {rows, cols}, seed * 1000 + made++, 0.05f);
  };
  std::vector<ExpertSlice> list;
  std::vector<std::int32_t> offset = {0}, token;
  std::vector<float> weight;
  Index hidden = 0;
  for (Index e = 0; e < experts; ++e) {
    const Index wide = e == 0 ? 2 * width : width;
    ExpertTensors mlp;
    mlp.gate_proj = matrix(wide, model), mlp.up_proj = matrix(wide, model), mlp.down_proj = matrix(model, wide);
    list.push_back({mlp, 0, wide});
    const Index rows = e == 0 ? tokens : tokens == 0 || draw(4) == 0 ? 0 : draw.between(1, most);
    for (Index r = 0; r < rows; ++r) {
      token.push_back(static_cast<std::int32_t>(e == 0 ? r : draw(tokens)));
      weight.push_back(rng.uniform(weight.size()));
    }
    offset.push_back(static_cast<std::int32_t>(token.size()));
    hidden += rows * wide;
  }
  return {Experts(std::move(list)), test::plan_of_rows(tokens, offset, token, weight), hidden};
}

struct Results {
  Tensor h, y;
};
Results run(Context& ctx, const Case& c, std::uint64_t seed) {
  const Tensor x = random_tensor(DType::kF32, {c.plan.tokens, c.weights.model_width()}, seed);
  Results r;
  r.h = ops::experts_gate_up(ctx, c.weights, c.plan, x, nullptr);
  EXPECT_EQ(r.h.shape(), Shape({c.hidden})) << "the rows of experts of different widths, one after another";
  r.y = ops::experts_down_combine(ctx, c.weights, c.plan, r.h);
  return r;
}

TEST(OpsMixed, ExpertsCpuAgainstRef) {
  Context cpu(2), ref(1, Backend::kRef);
  for (std::uint64_t seed = 0; seed < 6; seed += test::kSanitized ? 3 : 1) {
    const Case c = random_case(static_cast<Index>(seed * 3), 7, seed);
    const Results got = run(cpu, c, seed), want = run(ref, c, seed);
    EXPECT_TRUE(test::close(got.h, want.h, 2 * test::limit(DType::kF32, c.weights.model_width())));
    const double apart = test::requantized_limit(c.weights.model_width(), c.hidden);
    EXPECT_TRUE(test::close(got.y, want.y, apart)) << seed;
    EXPECT_FALSE(c.plan.tokens > 0 && test::close(got.y, random_tensor(DType::kF32, got.y.shape(), 1), apart));
  }
}

TEST(OpsMixed, ExpertsHaveTheSameBitsForAnyNumberOfThreads) {
  const Case c = random_case(40, 30, 8);
  Context one(1), three(3);
  EXPECT_TRUE(test::same_bits(run(one, c, 2).y, run(three, c, 2).y));
}

// Matrices of a layer may be repacked or not: those whose rows fill groups are.
TEST(OpsMixed, RepackedExpertsHaveTheSameBits) {
  Context ctx(2);
  for (std::uint64_t seed = 0; seed < 4; ++seed) {
    Case c = random_case(20, 9, seed);
    const Results plain = run(ctx, c, seed);
    std::vector<ExpertSlice> list = c.weights.list();
    std::uint64_t number = seed;
    for (ExpertSlice& e : list)
      for (Tensor* m : {&e.mlp.gate_proj, &e.mlp.up_proj, &e.mlp.down_proj})
        if (ops::can_repack(*m) && number++ % 4 != 0) *m = ops::repacked(ctx, m->clone());
    c.weights = Experts(std::move(list));
    const Results got = run(ctx, c, seed);
    EXPECT_TRUE(test::same_bits(got.h, plain.h)) << seed;
    EXPECT_TRUE(test::same_bits(got.y, plain.y)) << seed;
  }
}

TEST(OpsMixed, Refusals) {
  Context ctx(1);
  const Tensor w = random_weights(DType::kQ4_0, {4, 64}, 1), x = random_tensor(DType::kF32, {2, 64}, 1);
  Tensor y(DType::kF32, {2, 4}), narrow(DType::kBF16, {2, 4});
  EXPECT_THROW(ops::linear(ctx, x.to(DType::kBF16), w, y), Error);
  EXPECT_THROW(ops::linear(ctx, x, w, narrow), Error);
  EXPECT_THROW(ops::linear(ctx, random_tensor(DType::kF32, {2, 32}, 1), w, y), Error);
  Tensor dx(DType::kF32, {2, 64});
  EXPECT_THROW(ops::linear_backward_input(ctx, y, w, dx, false), Error);
  const Case c = random_case(3, 2, 1);
  const Tensor in = random_tensor(DType::kF32, {3, 512}, 1);
  ops::ExpertActivations keep;
  EXPECT_THROW(ops::experts_gate_up(ctx, c.weights, c.plan, in, &keep), Error);
  const Tensor small(DType::kF32, {c.hidden - 1});
  EXPECT_THROW(ops::experts_down_combine(ctx, c.weights, c.plan, small), Error);
  EXPECT_TRUE(testing::throws_error([&] { ops::experts_down_backward(ctx, c.weights, c.plan, in, keep); }, {"quantized"}));
}

}  // namespace
}  // namespace dsmoe
