// Compiled with the flags of generic (see CMakeLists.txt).
#include "ops/cpu/kernels.h"

namespace dsmoe::cpu::generic {
namespace {
#include "ops/cpu/simd_generic.h"
// clang-format off
#include "ops/cpu/kernels_impl.h"
// clang-format on
}  // namespace

const KernelTable& table() { return kTable; }

}  // namespace dsmoe::cpu::generic
