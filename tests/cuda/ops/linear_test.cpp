// y = x · Wᵀ on a GPU against ops/ref, and the promise that a row's bits do not depend on the rows beside it.
#include "ops/linear.h"

#include <gtest/gtest.h>

#include "cuda/gpu_test.h"
#include "cuda/ops/projections.h"
#include "support/random_tensor.h"
#include "support/tolerance.h"

namespace dsmoe::test {
namespace {

using cuda::Path;

class CudaLinear : public GpuTest {
 protected:
  Tensor product(const Tensor& x, const Tensor& w, DType out) {
    Tensor y = ctx().empty(out, {x.dim(0), w.dim(0)});
    ops::linear(ctx(), ctx().place(x), ctx().place(w), y);
    return ctx().fetch(y);
  }
};

// Odd sizes, sizes around the tiles of 16, 64, 128 and 256 tokens and of 64 and 128 columns. With 6152 columns the tiles
// grow with the rows: small ones would take more rounds.
TEST_F(CudaLinear, IsTheReferences) {
  Context ref(1, Backend::kRef);
  struct Sizes {
    Index t, k, n;
  };
  for (const Sizes s : {Sizes{1, 8, 8},
                        {1, 2048, 520},
                        {5, 37, 19},
                        {16, 64, 64},
                        {17, 256, 136},
                        {64, 72, 200},
                        {65, 520, 128},
                        {130, 64, 264},
                        {257, 128, 72},
                        {300, 1024, 1000},
                        {100, 72, 6152},
                        {300, 72, 6152}})
    for (const DType dtype : {DType::kF32, DType::kBF16})
      for (const DType out : {DType::kF32, dtype}) {
        const Tensor x = random_tensor(dtype, {s.t, s.k}, 1), w = random_tensor(dtype, {s.n, s.k}, 2);
        Tensor want(out, {s.t, s.n});
        ops::linear(ref, x, w, want);
        for (const Path path : paths_for(dtype, s.k, out == DType::kF32 ? s.k : s.n)) {
          const Forced forced(path);
          EXPECT_TRUE(close(product(x, w, out), want, limit(out, s.k)))
              << s.t << " " << s.k << " " << s.n << " " << to_string(dtype) << " " << to_string(out) << " "
              << cuda::to_string(path);
        }
      }
}

TEST_F(CudaLinear, ARowHasItsBitsInAnyBatch) {
  for (const auto& [dtype, columns] : {std::pair{DType::kF32, 264}, {DType::kBF16, 264}, {DType::kBF16, 6152}}) {
    const Tensor x = random_tensor(dtype, {300, 520}, 3), w = random_tensor(dtype, {columns, 520}, 4);
    for (const Path path : paths_for(dtype, 520, columns)) {
      const Forced forced(path);
      const Tensor all = product(x, w, DType::kF32);
      for (const Index n : {1, 2, 8, 15, 16, 17, 63, 65, 128, 129, 256})
        for (const Index first : {Index{0}, Index{11}, 300 - n})
          EXPECT_TRUE(same_bits(product(x.rows(first, first + n), w, DType::kF32), all.rows(first, first + n)))
              << n << " rows from " << first << " of " << columns << " " << cuda::to_string(path);
    }
  }
}

// Many rows are multiplied by pairs of thread blocks where columns come in an even number of blocks, and f32 numbers are
// stored in fours where columns do: the same bits.
TEST_F(CudaLinear, ManyRowsHaveTheBitsOfFew) {
  const Tensor x = random_tensor(DType::kBF16, {2600, 520}, 3);
  for (const Index n : {264, 512, 250, 4})
    for (const DType out : {DType::kF32, DType::kBF16}) {
      if (out == DType::kBF16 && n % 8 != 0) continue;
      const Tensor w = random_tensor(DType::kBF16, {n, 520}, 4), all = product(x, w, out);
      for (const Index first : {Index{0}, Index{1100}, Index{2500}})
        EXPECT_TRUE(same_bits(product(x.rows(first, first + 100), w, out), all.rows(first, first + 100)))
            << n << ' ' << first << ' ' << to_string(out);
    }
}

TEST_F(CudaLinear, SeveralAtOnceAreTheSame) {
  const Tensor x = ctx().place(random_tensor(DType::kBF16, {40, 256}, 5));
  std::vector<Tensor> w;
  std::vector<DType> y_dtypes;
  for (const Index n : {256, 72, 520, 8, 64}) {
    w.push_back(ctx().place(random_tensor(DType::kBF16, {n, 256}, 6)));
    y_dtypes.push_back(n == 520 ? DType::kF32 : DType::kBF16);
  }
  expect_same_together(ctx(), x, w, y_dtypes);
}

// One token's residual sum and norm are part of the launch that takes them; otherwise they are a step before it.
TEST_F(CudaLinear, OfANormHasTheBitsOfTheSteps) {
  for (const auto& [rows, inner] : {std::pair<Index, Index>{1, 2048}, {1, 576}, {1, 512}, {3, 1024}}) {
    const auto random = [&](DType dtype, Shape shape, std::uint64_t seed) {
      return ctx().place(random_tensor(dtype, shape, seed));
    };
    const Tensor w1 = random(DType::kBF16, {3072, inner}, 1), w2 = random(DType::kBF16, {580, inner}, 2),
                 weight = random(DType::kBF16, {inner}, 3), y = random(DType::kBF16, {rows, inner}, 4),
                 start = random(DType::kF32, {rows, inner}, 5);
    const auto run = [&](auto&& project) {
      Tensor x = start.clone(), a = ctx().empty(DType::kBF16, {rows, 3072}), b = ctx().empty(DType::kF32, {rows, 580});
      const ops::Projection both[] = {{&w1, &a}, {&w2, &b}};
      project(ops::AddNorm{y, x, weight, 1e-6f, DType::kBF16, false}, both);
      return std::vector<Tensor>{ctx().fetch(a), ctx().fetch(b), ctx().fetch(x)};
    };
    const auto got = run([&](const ops::AddNorm& x, auto& both) { ops::linear(ctx(), x, both); });
    const auto want = run([&](const ops::AddNorm& x, auto& both) {
      const Tensor h = ops::add_rms_norm(ctx(), x);
      for (const ops::Projection& p : both) ops::linear(ctx(), h, *p.w, *p.y);
    });
    for (std::size_t i = 0; i < got.size(); ++i)
      EXPECT_TRUE(same_bits(got[i], want[i])) << rows << " " << inner << " " << i;
  }
}

}  // namespace
}  // namespace dsmoe::test
