// Products of whole tiles, [rows, 64 bytes] += [rows, 4 * depth bytes] [depth, 64 bytes], with AVX2 and FMA.
#pragma once

#include "support/amx_tiles.h"

namespace dsmoe::test {

// Four products of bytes, signed (s) or not (u), are added to each of 16 whole numbers per row, which wrap around.
void product_ss(Tile& c, const Tile& a, const Tile& b, int rows, int depth);
void product_su(Tile& c, const Tile& a, const Tile& b, int rows, int depth);
void product_us(Tile& c, const Tile& a, const Tile& b, int rows, int depth);
void product_uu(Tile& c, const Tile& a, const Tile& b, int rows, int depth);

void product_bf16(Tile& c, const Tile& a, const Tile& b, int rows, int depth);

}  // namespace dsmoe::test
