// Products of bf16 on processors that multiply tiles. The order of a sum is the processor's own: of every 32 numbers
// along k the even ones are one chain and the odd ones another, and their sum is added to the block's. So the bits are not
// those of other kernels, and every product of a processor with tiles is computed by them, however few its rows.
//
// A tile of 16 lines lies as it does in memory: 16 rows of 64 bytes along k. It meets panels as in kernels.h, of up to 16
// columns: row p holds unit p of each.
#pragma once

#include "ops/cpu/kernels.h"

namespace dsmoe::cpu {

inline constexpr int kTileLines = 16;
inline constexpr int kTileDepth = 32;  // numbers along k

// 16 lines: bytes from one to the next, and from 32 numbers of them to the next 32.
struct TileLines {
  const void* at;
  Index row, step;
};

// One block of k: `steps` times 32 numbers of up to two tiles of lines and all columns.
struct TileBlock {
  Index steps;
  TileLines lines[2];
  int line_count;               // that are there; a second tile is used with more than 16
  const std::uint32_t* panels;  // of this block
  Index stride;                 // units from panel to panel
  int width;                    // of a panel: what `begin` was told
  int columns;                  // that are there
  float* c;
  Index ldc;
  bool turned;  // c has a row for every column, instead of one for every line
  bool add;     // to what c holds
  Runs ahead;   // fetched meanwhile
};

// The sums of a pair of tiles of lines and a pair of panels. They go to where they belong while the next are computed.
struct alignas(64) TileSums {
  float sum[4][kTileLines][16];
  struct Place {
    float* c;
    Index ldc;
    int lines, columns;
    bool turned, add;
  } place[4];
  int count;
};

struct Bf16Tiles {
  void (*begin)(int width);  // before blocks with panels of this width
  void (*block)(const TileBlock& block, TileSums& pending);
  void (*end)(TileSums& pending);  // puts the last sums where they belong
};

}  // namespace dsmoe::cpu
