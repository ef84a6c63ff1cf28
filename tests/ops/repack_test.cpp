// Repacked matrices stand for the same numbers, and products with them have the same bits.
#include "ops/repack.h"

#include <gtest/gtest.h>

#include "ops/linear.h"
#include "ops/mixed.h"
#include "support/random_tensor.h"
#include "support/tolerance.h"

namespace dsmoe {
namespace {

using test::random_tensor;
using test::random_weights;

constexpr DType kQuantized[] = {DType::kQ8_0, DType::kQ4_0, DType::kQ5_0, DType::kQ4_K, DType::kQ5_K, DType::kQ6_K};

// Blocks of any bytes, as files may have them, but for the scales: those are those of random numbers.
Tensor any_codes(DType dtype, Shape shape, std::uint64_t seed) {
  Tensor w = random_weights(dtype, shape, seed);
  auto* const bytes = static_cast<std::uint8_t*>(w.raw_mutable());
  const auto block = static_cast<Index>(block_of(dtype).bytes);
  test::Draw draw(seed);
  const bool scale_last = dtype == DType::kQ6_K;
  const Index head = dtype == DType::kQ4_K || dtype == DType::kQ5_K ? 4 : 2;
  for (Index i = 0; i < static_cast<Index>(w.bytes()); ++i) {
    const Index at = i % block;
    if (scale_last ? at >= block - 2 : at < head) continue;
    bytes[i] = static_cast<std::uint8_t>(draw(256));
  }
  return w;
}

TEST(Repack, RowsStandForTheSameNumbers) {
  Context ctx(2);
  for (const DType dtype : kQuantized) {
    for (const Index blocks : {1, 3, 8, 40}) {
      const Index k = block_of(dtype).numbers * (block_of(dtype).numbers == 256 ? std::min<Index>(blocks, 5) : blocks);
      const Tensor w = any_codes(dtype, {96, k}, static_cast<std::uint64_t>(k));
      const Tensor repacked = ops::repacked(ctx, w.clone());
      EXPECT_EQ(repacked.bytes(), w.bytes());
      EXPECT_EQ(file_type(repacked.dtype()), dtype);
      EXPECT_TRUE(is_quantized(repacked.dtype()));
      EXPECT_STREQ(to_string(repacked.dtype()), to_string(dtype));
      EXPECT_TRUE(test::same_bits(ops::dequantized(repacked, DType::kF32), ops::dequantized(w, DType::kF32)))
          << to_string(dtype) << " " << k;
      Tensor other = w.clone();  // the check can fail
      static_cast<std::uint8_t*>(other.raw_mutable())[w.bytes() / 2 + 5] ^= 1;
      EXPECT_FALSE(test::same_bits(ops::dequantized(repacked, DType::kF32), ops::dequantized(other, DType::kF32)));
    }
  }
}

TEST(Repack, ProductsHaveTheSameBitsAndAreTheReferences) {
  Context one(1), three(3), ref(1, Backend::kRef);
  for (const DType dtype : kQuantized) {
    const Index n = 352, k = 768;
    const Tensor w = random_weights(dtype, {n, k}, 1), repacked = ops::repacked(three, w.clone());
    for (const Index t : {1, 2, 4, 5, 6, 7, 40, 130, 257}) {
      const Tensor x = random_tensor(DType::kF32, {t, k}, 2);
      Tensor y(DType::kF32, {t, n}), plain(DType::kF32, {t, n});
      ops::linear(three, x, repacked, y);
      ops::linear(one, x, w, plain);
      EXPECT_TRUE(test::same_bits(y, plain)) << to_string(dtype) << " " << t;
      if (t > 7) continue;
      ops::linear(ref, x, repacked, plain);
      EXPECT_TRUE(test::close(y, plain, test::quantized_limit(k))) << to_string(dtype) << " " << t;
    }
  }
}

TEST(Repack, OnlyWholeGroupsOfQuantizedRows) {
  EXPECT_TRUE(ops::can_repack(random_weights(DType::kQ4_0, {64, 64}, 1)));
  EXPECT_FALSE(ops::can_repack(random_weights(DType::kQ4_0, {40, 64}, 1)));
  EXPECT_FALSE(ops::can_repack(random_weights(DType::kBF16, {64, 64}, 1)));
  Context ctx(1);
  EXPECT_FALSE(ops::can_repack(ops::repacked(ctx, random_weights(DType::kQ4_0, {64, 64}, 1))));
}

}  // namespace
}  // namespace dsmoe
