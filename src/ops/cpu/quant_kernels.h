// Products of rows that are rounded to 8 bits with matrices in GGUF's blocks.
//
// A row is cut into blocks of 32 numbers, x = scale * q with q in [-127, 127]. The product of a block with a weight block
// is an integer, exact on every processor, times two scales. What fixes the bits of a sum over K: 16 chains, where chain c
// takes the blocks c, c + 16, c + 32, ... in order,
//
//   chain = fma(float(integer), weight scale * row scale, chain)    and, for types with minimums,
//   chain = fma(-weight minimum, row scale * sum of q, chain)       (a type with scales of 16 numbers: twice the first)
//
// and the chains added in order. So a row's result does not depend on the other rows, nor on the kernel: 16 blocks that
// are neighbours in memory fill a vector when few rows are computed straight from the file's blocks (`few`), and for many
// rows the weights are unpacked to panels, chain by chain (`pack` and `tile`).
#pragma once

#include <cstdint>

#include "ops/chain_order.h"
#include "ops/cpu/kernels.h"
#include "ops/cpu/masked.h"

namespace dsmoe::cpu {

inline constexpr Index kQuantBlock = 32;  // numbers
using ops::ChainOrder;                    // of a row of ActivationBlocks, of a panel, and of repacked weights
using ops::kQuantChains;                  // and blocks of a chunk
inline constexpr int kQuantFewRows = 4;
inline constexpr int kRepackedTile = 4;
inline constexpr Index kMixedRows = 128;  // the most of one product: they stay in the second-level cache
inline constexpr int kQuantTypes = 6;     // in the order of DType, from kQ8_0

// 16 blocks of a row for `few`. Block b = 4j + i of them has numbers 0-15 in q[0][i][j] and 16-31 in q[1][i][j]: a vector
// of 64 bytes meets four weight blocks of which each fills a quarter.
struct alignas(64) ActivationChunk {
  std::int8_t q[2][4][4][16];
  float scale[16];
  std::int32_t start[16];          // -128 * sum of q: codes of weights have no sign
  float total[16];                 // scale * sum of q
  std::int32_t start_half[2][16];  // start of either half
};
inline Index activation_chunks(Index k) { return (k / kQuantBlock + kQuantChains - 1) / kQuantChains; }

// One block of a row for `tile`, a cache line; blocks lie in the order in which tiles read them, chain after chain.
struct alignas(64) ActivationBlock {
  std::int8_t q[32];
  float scale;
  std::int32_t start;
  float total;
  std::int32_t start_half[2];
};

// From one row of blocks to the next: an odd number of lines, since rows a power of two apart share few places in a cache.
inline Index activation_stride(Index k) { return k / kQuantBlock | 1; }

// What a tile multiplies: rows of ActivationBlocks, or what `arrange` made of them all.
struct TileRows {
  const ActivationBlock* const* row = nullptr;
  const char* arranged = nullptr;
};

// Memory that will be read next, to be fetched meanwhile: `lines` cache lines per block of a tile.
struct FetchAhead {
  const char* begin = nullptr;
  const char* end = nullptr;
  int lines = 0;
};

// How `few` fetches: so many bytes ahead of what it reads, and where reading goes on afterwards (may be null).
struct StreamAhead {
  Index distance;
  const char* next = nullptr;
};

struct QuantType {
  // c[m, n] for m <= kQuantFewRows rows and n weight rows that lie `row_bytes` apart.
  void (*few)(Index blocks, const ActivationChunk* const* rows, int m, const char* w, Index row_bytes, Index n, float* c,
              Index ldc, StreamAhead stream);
  // Of repacked weights (ops/repack.h): the same for m <= repacked_mr rows and n weight rows, a multiple of 32.
  void (*repacked)(Index blocks, const ActivationBlock* const* rows, int m, const char* w, Index n, float* c, Index ldc,
                   StreamAhead stream);
  // The same for m <= kRepackedTile of many rows and one group of 32 weight rows, where that is faster than a panel; else
  // null.
  void (*repacked_tile)(Index blocks, const ActivationBlock* const* rows, int m, const char* w, float* c, Index ldc,
                        FetchAhead ahead);
  // n <= nr weight rows to a panel, see panel_bytes(); rows past n hold anything.
  void (*pack)(Index blocks, const char* w, Index row_bytes, int n, char* panel);
  // The same of nr rows of a repacked group of 32, from row 16 * half on.
  void (*pack_repacked)(Index blocks, const char* group, int half, char* panel);
  // c[m, n] for m <= mr rows: the chains [first, last), added to c unless first is 0. A few chains of a panel at a time
  // stay in the nearest cache for all rows.
  void (*tile)(Index blocks, int first, int last, TileRows rows, int m, const char* panel, float* c, Index ldc, int n,
               FetchAhead ahead);
};

struct QuantKernels {
  const char* name;
  int mr, nr, repacked_mr;
  // k is a multiple of 32; either form may be null. NaN and infinity give scale NaN.
  void (*quantize)(Index k, const float* x, ActivationChunk* chunks, ActivationBlock* blocks);
  QuantType type[kQuantTypes];
  void (*widen_f16)(Index n, const std::uint16_t* x, float* y);
  void (*widen_q8_0)(Index blocks, const void* x, float* y);  // the numbers of GGUF's Q8_0 blocks, exactly
  double (*peak)(Index rounds, float* sink);                  // as KernelTable::peak_f32, for products of 8-bit integers

  // Where tiles take rows in an order of their own, else null: m <= mr rows to arranged_bytes() of memory.
  void (*arrange)(Index blocks, const ActivationBlock* const* rows, int m, char* to) = nullptr;

  Index arranged_bytes(Index blocks, Index m) const {
    return arrange ? (m + 15) / 16 * 16 * blocks * (kQuantBlock + 2 * 4) : 0;
  }
  Index panel_bytes(Index blocks) const { return blocks * nr * (kQuantBlock + 2 * 4); }
};

}  // namespace dsmoe::cpu
