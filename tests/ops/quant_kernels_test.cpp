// The kernels for quantized weights of every instruction set, against plain arithmetic and against each other.
#include "ops/cpu/quant_kernels.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "ops/quantize.h"
#include "ops/repack.h"
#include "support/random_tensor.h"
#include "support/sanitized.h"
#include "support/tolerance.h"

namespace dsmoe::cpu {
namespace {

constexpr DType kTypes[] = {DType::kQ8_0, DType::kQ4_0, DType::kQ5_0, DType::kQ4_K, DType::kQ5_K, DType::kQ6_K};

std::vector<const KernelTable*> tables() {
  const KernelTable* all[8];
  const int n = available_kernels(all, 8);
  return {all, all + n};
}

const QuantType& type_of(const QuantKernels& quant, DType dtype) {
  return quant.type[static_cast<int>(dtype) - static_cast<int>(DType::kQ8_0)];
}

// All rows by panels and tiles (many), or by the kernel for few rows, as many at a time as it takes.
Tensor product(const QuantKernels& quant, DType dtype, const Tensor& x, const Tensor& w, bool many) {
  const QuantType& type = type_of(quant, dtype);
  const Index m = x.dim(0), n = w.dim(0), k = x.dim(1), blocks = k / 32, chunks = activation_chunks(k);
  const auto bytes = static_cast<Index>(row_bytes(dtype, k));
  std::vector<ActivationChunk> chunk(static_cast<std::size_t>(m * chunks));
  std::vector<ActivationBlock> block(static_cast<std::size_t>(m * blocks));
  std::vector<const ActivationChunk*> few_row;
  std::vector<const ActivationBlock*> row;
  for (Index i = 0; i < m; ++i) {
    few_row.push_back(chunk.data() + i * chunks);
    row.push_back(block.data() + i * blocks);
    quant.quantize(k, x.data<float>() + i * k, many ? nullptr : chunk.data() + i * chunks,
                   many ? block.data() + i * blocks : nullptr);
  }
  const auto* from = static_cast<const char*>(w.raw());
  Tensor c(DType::kF32, {m, n});
  Tensor panel(DType::kU8, {quant.panel_bytes(blocks)});
  auto* const memory = static_cast<char*>(panel.raw_mutable());
  Tensor arranged_rows(DType::kU8, {quant.arranged_bytes(blocks, m)});
  auto* const arranged = static_cast<char*>(arranged_rows.raw_mutable());
  for (Index j = 0; many && j < n; j += quant.nr) {
    const int width = static_cast<int>(std::min<Index>(quant.nr, n - j));
    type.pack(blocks, from + j * bytes, bytes, width, memory);
    for (Index i = 0; i < m; i += quant.mr) {
      const int rows = static_cast<int>(std::min<Index>(quant.mr, m - i));
      if (quant.arrange) quant.arrange(blocks, row.data() + i, rows, arranged);
      for (const int first : {0, 3, 11})
        type.tile(blocks, first,
                  first == 0   ? 3
                  : first == 3 ? 11
                               : 16,
                  {row.data() + i, arranged}, rows, memory, c.data<float>() + i * n + j, n, width,
                  FetchAhead{from, from + bytes, 2});
    }
  }
  for (Index i = 0; !many && i < m; i += kQuantFewRows)  // what is fetched ahead, and from where, changes nothing
    type.few(blocks, few_row.data() + i, static_cast<int>(std::min<Index>(kQuantFewRows, m - i)), from, bytes, n,
             c.data<float>() + i * n, n, {.distance = (997 * m + 4096 * i) % 20000, .next = n % 2 == 0 ? from : nullptr});
  return c;
}

// The same of repacked weights: straight, as many rows at a time as go, or by panels.
Tensor repacked_product(const QuantKernels& quant, const Tensor& x, const Tensor& w, bool many) {
  Context ctx(1);
  const Tensor repacked = ops::repacked(ctx, w.clone());
  const QuantType& type = type_of(quant, w.dtype());
  const Index m = x.dim(0), n = w.dim(0), k = x.dim(1), blocks = k / 32;
  const auto bytes = static_cast<Index>(row_bytes(w.dtype(), k));
  std::vector<ActivationBlock> block(static_cast<std::size_t>(m * blocks));
  std::vector<const ActivationBlock*> row;
  for (Index i = 0; i < m; ++i) {
    row.push_back(block.data() + i * blocks);
    quant.quantize(k, x.data<float>() + i * k, nullptr, block.data() + i * blocks);
  }
  const auto* from = static_cast<const char*>(repacked.raw());
  Tensor c(DType::kF32, {m, n}), panel(DType::kU8, {quant.panel_bytes(blocks)});
  Tensor arranged_rows(DType::kU8, {quant.arranged_bytes(blocks, m)});
  auto* const memory = static_cast<char*>(panel.raw_mutable());
  auto* const arranged = static_cast<char*>(arranged_rows.raw_mutable());
  for (Index j = 0; many && j < n; j += quant.nr) {
    type.pack_repacked(blocks, from + j / 32 * 32 * bytes, static_cast<int>(j % 32 / 16), memory);
    for (Index i = 0; i < m; i += quant.mr) {
      const int rows = static_cast<int>(std::min<Index>(quant.mr, m - i));
      if (quant.arrange) quant.arrange(blocks, row.data() + i, rows, arranged);
      type.tile(blocks, 0, 16, {row.data() + i, arranged}, rows, memory, c.data<float>() + i * n + j, n, quant.nr, {});
    }
  }
  if (many && type.repacked_tile) {  // instead
    for (Index j = 0; j < n; j += 32)
      for (Index i = 0; i < m; i += kRepackedTile)
        type.repacked_tile(blocks, row.data() + i, static_cast<int>(std::min<Index>(kRepackedTile, m - i)),
                           from + j * bytes, c.data<float>() + i * n + j, n, FetchAhead{from, from + bytes, 1});
  }
  for (Index i = 0; !many && i < m; i += quant.repacked_mr)
    type.repacked(blocks, row.data() + i, static_cast<int>(std::min<Index>(quant.repacked_mr, m - i)), from, n,
                  c.data<float>() + i * n, n, {.distance = 997 * m % 20000, .next = m % 2 == 0 ? from : nullptr});
  return c;
}

class QuantTables : public ::testing::TestWithParam<const KernelTable*> {
 protected:
  const QuantKernels& quant() const { return *GetParam()->quant; }
  Tensor product(DType dtype, const Tensor& x, const Tensor& w, bool many) const {
    return cpu::product(quant(), dtype, x, w, many);
  }
};

// Row by row and block by block, as it is defined.
Tensor expected(DType dtype, const Tensor& x, const Tensor& w) {
  const Index m = x.dim(0), n = w.dim(0), k = x.dim(1);
  std::vector<float> weight(static_cast<std::size_t>(k));
  Tensor c(DType::kF32, {m, n});
  for (Index j = 0; j < n; ++j) {
    ops::dequantize_row(dtype, w.rows(j, j + 1).raw(), weight);
    for (Index i = 0; i < m; ++i) {
      double sum = 0;
      for (Index b = 0; b < k; b += 32) {
        const float* in = x.data<float>() + i * k + b;
        float most = 0;
        for (int p = 0; p < 32; ++p) most = std::max(most, std::fabs(in[p]));
        for (int p = 0; p < 32 && most > 0; ++p)
          sum += std::nearbyint(in[p] * (127.0f / most)) * static_cast<double>(most / 127.0f) *
                 weight[static_cast<std::size_t>(b + p)];
      }
      c.data<float>()[i * n + j] = static_cast<float>(sum);
    }
  }
  return c;
}

TEST_P(QuantTables, ProductsOfAllShapesAndTypes) {
  test::Draw draw(21);
  for (const DType dtype : kTypes) {
    const Index unit = block_of(dtype).numbers;
    for (std::uint64_t round = 0; round < test::rounds(12u); ++round) {
      const Index m = draw.between(1, 40), n = draw.between(1, 70), k = unit * draw.between(1, unit == 32 ? 75 : 7);
      const Tensor x = test::random_tensor(DType::kF32, {m, k}, round), w = test::random_weights(dtype, {n, k}, round + 9);
      const Tensor want = expected(dtype, x, w), many = product(dtype, x, w, true), few = product(dtype, x, w, false);
      EXPECT_TRUE(test::close(many, want, test::quantized_limit(k)))
          << to_string(dtype) << " " << m << " " << n << " " << k;
      EXPECT_TRUE(test::same_bits(few, many)) << to_string(dtype) << " " << m << " " << n << " " << k;
    }
  }
}

TEST_P(QuantTables, RepackedWeightsGiveTheSameBits) {
  test::Draw draw(22);
  for (const DType dtype : kTypes) {
    const Index unit = block_of(dtype).numbers;
    for (std::uint64_t round = 0; round < test::rounds(8u); ++round) {
      const Index m = draw.between(1, 20), n = 32 * draw.between(1, 3), k = unit * draw.between(1, unit == 32 ? 75 : 7);
      const Tensor x = test::random_tensor(DType::kF32, {m, k}, round), w = test::random_weights(dtype, {n, k}, round + 9);
      const Tensor want = product(dtype, x, w, true);
      for (const bool many : {true, false})
        EXPECT_TRUE(test::same_bits(repacked_product(quant(), x, w, many), want))
            << to_string(dtype) << " " << m << " " << n << " " << k << " " << many;
    }
  }
}

TEST_P(QuantTables, ARowDoesNotDependOnTheOthers) {
  for (const DType dtype : kTypes) {
    const Index m = 13, n = 37, k = 1280;
    const Tensor x = test::random_tensor(DType::kF32, {m, k}, 4), w = test::random_weights(dtype, {n, k}, 5);
    const Tensor all = product(dtype, x, w, true);
    for (const Index first : {0, 5, 12})
      for (const Index count : {1, 2, 3, 4, 7}) {
        if (first + count > m) continue;
        for (const bool many : {true, false})
          EXPECT_TRUE(
              test::same_bits(product(dtype, x.rows(first, first + count), w, many), all.rows(first, first + count)))
              << to_string(dtype) << " " << first << " " << count << " " << many;
      }
  }
}

TEST_P(QuantTables, ExtremeCodes) {  // the largest sums of integers: nothing may saturate
  const Index k = 512;
  Tensor x(DType::kF32, {2, k});
  for (Index i = 0; i < k; ++i) x.data<float>()[i] = 127, x.data<float>()[k + i] = i % 2 ? -127.0f : 127.0f;
  for (const DType dtype : kTypes) {
    Tensor w = Tensor::zeros(dtype, {3, k});
    for (Index j = 0; j < 3; ++j) {
      std::vector<float> row(static_cast<std::size_t>(k));
      for (Index i = 0; i < k; ++i)
        row[static_cast<std::size_t>(i)] = j == 0 ? 127.0f : j == 1 ? -127.0f : i % 2 ? -127.0f : 127.0f;
      ops::quantize_row(dtype, row, w.rows(j, j + 1).raw_mutable());
    }
    const Tensor want = expected(dtype, x, w);
    EXPECT_TRUE(test::close(product(dtype, x, w, true), want, test::quantized_limit(k))) << to_string(dtype);
    EXPECT_TRUE(test::close(product(dtype, x, w, false), want, test::quantized_limit(k))) << to_string(dtype);
  }
  // A code that quantize_row never gives.
  Tensor w = Tensor::zeros(DType::kQ8_0, {1, k});
  auto* bytes = static_cast<std::uint8_t*>(w.raw_mutable());
  for (Index b = 0; b < k / 32; ++b, bytes += 34) bytes[1] = 0x3c, std::memset(bytes + 2, 0x80, 32);
  for (const bool many : {true, false}) EXPECT_EQ(product(DType::kQ8_0, x, w, many).data<float>()[0], -128.0f * 127 * k);
}

TEST_P(QuantTables, RowsAreRoundedToNearestEven) {
  const Index k = 64;
  Tensor x = Tensor::zeros(DType::kF32, {1, k});
  float* const v = x.data<float>();
  v[0] = -254, v[1] = 1, v[2] = 3, v[3] = -5, v[31] = 254, v[40] = 1e-35f;
  std::vector<ActivationChunk> row(1);
  std::vector<ActivationBlock> block(2);
  quant().quantize(k, v, row.data(), block.data());
  EXPECT_EQ(row[0].scale[0], 2.0f);
  const int want[] = {-127, 0, 2, -2};  // halves of 2 go to even
  for (int i = 0; i < 4; ++i) EXPECT_EQ(row[0].q[0][0][0][i], want[i]) << i;
  for (int i = 0; i < 4; ++i) EXPECT_EQ(block[0].q[i], want[i]) << i;
  EXPECT_EQ(block[0].q[31], 127);
  EXPECT_EQ(block[0].start_half[0], row[0].start_half[0][0]);
  EXPECT_EQ(block[1].scale, 0);
  EXPECT_EQ(row[0].q[1][0][0][15], 127);
  EXPECT_EQ(row[0].start_half[0][0], -128 * -127);
  EXPECT_EQ(row[0].start_half[1][0], -128 * 127);
  EXPECT_EQ(row[0].start[0], 0);
  EXPECT_EQ(row[0].total[0], 0);
  for (int b = 1; b < 16; ++b) {
    EXPECT_EQ(row[0].scale[b], 0) << b;
    EXPECT_EQ(row[0].start[b], 0) << b;
  }
}

TEST_P(QuantTables, NaNAndInfinityArePassedOn) {
  for (const float bad : {NAN, INFINITY, -INFINITY}) {
    Tensor x = test::random_tensor(DType::kF32, {2, 512}, 1);
    x.data<float>()[512 + 100] = bad;
    for (const DType dtype : kTypes) {
      const Tensor w = test::random_weights(dtype, {5, 512}, 2);
      for (const bool many : {true, false}) {
        const Tensor y = product(dtype, x, w, many);
        for (Index j = 0; j < 5; ++j) {
          EXPECT_TRUE(std::isfinite(y.data<float>()[j]));
          EXPECT_TRUE(std::isnan(y.data<float>()[5 + j]));
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, QuantTables, ::testing::ValuesIn(tables()),
                         [](const auto& table) { return std::string(table.param->name); });

// Integers are exact and the order of sums is fixed: with multiply-adds in hardware, the bits are the same everywhere.
// Kernels read past the end of a row, into the next one, where that saves time.
TEST_P(QuantTables, ARowOfWeightsDoesNotTouchTheOthers) {
  for (const DType dtype : kTypes)
    for (const Index units : {1, 3, 20}) {  // several rows in a chunk of 16 blocks; a chunk, and part of one
      const Index k = units * block_of(dtype).numbers;
      const Tensor x = test::random_tensor(DType::kF32, {1, k}, 1), w = test::random_weights(dtype, {5, k}, 2);
      Tensor poisoned = w.clone();
      Tensor row = poisoned.rows(3, 4);
      std::memset(row.raw_mutable(), 0xff, row.bytes());  // scales that are NaN
      for (const bool many : {false, true}) {
        const Tensor good = product(dtype, x, w, many), bad = product(dtype, x, poisoned, many);
        for (Index j = 0; j < 5; ++j) {
          if (j == 3)
            EXPECT_TRUE(std::isnan(bad.data<float>()[j])) << to_string(dtype);
          else
            EXPECT_EQ(bad.data<float>()[j], good.data<float>()[j]) << to_string(dtype) << " " << j;
        }
      }
    }
}

TEST(QuantKernels, TheSameBitsOnEveryInstructionSetWithMultiplyAdds) {
  // Rows and columns that end anywhere in a tile, chains without blocks, with some and with more than a batch.
  struct Case {
    Index m, n, units;
  };
  const Case cases[] = {{7, 33, 3}, {1, 16, 1}, {5, 31, 2}, {16, 64, 1}, {17, 48, 4}, {33, 70, 5}, {128, 5, 2}, {20, 1, 9}};
  for (const DType dtype : kTypes) {
    for (const Case& c : cases) {
      const Index k = c.units * (block_of(dtype).numbers == 32 ? 32 * 9 : 256);
      const Tensor x = test::random_tensor(DType::kF32, {c.m, k}, 1), w = test::random_weights(dtype, {c.n, k}, 2);
      Tensor first;
      for (const KernelTable* table : tables()) {
        if (std::string(table->name) == "generic") continue;
        for (const bool many : {false, true}) {
          const Tensor y = product(*table->quant, dtype, x, w, many);
          if (first.rank() == 2 && first.numel() > 0) {
            EXPECT_TRUE(test::same_bits(y, first))
                << table->name << " " << to_string(dtype) << " m " << c.m << " n " << c.n << " k " << k << " many " << many;
          }
          first = y;
        }
      }
    }
  }
}

TEST(QuantKernels, OneCodeOrOneStepMakesOtherBits) {  // or the comparisons above would say nothing
  const QuantKernels& quant = *kernels().quant;
  for (const DType dtype : kTypes) {
    const Tensor x = test::random_tensor(DType::kF32, {17, 768}, 1), w = test::random_weights(dtype, {33, 768}, 2);
    Tensor other = w.clone(), step = x.clone();
    Tensor last = other.rows(32, 33);
    static_cast<std::uint8_t*>(last.raw_mutable())[last.bytes() / 2] ^= 1;
    step.data<float>()[17 * 768 - 1] *= 1.25f;
    const Tensor y = product(quant, dtype, x, w, true);
    EXPECT_FALSE(test::same_bits(product(quant, dtype, x, other, true), y)) << to_string(dtype);
    EXPECT_FALSE(test::same_bits(product(quant, dtype, step, w, true), y)) << to_string(dtype);
  }
}

TEST(QuantKernels, EveryTableSaysWhatItIs) {
  for (const KernelTable* table : tables()) {
    const std::string name = table->name, quant = table->quant->name;
    EXPECT_TRUE(quant == name || (name == "avx512bf16" && (quant == "avx512vnni" || quant == "avx512")))
        << name << " " << quant;
  }
}

}  // namespace
}  // namespace dsmoe::cpu
