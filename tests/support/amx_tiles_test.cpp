// What loads, stores and configures tiles: every form of an address, and the state. Where the processor has AMX, nothing is
// emulated: then these tests hold the model against the processor.
#include "support/amx_tiles.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <array>

#include "core/cpu.h"
#include "support/amx_calls.h"
#include "support/amx_instructions.h"

namespace dsmoe::test {
namespace {
using AmxTiles = AmxTest;

// ---- addresses ----

// Memory around a place to which all addresses are near.
struct Arena {
  static constexpr std::size_t kBytes = 1 << 16;
  std::uint8_t* const data;
  const bool mapped;

  explicit Arena(void* at)
      : data(static_cast<std::uint8_t*>(::mmap(at, kBytes, PROT_READ | PROT_WRITE,
                                               MAP_PRIVATE | MAP_ANONYMOUS | (at != nullptr ? MAP_FIXED_NOREPLACE : 0), -1,
                                               0))),
        mapped(data != MAP_FAILED) {}
  ~Arena() {
    if (mapped) ::munmap(data, kBytes);
  }
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  void fill(Draw& draw) {
    for (std::size_t i = 0; i < kBytes; i += 2) {
      const Index two = draw(1 << 16);
      std::memcpy(data + i, &two, 2);
    }
  }
};

// One access with its base and index: where it begins, and how far its rows are apart.
struct Place {
  std::uint8_t* base;
  Index index;
  std::uint8_t* first;
  Index stride;
};

Place random_place(const TileAccess& access, const Arena& arena, Draw& draw) {
  Place place{};
  place.base = arena.data + Arena::kBytes / 2 + draw(64);
  place.index = access.base == TileBase::kStack ? draw(64) : draw.between(-1000, 1000) / std::max<Index>(1, access.scale);
  place.stride = place.index * access.scale;
  const Index displacement = access.displacement - (access.base == TileBase::kNone ? Index{kLowMemory} : 0);
  place.first = (access.base == TileBase::kNone ? arena.data + Arena::kBytes / 2 : place.base) + displacement;
  return place;
}

void try_tile(const TileAccess& access, const Arena& arena, const Place& place, const TileConfig& config) {
  model::Tile tile(config.rows[access.tile], config.bytes[access.tile]);
  if (access.kind != TileAccessKind::kStore) {
    for (int row = 0; row < tile.rows; ++row)
      std::memcpy(&tile.at(row, 0), place.first + row * place.stride, static_cast<std::size_t>(tile.bytes));
    access.run(place.base, place.index);
    ASSERT_EQ(stored(access.tile, tile), tile.data);
    return;
  }
  for (std::size_t i = 0; i < tile.data.size(); ++i) tile.data[i] = static_cast<std::uint8_t>(7 * i + i / 64);
  load_tile(access.tile, tile);
  model::Bytes memory(arena.data, arena.data + Arena::kBytes);
  for (int row = 0; row < tile.rows; ++row)  // a later row over an earlier one
    std::memcpy(&memory[static_cast<std::size_t>(place.first - arena.data) + static_cast<std::size_t>(row * place.stride)],
                &tile.at(row, 0), static_cast<std::size_t>(tile.bytes));
  access.run(place.base, place.index);
  ASSERT_EQ(std::memcmp(arena.data, memory.data(), Arena::kBytes), 0);
}

void try_config(const TileAccess& access, const Place& place, const TileConfig& config) {
  std::uint8_t* const at = place.first + place.stride;  // of one row, so the index is part of the address
  const model::Bytes want = bytes_of(config);
  if (access.kind == TileAccessKind::kLoadConfig) {
    std::memcpy(at, want.data(), 64);
    access.run(place.base, place.index);
    ASSERT_EQ(stored_config(), want);
  } else {
    tiles_configure(config);
    access.run(place.base, place.index);
    ASSERT_EQ(model::Bytes(at, at + 64), want);
  }
}

TEST_F(AmxTiles, EveryFormOfAnAddress) {
  Draw draw(1);
  Arena any(nullptr), low(reinterpret_cast<void*>(kLowMemory - Arena::kBytes / 2));
  ASSERT_TRUE(any.mapped);
  ASSERT_TRUE(low.mapped);
  any.fill(draw), low.fill(draw);
  std::array<Index, 5> tried{};
  for (const TileAccess& access : tile_accesses()) {
    SCOPED_TRACE(::testing::Message() << "access " << &access - tile_accesses().data());
    const Arena& arena = access.base == TileBase::kNone ? low : any;
    const Place place = random_place(access, arena, draw);
    const TileConfig config = random_config(draw);
    if (access.kind == TileAccessKind::kLoadConfig || access.kind == TileAccessKind::kStoreConfig) {
      try_config(access, place, config);
    } else {
      tiles_configure(config);
      try_tile(access, arena, place, config);
    }
    if (HasFatalFailure()) return;
    ++tried[static_cast<std::size_t>(access.kind)];
  }
  for (const Index count : tried) EXPECT_GT(count, 200);
}

TEST_F(AmxTiles, ConfigurationsRelativeToTheInstruction) {
  Draw draw(2);
  const model::Bytes first = bytes_of(random_config(draw));
  std::memcpy(nearby_config(), first.data(), 64);
  load_nearby_config();
  EXPECT_EQ(stored_config(), first);
  const TileConfig second = random_config(draw);
  tiles_configure(second);
  store_nearby_config();
  EXPECT_EQ(model::Bytes(nearby_config(), nearby_config() + 64), bytes_of(second));
}

// ---- state ----

TEST_F(AmxTiles, TilesAreApartAndConfiguringClearsThem) {
  Draw draw(3);
  const TileConfig config = random_config(draw);
  tiles_configure(config);
  std::array<model::Tile, 8> tiles;
  for (int t = 0; t < 8; ++t) {
    tiles[t] = {config.rows[t], config.bytes[t]};
    EXPECT_EQ(stored(t, tiles[t]), tiles[t].data) << "zeros at first";
    for (auto& byte : tiles[t].data) byte = static_cast<std::uint8_t>(draw(256));
    load_tile(t, tiles[t]);
  }
  for (int t = 0; t < 8; ++t) EXPECT_EQ(stored(t, tiles[t]), tiles[t].data);
  for (int gone = 7; gone >= 0; --gone) {
    zero_tile(gone, kAllTiles);
    std::fill(tiles[gone].data.begin(), tiles[gone].data.end(), 0);
    for (int t = 0; t < 8; ++t) EXPECT_EQ(stored(t, tiles[t]), tiles[t].data);
  }
  for (int t = 0; t < 8; ++t) load_tile(t, model::Tile(16, 64));
  tiles_configure(config);
  for (int t = 0; t < 8; ++t) EXPECT_EQ(stored(t, tiles[t]), tiles[t].data);
}

TEST_F(AmxTiles, WithoutConfigurationItIsAllZero) {
  Draw draw(4);
  const model::Bytes zeros(64);
  tiles_configure(random_config(draw));
  EXPECT_NE(stored_config(), zeros);
  tiles_release();
  EXPECT_EQ(stored_config(), zeros);
  tiles_configure(random_config(draw));
  TileConfig none = random_config(draw);
  none.palette = 0;  // then nothing else counts
  none.reserved[3] = 9, none.rows[2] = 200;
  tiles_configure(none);
  EXPECT_EQ(stored_config(), zeros);
}

// As after a page fault in the middle: what is before the first row is kept, which is zero after LDTILECFG.
TEST_F(AmxTiles, TheFirstRow) {
  TileConfig config;
  config.start_row = 3;
  for (int t = 0; t < 3; ++t) config.set(t, 5, 20);
  TileConfig done = config;
  done.start_row = 0;
  model::Tile tile(5, 20);
  for (auto& byte : tile.data) byte = 0xab;

  tiles_configure(config);
  EXPECT_EQ(stored_config(), bytes_of(config));
  load_tile(1, tile);
  EXPECT_EQ(stored_config(), bytes_of(done));
  model::Tile want = tile;
  std::fill(want.data.begin(), want.data.begin() + 60, 0);
  EXPECT_EQ(stored(1, tile), want.data);

  tiles_configure(config);
  want = tile;
  std::fill(want.data.begin() + 60, want.data.end(), 0);
  store_tile(2, tile.data.data(), 20, kAllTiles);
  EXPECT_EQ(tile.data, want.data);
  EXPECT_EQ(stored_config(), bytes_of(done));

  tiles_configure(config);
  zero_tile(0, kAllTiles);
  EXPECT_EQ(stored_config(), bytes_of(done));

  tiles_configure(config);
  tile_dot_int8<0, 1, 2>();
  EXPECT_EQ(stored_config(), bytes_of(done));
}

// No instruction shows this, so the emulator alone is asked.
TEST(AmxTilesInMemory, AreZeroOutsideOfTheirShapes) {
  TileConfig config;
  for (int t = 0; t < 3; ++t) config.set(t, 3, 12);
  const model::Bytes infinities = [] {
    model::Tile all(16, 64);
    for (int row = 0; row < 16; ++row)
      for (int column = 0; column < 16; ++column) all.set_word(row, column, 0x7f807f80);
    return all.data;
  }();
  const auto is_zero_outside = [](const Tile& tile) {
    for (int row = 0; row < kTileRows; ++row)
      for (int byte = row < 3 ? 12 : 0; byte < kTileRowBytes; ++byte)
        if (tile[row][byte] != 0) return false;
    return true;
  };
  Tiles tiles{};
  tiles.load_config(&config);
  for (Tile& tile : tiles.tile) std::memset(tile, 0xff, sizeof tile);
  for (int t = 0; t < 3; ++t) tiles.load("", t, reinterpret_cast<std::uintptr_t>(infinities.data()), 64);
  EXPECT_TRUE(is_zero_outside(tiles.tile[1]));
  EXPECT_EQ(std::memcmp(tiles.tile[1][2], infinities.data(), 12), 0);
  if (!cpu_features().avx2) GTEST_SKIP() << "products need AVX2 and FMA";
  tiles.dot_bf16("", 0, 1, 2);
  EXPECT_TRUE(is_zero_outside(tiles.tile[0]));
  tiles.dot_bytes("", 0, 1, 2, true, true);
  EXPECT_TRUE(is_zero_outside(tiles.tile[0]));
  tiles.tile[0][9][9] = 1;
  tiles.zero("", 0);
  EXPECT_TRUE(is_zero_outside(tiles.tile[0]));
  tiles.tile[5][9][9] = 1;
  tiles.load_config(&config);
  EXPECT_EQ(tiles.tile[5][9][9], 0);
}

}  // namespace
}  // namespace dsmoe::test
