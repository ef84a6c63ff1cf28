// The functions of src/ops/cpu/amx.h with numbers of tiles that are known when they run, and the configuration as bytes.
#pragma once

#include <gtest/gtest.h>

#include <utility>

#include "dsmoe/tensor.h"
#include "support/amx_emulator.h"
#include "support/amx_model.h"
#include "support/random_tensor.h"

namespace dsmoe::test {

#include "ops/cpu/amx.h"

template <std::size_t... kTile>
void load_tile(Index tile, const void* from, Index stride, std::index_sequence<kTile...>) {
  static_cast<void>(((tile == Index{kTile} ? (tile_load<kTile>(from, stride), true) : false) || ...));
}
template <std::size_t... kTile>
void store_tile(Index tile, void* to, Index stride, std::index_sequence<kTile...>) {
  static_cast<void>(((tile == Index{kTile} ? (tile_store<kTile>(to, stride), true) : false) || ...));
}
template <std::size_t... kTile>
void zero_tile(Index tile, std::index_sequence<kTile...>) {
  static_cast<void>(((tile == Index{kTile} ? (tile_zero<kTile>(), true) : false) || ...));
}
inline constexpr std::make_index_sequence<8> kAllTiles;

inline void load_tile(Index tile, const model::Tile& from) { load_tile(tile, from.data.data(), from.bytes, kAllTiles); }
inline model::Bytes stored(Index tile, const model::Tile& shape) {
  model::Tile to(shape.rows, shape.bytes);
  store_tile(tile, to.data.data(), to.bytes, kAllTiles);
  return to.data;
}

inline model::Bytes bytes_of(const TileConfig& config) {
  const auto* const from = reinterpret_cast<const std::uint8_t*>(&config);
  return {from, from + sizeof config};
}
inline model::Bytes stored_config() {
  model::Bytes to(64, 0xee);
  asm volatile("sttilecfg (%0)" : : "r"(to.data()) : "memory");
  return to;
}

inline TileConfig random_config(Draw& draw) {
  TileConfig config;
  for (int t = 0; t < 8; ++t)
    config.set(t, static_cast<int>(draw.between(1, 16)), static_cast<int>(4 * draw.between(1, 16)));
  return config;
}

class AmxTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!emulate_amx()) GTEST_SKIP() << "no AMX, and it cannot be emulated here";
  }
  void TearDown() override {
    if (emulate_amx()) tiles_release();
  }
};

}  // namespace dsmoe::test
