#include "ops/cpu/kernels.h"

#include <cstdlib>
#include <string_view>

#include "core/cpu.h"
#include "core/fail.h"

namespace dsmoe::cpu {

namespace generic {
const KernelTable& table();
}
#if defined(__x86_64__)
namespace avx2 {
const KernelTable& table();
}
namespace avx512 {
const KernelTable& table();
}
namespace avx512bf16 {
const KernelTable& table();
}
#endif

int available_kernels(const KernelTable** tables, int capacity) {
  int n = 0;
  const auto add = [&](const KernelTable& table) {
    if (n < capacity) tables[n++] = &table;
  };
#if defined(__x86_64__)
  if (cpu_features().avx512_bf16) add(avx512bf16::table());
  if (cpu_features().avx512) add(avx512::table());
  if (cpu_features().avx2) add(avx2::table());
#endif
  add(generic::table());
  return n;
}

namespace {

const KernelTable& choose() {
  const KernelTable* tables[8];
  const int n = available_kernels(tables, 8);
  const char* wanted = std::getenv("DSMOE_CPU_ISA");
  if (wanted == nullptr || *wanted == '\0') return *tables[0];
  std::string names;
  for (int i = 0; i < n; ++i) {
    if (std::string_view(tables[i]->name) == wanted) return *tables[i];
    names += (i ? ", " : "") + std::string(tables[i]->name);
  }
  fail(ErrorCode::kUnsupported, "DSMOE_CPU_ISA={} cannot run here; this processor and build offer: {}", wanted, names);
}

}  // namespace

const KernelTable& kernels() {
  static const KernelTable& table = choose();
  return table;
}

}  // namespace dsmoe::cpu
