// The dispatch plan (ops/gate.h) as kernels see it: sizes and pointers. Rows are sorted by expert (shared experts first),
// then by token, so the order is the same on every run.
#pragma once

#include <cstdint>

#include "dsmoe/tensor.h"
#include "ops/cuda/heuristics.h"

namespace dsmoe::ops {
struct Plan;
}

namespace dsmoe::cuda {

struct Sizes {
  int tokens, width, expert_width;    // T, D, F
  int experts, shared, chosen, rows;  // S + E, S, K, R = T * (S + K)
  int sorted_rows, token_tile;        // of gathered rows; rows of a tile, at most

  int routed() const { return experts - shared; }  // E
};

// Gathered rows of an expert start at a multiple of this, with zeros in between: a step of the products over rows.
inline constexpr int kSortedAlign = 64;

// Up to `token_tile` rows of one expert.
struct alignas(16) TokenTile {
  std::int32_t expert, row, rows, sorted_row;  // sorted_row: the first one's place in gathered rows
};

// Tiles of the routed experts, at most: one more than full ones for each expert.
inline Index most_tiles(Index tokens, Index chosen, Index routed) { return tokens * chosen / kTinyTile + routed; }

struct PlanView {
  std::int32_t* offset;    // [S + E + 1] first row of each expert
  std::int32_t* token;     // [R]
  float* weight;           // [R] 1 for shared experts
  std::int32_t* slot_row;  // [T, K] the row of each chosen expert
  // The token tiles of the routed experts, in order; those of the shared experts follow from the sizes.
  std::int32_t* tile_count;
  TokenTile* tiles;
  // The rows of the routed experts as gather_rows() lays them out.
  std::int32_t* sorted_offset;  // [E + 1]
  std::int32_t* token_sorted;   // [T, K]
};

Sizes sizes_of(const ops::Plan& plan, Index model_width, Index expert_width);
PlanView view_of(const ops::Plan& plan);

}  // namespace dsmoe::cuda
