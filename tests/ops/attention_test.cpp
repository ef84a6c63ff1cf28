#include "ops/attention.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>

#include "support/expect_error.h"
#include "support/finite_differences.h"
#include "support/random_tensor.h"
#include "support/tolerance.h"

namespace dsmoe {
namespace {

using ops::AttentionShape;
using test::limit;
using test::random_tensor;

AttentionShape shape_of(Index heads, Index kv_heads, Index dim) {
  return {heads, kv_heads, dim, 1 / std::sqrt(static_cast<float>(dim))};
}

// A cache of `length` valid rows; the rows after them are NaN and must not be read.
struct Case {
  AttentionShape shape;
  Tensor q, k, v, dout;

  Case(DType type, AttentionShape s, Index length, std::uint64_t seed) : shape(s) {
    q = random_tensor(type, {length, s.heads * s.head_dim}, seed);
    dout = random_tensor(type, {length, s.heads * s.head_dim}, seed + 1);
    k = cache(type, length, seed + 2);
    v = cache(type, length, seed + 3);
  }

  Tensor cache(DType type, Index length, std::uint64_t seed) const {
    const Index width = shape.kv_heads * shape.head_dim;
    Tensor rows = random_tensor(DType::kF32, {length + 3, width}, seed);
    for (Index i = length * width; i < rows.numel(); ++i) rows.data<float>()[i] = NAN;
    return rows.to(type);
  }

  Index length() const { return q.dim(0); }

  struct Result {
    Tensor out, lse;
  };
  // Queries [first, last).
  Result forward(Context& ctx, Index first, Index last) const {
    Result r{Tensor(q.dtype(), {last - first, q.dim(1)}), Tensor(DType::kF32, {shape.heads, last - first})};
    ops::attention(ctx, shape, q.rows(first, last), k, v, first, r.out, &r.lse);
    return r;
  }
  std::array<Tensor, 3> backward(Context& ctx) const {
    const Index n = length();
    const Result r = forward(ctx, 0, n);
    std::array<Tensor, 3> d{Tensor(DType::kF32, q.shape()), Tensor(DType::kF32, {n, k.dim(1)}),
                            Tensor(DType::kF32, {n, k.dim(1)})};
    ops::attention_backward(ctx, shape, q, k.rows(0, n), v.rows(0, n), r.out, r.lse, dout, d[0], d[1], d[2]);
    return d;
  }
};

// Groups of 1 to 4 heads, head_dim 2 to 128.
AttentionShape random_shape(test::Draw& draw) {
  const Index kv_heads = draw.between(1, 3);
  return shape_of(kv_heads * draw.between(1, 4), kv_heads, 2 * draw.between(1, 64));
}

TEST(OpsAttention, CpuAgainstRef) {
  Context cpu(2), ref(1, Backend::kRef);
  test::Draw draw(51);
  for (std::uint64_t round = 0; round < 24; ++round) {
    const DType type = round % 2 ? DType::kBF16 : DType::kF32;
    const AttentionShape shape = random_shape(draw);
    const Index tokens = round % 4 < 2 ? draw.between(1, 70) : draw.between(1, 3),
                before = round % 3 ? draw.between(0, 600) : 0;
    const Case c(type, shape, before + tokens, round);
    const auto got = c.forward(cpu, before, before + tokens), want = c.forward(ref, before, before + tokens);
    // Scores, sums over keys, and probabilities that are rounded to storage as well as the result.
    const Index length = shape.head_dim + before + tokens;
    EXPECT_TRUE(test::close(got.out, want.out, 2 * limit(type, length)))
        << shape.heads << "/" << shape.kv_heads << " x " << shape.head_dim << ", " << before << " + " << tokens;
    EXPECT_TRUE(test::close(got.lse, want.lse, limit(DType::kF32, length)));
  }
}

TEST(OpsAttention, BackwardAgainstRef) {
  Context cpu(2), ref(1, Backend::kRef);
  test::Draw draw(52);
  for (std::uint64_t round = 0; round < 12; ++round) {
    const DType type = round % 2 ? DType::kBF16 : DType::kF32;
    const AttentionShape shape = round < 10 ? random_shape(draw) : shape_of(3, 1, 6);
    const Case c(type, shape, round < 10 ? draw.between(1, 70) : 600, round);
    const auto got = c.backward(cpu), want = c.backward(ref);
    // A chain of three: the scores' rounding, that of p and out (stored), and that of ds.
    for (std::size_t i = 0; i < 3; ++i)
      EXPECT_TRUE(test::close(got[i], want[i], 3 * limit(type, c.length() + shape.head_dim)))
          << std::array{"dq ", "dk ", "dv "}[i] << shape.heads << "/" << shape.kv_heads << " x " << shape.head_dim << ", "
          << c.length();
  }
}

TEST(OpsAttention, OneGoChunksAndTokensGiveTheSameBits) {
  for (const DType type : {DType::kF32, DType::kBF16}) {
    for (const AttentionShape& shape : {shape_of(2, 2, 20), shape_of(6, 2, 16)}) {
      const Index length = 600;
      const Case c(type, shape, length, 7);
      Context one(1), three(3);
      const auto want = c.forward(one, 0, length);
      const auto expect_same = [&](Context& ctx, Index first, Index last) {
        const auto got = c.forward(ctx, first, last);
        EXPECT_TRUE(test::same_bits(got.out, want.out.rows(first, last))) << first << " to " << last;
        for (Index h = 0; h < shape.heads; ++h)
          for (Index t = first; t < last; ++t)
            ASSERT_EQ(got.lse.data<float>()[h * (last - first) + t - first], want.lse.data<float>()[h * length + t]);
      };
      expect_same(three, 0, length);
      for (const Index size : {64, 256, 257})
        for (Index first = 0; first < length; first += size) expect_same(three, first, std::min(length, first + size));
      for (Index first = 250; first < 265; first += 3) expect_same(three, first, first + 3);
      for (const Index t : {0, 1, 127, 255, 256, 257, 511, 512, 599}) {  // one thread: by heads; three: by tiles
        expect_same(one, t, t + 1);
        expect_same(three, t, t + 1);
      }
    }
  }
}

TEST(OpsAttention, GradientsHaveTheSameBitsForAnyNumberOfThreads) {
  for (const DType type : {DType::kF32, DType::kBF16}) {
    const Case c(type, shape_of(4, 2, 10), 600, 3);
    Context one(1);
    const auto want = c.backward(one);
    for (const int threads : {2, 3}) {  // heads for two threads, too few of them for three
      Context ctx(threads);
      const auto got = c.backward(ctx);
      for (std::size_t i = 0; i < 3; ++i) EXPECT_TRUE(test::same_bits(got[i], want[i])) << threads << " " << i;
    }
  }
}

TEST(OpsAttention, BackwardAgainstFiniteDifferences) {
  for (const Backend backend : {Backend::kCpu, Backend::kRef}) {
    Context ctx(1, backend);
    Case c(DType::kF32, shape_of(4, 2, 4), 5, 1);
    c.k = c.k.rows(0, 5), c.v = c.v.rows(0, 5);
    const auto got = c.backward(ctx);
    const auto objective = [&] { return test::inner_product(c.forward(ctx, 0, 5).out, c.dout); };
    EXPECT_TRUE(test::close(got[0], test::finite_differences(c.q, objective), test::difference_limit(c.q.numel())));
    EXPECT_TRUE(test::close(got[1], test::finite_differences(c.k, objective), test::difference_limit(c.q.numel())));
    EXPECT_TRUE(test::close(got[2], test::finite_differences(c.v, objective), test::difference_limit(c.q.numel())));
  }
}

// The largest score by far lies in the first tile, in a later one, or is the query's own.
TEST(OpsAttention, HugeScoresPickOneKey) {
  Context ctx(2);
  for (const DType type : {DType::kF32, DType::kBF16}) {
    for (const Index best : {0, 100, 300, 520}) {
      Case c(type, shape_of(1, 1, 2), 521, 1);
      Tensor q = Tensor::zeros(DType::kF32, {521, 2}), k = Tensor::zeros(DType::kF32, {521, 2});
      for (Index t = 0; t < 521; ++t) {
        q.data<float>()[2 * t] = 1e15f;
        k.data<float>()[2 * t] = t == best ? 1e15f : t % 2 ? -1e15f : 5e14f;
      }
      c.q = q.to(type), c.k = k.to(type), c.v = c.v.rows(0, 521);
      const auto got = c.forward(ctx, 520, 521);
      EXPECT_TRUE(test::close(got.out, c.v.rows(best, best + 1), 0)) << best;
    }
  }
}

TEST(OpsAttention, NanDoesNotTurnIntoANumberNorStay) {
  Context ctx(1);
  for (const DType type : {DType::kF32, DType::kBF16}) {
    Case c(type, shape_of(1, 1, 4), 300, 1);
    Tensor q = c.q.to(DType::kF32).clone();
    q.data<float>()[299 * 4 + 1] = NAN;
    c.q = q.to(type);
    const auto got = c.forward(ctx, 299, 300);
    for (Index i = 0; i < 4; ++i) EXPECT_TRUE(std::isnan(test::value(got.out, i)));
    // The workers' memory still holds it; an odd number of keys must not read what lies after them.
    const auto after = c.forward(ctx, 100, 101);
    for (Index i = 0; i < 4; ++i) EXPECT_TRUE(std::isfinite(test::value(after.out, i)));
  }
}

TEST(OpsAttention, NoTokens) {
  Context ctx(2);
  const Case c(DType::kF32, shape_of(2, 1, 4), 0, 1);
  EXPECT_EQ(c.forward(ctx, 0, 0).out.numel(), 0);
  EXPECT_EQ(c.backward(ctx)[0].numel(), 0);
}

TEST(OpsAttention, RefusesWhatDoesNotFit) {
  Context ctx(1);
  const Case c(DType::kF32, shape_of(4, 2, 4), 5, 1);  // a cache of 8
  Tensor out(DType::kF32, {5, 16}), lse(DType::kF32, {5, 4}), wrong(DType::kBF16, {5, 16}), kv(DType::kF32, {5, 8});
  const auto run = [&](AttentionShape shape, const Tensor& q, Index first, Tensor& to, Tensor* l) {
    return [&ctx, &c, shape, &q, first, &to, l] { ops::attention(ctx, shape, q, c.k, c.v, first, to, l); };
  };
  EXPECT_TRUE(testing::throws_error(run(c.shape, c.q, 4, out, nullptr), {"5 tokens", "position 4", "cache of 8"}));
  EXPECT_TRUE(testing::throws_error(run(c.shape, c.q, -1, out, nullptr), {"position -1"}));
  EXPECT_TRUE(testing::throws_error(run(c.shape, c.q, 0, wrong, nullptr), {"out is bf16"}));
  EXPECT_TRUE(testing::throws_error(run(c.shape, c.q, 0, out, &lse), {"lse is f32 [5, 4]", "[4, 5]"}));
  EXPECT_TRUE(testing::throws_error(run(shape_of(4, 3, 4), c.q, 0, out, nullptr), {"4 heads, 3 key/value heads"}));
  EXPECT_TRUE(testing::throws_error(run(shape_of(2, 2, 4), c.q, 0, out, nullptr), {"q is f32 [5, 16]", "[5, 8]"}));
  EXPECT_TRUE(testing::throws_error(run({4, 2, 4, 0.0f}, c.q, 0, out, nullptr), {"scale is 0"}));
  Tensor good_lse(DType::kF32, {4, 5}), dq(DType::kF32, {5, 16}), dk(DType::kF32, {5, 8}), dv(DType::kF32, {5, 16});
  EXPECT_TRUE(
      testing::throws_error([&] { ops::attention_backward(ctx, c.shape, c.q, kv, kv, out, good_lse, c.dout, dq, dk, dv); },
                            {"dv is f32 [5, 16]"}));
}

}  // namespace
}  // namespace dsmoe
