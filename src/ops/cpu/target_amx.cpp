// Products of bf16 on AMX tiles; everything else is that of avx512bf16. Compiled with the flags of amx (see
// CMakeLists.txt).
#include <immintrin.h>

#include "ops/cpu/bf16_tiles.h"

namespace dsmoe::cpu::amx {
namespace {
#include "ops/cpu/simd_avx512.h"
// clang-format off
#include "ops/cpu/amx.h"
#include "ops/cpu/bf16_tiles_impl.h"
// clang-format on
}  // namespace

KernelTable with_tiles(const KernelTable& without) {
  KernelTable t = without;
  t.bf16_tiles = &kBf16Tiles;
  t.peak_bf16 = peak_tiles;
  return t;
}

}  // namespace dsmoe::cpu::amx
