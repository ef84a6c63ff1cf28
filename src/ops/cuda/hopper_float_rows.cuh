// f32 outputs of the Hopper products: registers -> staging -> memory in rows of 16-byte chunks. Storing each number from
// its register takes as long as a whole product of a depth of 512.
#pragma once

#include "ops/cuda/ptx.cuh"

namespace dsmoe::cuda::hopper {

// As Staging in hopper_gemm.cuh: 64 rows of 64 floats, swizzled against bank conflicts.
struct FloatStaging {
  static constexpr int kRows = 64, kRowBytes = 256, kChunks = 16;

  __device__ static std::uint32_t offset(int row, int chunk) { return row * kRowBytes + ((chunk ^ (row & 7)) << 4); }

  // `rows` rows to out[row * ld], or added to what is there. `columns`, a multiple of 4, are left of the matrix.
  __device__ __forceinline__ static void copy_out(std::uint32_t staging, float* out, std::size_t ld, int rows, int columns,
                                                  bool accumulate) {
    constexpr int kStep = 128 / kChunks, kBatch = 4;
    const int thread = threadIdx.x % 128, chunk = thread % kChunks;
    if (chunk * 4 >= columns) return;
    out += thread / kChunks * ld + chunk * 4;
#pragma unroll 1
    for (int row = thread / kChunks; row < rows; row += kBatch * kStep, out += kBatch * kStep * ld) {
      float v[kBatch][4];
#pragma unroll
      for (int i = 0; i < kBatch; ++i) ptx::load_shared(v[i], staging + offset(row + i * kStep, chunk));
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        if (row + i * kStep >= rows) break;
        float4* const to = reinterpret_cast<float4*>(out + i * kStep * ld);
        const float4 before = accumulate ? *to : make_float4(0, 0, 0, 0);
        if (accumulate) v[i][0] += before.x, v[i][1] += before.y, v[i][2] += before.z, v[i][3] += before.w;
        *to = make_float4(v[i][0], v[i][1], v[i][2], v[i][3]);
      }
    }
  }
};

// acc (64 output columns of this warpgroup x kN tokens), which lie in registers as wgmma leaves them: lane l of warp w has
// columns 16 w + l / 4 and that + 8 of tokens 8 j + 2 (l % 4) and the next. ld and columns are multiples of 4.
template <int kN>
__device__ __forceinline__ void store_float_rows(const float (&acc)[kN / 2], std::uint32_t staging, int group, float* out,
                                                 std::size_t ld, int rows, int columns, bool accumulate) {
  using Area = FloatStaging;
  const int warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
#pragma unroll
  for (int n0 = 0; n0 < kN; n0 += Area::kRows) {
    if (n0 > 0) ptx::named_barrier_sync(1 + group, 128);
#pragma unroll
    for (int n = n0; n < n0 + Area::kRows && n < kN; n += 8)
#pragma unroll
      for (int v = 0; v < 4; ++v) {
        const int row = n - n0 + lane % 4 * 2 + v % 2, column = warp * 16 + lane / 4 + v / 2 * 8;
        const std::uint32_t to = staging + Area::offset(row, column / 4) + column % 4 * 4;
        asm volatile("st.shared.f32 [%0], %1;" ::"r"(to), "f"(acc[n / 2 + v]) : "memory");
      }
    ptx::named_barrier_sync(1 + group, 128);
    Area::copy_out(staging, out + n0 * ld, ld, min(Area::kRows, rows - n0), columns, accumulate);
  }
  ptx::named_barrier_sync(1 + group, 128);
}

}  // namespace dsmoe::cuda::hopper
