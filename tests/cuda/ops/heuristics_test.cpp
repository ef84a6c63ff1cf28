// The choices that depend on sizes: what kernels can take, and the memory bound of training.
#include "ops/cuda/heuristics.h"

#include <gtest/gtest.h>

namespace dsmoe::cuda {
namespace {

constexpr DeviceInfo kHopper{132, 9, 0}, kTuring{68, 7, 5};

TEST(Heuristics, TilesGrowWithTheTokens) {
  int last = 0;
  for (const Index tokens : {1, 2, 3, 384, 385, 1536, 1537, 16384}) {
    const int tile = token_tile(tokens, false);
    EXPECT_GE(tile, last);
    last = tile;
  }
  EXPECT_EQ(token_tile(1, false), kTinyTile);
  EXPECT_EQ(token_tile(1, true), kWideTile) << "backward has wide tiles only";
  EXPECT_TRUE(gathers_first(token_tile(1, true)));
  EXPECT_FALSE(gathers_first(token_tile(1536, false)));
}

TEST(Heuristics, ADenseLayersWeightsAreReadOnceForAFewHundredTokens) {
  for (const Index tokens : {1, 2, 3, 64, 65, 128, 129, 256}) EXPECT_GE(dense_tile(tokens), tokens);
  EXPECT_EQ(dense_tile(1000), kWideTile);
}

// At the shapes of the 16B model: as few rounds over the device as will do.
TEST(Heuristics, TilesOfOneMatrixFillTheDevice) {
  for (const Index rows : {17, 64}) {
    EXPECT_EQ(linear_tile(rows, 6144), LinearTile::kSmall);
    EXPECT_EQ(linear_tile(rows, 2048), LinearTile::kSmall);
  }
  EXPECT_EQ(linear_tile(128, 6144), LinearTile::kSlim);
  EXPECT_EQ(linear_tile(256, 6144), LinearTile::kSquare);
  EXPECT_EQ(linear_tile(256, 2048), LinearTile::kSmall);
  EXPECT_EQ(linear_tile(512, 2048), LinearTile::kSlim);
  EXPECT_EQ(linear_tile(1024, 2048), LinearTile::kSquare);
  for (const Index rows : {512, 4096}) EXPECT_EQ(linear_tile(rows, 6144), LinearTile::kWide);
  EXPECT_EQ(linear_tile(256, 102400), LinearTile::kWide);
}

TEST(Heuristics, SharedExpertsAreCutWhereTheyWouldTakeLongest) {
  EXPECT_EQ(shared_slice(16384, 2, 6 * 16384, 1408, 2048), 16384);  // the 16B shape: not cut
  const int slice = shared_slice(32768, 2, 6 * 32768, 176, 512);
  EXPECT_LT(slice, 8192);
  EXPECT_EQ(slice % 64, 0);
  EXPECT_EQ(shared_slice(100, 1, 600, 64, 64), 128);
  EXPECT_EQ(shared_slice(32768, 1, 0, 1408, 512), linear_slice(32768, 1408, 512));
}

TEST(Heuristics, ColumnPartsBoundTheRowsOfTraining) {
  const Index rows = 16384 * 8;
  EXPECT_EQ(column_parts(rows, 2048, DType::kBF16, true), 2);
  EXPECT_EQ(column_parts(rows, 2048, DType::kBF16, false), 1);
  EXPECT_EQ(column_parts(rows, 2048, DType::kF32, true), 4);
  EXPECT_EQ(column_parts(8, 2048, DType::kBF16, true), 1);
  // A part is a multiple of 256 columns, however large the rows are.
  EXPECT_EQ(column_parts(rows * 100, 2048, DType::kBF16, true), 8);
  EXPECT_EQ(column_parts(rows * 100, 2056, DType::kBF16, true), 1);
  EXPECT_EQ(column_parts(32768 * 8, 1280, DType::kBF16, true), 1);  // two parts would be five blocks each
}

TEST(Heuristics, GateBlocksFitOldDevices) {
  EXPECT_EQ(gate_chunk(kTuring, 16384, 2048, 64, DType::kBF16), 8);
  EXPECT_EQ(gate_chunk(kHopper, 16384, 2048, 64, DType::kBF16), 32);
  EXPECT_EQ(gate_chunk(kHopper, 16384, 2048, 64, DType::kF32), 8);
  EXPECT_EQ(gate_chunk(kHopper, 16384, 2048, 512, DType::kBF16), 8);
  EXPECT_EQ(gate_chunk(kHopper, 1, 2048, 64, DType::kBF16), 8);
}

TEST(Heuristics, OneLaunchHoldsFewTokens) {
  EXPECT_TRUE(routes_in_one_launch(64, 512, 1000));
  EXPECT_FALSE(routes_in_one_launch(65, 512, 1000)) << "a token is a bit of a 64-bit word";
  EXPECT_FALSE(routes_in_one_launch(64, 513, 1000));
  EXPECT_FALSE(routes_in_one_launch(64, 512, 228 * 1024));
}

TEST(Heuristics, SlicesCoverAllTokens) {
  for (const Index tokens : {1, 63, 64, 65, 1000, 1024, 1025, 16384, 100000}) {
    EXPECT_EQ(gate_slice(tokens) % 64, 0);
    EXPECT_GE(static_cast<Index>(gate_slice(tokens)) * gate_slices(tokens), tokens);
    EXPECT_LT(static_cast<Index>(gate_slice(tokens)) * (gate_slices(tokens) - 1), tokens);
    EXPECT_LE(gate_slices(tokens), 16);
  }
}

TEST(Heuristics, AttentionOnTensorCoresWhereItFits) {
  constexpr DeviceInfo kAda{128, 8, 9}, kAmpere{108, 8, 0};
  const auto stages = [](const DeviceInfo& device, Index head_dim, Path wanted) {
    const AttentionKernels use = attention_kernels(device, DType::kBF16, head_dim, wanted);
    EXPECT_EQ(use.mma, use.stages > 0);
    return use.stages;
  };
  EXPECT_EQ(stages(kHopper, 128, Path::kAuto), 2);
  EXPECT_EQ(stages(kAmpere, 128, Path::kAuto), 2);
  EXPECT_EQ(stages(kAda, 128, Path::kAuto), 1) << "a block has 99 KiB";
  EXPECT_EQ(stages(kAda, 64, Path::kAuto), 2);
  EXPECT_EQ(stages(kHopper, 128, Path::kMma), 1);
  EXPECT_EQ(stages(kHopper, 128, Path::kPlain), 0);
  EXPECT_EQ(stages(kHopper, 40, Path::kAuto), 0);
  EXPECT_EQ(stages(kTuring, 128, Path::kAuto), 0);
  EXPECT_FALSE(attention_kernels(kHopper, DType::kF32, 128, Path::kAuto).mma);
}

TEST(Heuristics, AttentionBackward) {
  EXPECT_TRUE(attention_backward_on_hopper(kHopper, DType::kBF16, 128, Path::kAuto));
  EXPECT_TRUE(attention_backward_on_hopper(kHopper, DType::kBF16, 64, Path::kHopper));
  EXPECT_FALSE(attention_backward_on_hopper(kHopper, DType::kBF16, 64, Path::kMma));
  EXPECT_FALSE(attention_backward_on_hopper(kHopper, DType::kBF16, 96, Path::kAuto));
  EXPECT_FALSE(attention_backward_on_hopper(kHopper, DType::kF32, 128, Path::kAuto));
  EXPECT_EQ(grad_heads(std::size_t{1} << 26, 16), 16);
  EXPECT_EQ(grad_heads(std::size_t{1} << 28, 16), 5);
  EXPECT_EQ(grad_heads(std::size_t{1} << 33, 16), 1);
  EXPECT_EQ(grad_band(16384, 128), 3);
  EXPECT_EQ(grad_band(1 << 20, 128), 1);
}

}  // namespace
}  // namespace dsmoe::cuda
