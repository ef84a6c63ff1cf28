// The slices of a batch in GPU memory, for kernels: i32 tables in one block, copied there once per pass.
#pragma once

#include <cstdint>

#include "ops/slice.h"

namespace dsmoe::ops::cuda {

struct SliceTables {
  struct alignas(16) Entry {
    std::int32_t first_row, rows, first_position;
    std::int32_t first_tile;  // its tiles begin here in `tiles`
  };

  Tensor block;  // holds all of it
  int rows = 0, slices = 0;
  const std::int32_t* position = nullptr;   // [rows] of each row in its sequence
  const std::int32_t* slice = nullptr;      // [rows] that the row belongs to
  const std::int32_t* cache_row = nullptr;  // [rows] where its key and value are stored
  const Entry* entries = nullptr;           // [slices]
  const std::int32_t* tiles = nullptr;      // the first cache row of every tile of every slice
};

}  // namespace dsmoe::ops::cuda
