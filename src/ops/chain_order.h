// The order in which blocks of 32 numbers are summed: 16 chains, of which chain c takes the blocks c, c + 16, c + 32, ...
// See cpu/quant_kernels.h.
#pragma once

#include "dsmoe/tensor.h"

namespace dsmoe::ops {

inline constexpr Index kQuantChains = 16;

// Where the block `step` of a chain lies where blocks are kept chain after chain.
struct ChainOrder {
  Index whole;  // steps that every chain has
  Index rest;   // chains that have one more

  explicit ChainOrder(Index blocks) : whole(blocks / kQuantChains), rest(blocks % kQuantChains) {}
  Index steps(Index chain) const { return whole + (chain < rest); }
  Index entry(Index chain, Index step) const { return chain * whole + (chain < rest ? chain : rest) + step; }
  Index of(Index block) const { return entry(block % kQuantChains, block / kQuantChains); }
};

}  // namespace dsmoe::ops
