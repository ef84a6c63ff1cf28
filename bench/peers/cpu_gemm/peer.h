// One matrix library: y[m, n] = x[m, k] · w[n, k]ᵀ, single-threaded, row-major.
#pragma once

#include <cstdint>

namespace peer {

extern const char* const kName;
extern const bool kHasBf16;

void sgemm_nt(int m, int n, int k, const float* x, const float* w, float* y);
void bgemm_nt(int m, int n, int k, const std::uint16_t* x, const std::uint16_t* w, float* y);  // bf16 in, f32 out

}  // namespace peer
