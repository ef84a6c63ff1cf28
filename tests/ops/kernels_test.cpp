// Every instruction set that this processor has, against plain arithmetic.
#include "ops/cpu/kernels.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <type_traits>
#include <vector>

#include "ops/cpu/product.h"
#include "support/random_tensor.h"
#include "support/sanitized.h"
#include "support/tolerance.h"

namespace dsmoe::cpu {
namespace {

using test::limit;

class Kernels : public ::testing::TestWithParam<const KernelTable*> {};

std::vector<const KernelTable*> tables() {
  const KernelTable* all[8];
  const int n = available_kernels(all, 8);
  return {all, all + n};
}

TEST(KernelChoice, TheForcedInstructionSetIsTheOneThatRuns) {
  const char* wanted = std::getenv("DSMOE_CPU_ISA");
  if (wanted == nullptr) GTEST_SKIP() << "DSMOE_CPU_ISA is not set";
  EXPECT_STREQ(kernels().name, wanted);
}

template <class T>
void check_product(const KernelTable& kt, Index m, Index n, Index k, Lines a_lines, Lines b_lines, bool accumulate,
                   std::uint64_t seed) {
  const DType dtype = DTypeOf<T>::value;
  const bool a_along = a_lines == Lines::kAlong, b_along = b_lines == Lines::kAlong;
  const Tensor a = test::random_tensor(dtype, a_along ? Shape{m, k} : Shape{k, m}, seed);
  const Tensor b = test::random_tensor(dtype, b_along ? Shape{n, k} : Shape{k, n}, seed + 1);
  const Index ldc = n + 3;
  Tensor c = test::random_tensor(DType::kF32, {m, ldc}, seed + 2);
  Tensor want = c.clone();
  for (Index i = 0; i < m; ++i) {
    for (Index j = 0; j < n; ++j) {
      double sum = accumulate ? want.data<float>()[i * ldc + j] : 0;
      for (Index p = 0; p < k; ++p)
        sum += static_cast<double>(static_cast<float>(a.data<T>()[a_along ? i * k + p : p * m + i])) *
               static_cast<float>(b.data<T>()[b_along ? j * k + p : p * n + j]);
      want.data<float>()[i * ldc + j] = static_cast<float>(sum);
    }
  }
  std::vector<const T*> a_line, b_line;
  for (Index i = 0; i < a.dim(0); ++i) a_line.push_back(a.data<T>() + i * a.dim(1));
  for (Index i = 0; i < b.dim(0); ++i) b_line.push_back(b.data<T>() + i * b.dim(1));
  std::vector<char> scratch(product_scratch(kt) + 64);
  product<T>(kt, m, n, k, {a_line.data(), a_lines}, {b_line.data(), b_lines}, c.data<float>(), ldc, accumulate,
             scratch.data());
  // Products of bf16 are exact in f32, so the limit is that of f32 for both.
  EXPECT_TRUE(test::close(c, want, limit(DType::kF32, k)))
      << kt.name << " " << to_string(dtype) << " m " << m << " n " << n << " k " << k << " along " << a_along << b_along;
}

TEST_P(Kernels, ProductsOfAllShapesAndLines) {
  test::Draw draw(5);
  for (int round = 0; round < test::rounds(40); ++round) {
    const Index m = round % 3 == 0 ? draw.between(1, 20) : draw.between(1, 190);
    const Index n = draw.between(1, 270), k = round % 2 == 0 ? draw.between(1, 40) : draw.between(1, 600);
    const Lines a = draw(2) ? Lines::kAlong : Lines::kAcross, b = draw(2) ? Lines::kAlong : Lines::kAcross;
    check_product<float>(*GetParam(), m, n, k, a, b, draw(2) == 1, static_cast<std::uint64_t>(round));
    check_product<BFloat16>(*GetParam(), m, n, k, a, b, draw(2) == 1, static_cast<std::uint64_t>(round));
  }
}

TEST_P(Kernels, ARowOfAProductDoesNotDependOnTheOthers) {
  const KernelTable& kt = *GetParam();
  const Index m = 190, n = 290, k = 700;
  const Tensor a = test::random_tensor(DType::kF32, {m, k}, 1), b = test::random_tensor(DType::kF32, {n, k}, 2);
  std::vector<const float*> a_line, b_line;
  for (Index i = 0; i < m; ++i) a_line.push_back(a.data<float>() + i * k);
  for (Index i = 0; i < n; ++i) b_line.push_back(b.data<float>() + i * k);
  std::vector<char> scratch(product_scratch(kt) + 64);
  Tensor all(DType::kF32, {m, n});
  product<float>(kt, m, n, k, {a_line.data(), Lines::kAlong}, {b_line.data(), Lines::kAlong}, all.data<float>(), n, false,
                 scratch.data());
  for (const Index rows : {1, 3, 17, 40}) {
    Tensor some(DType::kF32, {rows, n});
    product<float>(kt, rows, n, k, {a_line.data() + 100, Lines::kAlong}, {b_line.data(), Lines::kAlong}, some.data<float>(),
                   n, false, scratch.data());
    EXPECT_TRUE(test::same_bits(some, all.rows(100, 100 + rows))) << kt.name << " " << rows;
  }
}

// Lines read in place give the bits of a product by kernels_of_lines(): dot_lines those of lines along, mix_lines those of
// lines across, also when the chains go on from one call to the next.
template <class T>
void check_lines(const KernelTable& kt, int m, Index n, Index k, std::uint64_t seed) {
  constexpr bool kF32 = sizeof(T) == 4;
  using Bits = std::conditional_t<kF32, float, std::uint16_t>;
  const Index stride = std::max(n, k) + 6;
  const Tensor a = test::random_tensor(DTypeOf<T>::value, {m, stride}, seed);
  const Tensor b = test::random_tensor(DTypeOf<T>::value, {std::max(n, k), stride}, seed + 1);
  std::vector<T> rows(a.data<T>(), a.data<T>() + a.numel());
  std::vector<const T*> a_line, b_line;
  for (int i = 0; i < m; ++i) {
    a_line.push_back(rows.data() + i * stride);
    rows[static_cast<std::size_t>(i * stride + k)] = T{};  // what follows an odd k
  }
  for (Index i = 0; i < b.dim(0); ++i) b_line.push_back(b.data<T>() + i * stride);
  const auto* a_bits = reinterpret_cast<const Bits* const*>(a_line.data());
  const auto* b_bits = reinterpret_cast<const Bits*>(b.data<T>());
  std::vector<char> scratch(product_scratch(kt) + 64);
  const Pieces ahead{scratch.data(), 3, 100, 200};
  for (const bool along : {true, false}) {
    if (along && !kF32 && k % 2 != 0) continue;
    Tensor want = Tensor::zeros(DType::kF32, {m, n}), got = test::random_tensor(DType::kF32, {m, n}, seed + 2);
    product<T>(kernels_of_lines(kt), m, n, k, {a_line.data(), Lines::kAlong},
               {b_line.data(), along ? Lines::kAlong : Lines::kAcross}, want.data<float>(), n, false, scratch.data());
    float* const c = got.data<float>();
    if (along) {
      if constexpr (kF32) kt.dot_lines_f32(k, a_bits, m, b_bits, stride, n, c, n, ahead);
      if constexpr (!kF32) kt.dot_lines_bf16(k, a_bits, m, b_bits, stride, n, c, n, ahead);
    } else {
      const Index first = k / 4 * 2;  // even, for the pairs
      std::vector<const Bits*> rest(a_bits, a_bits + m);
      for (const Bits*& row : rest) row += first;
      if constexpr (kF32) {
        kt.mix_lines_f32(first, a_bits, m, b_bits, stride, n, c, n, false, ahead);
        kt.mix_lines_f32(k - first, rest.data(), m, b_bits + first * stride, stride, n, c, n, true, {});
      } else {
        kt.mix_lines_bf16(first, a_bits, m, b_bits, stride, n, c, n, false, ahead);
        kt.mix_lines_bf16(k - first, rest.data(), m, b_bits + first * stride, stride, n, c, n, true, {});
      }
    }
    EXPECT_TRUE(test::same_bits(got, want)) << kt.name << " m " << m << " n " << n << " k " << k << " along " << along;
  }
}

TEST_P(Kernels, LinesInPlaceGiveTheBitsOfAProduct) {
  const KernelTable& kt = *GetParam();
  test::Draw draw(8);
  for (std::uint64_t round = 0; round < 30; ++round) {
    const int m = static_cast<int>(draw.between(1, kt.mr));
    check_lines<float>(kt, m, draw.between(1, 140), draw.between(4, kDepth), round);
    check_lines<BFloat16>(kt, m, draw.between(1, 140), draw.between(4, kDepth), round);
  }
}

TEST_P(Kernels, ExponentialAndSwiglu) {
  const KernelTable& kt = *GetParam();
  std::vector<float> x, up, y, dh, dgate, dup;
  for (float v = -120; v < 120; v += 0.37f) x.push_back(v), up.push_back(1.5f), dh.push_back(0.75f);
  const auto n = static_cast<Index>(x.size());
  y.resize(x.size()), dgate.resize(x.size()), dup.resize(x.size());
  kt.sigmoid(n, x.data(), y.data());
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double want = 1 / (1 + std::exp(-static_cast<double>(x[i])));
    // Two roundings in the exponential, one in the sum, one in the quotient; numbers below the smallest normal
    // one may vanish.
    EXPECT_NEAR(y[i], want, 4 * 0x1p-23 * want + 0x1p-126) << kt.name << " " << x[i];
  }
  kt.swiglu(n, x.data(), up.data(), y.data());
  std::vector<float> h(x.size());
  kt.swiglu_backward(n, x.data(), up.data(), dh.data(), dgate.data(), dup.data(), h.data());
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double v = x[i], s = 1 / (1 + std::exp(-v)), silu = v * s, slope = s * (1 + v * (1 - s));
    EXPECT_NEAR(y[i], silu * 1.5, 6 * 0x1p-23 * std::abs(silu * 1.5) + 0x1p-120) << x[i];
    EXPECT_EQ(y[i], h[i]);
    EXPECT_NEAR(dup[i], 0.75 * silu, 6 * 0x1p-23 * std::abs(silu) + 0x1p-120);
    EXPECT_NEAR(dgate[i], 0.75 * 1.5 * slope, 2e-6 * std::abs(slope) + 1e-7) << x[i];
  }
}

TEST_P(Kernels, SoftmaxSumsToOneAndSurvivesLargeNumbers) {
  const KernelTable& kt = *GetParam();
  for (const Index n : {1, 2, 5, 16, 17, 64, 513}) {
    Tensor x = test::random_tensor(DType::kF32, {n}, static_cast<std::uint64_t>(n), 30.0f), y(DType::kF32, {n});
    x.data<float>()[n / 2] = 1e30f;
    kt.softmax(n, x.data<float>(), y.data<float>());
    double sum = 0;
    for (Index i = 0; i < n; ++i) sum += y.data<float>()[i];
    EXPECT_NEAR(sum, 1, 1e-6);
    EXPECT_NEAR(y.data<float>()[n / 2], 1, 1e-6);
  }
}

TEST_P(Kernels, Bf16ConversionIsThatOfTheType) {
  const KernelTable& kt = *GetParam();
  std::vector<float> x;
  for (std::uint32_t i = 0; i < 70001; ++i) x.push_back(std::bit_cast<float>(i * 61681u));
  std::vector<std::uint16_t> y(x.size());
  std::vector<float> z(x.size());
  kt.narrow(static_cast<Index>(x.size()), x.data(), y.data());
  kt.widen(static_cast<Index>(x.size()), y.data(), z.data());
  for (std::size_t i = 0; i < x.size(); ++i) {
    ASSERT_EQ(y[i], BFloat16(x[i]).bits) << x[i];
    ASSERT_EQ(std::bit_cast<std::uint32_t>(z[i]), static_cast<std::uint32_t>(y[i]) << 16);
  }
}

TEST_P(Kernels, DotScaleAndAdd) {
  const KernelTable& kt = *GetParam();
  for (const Index n : {0, 1, 3, 16, 50, 1000}) {
    const Tensor x = test::random_tensor(DType::kF32, {n}, 3), y = test::random_tensor(DType::kF32, {n}, 4);
    Tensor sum = y.clone(), scaled(DType::kF32, {n});
    kt.add_scaled(n, 0.5f, x.data<float>(), sum.data<float>());
    kt.scale(n, 0.5f, x.data<float>(), scaled.data<float>());
    double dot = 0, norm = 0;
    for (Index i = 0; i < n; ++i) {
      const double a = x.data<float>()[i], b = y.data<float>()[i];
      EXPECT_NEAR(sum.data<float>()[i], b + 0.5 * a, 1e-6);
      EXPECT_EQ(scaled.data<float>()[i], 0.5f * x.data<float>()[i]);
      dot += a * b, norm += std::abs(a * b);
    }
    EXPECT_NEAR(kt.dot(n, x.data<float>(), y.data<float>()), dot, limit(DType::kF32, n) * norm);
  }
}

TEST_P(Kernels, ProductsElementByElement) {
  const KernelTable& kt = *GetParam();
  for (const Index n : {0, 1, 3, 16, 50, 1000}) {
    const Tensor x = test::random_tensor(DType::kF32, {n}, 3), y = test::random_tensor(DType::kF32, {n}, 4);
    Tensor product(DType::kF32, {n}), sum = x.clone(), slope(DType::kF32, {n}),
                                      want[3] = {product.clone(), sum.clone(), slope.clone()};
    kt.multiply(n, 0.3f, x.data<float>(), y.data<float>(), product.data<float>());
    kt.add_multiplied(n, 0.3f, x.data<float>(), y.data<float>(), sum.data<float>());
    kt.softmax_backward(n, 0.3f, 0.7f, x.data<float>(), y.data<float>(), slope.data<float>());
    for (Index i = 0; i < n; ++i) {
      const double a = x.data<float>()[i], b = y.data<float>()[i], scale = 0.3f, mean = 0.7f;
      want[0].data<float>()[i] = static_cast<float>(scale * a * b);
      want[1].data<float>()[i] += static_cast<float>(scale * a * b);
      want[2].data<float>()[i] = static_cast<float>(scale * a * (b - mean));
    }
    EXPECT_TRUE(test::close(product, want[0], limit(DType::kF32, 1)));
    EXPECT_TRUE(test::close(sum, want[1], limit(DType::kF32, 1)));
    EXPECT_TRUE(test::close(slope, want[2], limit(DType::kF32, 1)));
  }
}

TEST_P(Kernels, LargestAndShiftedExponential) {
  const KernelTable& kt = *GetParam();
  EXPECT_EQ(kt.largest(0, nullptr), -INFINITY);
  for (const Index n : {1, 3, 16, 17, 50, 1000}) {
    for (const Index best : {Index{0}, n / 2, n - 1}) {
      Tensor x = test::random_tensor(DType::kF32, {n}, 3, 10.0f), y(DType::kF32, {n}), want(DType::kF32, {n});
      for (Index i = 0; i < n; ++i) x.data<float>()[i] -= 1000;  // no zero of a partial vector may count
      x.data<float>()[best] = -900;
      EXPECT_EQ(kt.largest(n, x.data<float>()), -900) << n;
      const double sum = kt.exp_shifted(n, 0.25f, -900, x.data<float>(), y.data<float>());
      double want_sum = 0;
      for (Index i = 0; i < n; ++i) {
        const double e = std::exp(0.25 * (static_cast<double>(x.data<float>()[i]) + 900));
        want.data<float>()[i] = static_cast<float>(e), want_sum += e;
      }
      EXPECT_EQ(y.data<float>()[best], 1);
      EXPECT_TRUE(test::close(y, want, limit(DType::kF32, 1)));
      EXPECT_NEAR(sum, want_sum, limit(DType::kF32, n) * want_sum) << n;
    }
  }
  const float extreme[] = {NAN, -INFINITY, 3e38f, -3e38f};
  float e[4];
  kt.exp_shifted(4, 1.0f, 3e38f, extreme, e);
  EXPECT_EQ(e[0], INFINITY) << "NaN must not turn into a number";
  EXPECT_EQ(e[1], 0);
  EXPECT_EQ(e[2], 1);
  EXPECT_EQ(e[3], 0);
}

TEST_P(Kernels, RotationTurnsPairsAndTurnsBack) {
  const KernelTable& kt = *GetParam();
  for (const Index n : {1, 3, 16, 50}) {
    const Tensor angle = test::random_tensor(DType::kF32, {n}, 1, 3.0f),
                 before = test::random_tensor(DType::kF32, {2, n}, 2);
    Tensor cos(DType::kF32, {n}), sin(DType::kF32, {n}), pairs = before.clone(), want(DType::kF32, {2, n});
    for (Index i = 0; i < n; ++i) {
      const double c = std::cos(angle.data<float>()[i]), s = std::sin(angle.data<float>()[i]);
      const double a = before.data<float>()[i], b = before.data<float>()[n + i];
      cos.data<float>()[i] = static_cast<float>(c), sin.data<float>()[i] = static_cast<float>(s);
      want.data<float>()[i] = static_cast<float>(a * c - b * s),
      want.data<float>()[n + i] = static_cast<float>(b * c + a * s);
    }
    const auto turn = [&](float sign) {
      kt.rotate(n, cos.data<float>(), sin.data<float>(), sign, pairs.data<float>(), pairs.data<float>() + n);
    };
    turn(1.0f);
    EXPECT_TRUE(test::close(pairs, want, limit(DType::kF32, 2)));
    turn(-1.0f);
    EXPECT_TRUE(test::close(pairs, before, limit(DType::kF32, 4)));
  }
}

INSTANTIATE_TEST_SUITE_P(All, Kernels, ::testing::ValuesIn(tables()),
                         [](const auto& isa) { return std::string(isa.param->name); });

}  // namespace
}  // namespace dsmoe::cpu
