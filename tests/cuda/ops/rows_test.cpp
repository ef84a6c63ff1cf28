// The ops that take a token's row at a time, on a GPU against ops/ref: embedding, norm, rotary positions, sums and
// conversions, the KV cache's rows, and the loss.
#include <gtest/gtest.h>

#include "cuda/gpu_test.h"
#include "ops/attention.h"
#include "ops/cross_entropy.h"
#include "ops/elementwise.h"
#include "ops/embedding.h"
#include "ops/linear.h"
#include "ops/mixed.h"
#include "ops/rms_norm.h"
#include "ops/rope.h"
#include "support/expect_error.h"
#include "support/random_tensor.h"
#include "support/tolerance.h"

namespace dsmoe::test {
namespace {

struct CudaRows : GpuTest {
  Context ref{1, Backend::kRef};
};

constexpr DType kBoth[] = {DType::kF32, DType::kBF16};
// Widths that threads take four numbers of at a time, and others; tokens around a block.
constexpr Index kWidths[] = {1, 7, 64, 255, 512, 516, 2048, 5003};
constexpr Index kTokens[] = {1, 3, 257};

TEST_F(CudaRows, RmsNorm) {
  for (const Index d : kWidths)
    for (const Index t : kTokens)
      for (const DType weight : kBoth)
        for (const DType out : kBoth) {
          const Tensor x = random_tensor(DType::kF32, {t, d}, 1, 3.0f), w = random_tensor(weight, {d}, 2);
          Tensor want(out, {t, d}), got = ctx().empty(out, {t, d});
          ops::rms_norm(ref, x, w, 1e-6f, want);
          ops::rms_norm(ctx(), ctx().place(x), ctx().place(w), 1e-6f, got);
          EXPECT_TRUE(close(ctx().fetch(got), want, limit(out, d))) << d << " " << t;
        }
}

// The two steps that it is made of, to the bit.
TEST_F(CudaRows, AddRmsNorm) {
  for (const Index d : kWidths)
    for (const DType dtype : kBoth) {
      const Tensor y = ctx().place(random_tensor(dtype, {5, d}, 1)), w = ctx().place(random_tensor(dtype, {d}, 2));
      const Tensor start = random_tensor(DType::kF32, {5, d}, 3);
      Tensor x = ctx().place(start.clone()), again = ctx().place(start.clone());
      Tensor h = ctx().empty(dtype, {5, d}), want = ctx().empty(dtype, {5, d});
      ops::add(ctx(), y, x);
      ops::rms_norm(ctx(), x, w, 1e-6f, want);
      ops::add_rms_norm(ctx(), y, again, w, 1e-6f, again, h);
      EXPECT_TRUE(same_bits(ctx().fetch(again), ctx().fetch(x)));
      EXPECT_TRUE(same_bits(ctx().fetch(h), ctx().fetch(want)));
      // With the sum elsewhere.
      const Tensor kept = ctx().place(start.clone());
      Tensor sum = ctx().empty(DType::kF32, {5, d}), other = ctx().empty(dtype, {5, d});
      ops::add_rms_norm(ctx(), y, kept, w, 1e-6f, sum, other);
      EXPECT_TRUE(same_bits(ctx().fetch(kept), start));
      EXPECT_TRUE(same_bits(ctx().fetch(sum), ctx().fetch(x)));
      EXPECT_TRUE(same_bits(ctx().fetch(other), ctx().fetch(want)));
    }
}

TEST_F(CudaRows, SumsAndConversionsAreExact) {
  for (const Index d : kWidths)
    for (const DType from : kBoth)
      for (const DType to : kBoth) {
        const Tensor y = random_tensor(from, {5, d}, 3), bias = random_tensor(from, {d}, 4);
        Tensor want(to, y.shape()), got = ctx().empty(to, y.shape());
        ops::convert(ref, y, want);
        ops::convert(ctx(), ctx().place(y), got);
        EXPECT_TRUE(same_bits(ctx().fetch(got), want));
        ops::add_bias(ref, bias, want);
        ops::add_bias(ctx(), ctx().place(bias), got);
        EXPECT_TRUE(same_bits(ctx().fetch(got), want));
        if (to != DType::kF32) continue;
        ops::add(ref, y, want);
        ops::add(ctx(), ctx().place(y), got);
        EXPECT_TRUE(same_bits(ctx().fetch(got), want));
      }
}

TEST_F(CudaRows, Embedding) {
  for (const DType dtype : kBoth) {
    const Tensor table = random_tensor(dtype, {11, 70}, 5);
    const std::vector<std::int32_t> ids = {0, 10, 3, 3, 7};
    const Tensor id = Tensor::view_of(std::span<const std::int32_t>(ids));
    Tensor want(DType::kF32, {5, 70}), got = ctx().empty(DType::kF32, {5, 70});
    ops::embedding(ref, table, id, want);
    ops::embedding(ctx(), ctx().place(table), id, got);
    EXPECT_TRUE(same_bits(ctx().fetch(got), want));
    // Ids that are on the GPU are looked at there.
    std::vector<std::int32_t> wrong = ids;
    wrong[3] = 11;
    ops::embedding(ctx(), ctx().place(table), ctx().place(Tensor::view_of(std::span<const std::int32_t>(wrong))), got);
    EXPECT_TRUE(dsmoe::testing::throws_error([&] { ctx().synchronize(); }, {"token 3: the vocabulary has no such token id"},
                                             ErrorCode::kInvalidArgument));
    ctx().synchronize();
  }
}

// Two sequences somewhere in a cache, with the tiles of the second in another order.
struct Batch {
  std::vector<Index> first{512}, second{1024, 0};
  std::vector<ops::Slice> slices{{0, 5, 17, first, 300}, {5, 60, 230, second, 300}};
};

TEST_F(CudaRows, RopeTurnsByPosition) {
  const Batch batch;
  for (const RopeScaling scaling : {RopeScaling{}, RopeScaling{RopeScalingType::kLinear, 4.0},
                                    RopeScaling{RopeScalingType::kDynamic, 2.0}, RopeScaling{RopeScalingType::kYarn, 4.0}})
    for (const Index dim : {2, 40, 128})
      for (const DType dtype : kBoth) {
        if (dim == 2 && scaling.type == RopeScalingType::kDynamic) continue;
        const ops::Rope rope(dim, 10000.0, scaling, 100);
        const ops::RopeAngles want = ops::rope_angles(ref, rope, batch.slices);
        const ops::RopeAngles got = ops::rope_angles(ctx(), rope, ops::placed(ctx(), batch.slices));
        EXPECT_TRUE(close(ctx().fetch(got.cos), want.cos, limit(DType::kF32, 1)));
        EXPECT_TRUE(close(ctx().fetch(got.sin), want.sin, limit(DType::kF32, 1)));
        for (const bool inverse : {false, true}) {
          Tensor x = random_tensor(dtype, {65, 3 * dim}, 6), y = ctx().place(x.clone());
          ops::apply_rope(ref, x, want, inverse);
          ops::apply_rope(ctx(), y, got, inverse);
          EXPECT_TRUE(close(ctx().fetch(y), x, limit(dtype, 2)));
        }
      }
}

TEST_F(CudaRows, RowsGoToTheirPages) {
  const Batch batch;
  for (const DType from : kBoth)
    for (const DType to : kBoth) {
      const Tensor rows = random_tensor(from, {65, 24}, 7);
      Tensor want = Tensor::zeros(to, {1280, 24}), got = ctx().zeros(to, {1280, 24});
      ops::store_rows(ref, rows, batch.slices, want);
      ops::store_rows(ctx(), ctx().place(rows), ops::placed(ctx(), batch.slices), got);
      EXPECT_TRUE(same_bits(ctx().fetch(got), want));
    }
  // Blocks of q8_0 are the reference's, byte by byte; odd numbers among them: zeros, equal ones, halves, very small ones.
  for (const DType from : kBoth) {
    Tensor rows = random_tensor(DType::kF32, {65, 96}, 7);
    for (Index i = 0; i < 96; ++i) {
      rows.data<float>()[i] = 0, rows.data<float>()[96 + i] = -3,
      rows.data<float>()[2 * 96 + i] = 1e-7f * static_cast<float>(i);
      rows.data<float>()[3 * 96 + i] = static_cast<float>(i % 32 == 0 ? 127 : i % 32) + (i % 32 == 0 ? 0 : 0.5f);
    }
    const Tensor stored = rows.to(from);
    Tensor want = Tensor::zeros(DType::kQ8_0, {1280, 96}), got = ctx().zeros(DType::kQ8_0, {1280, 96});
    ops::store_rows(ref, stored, batch.slices, want);
    ops::store_rows(ctx(), ctx().place(stored), ops::placed(ctx(), batch.slices), got);
    EXPECT_TRUE(same_bits(ctx().fetch(got), want)) << to_string(from);
  }
  const auto without_tables = [&] {
    Tensor cache = ctx().zeros(DType::kF32, {1280, 24});
    ops::store_rows(ctx(), ctx().zeros(DType::kF32, {65, 24}), batch.slices, cache);
  };
  EXPECT_TRUE(dsmoe::testing::throws_error(without_tables, {"not on the GPU"}, ErrorCode::kInvalidArgument));
}

// The steps that it is made of, to the bit.
TEST_F(CudaRows, RotateAndStore) {
  const Batch batch;
  const ops::Slices slices = ops::placed(ctx(), batch.slices);
  for (const auto& [cache, dim] :
       {std::pair{DType::kF32, 40}, {DType::kBF16, 40}, {DType::kQ8_0, 32}, {DType::kQ8_0, 96}, {DType::kQ8_0, 128}})
    for (const DType dtype : kBoth) {
      const ops::RopeAngles angles = ops::rope_angles(ctx(), ops::Rope(dim, 10000.0, {}, 4096), slices);
      const Index width = 2 * dim;
      const Tensor q = random_tensor(dtype, {65, 3 * dim}, 1), k = random_tensor(dtype, {65, width}, 2),
                   v = ctx().place(random_tensor(dtype, {65, width}, 3));
      Tensor q1 = ctx().place(q.clone()), k1 = ctx().place(k.clone()), q2 = ctx().place(q.clone()),
             k2 = ctx().place(k.clone());
      Tensor kc1 = ctx().zeros(cache, {1280, width}), vc1 = ctx().zeros(cache, {1280, width}),
             kc2 = ctx().zeros(cache, {1280, width}), vc2 = ctx().zeros(cache, {1280, width});
      ops::apply_rope(ctx(), q1, angles);
      ops::apply_rope(ctx(), k1, angles);
      ops::store_rows(ctx(), k1, slices, kc1);
      ops::store_rows(ctx(), v, slices, vc1);
      ops::rotate_and_store(ctx(), q2, k2, v, angles, slices, kc2, vc2);
      EXPECT_TRUE(same_bits(ctx().fetch(q2), ctx().fetch(q1)));
      EXPECT_TRUE(same_bits(ctx().fetch(kc2), ctx().fetch(kc1)));
      EXPECT_TRUE(same_bits(ctx().fetch(vc2), ctx().fetch(vc1)));
    }
}

// The CPU refuses such numbers when it stores them; here what is computed with them is NaN.
TEST_F(CudaRows, NumbersThatBlocksCannotHoldBecomeNan) {
  const Batch batch;
  for (const float bad : {NAN, INFINITY, 1e8f}) {
    Tensor rows = random_tensor(DType::kF32, {65, 64}, 7);
    rows.data<float>()[32 + 5] = bad;
    Tensor cache = ctx().zeros(DType::kQ8_0, {1280, 64});
    ops::store_rows(ctx(), ctx().place(rows), ops::placed(ctx(), batch.slices), cache);
    const Tensor got = ops::dequantized(ctx().fetch(cache).rows(512 + 17, 512 + 18), DType::kF32);
    EXPECT_FALSE(std::isnan(got.data<float>()[0]));
    EXPECT_TRUE(std::isnan(got.data<float>()[32])) << bad;
    EXPECT_TRUE(std::isnan(got.data<float>()[63])) << bad;
  }
}

// Fused: the same bits as its steps. Many heads make for other tiles; an odd number of them ends within one.
TEST_F(CudaRows, ProjectAndStore) {
  struct Case {
    Index dim, heads, kv_heads, inner;
    std::vector<Index> rows;
  };
  const std::vector<Index> few{1, 2, 5, 8, 13, 16, 17, 40, 65};
  std::vector<Case> cases{{128, 32, 8, 72, {40, 100, 200, 300}}, {64, 95, 1, 72, {40, 100, 200, 300}}};
  for (const Index dim : {40, 64, 128})
    for (const Index inner : {72, 512, 2056}) cases.push_back({dim, 4, 2, inner, few});
  const std::vector<Index> tiles{512, 0, 768};
  for (const auto& [dim, heads, kv_heads, inner, all_rows] : cases)
    for (const Index rows : all_rows) {
      SCOPED_TRACE(::testing::Message() << rows << " x " << inner << ", " << heads << " heads of " << dim);
      const std::vector<ops::Slice> batch{{0, rows, 250, tiles}};
      const ops::Slices slices = ops::placed(ctx(), batch);
      const ops::RopeAngles angles = ops::rope_angles(ctx(), ops::Rope(dim, 10000.0, {}, 4096), slices);
      const Index width = heads * dim, kv_width = kv_heads * dim;
      const auto random = [&](Index n, std::uint64_t seed) {
        return ctx().place(random_tensor(DType::kBF16, {n, inner}, seed));
      };
      const Tensor x = random(rows, 1), wq = random(width, 2), wk = random(kv_width, 3), wv = random(kv_width, 4);
      const auto cache = [&] { return ctx().zeros(DType::kBF16, {1024, kv_width}); };
      Tensor q = ctx().empty(DType::kBF16, {rows, width}), k = ctx().empty(DType::kBF16, {rows, kv_width}), v = k.clone();
      Tensor k_want = cache(), v_want = cache(), k_got = cache(), v_got = cache();
      for (const auto& [w, y] : {std::pair(&wq, &q), std::pair(&wk, &k), std::pair(&wv, &v)}) ops::linear(ctx(), x, *w, *y);
      ops::rotate_and_store(ctx(), q, k, v, angles, slices, k_want, v_want);
      const Tensor got = ops::project_and_store(ctx(), x, {wq, wk, wv}, angles, slices, k_got, v_got);
      EXPECT_TRUE(same_bits(ctx().fetch(got), ctx().fetch(q)));
      EXPECT_TRUE(same_bits(ctx().fetch(k_got), ctx().fetch(k_want)));
      EXPECT_TRUE(same_bits(ctx().fetch(v_got), ctx().fetch(v_want)));
    }
}

// With the residual sum and the norm before: the bits of the steps, where one launch does all and where not. It may read
// the sum's operands after the sum is written, so it is done often.
TEST_F(CudaRows, AddNormProjectAndStore) {
  std::vector<Index> tiles{512, 0};
  constexpr Index kDim = 64;
  const std::vector<ops::Slice> batches[] = {{{0, 1, 250, tiles}}, {{0, 3, 250, tiles}}};
  for (const auto& batch : batches)
    for (const Index inner : {512, 576, 640, 1024, 1088, 2048, 2112}) {
      const Index rows = batch[0].rows;
      SCOPED_TRACE(::testing::Message() << rows << " rows of " << inner);
      const ops::Slices slices = ops::placed(ctx(), batch);
      const ops::RopeAngles angles = ops::rope_angles(ctx(), ops::Rope(kDim, 10000.0, {}, 4096), slices);
      const auto random = [&](DType dtype, Shape shape, std::uint64_t seed) {
        return ctx().place(random_tensor(dtype, shape, seed));
      };
      const Tensor wq = random(DType::kBF16, {4 * kDim, inner}, 2), wk = random(DType::kBF16, {2 * kDim, inner}, 3),
                   wv = random(DType::kBF16, {2 * kDim, inner}, 4), weight = random(DType::kBF16, {inner}, 5),
                   y = random(DType::kBF16, {rows, inner}, 6), start = random(DType::kF32, {rows, inner}, 7);
      const auto cache = [&] { return ctx().zeros(DType::kBF16, {1024, 2 * kDim}); };
      Tensor k_want = cache(), v_want = cache(), x_want = start.clone();
      const Tensor h = ops::add_rms_norm(ctx(), {y, x_want, weight, 1e-6f, DType::kBF16, false});
      const Tensor want = ops::project_and_store(ctx(), h, {wq, wk, wv}, angles, slices, k_want, v_want);
      for (int i = 0; i < 10; ++i) {
        Tensor k_got = cache(), v_got = cache(), x = start;
        const Tensor got = ops::project_and_store(ctx(), {y, x, weight, 1e-6f, DType::kBF16, true}, {wq, wk, wv}, angles,
                                                  slices, k_got, v_got);
        ASSERT_TRUE(same_bits(ctx().fetch(got), ctx().fetch(want)));
        ASSERT_TRUE(same_bits(ctx().fetch(x), ctx().fetch(x_want)));
        ASSERT_TRUE(same_bits(ctx().fetch(start), random_tensor(DType::kF32, {rows, inner}, 7)));
        ASSERT_TRUE(same_bits(ctx().fetch(k_got), ctx().fetch(k_want)));
        ASSERT_TRUE(same_bits(ctx().fetch(v_got), ctx().fetch(v_want)));
      }
    }
}

TEST_F(CudaRows, CrossEntropy) {
  for (const Index v : {3, 1000, 102400}) {
    const Tensor logits = random_tensor(DType::kF32, {4, v}, 8, 4.0f);
    const std::vector<std::int32_t> targets = {2, 0, ops::kIgnoredTarget, static_cast<std::int32_t>(v - 1)};
    const Tensor target = Tensor::view_of(std::span<const std::int32_t>(targets));
    Tensor want_each(DType::kF32, {4}), got_each = ctx().empty(DType::kF32, {4});
    const Tensor want = ops::cross_entropy(ref, logits, target, &want_each);
    const Tensor got = ctx().fetch(ops::cross_entropy(ctx(), ctx().place(logits), target, &got_each));
    EXPECT_NEAR(got.data<double>()[0], want.data<double>()[0], limit(DType::kF32, v) * want.data<double>()[0]);
    EXPECT_EQ(got.data<double>()[1], 3);
    EXPECT_TRUE(close(ctx().fetch(got_each), want_each, limit(DType::kF32, v)));
    Tensor bad = logits.clone();
    bad.data<float>()[v] = std::numeric_limits<float>::quiet_NaN();
    ops::cross_entropy(ctx(), ctx().place(bad), target);
    EXPECT_TRUE(
        dsmoe::testing::throws_error([&] { ctx().synchronize(); }, {"token 1: the loss is NaN"}, ErrorCode::kNumeric));
  }
}

}  // namespace
}  // namespace dsmoe::test
