// Compiled with the flags of avx512 (see CMakeLists.txt).
#include <immintrin.h>

#include "ops/cpu/quant_kernels.h"
#include "ops/quant_blocks.h"
#include "ops/repacked_layout.h"

namespace dsmoe::cpu::avx512 {
namespace {
constexpr const char* kName = "avx512";
#include "ops/cpu/quant_simd_avx512.h"
// clang-format off
#include "ops/cpu/quant_types.h"
#include "ops/cpu/quant_pack.h"
#include "ops/cpu/quant_repacked.h"
#include "ops/cpu/quant_impl.h"
// clang-format on
}  // namespace

const QuantKernels& quant_table() { return kQuantTable; }

}  // namespace dsmoe::cpu::avx512
