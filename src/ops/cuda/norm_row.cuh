// The residual sum and RMSNorm of one row by some threads of a block, for kernels that begin with them: the sums of
// rms_norm.cu for rows of 513 to 2048 numbers, whose 256 threads are spread over kThreads.
#pragma once

#include "ops/cuda/norm.h"
#include "ops/cuda/numbers.cuh"
#include "ops/cuda/ptx.cuh"

namespace dsmoe::cuda {

template <int kThreads, class Y>
struct NormRow {
  static constexpr int kSummers = 256, kPer = kSummers / kThreads;  // threads of rms_norm.cu, and for how many one stands
  static constexpr int kPacks = 2, kStep = kSummers * 4;

  // fn(which pack of this thread, its first column)
  template <class Fn>
  static __device__ __forceinline__ void each_pack(const AddNormRow<Y>& row, Fn&& fn) {
#pragma unroll
    for (int v = 0; v < kPer; ++v)
#pragma unroll
      for (int i = 0; i < kPacks; ++i) {
        const int column = (v * kThreads + static_cast<int>(threadIdx.x) % kThreads) * 4 + i * kStep;
        if (column < row.width) fn(v * kPacks + i, column);
      }
  }
  // What is there before the kernel ahead has ended.
  __device__ __forceinline__ void load_weight(const AddNormRow<Y>& row) {
    each_pack(row, [&](int p, int column) { weight_[p] = load<4>(row.weight + column); });
  }
  // put(column, sum, norm) with packs of four. `scratch`: eight floats of shared memory. together(): all threads wait.
  template <class Together, class Put>
  __device__ __forceinline__ void norm(const AddNormRow<Y>& row, float* scratch, Together&& together, Put&& put) const {
    Pack<float, 4> sum[kPer * kPacks];
    Pack<Y, 4> more[kPer * kPacks];
    each_pack(row, [&](int p, int column) {
      sum[p] = load<4>(row.x + column);
      more[p] = load<4>(row.y + column);
    });
    float squares[kPer] = {};
    each_pack(row, [&](int p, int) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        sum[p].v[j] = __fadd_rn(sum[p].v[j], to_float(more[p].v[j]));
        squares[p / kPacks] = fmaf(sum[p].v[j], sum[p].v[j], squares[p / kPacks]);
      }
    });
#pragma unroll
    for (int step = 16; step > 0; step /= 2)
#pragma unroll
      for (int v = 0; v < kPer; ++v) squares[v] += __shfl_xor_sync(~0u, squares[v], step);
#pragma unroll
    for (int v = 0; v < kPer; ++v)
      if (threadIdx.x % 32 == 0) scratch[(v * kThreads + threadIdx.x % kThreads) / 32] = squares[v];
    together();
    float all = 0;
#pragma unroll
    for (int i = 0; i < kSummers / 32; ++i) all += scratch[i];
    const float inverse = __frsqrt_rn(__fadd_rn(__fdiv_rn(all, static_cast<float>(row.width)), row.eps));
    each_pack(row, [&](int p, int column) {
      Pack<bf16, 4> out;
#pragma unroll
      for (int j = 0; j < 4; ++j)
        from_float(__fmul_rn(__fmul_rn(inverse, sum[p].v[j]), to_float(weight_[p].v[j])), out.v[j]);
      put(column, sum[p], out);
    });
  }

 private:
  Pack<bf16, 4> weight_[kPer * kPacks];
};

}  // namespace dsmoe::cuda
