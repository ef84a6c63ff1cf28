// Products with packed quantized matrices on a GPU: against the numbers that the blocks stand for, and bit by bit against
// the bf16 kernels for any number of rows.
#include <gtest/gtest.h>

#include "cuda/gpu_test.h"
#include "cuda/ops/projections.h"
#include "ops/attention.h"
#include "ops/embedding.h"
#include "ops/experts.h"
#include "ops/linear.h"
#include "ops/mixed.h"
#include "ops/pack.h"
#include "ops/rms_norm.h"
#include "ops/rope.h"
#include "support/moe_case.h"
#include "support/random_tensor.h"
#include "support/tolerance.h"

namespace dsmoe::test {
namespace {

constexpr DType kTypes[] = {DType::kQ8_0, DType::kQ4_0, DType::kQ5_0, DType::kQ4_K, DType::kQ5_K, DType::kQ6_K};

// What the blocks stand for, rounded once.
Tensor as_bf16(const Tensor& w) {
  Tensor out(DType::kBF16, w.shape());
  std::vector<float> row(static_cast<std::size_t>(w.dim(1)));
  for (Index r = 0; r < w.dim(0); ++r) {
    ops::to_floats(w.dtype(), w.rows(r, r + 1).raw(), row);
    for (Index k = 0; k < w.dim(1); ++k)
      out.data<BFloat16>()[r * w.dim(1) + k] = BFloat16(row[static_cast<std::size_t>(k)]);
  }
  return out;
}

class CudaPacked : public GpuTest {
 protected:
  Tensor packed(const Tensor& w) { return ops::packed(ctx(), {&w, 1}); }
  Tensor product(const Tensor& x, const Tensor& w, DType out) {
    Tensor y = ctx().empty(out, {x.dim(0), w.dim(0)});
    ops::linear(ctx(), ctx().place(x), ctx().place(w), y);
    return ctx().fetch(y);
  }
};

TEST_F(CudaPacked, UnpackedIsWhatTheBlocksStandFor) {
  for (const DType dtype : kTypes)
    for (const Index rows : {1, 8, 13, 64}) {
      const Tensor w = random_weights(dtype, {rows, 768}, 1, 0.3f), want = as_bf16(w);
      const Tensor got = ctx().fetch(ops::unpacked(ctx(), packed(w)));
      for (Index i = 0; i < want.numel(); ++i)
        ASSERT_EQ(value(got, i), value(want, i)) << to_string(dtype) << " " << rows << " " << i;
    }
}

TEST_F(CudaPacked, EmbeddingRows) {
  for (const DType dtype : kTypes) {
    const Tensor table = random_weights(dtype, {37, 512}, 2), want = as_bf16(table);
    const std::vector<std::int32_t> ids = {0, 36, 5, 5, 31, 8};
    Tensor x = ctx().empty(DType::kF32, {6, 512});
    ops::embedding(ctx(), packed(table), Tensor::view_of(std::span(ids)), x);
    const Tensor got = ctx().fetch(x);
    for (Index t = 0; t < 6; ++t)
      for (Index k = 0; k < 512; ++k)
        ASSERT_EQ(value(got, t * 512 + k), value(want, ids[static_cast<std::size_t>(t)] * 512 + k)) << to_string(dtype);
  }
}

// Sizes around the pieces of 256 columns and the tiles of 8 rows; blocks of 32 fit rows that those of 256 do not.
TEST_F(CudaPacked, LinearIsTheReferences) {
  Context ref(1, Backend::kRef);
  for (const DType dtype : kTypes)
    for (const Index t : {1, 8, 9, 17})
      for (const Index n : {8, 523})
        for (const Index k : {32, 256, 416, 2816}) {
          if (k % block_of(dtype).numbers != 0) continue;
          const Tensor x = random_tensor(DType::kBF16, {t, k}, 3), w = random_weights(dtype, {n, k}, 4);
          Tensor want(DType::kF32, {t, n});
          ops::linear(ref, x, as_bf16(w), want);
          EXPECT_TRUE(close(product(x, packed(w), DType::kF32), want, limit(DType::kF32, k)))
              << to_string(dtype) << " " << t << " " << n << " " << k;
        }
}

TEST_F(CudaPacked, LinearHasTheBitsOfUnpackedWeights) {
  for (const DType dtype : kTypes) {
    const Index k = 2816, n = 264;  // more than a warp's ring has room for
    const Tensor x = random_tensor(DType::kBF16, {70, k}, 5), w = random_weights(dtype, {n, k}, 6);
    const Tensor packed_w = packed(w), plain = ctx().place(as_bf16(w));
    for (const DType out : {DType::kF32, DType::kBF16}) {
      const Tensor all = product(x, plain, out);
      for (const Index rows : {1, 2, 7, 8, 9, 16, 17, 64, 70})
        for (const Index first : {Index{0}, 70 - rows})
          EXPECT_TRUE(same_bits(product(x.rows(first, first + rows), packed_w, out), all.rows(first, first + rows)))
              << to_string(dtype) << " " << rows << " rows from " << first;
    }
  }
}

TEST_F(CudaPacked, SeveralMatricesOfSeveralTypesAtOnce) {
  for (const Index t : {1, 5, 40}) {
    std::vector<Tensor> w;
    std::vector<DType> y_dtypes;
    Index n = 8;
    for (const DType dtype : kTypes) {
      w.push_back(packed(random_weights(dtype, {n, 512}, 8)));
      y_dtypes.push_back(n % 3 == 0 ? DType::kF32 : DType::kBF16);
      n += 88;
    }
    w.push_back(ctx().place(random_tensor(DType::kBF16, {64, 512}, 9)));  // a plain one among them
    y_dtypes.push_back(DType::kF32);
    expect_same_together(ctx(), ctx().place(random_tensor(DType::kBF16, {t, 512}, 7)), w, y_dtypes);
  }
}

// q, k and v of one token that is the norm of a sum, in one launch or in steps. The sum's operands may be read after the
// sum is written, so it is done often.
TEST_F(CudaPacked, ProjectionsOfANormedRow) {
  constexpr Index kDim = 64;
  const std::vector<Index> tiles{512, 0};
  const std::vector<ops::Slice> batch{{0, 1, 250, tiles}};
  for (const DType dtype : kTypes)
    for (const Index inner : {512, 768, 1280, 2048, 2304}) {
      SCOPED_TRACE(::testing::Message() << to_string(dtype) << " of " << inner);
      const ops::Slices slices = ops::placed(ctx(), batch);
      const ops::RopeAngles angles = ops::rope_angles(ctx(), ops::Rope(kDim, 10000.0, {}, 4096), slices);
      const Tensor q = random_weights(dtype, {4 * kDim, inner}, 2), k = random_weights(dtype, {2 * kDim, inner}, 3),
                   v = random_weights(inner % 256 == 0 ? DType::kQ6_K : dtype, {2 * kDim, inner}, 4);
      const Tensor wq = packed(q), wk = packed(k), wv = packed(v);
      const Tensor pq = ctx().place(as_bf16(q)), pk = ctx().place(as_bf16(k)), pv = ctx().place(as_bf16(v));
      const Tensor weight = ctx().place(random_tensor(DType::kBF16, {inner}, 5)),
                   y = ctx().place(random_tensor(DType::kBF16, {1, inner}, 6)),
                   start = ctx().place(random_tensor(DType::kF32, {1, inner}, 7));
      const auto cache = [&] { return ctx().zeros(DType::kBF16, {1024, 2 * kDim}); };
      Tensor k_want = cache(), v_want = cache(), x_want = start.clone();
      const Tensor h = ops::add_rms_norm(ctx(), {y, x_want, weight, 1e-6f, DType::kBF16, false});
      const Tensor want = ops::project_and_store(ctx(), h, {pq, pk, pv}, angles, slices, k_want, v_want);
      for (int i = 0; i < 5; ++i) {
        Tensor k_got = cache(), v_got = cache(), x = start;
        const Tensor got = ops::project_and_store(ctx(), {y, x, weight, 1e-6f, DType::kBF16, true}, {wq, wk, wv}, angles,
                                                  slices, k_got, v_got);
        ASSERT_TRUE(same_bits(ctx().fetch(got), ctx().fetch(want)));
        ASSERT_TRUE(same_bits(ctx().fetch(x), ctx().fetch(x_want)));
        ASSERT_TRUE(same_bits(ctx().fetch(k_got), ctx().fetch(k_want)));
        ASSERT_TRUE(same_bits(ctx().fetch(v_got), ctx().fetch(v_want)));
      }
    }
}

// A layer of packed experts, and the same with what its blocks stand for in bf16 stacks.
struct Layers {
  Layers(Context& ctx, Index d, Index f, Index shared, Index routed, DType gate, DType up, DType down, DType wide_down) {
    const float wd = 1 / std::sqrt(static_cast<float>(d)), wf = 1 / std::sqrt(static_cast<float>(f));
    std::uint64_t seed = 10;
    ExpertTensors whole, packed_whole, plain_whole;
    const auto both = [&](DType dtype, Index rows, Index columns, float scale, Tensor& as_packed, Tensor& as_plain) {
      const Tensor w = random_weights(dtype, {rows, columns}, ++seed, scale);
      as_packed = ops::packed(ctx, {&w, 1}), as_plain = as_bf16(w);
    };
    if (shared > 0) {
      both(gate, shared * f, d, wd, packed_whole.gate_proj, plain_whole.gate_proj);
      both(up, shared * f, d, wd, packed_whole.up_proj, plain_whole.up_proj);
      both(wide_down, d, shared * f, wf, packed_whole.down_proj, plain_whole.down_proj);
    }
    ExpertTensors stacks;
    std::vector<ExpertTensors> plain(static_cast<std::size_t>(routed));
    const auto stack = [&](Tensor ExpertTensors::*m, DType dtype, Index rows, Index columns, float scale) {
      std::vector<Tensor> all;
      for (ExpertTensors& e : plain) {
        all.push_back(random_weights(dtype, {rows, columns}, ++seed, scale));
        e.*m = as_bf16(all.back());
      }
      if (routed > 0) stacks.*m = ops::packed(ctx, all);
    };
    stack(&ExpertTensors::gate_proj, gate, f, d, wd);
    stack(&ExpertTensors::up_proj, up, f, d, wd);
    stack(&ExpertTensors::down_proj, down, d, f, wf);
    packed = Experts::packed(shared, packed_whole, routed, stacks);
    on_cpu = Experts::listed(shared, plain_whole, plain).stack(DType::kBF16);
    unpacked = on_cpu.to(Device::kCuda);
  }
  Experts packed, unpacked, on_cpu;
};

TEST_F(CudaPacked, ExpertsHaveTheBitsOfUnpackedWeights) {
  struct Case {
    Index d, f, shared, routed, chosen;
    DType gate, up, down, wide_down;
  };
  using enum DType;
  for (const Case c : {Case{256, 128, 2, 8, 3, kQ4_K, kQ4_K, kQ5_0, kQ6_K},
                       {512, 96, 0, 16, 2, kQ8_0, kQ4_0, kQ8_0, kQ8_0},
                       {256, 256, 1, 8, 4, kQ6_K, kQ5_K, kQ4_K, kQ5_K},
                       {768, 1408, 2, 20, 6, kQ4_K, kQ6_K, kQ5_0, kQ4_K},
                       {256, 32, 3, 5, 5, kQ5_0, kQ5_0, kQ4_0, kQ8_0}}) {
    const Layers w(ctx(), c.d, c.f, c.shared, c.routed, c.gate, c.up, c.down, c.wide_down);
    const MoeConfig config = moe_config(c.d, c.f, c.routed, c.chosen, c.shared);
    const Tensor gate = random_tensor(kBF16, {c.routed, c.d}, 90, 0.1f), x = random_tensor(kBF16, {300, c.d}, 91);
    const MoeLayer packed(config, {ctx().place(gate), Tensor(), w.packed});
    const MoeLayer plain(config, {ctx().place(gate), Tensor(), w.unpacked});
    for (const cuda::Path path : paths_for(kBF16, c.d, c.f)) {
      const Forced forced(path);
      const Tensor all = ctx().fetch(plain.forward(ctx(), ctx().place(x)).y);
      for (const Index t : {1, 2, 3, 8, 9, 16, 17, 33, 64, 65, 300})
        EXPECT_TRUE(
            same_bits(ctx().fetch(packed.forward(ctx(), ctx().place(x.rows(300 - t, 300))).y), all.rows(300 - t, 300)))
            << to_string(c.gate) << " D " << c.d << " T " << t << " " << cuda::to_string(path);
    }
    Context ref(1, Backend::kRef);
    const MoeLayer reference(config, {gate, Tensor(), w.on_cpu});
    EXPECT_TRUE(close(ctx().fetch(packed.forward(ctx(), ctx().place(x.rows(0, 5))).y),
                      reference.forward(ref, x.rows(0, 5)).y, layer_limits(kBF16, {5, c.d, c.f, c.routed}).y));
  }
}

// All tokens to one expert: its tile is longer than what a block multiplies at once.
TEST_F(CudaPacked, DenseLayer) {
  const Layers w(ctx(), 256, 320, 1, 0, DType::kQ4_K, DType::kQ4_K, DType::kQ5_0, DType::kQ8_0);
  const Tensor x = random_tensor(DType::kBF16, {80, 256}, 92);
  const auto forward = [&](const Experts& e, const Tensor& rows) {
    const Tensor in = ctx().place(rows);
    const ops::Plan plan = ops::plan_of_one(ctx(), rows.dim(0));
    return ctx().fetch(ops::experts_down_combine(ctx(), e, plan, ops::experts_gate_up(ctx(), e, plan, in, nullptr)));
  };
  const Tensor all = forward(w.unpacked, x);
  for (const Index t : {1, 8, 16, 17, 50, 64, 65, 80})
    EXPECT_TRUE(same_bits(forward(w.packed, x.rows(0, t)), all.rows(0, t))) << t;
}

}  // namespace
}  // namespace dsmoe::test
