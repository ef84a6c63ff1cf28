// Compiled with the flags of avx512 (see CMakeLists.txt).
#include <immintrin.h>

#include "ops/cpu/kernels.h"

namespace dsmoe::cpu::avx512 {
namespace {
#include "ops/cpu/simd_avx512.h"
// clang-format off
#include "ops/cpu/kernels_impl.h"
// clang-format on
}  // namespace

const KernelTable& table() { return kTable; }

}  // namespace dsmoe::cpu::avx512
