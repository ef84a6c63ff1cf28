// The dispatch plan on the device: which rows each expert gets. Rows are sorted by expert (shared experts first),
// then by token, so the order is the same on every run.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/cuda/moe_layer.h"

namespace dsmoe::cuda {

// Rows of one token tile of the Hopper kernels, at most.
inline constexpr int kTokenTile = 256;
// Tokens whose experts one block of the gate counts.
inline constexpr int kGateTokens = 32;

struct Plan {
  std::int32_t* row_offset;   // [S + E + 1] first row of each expert
  std::int32_t* tile_offset;  // [S + E + 1] token tiles of the experts before
  std::int32_t* row_token;    // [R]
  float* row_weight;          // [R] 1 for shared experts
  std::int32_t* token_row;    // [T, K] the row of each chosen expert
};

std::size_t plan_layout(const Problem& problem, char* base, Plan* plan);

}  // namespace dsmoe::cuda
