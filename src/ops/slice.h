// A batch concatenates the tokens of several sequences: a slice is the rows of one of them.
#pragma once

#include <span>

#include "dsmoe/tensor.h"

namespace dsmoe::ops {

// Keys that attention takes at a time, at positions [i * kAttentionTile, (i + 1) * kAttentionTile). Tiles lie at absolute
// positions, so where they are stored cannot change a bit; a page of the KV cache is one tile.
inline constexpr Index kAttentionTile = 256;

// Rows [first_row, first_row + rows) of the batch are the tokens at positions first_position, first_position + 1, ... of
// their sequence.
struct Slice {
  Index first_row = 0;
  Index rows = 0;
  Index first_position = 0;
  // For attention: tile i of the sequence's keys and values begins at row tiles[i] of k and v. Pages of a pool, or, for
  // sequences from position 0 whose keys are in the batch itself, first_row + i * kAttentionTile.
  std::span<const Index> tiles = {};
  // For dynamic rope: the number of positions that the sequence was opened for, the same in all its passes. 0: as many as
  // the model was trained for.
  Index context = 0;

  Index length() const { return first_position + rows; }  // of the sequence, with these rows
  static constexpr Index tiles_of(Index length) { return (length + kAttentionTile - 1) / kAttentionTile; }
};

}  // namespace dsmoe::ops
