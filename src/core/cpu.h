// CPU features, detected once.
#pragma once

#include <string>

namespace dsmoe {

struct CpuFeatures {
  bool avx2 = false;         // with FMA and F16C
  bool avx_vnni = false;     // dot products of int8 quadruples in 256 bits
  bool avx512 = false;       // F, BW, DQ, VL
  bool avx512_bf16 = false;  // dot products of bf16 pairs
  bool avx512_vnni = false;  // dot products of int8 quadruples
  bool amx = false;          // tiles of int8 and bf16 products, which the system has let this process use
};

const CpuFeatures& cpu_features();

// For programs that execute in software what the processor lacks, as tests do: what cpu_features() says from now on. To be
// called before anything of the library runs, since kernels are chosen once.
void assume_cpu_features(const CpuFeatures& features);

std::string cpu_name();  // "AMD EPYC ...", or the architecture when the name is unknown

}  // namespace dsmoe
