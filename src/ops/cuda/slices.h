// The slices of a batch in GPU memory, for kernels: i32 tables in one block, copied there once per pass.
#pragma once

#include <array>
#include <cstdint>

#include "ops/slice.h"

namespace dsmoe::ops::cuda {

// Keys that a GPU's attention takes at a time, at positions [i * kKeyTile, (i + 1) * kKeyTile): part of the rule that fixes
// a query's bits (attention_tile.cuh). A tile of the cache holds two.
inline constexpr int kKeyTile = 128;
static_assert(kAttentionTile % kKeyTile == 0);

// The blocks of a slice find out by counters which of them ends last: one for each head.
inline constexpr int kDoneCounters = 128;

struct alignas(16) SliceEntry {
  std::int32_t first_row, rows, first_position;
  std::int32_t first_tile;  // its tiles begin here in `tiles`
};

// What the blocks of attention's kernels work on. Slices of many rows are cut into blocks of queries; those of few rows are
// cut into runs of key tiles. What a slice's first run comes to and the other tiles give is merged afterwards.
struct AttentionWork {
  struct alignas(8) PromptBlock {
    std::int32_t slice, first_row;  // of the slice
  };
  // All that a block needs to ask for its first tile, so that nothing is looked up twice.
  struct alignas(16) DecodeItem {
    std::int32_t slice, tile, tiles;  // the first, and how many
    std::int32_t partial;             // the slice's partial results begin here, if it has several runs
    SliceEntry entry;
    std::int32_t cache_row;  // of the first tile
    std::int32_t unused[3];
  };
  static constexpr int kItemNumbers = sizeof(DecodeItem) / sizeof(std::int32_t);
  struct alignas(16) Counts {
    std::int32_t prompt_blocks, decode_items;
    std::int32_t run;  // tiles of a run, at most
    std::int32_t unused;
  };
  const SliceEntry* entries = nullptr;
  const std::int32_t* tiles = nullptr;
  const PromptBlock* prompt_blocks = nullptr;  // most keys first
  const DecodeItem* decode_items = nullptr;    // most tiles first
  const Counts* counts = nullptr;              // in GPU memory, too: grids may be larger than the lists
  std::uint32_t* done = nullptr;  // [slices, kDoneCounters] zeros: how many blocks of a slice's queries have ended
};

// What the blocks of attention's backward work on: pieces of the slices that begin at position 0.
inline constexpr int kGradRows = 64;                // of a block
inline constexpr int kGradKeys = 2 * kGradRows;     // of a piece of keys
inline constexpr int kGradQueries = 4 * kGradRows;  // of a piece of queries
struct GradWork {
  struct alignas(8) Piece {
    std::int32_t slice, index;  // among the pieces of this size that the slice has
  };
  // How many blocks the slices before this one have, and how many pairs of a block of queries and one of keys up to it.
  struct alignas(8) Start {
    std::int32_t block, pair;
  };
  struct Counts {
    int blocks = 0, keys = 0, queries = 0, pairs = 0;
  };
  const SliceEntry* entries = nullptr;
  const Piece* blocks = nullptr;   // in order
  const Piece* keys = nullptr;     // most queries first
  const Piece* queries = nullptr;  // most keys first
  const Start* starts = nullptr;   // [slices]
  Counts counts;
};

struct SliceTables {
  using Entry = SliceEntry;

  Tensor block, done;  // hold all of it
  int rows = 0, slices = 0;
  const std::int32_t* position = nullptr;   // [rows] of each row in its sequence
  const std::int32_t* slice = nullptr;      // [rows] that the row belongs to
  const std::int32_t* cache_row = nullptr;  // [rows] where its key and value are stored
  const Entry* entries = nullptr;           // [slices]
  const std::int32_t* tiles = nullptr;      // the first cache row of every tile of every slice

  AttentionWork work;
  AttentionWork::Counts counts{};         // of the lists of `work`: how much there is, or room for
  int partial_rows = 0, decode_rows = 0;  // of all decode items; of the largest slice that has them
  GradWork grad;                          // not in reserved tables

  // Where each table lies in the block, in numbers, and how many fit before the next.
  struct Place {
    std::size_t at = 0, size = 0;
  };
  enum Table {
    kPosition,
    kSlice,
    kCacheRow,
    kEntries,
    kTiles,
    kPrompt,
    kDecode,
    kCounts,
    kGradBlocks,
    kGradKeyPieces,
    kGradQueryPieces,
    kGradStarts,
    kTables
  };
  std::array<Place, kTables> places{};
};

}  // namespace dsmoe::ops::cuda
