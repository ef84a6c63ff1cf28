// What a GPU makes of quantized blocks, on the CPU: into its order and back, number by number.
#include "ops/cuda/packed_blocks.h"

#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "ops/quantize.h"
#include "support/random_tensor.h"

namespace dsmoe::test {
namespace {

using cuda::packed::kTileBytes;
using cuda::packed::kTileRows;

std::pair<float, float> as_floats(std::uint32_t bits) {
  return {std::bit_cast<float>(bits << 16), std::bit_cast<float>(bits & 0xffff0000u)};
}

// Eight blocks, one per row of a tile.
template <DType kType>
struct Tile {
  using Block = cuda::packed::Block<kType>;
  static constexpr int kNumbers = Block::kNumbers, kBytes = Block::kBytes;
  Index near = 0;  // lanes' steps that may be computed in fewer operations
  std::vector<std::uint8_t> blocks = std::vector<std::uint8_t>(kTileRows * kBytes);

  void quantized(Draw& draw) {
    for (int r = 0; r < kTileRows; ++r) {
      const Tensor x = random_tensor(DType::kF32, {kNumbers}, static_cast<std::uint64_t>(draw(1 << 20)),
                                     1.0f + 3.0f * static_cast<float>(r));
      ops::quantize_row(kType, x.span<float>(), blocks.data() + r * kBytes);
    }
  }
  // Any bytes, but finite scales.
  void any(Draw& draw) {
    for (std::uint8_t& b : blocks) b = static_cast<std::uint8_t>(draw(256));
    for (int r = 0; r < kTileRows; ++r)
      for (const int half : {kType == DType::kQ6_K ? 208 : 0, kType == DType::kQ6_K ? 208 : 2})
        if (half == 0 || kNumbers == 256) blocks[static_cast<std::size_t>(r * kBytes + half + 1)] &= 0xbb;
  }
  void check() {
    alignas(16) std::uint8_t tile[kTileBytes<kType>];
    for (std::uint8_t& b : tile) b = 0xcc;
    for (int r = 0; r < kTileRows; ++r)
      for (int quad = 0; quad < 4; ++quad) Block::pack(blocks.data() + r * kBytes, r, quad, tile);
    std::vector<float> want(kNumbers);
    for (int r = 0; r < kTileRows; ++r) {
      ops::dequantize_row(kType, blocks.data() + r * kBytes, want);
      for (int quad = 0; quad < 4; ++quad) {
        const auto lane = cuda::packed::load_lane<kType>(tile, r, quad);
        for (int step = 0; step < kNumbers / 16; ++step) {
          std::uint32_t pairs[2];
          Block::step(lane, step, quad, pairs);
          if constexpr (Block::kTwoWays) {
            std::uint32_t other[2];
            Block::template step<true>(lane, step, quad, other);
            if (lane.near()) ++near;
            for (int i = 0; i < 2 && lane.near(); ++i)  // but for the sign of zero
              ASSERT_EQ(as_floats(other[i]), as_floats(pairs[i])) << to_string(kType) << " row " << r << " step " << step;
          }
          for (int i = 0; i < 4; ++i) {
            BFloat16 got;
            got.bits = static_cast<std::uint16_t>(pairs[i / 2] >> (i % 2 * 16));
            const int k = cuda::packed::place(step, quad, i);
            ASSERT_EQ(static_cast<float>(got), static_cast<float>(BFloat16(want[static_cast<std::size_t>(k)])))
                << to_string(kType) << " row " << r << " number " << k;
          }
        }
      }
    }
  }
};

TEST(PackedBlocks, AreTheSameNumbers) {
  Draw draw(1);
  for (const DType dtype : {DType::kQ8_0, DType::kQ4_0, DType::kQ5_0, DType::kQ4_K, DType::kQ5_K, DType::kQ6_K})
    cuda::packed::with_block(dtype, [&]<DType kType>() {
      Tile<kType> tile;
      for (int i = 0; i < 100; ++i) {
        i % 2 ? tile.any(draw) : tile.quantized(draw);
        tile.check();
      }
      if (cuda::packed::Block<kType>::kTwoWays) {
        EXPECT_GT(tile.near, 10000) << to_string(kType);
      }
    });
}

// A tile has the bytes of its rows' blocks, so that a matrix takes as much memory as in a file.
TEST(PackedBlocks, TakeAsManyBytes) {
  for (const DType dtype : {DType::kQ8_0, DType::kQ4_0, DType::kQ5_0, DType::kQ4_K, DType::kQ5_K, DType::kQ6_K})
    cuda::packed::with_block(dtype, [&]<DType kType>() {
      EXPECT_EQ(static_cast<std::size_t>(kTileBytes<kType>), kTileRows * block_of(kType).bytes);
      EXPECT_EQ(cuda::packed::Block<kType>::kNumbers, block_of(kType).numbers);
      EXPECT_EQ(kTileBytes<kType> % 16, 0);
    });
}

}  // namespace
}  // namespace dsmoe::test
