// Blocks of q8_0 in the KV cache, byte by byte those of the CPU (ops/quant_blocks.h): rows of 32 numbers are quantized by a
// warp, by the formula of ops/quantize.cpp.
#pragma once

#include <cuda_fp16.h>

#include <cmath>
#include <cstdint>

#include "ops/quant_blocks.h"

namespace dsmoe::cuda {

using ops::BlockQ8_0;

// The number of index i in a row of blocks, exactly: a half times eight bits fits f32.
__device__ __forceinline__ float value_of(const BlockQ8_0* blocks, std::size_t i) {
  const BlockQ8_0& b = blocks[i / BlockQ8_0::kNumbers];
  const float scale = __half2float(*reinterpret_cast<const __half*>(b.scale));  // blocks lie at even addresses
  return __fmul_rn(scale, static_cast<float>(b.q[i % BlockQ8_0::kNumbers]));
}

// A lane has one number. The CPU refuses numbers that are not finite or too large for the scale; here the scale becomes
// NaN, so that all that is computed with them is, and whoever looks at it says so.
__device__ __forceinline__ void store_block(float x, BlockQ8_0* to) {
  constexpr float kLargestHalf = 65504;
  const int lane = threadIdx.x % 32;
  float largest = fabsf(x);
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, distance));
  const float scale = __fdiv_rn(largest, 127.0f), inverse = scale == 0 ? 0 : __frcp_rn(scale);
  const float q = __fmul_rn(x, isfinite(inverse) ? inverse : 0);
  to->q[lane] = static_cast<std::int8_t>(isfinite(q) ? roundf(q) : 0);
  const bool right = __all_sync(~0u, isfinite(x) && scale <= kLargestHalf);
  if (lane == 0) *reinterpret_cast<__half*>(to->scale) = right ? __float2half_rn(scale) : __ushort_as_half(0x7fff);
}

}  // namespace dsmoe::cuda
