// How attention is cut into blocks of queries and tiles of keys, and how tiles are put together.
#pragma once

#include <bit>
#include <cmath>
#include <type_traits>

#include "ops/attention.h"
#include "ops/cpu/quant_kernels.h"
#include "ops/cpu/tasks.h"
#include "ops/quant_blocks.h"

namespace dsmoe::ops::cpu {

using dsmoe::cpu::KernelTable;

// Prompts are products and single tokens read lines in place; the bits must be the same.
inline const KernelTable& attention_kernels() { return dsmoe::cpu::kernels_of_lines(dsmoe::cpu::kernels()); }

inline constexpr Index kTile = kAttentionTile;
// Rows of one product, a row being one query of one head: enough to make up for packing the keys, few enough that
// little is computed of what the causal mask hides.
inline constexpr Index kBlockRows = 128;

// How the queries of one slice are cut into blocks: queries that are worked on together, with all heads that share their
// keys and values, or part of these heads. Blocks begin at positions that are multiples of `size`, which divides kTile: so
// a block's keys end in the tile of its last query, and every query sees keys of every tile up to that one.
struct Blocking {
  Slice slice;
  Index all, first_head, group, size;  // heads that share keys and values; of these, the ones that are worked on

  Blocking(const AttentionShape& s, const Slice& of, Index part = 0, Index parts = 1)
      : slice(of),
        all(s.heads / s.kv_heads),
        first_head(all * part / parts),
        group(all * (part + 1) / parts - first_head),
        size(static_cast<Index>(std::bit_floor(static_cast<std::uint64_t>(std::max<Index>(1, kBlockRows / group))))) {}

  Index first_block() const { return slice.first_position / size; }
  Index blocks() const { return slice.rows == 0 ? 0 : (slice.length() - 1) / size - first_block() + 1; }
  Index most_rows() const { return std::min(size, slice.rows) * group; }
};

// The rows of one block of one key/value head: row r is query first + r / group of the batch, head first_head + r % group.
struct Rows {
  Index kv_head, first_head, group, position, queries, first;
  const Index* tile_row;  // where each tile begins in k and v

  Rows(const Blocking& b, Index head, Index block)
      : kv_head(head),
        first_head(head * b.all + b.first_head),
        group(b.group),
        position(std::max(b.slice.first_position, (b.first_block() + block) * b.size)),
        queries(std::min(b.slice.length(), (b.first_block() + block + 1) * b.size) - position),
        first(b.slice.first_row + position - b.slice.first_position),
        tile_row(b.slice.tiles.data()) {}

  Index count() const { return queries * group; }
  Index query(Index row) const { return first + row / group; }
  Index head(Index row) const { return first_head + row % group; }
  // Where a row begins in [T, H * head_dim].
  Index offset(Index row, const AttentionShape& s) const { return (query(row) * s.heads + head(row)) * s.head_dim; }
  // Where a tile begins in the keys or values of the head.
  Index tile_offset(Index tile, const AttentionShape& s) const {
    return (tile_row[tile] * s.kv_heads + kv_head) * s.head_dim;
  }
  Index tiles() const { return (position + queries - 1) / kTile + 1; }
  Index keys(Index tile) const { return std::min(kTile, position + queries - tile * kTile); }  // that any row sees
  Index visible(Index row, Index tile) const { return std::min(kTile, position + row / group + 1 - tile * kTile); }
};

// Keys and values are stored as they are computed with (S is T), or narrower: as bf16 or in Q8_0 blocks, for products in
// f32. S is the type of what is stored as one piece.
template <class S>
inline constexpr Index kStoredNumbers = 1;
template <>
inline constexpr Index kStoredNumbers<BlockQ8_0> = BlockQ8_0::kNumbers;

// Where a number is that begins a piece; heads are whole pieces.
template <class S>
const S* stored_at(const S* base, Index number) {
  return base + number / kStoredNumbers<S>;
}
template <class S>
constexpr Index stored_bytes(Index numbers) {
  return numbers / kStoredNumbers<S> * static_cast<Index>(sizeof(S));
}

inline void widen(const KernelTable& kt, Index n, const BFloat16* x, float* y) { dsmoe::cpu::to_f32(kt, n, x, y); }
inline void widen(const KernelTable& kt, Index n, const BlockQ8_0* x, float* y) {
  kt.quant->widen_q8_0(n / BlockQ8_0::kNumbers, x, y);
}

// Lines of keys or values, `stride` numbers apart.
template <class T>
struct KvLines {
  const T* first;
  Index stride;
};

// `count` keys or values of a head from a row of the cache on: where they are, or widened into `wide` [count, head_dim].
template <class T, class S>
KvLines<T> kv_lines(const KernelTable& kt, const AttentionShape& s, const S* base, Index row, Index kv_head, Index count,
                    T* wide) {
  const Index width = s.kv_heads * s.head_dim, number = row * width + kv_head * s.head_dim;
  if constexpr (std::is_same_v<T, S>) {
    return {base + number, width};
  } else {
    for (Index i = 0; i < count; ++i) widen(kt, s.head_dim, stored_at(base, number + i * width), wide + i * s.head_dim);
    return {wide, s.head_dim};
  }
}

// A block of a slice.
struct Block {
  const Blocking* slice;
  Index number;

  Rows rows(Index kv_head) const { return Rows(*slice, kv_head, number); }
};

// The softmax over the keys of some tiles, for the rows of a block. `sum` and `mixed` are multiples of
// e^(scale * largest), which is left out of both.
struct Partial {
  float* largest;  // [rows] of the scores before scaling
  float* sum;      // [rows] of e^(scale * score)
  float* mixed;    // [rows, shape.mixed()]: the values weighted with e^(scale * score)

  static Index floats(Index rows, Index dim) { return rows * (2 + dim); }
  static Partial at(float* memory, Index rows) { return {memory, memory + rows, memory + 2 * rows}; }
};

// Adds the keys of a later tile.
inline void merge(const KernelTable& kt, const AttentionShape& s, Index rows, Partial total, const Partial& next) {
  for (Index r = 0; r < rows; ++r) {
    const float largest = std::max(total.largest[r], next.largest[r]);
    const float keep = std::exp(s.scale * (total.largest[r] - largest));
    const float add = std::exp(s.scale * (next.largest[r] - largest));
    float* const mixed = total.mixed + r * s.mixed();
    kt.scale(s.mixed(), keep, mixed, mixed);
    kt.add_scaled(s.mixed(), add, next.mixed + r * s.mixed(), mixed);
    total.sum[r] = total.sum[r] * keep + next.sum[r] * add;
    total.largest[r] = largest;
  }
}

template <class T>
void finish(const KernelTable& kt, const AttentionShape& s, const Rows& rows, Partial total, T* out, float* lse,
            Index tokens) {
  for (Index r = 0; r < rows.count(); ++r) {
    float* const mixed = total.mixed + r * s.mixed();
    T* const to = out + rows.offset(r, s);
    kt.scale(s.mixed(), 1 / total.sum[r], mixed, mixed);
    from_f32(kt, s.mixed(), mixed, to);
    std::fill(to + s.mixed(), to + s.head_dim, T{});
    if (lse) lse[rows.head(r) * tokens + rows.query(r)] = s.scale * total.largest[r] + std::log(total.sum[r]);
  }
}

// The path for few rows, which is bound by reading the keys and values. The bits are those of the other path.
bool few_rows(const KernelTable& kt, const AttentionShape& s, const Blocking& slice);
// `tokens`: all rows of the batch.
template <class T, class S>
void attention_few_rows(Context& ctx, const AttentionShape& s, std::span<const Block> blocks, const T* q, const S* k,
                        const S* v, T* out, float* lse, Index tokens);

}  // namespace dsmoe::ops::cpu
