#include "ops/cpu/kernels.h"

#include <cstdlib>
#include <string_view>

#include "core/cpu.h"
#include "core/fail.h"
#include "ops/cpu/quant_kernels.h"

namespace dsmoe::cpu {

namespace generic {
const KernelTable& table();
const QuantKernels& quant_table();
}  // namespace generic
#if defined(__x86_64__)
namespace avx2 {
const KernelTable& table();
const QuantKernels& quant_table();
}  // namespace avx2
namespace avxvnni {
const QuantKernels& quant_table();
}
namespace avx512 {
const KernelTable& table();
const QuantKernels& quant_table();
}  // namespace avx512
namespace avx512vnni {
const QuantKernels& quant_table();
}
namespace avx512bf16 {
const KernelTable& table();
}
namespace amx {
KernelTable with_tiles(const KernelTable& without);
QuantKernels quant_with_tiles(const QuantKernels& without);
}  // namespace amx
#endif

namespace {

struct Available {
  KernelTable table[7];
  QuantKernels tiles = {};  // those of AMX
  int count = 0;

  Available() {
    const auto add = [&](const KernelTable& t, const QuantKernels& quant, const char* name) {
      table[count] = t;
      table[count].quant = &quant;
      table[count++].name = name;
    };
#if defined(__x86_64__)
    const CpuFeatures& cpu = cpu_features();
    if (cpu.amx) {
      tiles = amx::quant_with_tiles(avx512vnni::quant_table());
      add(amx::with_tiles(avx512bf16::table()), tiles, "amx");
      table[0].without_tiles = &table[1];
    }
    if (cpu.avx512_bf16)
      add(avx512bf16::table(), cpu.avx512_vnni ? avx512vnni::quant_table() : avx512::quant_table(), "avx512bf16");
    if (cpu.avx512_vnni) add(avx512::table(), avx512vnni::quant_table(), "avx512vnni");
    if (cpu.avx512) add(avx512::table(), avx512::quant_table(), "avx512");
    if (cpu.avx_vnni) add(avx2::table(), avxvnni::quant_table(), "avxvnni");
    if (cpu.avx2) add(avx2::table(), avx2::quant_table(), "avx2");
#endif
    add(generic::table(), generic::quant_table(), "generic");
  }
};

}  // namespace

int available_kernels(const KernelTable** tables, int capacity) {
  static const Available available;
  int n = 0;
  for (; n < available.count && n < capacity; ++n) tables[n] = &available.table[n];
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
