// Tile instructions as the assembler writes them, each as a function: with every register and in every form of an address.
#pragma once

#include <span>

#include "dsmoe/tensor.h"

namespace dsmoe::test {

enum class TileAccessKind : Index { kLoad, kLoadT1, kStore, kLoadConfig, kStoreConfig };
enum class TileBase : Index { kRegister, kNone, kStack };

struct TileAccess {
  void (*run)(const void* base, Index index);
  TileAccessKind kind;
  Index tile;
  TileBase base;       // kNone: run() ignores its base; kStack: it puts 8 KB from there on the stack, and takes that
  Index scale;         // of the index; 0: run() ignores it
  Index displacement;  // kNone: the address
};
std::span<const TileAccess> tile_accesses();

inline constexpr std::uintptr_t kLowMemory = 0x20000000;  // around this lie the accesses without a base

enum class TileDot : Index { kSS, kSU, kUS, kUU, kBf16 };

struct TileProduct {
  void (*run)();
  TileDot kind;
  Index c, a, b;
};
std::span<const TileProduct> tile_products();  // of all tiles that may meet

// With addresses relative to the instruction.
void load_nearby_config();
void store_nearby_config();
unsigned char* nearby_config();  // 64 bytes

}  // namespace dsmoe::test
