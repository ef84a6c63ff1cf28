// How repacked weights (repack.h) lie in memory.
//
// A group of 32 rows is read from its begin to its end:
//
//   heads    f16 scales of 256 numbers (then minimums) of 32 rows, for the types that have them
//   entries  of every block of 32 numbers, in the order of ChainOrder, each
//     scales   f16 of 32 rows; six bits of scale and minimum; or signed bytes of the first half, and of the second
//     codes    lines of 16 rows by 4 numbers, rows 0 to 15 and then 16 to 31 of each line: four units of four numbers, each
//              with the unit 16 numbers further on in its upper halves; eight units in Q8_0. Then fifth bits, a word of 64
//              for each unit and half of the rows, or the upper two bits of four units in a line
#pragma once

#include "dsmoe/tensor.h"
#include "ops/quant_blocks.h"

namespace dsmoe::ops {

inline constexpr Index kRepackedRows = 32;

// Bytes of 32 rows: codes and scales of a block of 32 numbers, and the head of 256 numbers.
template <class Block>
struct Repacked;
template <>
struct Repacked<BlockQ8_0> {
  static constexpr Index kCodes = 1024, kScales = 64, kHead = 0;
};
template <>
struct Repacked<BlockQ4_0> {
  static constexpr Index kCodes = 512, kScales = 64, kHead = 0;
};
template <>
struct Repacked<BlockQ5_0> {
  static constexpr Index kCodes = 512 + 128, kScales = 64, kHead = 0;
};
template <>
struct Repacked<BlockQ4_K> {
  static constexpr Index kCodes = 512, kScales = 48, kHead = 128;
};
template <>
struct Repacked<BlockQ5_K> {
  static constexpr Index kCodes = 512 + 128, kScales = 48, kHead = 128;
};
template <>
struct Repacked<BlockQ6_K> {
  static constexpr Index kCodes = 512 + 256, kScales = 64, kHead = 64;
};

// Of an entry, and of all heads of rows of `blocks` blocks of 32 numbers.
template <class Block>
inline constexpr Index kRepackedEntry = Repacked<Block>::kScales + Repacked<Block>::kCodes;
template <class Block>
Index repacked_heads(Index blocks) {
  return blocks / 8 * Repacked<Block>::kHead;
}

}  // namespace dsmoe::ops
