// The main of tests that run on instructions that this processor may lack: DSMOE_CPU_ISA=amx is emulated where it is not
// there, as long as everything else of that set is.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <string_view>

#include "core/cpu.h"
#include "support/amx_emulator.h"

int main(int argc, char** argv) {
  const char* const set = std::getenv("DSMOE_CPU_ISA");
  dsmoe::CpuFeatures features = dsmoe::cpu_features();
  if (set != nullptr && std::string_view(set) == "amx" && !features.amx && features.avx512_bf16 && features.avx512_vnni &&
      dsmoe::test::emulate_amx()) {
    features.amx = true;
    dsmoe::assume_cpu_features(features);
    fmt::print("AMX is emulated.\n");
  }
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
