// Numbers of the two dtypes that activations have, and the choice between them on the host.
#pragma once

#include <cuda_bf16.h>

#include "dsmoe/dtype.h"

namespace dsmoe::cuda {

using bf16 = __nv_bfloat16;

__device__ __forceinline__ float to_float(float v) { return v; }
__device__ __forceinline__ float to_float(bf16 v) { return __bfloat162float(v); }
__device__ __forceinline__ void from_float(float v, float& to) { to = v; }
__device__ __forceinline__ void from_float(float v, bf16& to) { to = __float2bfloat16_rn(v); }

// Of the Hopper kernels: by the special function units.
__device__ __forceinline__ float silu(float g) { return __fdividef(g, 1.0f + __expf(-g)); }

// kCount neighbours that are loaded and stored together.
template <class T, int kCount>
struct alignas(sizeof(T) * kCount) Pack {
  T v[kCount];
};
template <int kCount, class T>
__device__ __forceinline__ Pack<T, kCount> load(const T* from) {
  return *reinterpret_cast<const Pack<T, kCount>*>(from);
}
template <int kCount, class T>
__device__ __forceinline__ void store(const Pack<T, kCount>& pack, T* to) {
  *reinterpret_cast<Pack<T, kCount>*>(to) = pack;
}

// fn(float{}) or fn(bf16{}); ops/ checks that it is one of them.
template <class Fn>
void with_type(DType dtype, Fn&& fn) {
  dtype == DType::kF32 ? fn(float{}) : fn(bf16{});
}

}  // namespace dsmoe::cuda
