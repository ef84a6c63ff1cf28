// Products of bf16: a row has the same bits alone and among any others, on every instruction set, and on tiles they are the
// sums that Intel's manual defines.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "ops/cpu/product.h"
#include "ops/cpu/quant_kernels.h"
#include "support/random_tensor.h"
#include "support/tolerance.h"

namespace dsmoe::cpu {
namespace {

std::vector<const KernelTable*> tables() {
  const KernelTable* all[8];
  const int n = available_kernels(all, 8);
  return {all, all + n};
}

class Bf16Rows : public ::testing::TestWithParam<const KernelTable*> {};

// A matrix [rows, k] whose lines lie along k or across it, with what would spoil any sum behind them.
struct Matrix {
  std::vector<BFloat16> memory;
  std::vector<const BFloat16*> line;
  Lines lines;

  Matrix(const Tensor& from, Lines along) : lines(along) {
    const Index rows = from.dim(0), k = from.dim(1), count = along == Lines::kAlong ? rows : k;
    const Index length = along == Lines::kAlong ? k : rows, stride = length + 5;
    memory.assign(static_cast<std::size_t>(count * stride), BFloat16(NAN));
    for (Index i = 0; i < count; ++i) {
      BFloat16* const to = memory.data() + i * stride;
      for (Index p = 0; p < length; ++p) to[p] = from.data<BFloat16>()[along == Lines::kAlong ? i * k + p : p * k + i];
      line.push_back(to);
    }
  }
  Operand<BFloat16> rows() const { return {line.data(), lines}; }
};

// Rows [first, first + m) of a times all rows of b, with what c held where that is not null.
Tensor multiplied(const KernelTable& kt, const Matrix& a, Index first, Index m, const Matrix& b, Index n, Index k,
                  const Tensor* add = nullptr) {
  std::vector<const BFloat16*> line = a.line;
  if (a.lines == Lines::kAlong)
    line.erase(line.begin(), line.begin() + first);
  else
    for (const BFloat16*& at : line) at += first;
  std::vector<char> scratch(product_scratch(kt), '\xff');  // NaN
  Tensor c(DType::kF32, {m, n});
  if (add) std::memcpy(c.raw_mutable(), add->data<float>() + first * n, c.bytes());
  product<BFloat16>(kt, m, n, k, {line.data(), a.lines}, b.rows(), c.data<float>(), n, add != nullptr, scratch.data());
  return c;
}

constexpr Lines kBoth[] = {Lines::kAlong, Lines::kAcross};

TEST_P(Bf16Rows, ARowAloneHasTheBitsOfABatch) {
  struct Case {
    Index n, k;
  };
  const Case cases[] = {{33, 95}, {1, 33}, {15, 1}, {70, 513}, {31, 64}, {48, 1030}};
  for (const Case& at : cases) {
    for (const Lines a_lines : kBoth) {
      for (const Lines b_lines : kBoth) {
        const Tensor x = test::random_tensor(DType::kBF16, {40, at.k}, 1),
                     w = test::random_tensor(DType::kBF16, {at.n, at.k}, 2);
        const Matrix a(x, a_lines), b(w, b_lines);
        const Tensor all = multiplied(*GetParam(), a, 0, 40, b, at.n, at.k);
        for (Index m = 1; m < 40; ++m) {
          const Index first = (40 - m) * (m % 3) / 2;  // the first rows, some in between, the last
          EXPECT_TRUE(test::same_bits(multiplied(*GetParam(), a, first, m, b, at.n, at.k), all.rows(first, first + m)))
              << m << " rows from " << first << ", n " << at.n << " k " << at.k;
        }
      }
    }
  }
}

// More rows than panels at a time, a k that is cut between them, weights that lie anywhere, and sums that are added to.
TEST_P(Bf16Rows, NeitherPanelsNorPlacesChangeBits) {
  const KernelTable& kt = *GetParam();
  const Index m = 300, n = 21, k = 1100;
  const Tensor x = test::random_tensor(DType::kBF16, {m, k}, 1), w = test::random_tensor(DType::kBF16, {n, k}, 2);
  const Tensor before = test::random_tensor(DType::kF32, {m, n}, 3);
  const Matrix a(x, Lines::kAlong), b(w, Lines::kAlong), across(w, Lines::kAcross);
  std::vector<Matrix> one;  // every weight row in memory of its own
  Matrix scattered = b;
  for (Index i = 0; i < n; ++i) one.emplace_back(w.rows(i, i + 1), Lines::kAlong);
  for (Index i = 0; i < n; ++i) scattered.line[static_cast<std::size_t>(i)] = one[static_cast<std::size_t>(i)].line[0];
  for (const Tensor* add : {static_cast<const Tensor*>(nullptr), &before}) {
    const Tensor all = multiplied(kt, a, 0, m, b, n, k, add);
    EXPECT_TRUE(test::same_bits(multiplied(kt, a, 0, m, scattered, n, k, add), all));
    EXPECT_TRUE(test::same_bits(multiplied(kt, a, 0, m, across, n, k, add), all));
    for (const Index first : {0, 130, 149, 150, 299})
      EXPECT_TRUE(test::same_bits(multiplied(kt, a, first, 1, scattered, n, k, add), all.rows(first, first + 1))) << first;
  }
}

TEST_P(Bf16Rows, SeveralProductsHaveTheBitsOfEach) {
  const KernelTable& kt = *GetParam();
  const Index n = 40, k = 77, counts[] = {20, 35};
  for (const Lines a_lines : kBoth) {
    for (const Lines b_lines : kBoth) {
      const Matrix b(test::random_tensor(DType::kBF16, {n, k}, 9), b_lines);
      std::vector<Matrix> a;
      std::vector<Tensor> sums;
      std::vector<ProductRows<BFloat16>> parts;
      for (const Index m : counts) {
        a.emplace_back(test::random_tensor(DType::kBF16, {m, k}, static_cast<std::uint64_t>(m)), a_lines);
        sums.emplace_back(DType::kF32, Shape{m, n});
      }
      for (std::size_t i = 0; i < 2; ++i) parts.push_back({a[i].rows(), counts[i], sums[i].data<float>(), n});
      std::vector<char> scratch(product_scratch(kt), '\xff');  // NaN
      product<BFloat16>(kt, parts, n, k, b.rows(), false, scratch.data());
      for (std::size_t i = 0; i < 2; ++i)
        EXPECT_TRUE(test::same_bits(sums[i], multiplied(kt, a[i], 0, counts[i], b, n, k))) << i;
    }
  }
}

TEST_P(Bf16Rows, NaNAndInfinityAreNeitherHiddenNorSpread) {
  const Index n = 37;
  for (const Index k : {1, 31, 64, 515}) {
    for (const Lines b_lines : kBoth) {
      for (const Index m : {1, 3, 19, 34}) {
        for (const float bad : {NAN, INFINITY, -INFINITY}) {
          Tensor x = test::random_tensor(DType::kBF16, {m, k}, 1), w = test::random_tensor(DType::kBF16, {n, k}, 2);
          const Index bad_row = m / 2, bad_column = 35, place = k - 1;
          w.data<BFloat16>()[bad_column * k + place] = BFloat16(bad);
          if (m > 1) x.data<BFloat16>()[bad_row * k + k / 2] = BFloat16(NAN);
          const Tensor y = multiplied(*GetParam(), {x, Lines::kAlong}, 0, m, {w, b_lines}, n, k);
          for (Index i = 0; i < m; ++i)
            for (Index j = 0; j < n; ++j)
              EXPECT_EQ(std::isfinite(y.data<float>()[i * n + j]), (m == 1 || i != bad_row) && j != bad_column)
                  << "k " << k << " m " << m << " at " << i << " " << j;
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, Bf16Rows, ::testing::ValuesIn(tables()),
                         [](const auto& table) { return std::string(table.param->name); });

// One sum as a processor with tiles forms it, with blocks of `block` numbers, and even and odd numbers apart or not.
float sum_of_tiles(const BFloat16* a, const BFloat16* b, Index k, Index block = 2 * kDepth, bool apart = true) {
  float total = 0;
  for (Index k0 = 0; k0 < k; k0 += block) {
    float sum = 0;
    for (Index p = k0; p < std::min(k, k0 + block); p += 32) {
      float chain[2] = {};
      for (Index i = p; i < std::min({k, k0 + block, p + 32}); ++i)
        chain[apart ? i % 2 : 0] = std::fma(static_cast<float>(a[i]), static_cast<float>(b[i]), chain[apart ? i % 2 : 0]);
      sum += chain[0] + chain[1];
    }
    total = k0 == 0 ? sum : total + sum;
  }
  return total;
}

Tensor sums_of_tiles(const Tensor& x, const Tensor& w, Index block = 2 * kDepth, bool apart = true) {
  const Index m = x.dim(0), n = w.dim(0), k = x.dim(1);
  Tensor c(DType::kF32, {m, n});
  for (Index i = 0; i < m; ++i)
    for (Index j = 0; j < n; ++j)
      c.data<float>()[i * n + j] = sum_of_tiles(x.data<BFloat16>() + i * k, w.data<BFloat16>() + j * k, k, block, apart);
  return c;
}

TEST(Bf16Tiles, SumsAreThoseOfTheManual) {
  bool any = false;
  for (const KernelTable* kt : tables()) {
    if (kt->bf16_tiles == nullptr) continue;
    any = true;
    test::Draw draw(31);
    for (std::uint64_t round = 0; round < 12; ++round) {
      const Index m = draw.between(1, 50), n = draw.between(1, 70), k = draw.between(1, round % 2 ? 1200 : 100);
      const Tensor x = test::random_tensor(DType::kBF16, {m, k}, round),
                   w = test::random_tensor(DType::kBF16, {n, k}, round + 50);
      EXPECT_TRUE(test::same_bits(multiplied(*kt, {x, Lines::kAlong}, 0, m, {w, Lines::kAlong}, n, k), sums_of_tiles(x, w)))
          << m << " " << n << " " << k;
    }
    float sink;
    EXPECT_EQ(kt->peak_bf16(8, &sink), 2.0 * 16 * 16 * 32 * 4);
    EXPECT_EQ(kt->quant->peak(8, &sink), 2.0 * 16 * 16 * 64 * 4);
  }
  if (!any) GTEST_SKIP() << "no tiles";
}

TEST(Bf16Tiles, OtherOrdersMakeOtherBits) {  // or the comparison above would say nothing
  const Tensor x = test::random_tensor(DType::kBF16, {3, 600}, 1), w = test::random_tensor(DType::kBF16, {5, 600}, 2);
  const Tensor right = sums_of_tiles(x, w);
  EXPECT_TRUE(test::same_bits(sums_of_tiles(x, w), right));
  EXPECT_FALSE(test::same_bits(sums_of_tiles(x, w, 1024), right));
  EXPECT_FALSE(test::same_bits(sums_of_tiles(x, w, 256), right));
  EXPECT_FALSE(test::same_bits(sums_of_tiles(x, w, 512, false), right));
  EXPECT_TRUE(test::close(sums_of_tiles(x, w, 512, false), right, test::limit(DType::kF32, 600)));
}

TEST(Bf16Tiles, OnlyTheirOwnTableHasThem) {
  for (const KernelTable* kt : tables()) {
    const bool tiles = std::string(kt->name) == "amx";
    EXPECT_EQ(kt->bf16_tiles != nullptr, tiles) << kt->name;
    EXPECT_EQ(std::string(kt->quant->name) == "amx", tiles) << kt->name;
    EXPECT_STREQ(kernels_of_lines(*kt).name, tiles ? "avx512bf16" : kt->name);
    EXPECT_EQ(kernels_of_lines(*kt).bf16_tiles, nullptr);
  }
}

}  // namespace
}  // namespace dsmoe::cpu
