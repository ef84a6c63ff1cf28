// The dispatch plan on the device: which rows each expert gets. Rows are sorted by expert (shared experts first),
// then by token, so the order is the same on every run.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/cuda/moe_layer.h"

namespace dsmoe::cuda {

// Rows of one token tile of the Hopper kernels, at most: wide tiles where the matrix units are the limit, narrow
// ones, with more of the weights in flight, where memory is.
inline constexpr int kWideTile = 256, kMiddleTile = 128, kNarrowTile = 64, kTinyTile = 16;
int token_tile(const Problem& problem, bool training);
// Gathered rows of an expert start at a multiple of this, with zeros in between: a step of the products over rows.
inline constexpr int kSortedAlign = 64;

// Up to `token_tile` rows of one expert.
struct alignas(16) TokenTile {
  std::int32_t expert, row, rows, sorted_row;  // sorted_row: the first one's place in gathered rows
};

struct Plan {
  std::int32_t* row_offset;  // [S + E + 1] first row of each expert
  // The token tiles of the routed experts, in order; those of the shared experts follow from the sizes.
  std::int32_t* tile_count;
  TokenTile* tiles;
  std::int32_t* row_token;  // [R]
  float* row_weight;        // [R] 1 for shared experts
  std::int32_t* token_row;  // [T, K] the row of each chosen expert
  // The rows of the routed experts as gather_rows() lays them out.
  std::int32_t* sorted_offset;  // [E + 1]
  std::int32_t* token_sorted;   // [T, K]
};

inline std::size_t sorted_rows(const Problem& p) {
  return static_cast<std::size_t>(p.tokens * p.config.experts_per_token + p.config.routed_experts * kSortedAlign);
}

std::size_t plan_layout(const Problem& problem, char* base, Plan* plan);

}  // namespace dsmoe::cuda
