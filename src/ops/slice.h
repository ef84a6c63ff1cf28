// A batch concatenates the tokens of several sequences: a slice is the rows of one of them.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "dsmoe/context.h"
#include "dsmoe/tensor.h"

namespace dsmoe::ops {

namespace cuda {
struct SliceTables;  // ops/cuda/slices.h
}

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

// Room for the tables of batches that have so many rows, each of another sequence, and at most so many keys together. A
// pass that is captured once for such tables serves every batch that they are filled with.
struct SliceRoom {
  Index rows = 0, keys = 0;
};

// The slices of one batch, as ops take them. For a GPU they are in its memory, too: placed() copies them there once for all
// layers.
class Slices {
 public:
  Slices(std::span<const Slice> slices) : slices_(slices) {}
  Slices(const std::vector<Slice>& slices) : slices_(slices) {}
  Slices(const Slice* first, std::size_t count) : slices_(first, count) {}
  template <std::size_t kCount>
  Slices(const Slice (&slices)[kCount]) : slices_(slices) {}

  auto begin() const { return slices_.begin(); }
  auto end() const { return slices_.end(); }
  std::size_t size() const { return slices_.size(); }
  bool empty() const { return slices_.empty(); }
  const Slice& operator[](std::size_t i) const { return slices_[i]; }
  const Slice& front() const { return slices_.front(); }
  const Slice& back() const { return slices_.back(); }

  const cuda::SliceTables& tables() const;  // an Error unless placed on a GPU; ops/cuda/slices.cpp

 private:
  friend Slices placed(Context& ctx, std::span<const Slice> slices);
  friend Slices reserved(Context& ctx, const SliceRoom& room);
  friend void fill(Context& ctx, Slices& to, std::span<const Slice> slices);
  std::span<const Slice> slices_;
  std::shared_ptr<cuda::SliceTables> tables_;
};

Slices reserved(Context& ctx, const SliceRoom& room);                // on a GPU only
void fill(Context& ctx, Slices& to, std::span<const Slice> slices);  // `slices` must stay
// The keys of these slices, each sequence's rounded up to what attention takes at a time.
Index keys_of(std::span<const Slice> slices);

// The slices where the Context's work runs. They refer to `slices`, which must stay.
Slices placed(Context& ctx, std::span<const Slice> slices);

namespace cuda {
std::shared_ptr<SliceTables> make_tables(Context& ctx, std::span<const Slice> slices);
std::shared_ptr<SliceTables> reserve_tables(Context& ctx, const SliceRoom& room);
void fill_tables(Context& ctx, SliceTables& tables, std::span<const Slice> slices);
Index keys_of(std::span<const Slice> slices);
}  // namespace cuda

}  // namespace dsmoe::ops
