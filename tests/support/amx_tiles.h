// The tile registers of one thread, and what each instruction does with them: palette 1 of Intel's manual, volume 1,
// chapter "Programming with Intel AMX", and the pseudocode and classes of exceptions of volume 2.
#pragma once

#include <cstdint>

namespace dsmoe::test {

inline constexpr int kTiles = 8, kTileRows = 16, kTileRowBytes = 64;

// As LDTILECFG reads it and STTILECFG writes it.
struct TileLayout {
  std::uint8_t palette, start_row, reserved[14];
  std::uint16_t bytes[kTiles];  // of a row; 0 with rows = 0: not in use
  std::uint8_t reserved_for_bytes[16];
  std::uint8_t rows[kTiles];
  std::uint8_t reserved_for_rows[8];
};
static_assert(sizeof(TileLayout) == 64);

using Tile = std::uint8_t[kTileRows][kTileRowBytes];  // what lies outside of the layout is zero

// All zero is the state before the first LDTILECFG and after TILERELEASE. The names of instructions are for messages.
struct Tiles {
  alignas(64) Tile tile[kTiles];
  TileLayout layout;

  void load_config(const void* from);
  void store_config(void* to) const;
  void release();
  void zero(const char* name, int t);
  void load(const char* name, int t, std::uintptr_t from, std::uintptr_t stride);
  void store(const char* name, int t, std::uintptr_t to, std::uintptr_t stride);

  // Tile c gets more: of bytes, or of pairs of bf16.
  void dot_bytes(const char* name, int c, int a, int b, bool a_is_signed, bool b_is_signed);
  void dot_bf16(const char* name, int c, int a, int b);

 private:
  void check(const char* name, int t) const;
  void check_rows(const char* name, int t) const;
  void check_shapes(const char* name, int c, int a, int b) const;
  void end_product(int c);
};

}  // namespace dsmoe::test
