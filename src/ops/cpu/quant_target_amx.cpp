// Products of many rows with quantized weights on AMX tiles. Compiled with the flags of amx (see CMakeLists.txt).
#include <immintrin.h>

#include "ops/cpu/quant_kernels.h"
#include "ops/quant_blocks.h"
#include "ops/repacked_layout.h"

namespace dsmoe::cpu::amx {
namespace {
#include "ops/cpu/quant_simd_avx512.h"
// clang-format off
#include "ops/cpu/quant_types.h"
#include "ops/cpu/quant_pack.h"
#include "ops/cpu/quant_repacked.h"
#include "ops/cpu/amx.h"
#include "ops/cpu/quant_tiles_impl.h"
// clang-format on
}  // namespace

// Everything else is that of the kernels without tiles.
QuantKernels quant_with_tiles(const QuantKernels& without) {
  QuantKernels q = without;
  q.name = "amx";
  q.mr = static_cast<int>(kMixedRows);  // all at once: a call begins and ends with about 220 cycles for the tiles' shapes
  q.nr = kNr;
  q.arrange = arrange;
  q.peak = peak;
  take_over<TypeQ8_0>(q.type[0]), take_over<TypeQ4_0>(q.type[1]), take_over<TypeQ5_0>(q.type[2]);
  take_over<TypeQ4_K>(q.type[3]), take_over<TypeQ5_K>(q.type[4]), take_over<TypeQ6_K>(q.type[5]);
  return q;
}

}  // namespace dsmoe::cpu::amx
