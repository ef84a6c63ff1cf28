// Attention over latents: what its two kernels share. A row of the cache, [latent | rope], is the key of all heads, and its
// first numbers are the value. The rule is that of attention_tile.cuh with chains of 36 steps for the scores. Rows of q are
// [token, head]: neighbours in memory, and all of a token's heads have the same keys.
#pragma once

#include "ops/cuda/attention_tile.cuh"
#include "ops/cuda/latent.h"

namespace dsmoe::cuda::latent {

using namespace attention;

inline constexpr int kDim = kLatentKeys, kValues = kLatentValues;
inline constexpr int kGroup = 64,
                     kGroups = kDim / kGroup;  // columns that lie together in shared memory: 128 bytes of a row
static_assert(kDim % kGroup == 0 && kValues % kGroup == 0);

// Of 16 bytes in a group's rows, as the copy engine swizzles them.
__device__ __forceinline__ std::uint32_t place_of(int row, int chunk) {
  return static_cast<std::uint32_t>(row * 128 + ((chunk ^ (row & 7)) << 4));
}

// ---- shared memory by address

__device__ __forceinline__ float load_number(std::uint32_t address) {
  float v;
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(v) : "r"(address) : "memory");
  return v;
}
__device__ __forceinline__ void store_number(std::uint32_t address, float v) {
  asm volatile("st.shared.f32 [%0], %1;" ::"r"(address), "f"(v) : "memory");
}
__device__ __forceinline__ void store_words(std::uint32_t address, const uint4& v) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
               : "memory");
}

// The natural logarithm in one instruction of the special function unit: within 2^-22 of it near 1, as a share of it
// elsewhere.
__device__ __forceinline__ float log_of(float x) {
  float y;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return __fmul_rn(y, 0.693147181f);
}

// Queries [first, first + kRows) of a slice, as rows of q. Those past its end have no key.
struct Queries {
  ops::cuda::SliceEntry slice;
  int heads, first;

  __device__ __forceinline__ int count() const { return slice.rows * heads; }
  __device__ __forceinline__ bool there(int i) const { return first + i < count(); }
  __device__ __forceinline__ int position(int i) const {
    return there(i) ? slice.first_position + (first + i) / heads : -1;
  }
  __device__ __forceinline__ std::size_t row(int i) const {
    return static_cast<std::size_t>(slice.first_row) * heads + first + i;
  }
  __device__ __forceinline__ int length() const { return slice.first_position + slice.rows; }
  // Tiles that the last of so many rows sees.
  __device__ __forceinline__ int tiles(int rows) const {
    return (slice.first_position + (min(first + rows, count()) - 1) / heads) / kTile + 1;
  }
  // The log-sum-exp of row i goes to [H, T].
  __device__ __forceinline__ void store_lse(const AttentionArgs& args, int i, const State& state) const {
    const std::size_t token = static_cast<std::size_t>(slice.first_row) + (first + i) / heads;
    args.lse[static_cast<std::size_t>((first + i) % heads) * args.rows + token] =
        __fmaf_rn(state.max, args.scale, log_of(state.sum));
  }
};

}  // namespace dsmoe::cuda::latent
