#include "support/amx_emulator.h"

#include <gtest/gtest.h>

#include <chrono>
#include <vector>

#include "dsmoe/tensor.h"

namespace dsmoe::test {
namespace {
#include "ops/cpu/amx.h"

TEST(AmxEmulator, Smoke) {
  ASSERT_TRUE(emulate_amx());
  TileConfig config;
  config.set(0, 16, 64).set(1, 16, 64).set(2, 16, 64);
  tiles_configure(config);
  std::vector<signed char> a(1024, 3), b(1024, -2);
  std::vector<int> c(256);
  tile_zero<0>();
  tile_load<1>(a.data(), 64);
  tile_load<2>(b.data(), 64);
  tile_dot_int8<0, 1, 2>();
  tile_store<0>(c.data(), 64);
  tiles_release();
  EXPECT_EQ(c[255], -384);
  tiles_configure(config);
  for (int what = 0; what < 4; ++what) {
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < 100000; ++i) {
      if (what == 0) tile_zero<0>();
      if (what == 1) tile_load<1>(a.data(), 64);
      if (what == 2) tile_dot_int8<0, 1, 2>();
      if (what == 3) tile_dot_bf16<0, 1, 2>();
    }
    const double s = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    std::printf("%d: %.0f ns\n", what, s * 1e9 / 100000);
  }
  tiles_release();
}

}  // namespace
}  // namespace dsmoe::test
