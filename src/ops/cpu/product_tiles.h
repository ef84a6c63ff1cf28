// Products of bf16 by the tiles of bf16_tiles.h: product() where the processor has them.
#pragma once

#include "ops/cpu/product.h"

namespace dsmoe::cpu {

inline constexpr Index kMaxLines = 512;  // lines of one block: elements of k, or columns
static_assert(kMaxCols <= kMaxLines && 2 * kDepth <= kMaxLines);

// Pairs of bf16 to panels: `count` lines along k, or as many elements of `depth` lines across it. Returns the units along
// k.
Index pack_pairs(const KernelTable& kt, const BFloat16* const* line, Lines lines, Index count, Index depth,
                 std::uint32_t* panels, int width, Index stride);

std::size_t tile_scratch();  // bytes

void product_by_tiles(const KernelTable& kt, std::span<const ProductRows<BFloat16>> parts, Index n, Index k,
                      Operand<BFloat16> b, bool accumulate, void* scratch, const void* next);

}  // namespace dsmoe::cpu
