// One grouped-product kernel for every step: an Op says what the operands are and what becomes of a finished tile.
// These are for correctness on every device; the Hopper kernels are the fast ones.
//
// An Op has rows(z) (what block z works on), m_size(rows), n_size(), k_size(rows), a(rows, m, k), b(rows, n, k),
// store(rows, result), and kContiguousM/N: whether m (n) rather than k is the operand's contiguous dimension.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>
#include <type_traits>

#include "dsmoe/tensor.h"
#include "ops/cuda/launch.h"
#include "ops/cuda/numbers.cuh"
#include "ops/cuda/ptx.cuh"

namespace dsmoe::cuda::portable {

inline constexpr int kTile = 64, kDepth = 32, kThreads = 128;

template <class T>
__device__ inline void put(float v, T* out) {
  from_float(v, *out);
}

// Rows [begin, begin + count) of one expert.
struct Rows {
  int expert, begin, count;
};

// A finished 64 x 64 tile in shared memory.
struct Result {
  const float (*tile)[kTile + 1];
  int m0, n0;
};

template <bool kMma>
using Element = std::conditional_t<kMma, bf16, float>;
// Rows are padded against bank conflicts; 8 bf16 keep 4-byte loads aligned.
template <bool kMma>
inline constexpr int kRow = kMma ? kDepth + 8 : kDepth + 1;

template <bool kMma, class Load>
__device__ void fill(Element<kMma> (*tile)[kRow<kMma>], int size, int depth, bool contiguous_depth, Load&& load) {
  for (int i = threadIdx.x; i < kTile * kDepth; i += kThreads) {
    const int r = contiguous_depth ? i / kDepth : i % kTile, k = contiguous_depth ? i % kDepth : i / kTile;
    put(r < size && k < depth ? load(r, k) : 0.0f, &tile[r][k]);
  }
}

// Each thread owns 32 outputs; k ascends one at a time.
struct PlainSum {
  float acc[32] = {};
  __device__ void add(const float (*a)[kRow<false>], const float (*b)[kRow<false>]) {
    const int m = threadIdx.x / 16 * 8, n = threadIdx.x % 16;
    for (int k = 0; k < kDepth; ++k)
#pragma unroll
      for (int i = 0; i < 8; ++i)
#pragma unroll
        for (int j = 0; j < 4; ++j) acc[i * 4 + j] = fmaf(a[m + i][k], b[n + 16 * j][k], acc[i * 4 + j]);
  }
  __device__ void write(float (*c)[kTile + 1]) const {
    const int m = threadIdx.x / 16 * 8, n = threadIdx.x % 16;
#pragma unroll
    for (int i = 0; i < 32; ++i) c[m + i / 4][n + 16 * (i % 4)] = acc[i];
  }
};

// Four warps of 32 x 32.
struct MmaSum {
  float acc[2][4][4] = {};
  __device__ static std::uint32_t pair(const bf16* p) { return *reinterpret_cast<const std::uint32_t*>(p); }
  __device__ void add(const bf16 (*a)[kRow<true>], const bf16 (*b)[kRow<true>]) {
    const int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, c = threadIdx.x % 4 * 2;
    const int m0 = warp / 2 * 32, n0 = warp % 2 * 32;
#pragma unroll
    for (int k = 0; k < kDepth; k += 16) {
      std::uint32_t fa[2][4];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const bf16* low = &a[m0 + i * 16 + g][k + c];
        const bf16* high = &a[m0 + i * 16 + g + 8][k + c];
        fa[i][0] = pair(low), fa[i][1] = pair(high), fa[i][2] = pair(low + 8), fa[i][3] = pair(high + 8);
      }
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const bf16* column = &b[n0 + j * 8 + g][k + c];
#pragma unroll
        for (int i = 0; i < 2; ++i)
          ptx::mma_16816(acc[i][j], fa[i][0], fa[i][1], fa[i][2], fa[i][3], pair(column), pair(column + 8));
      }
    }
  }
  __device__ void write(float (*c)[kTile + 1]) const {
    const int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, col = threadIdx.x % 4 * 2;
#pragma unroll
    for (int i = 0; i < 2; ++i)
#pragma unroll
      for (int j = 0; j < 4; ++j)
#pragma unroll
        for (int v = 0; v < 4; ++v)
          c[warp / 2 * 32 + i * 16 + g + v / 2 * 8][warp % 2 * 32 + j * 8 + col + v % 2] = acc[i][j][v];
  }
};

template <class Op, bool kMma>
__global__ void __launch_bounds__(kThreads) grouped_kernel(const __grid_constant__ Op op) {
  __shared__ Element<kMma> a[kTile][kRow<kMma>], b[kTile][kRow<kMma>];
  __shared__ float c[kTile][kTile + 1];
  ptx::wait_for_previous_kernel();
  ptx::let_next_kernel_start();
  const Rows rows = op.rows(blockIdx.z);
  const int m0 = blockIdx.y * kTile, n0 = blockIdx.x * kTile;
  const int m_size = op.m_size(rows), k_size = op.k_size(rows);
  if (m0 >= m_size) return;
  std::conditional_t<kMma, MmaSum, PlainSum> sum;
  for (int k0 = 0; k0 < k_size; k0 += kDepth) {
    fill<kMma>(a, m_size - m0, k_size - k0, !Op::kContiguousM, [&](int m, int k) { return op.a(rows, m0 + m, k0 + k); });
    fill<kMma>(b, op.n_size() - n0, k_size - k0, !Op::kContiguousN,
               [&](int n, int k) { return op.b(rows, n0 + n, k0 + k); });
    __syncthreads();
    sum.add(a, b);
    __syncthreads();
  }
  sum.write(c);
  __syncthreads();
  op.store(rows, {c, m0, n0});
}

inline unsigned tiles(Index size) { return static_cast<unsigned>((size + kTile - 1) / kTile); }

template <class Op>
void run(const Op& op, bool mma, Index m, Index n, Index z, cudaStream_t stream) {
  const dim3 grid(tiles(n), tiles(m), static_cast<unsigned>(z));
  if (mma)
    launch(grouped_kernel<Op, true>, grid, kThreads, 0, stream, op);
  else
    launch(grouped_kernel<Op, false>, grid, kThreads, 0, stream, op);
}

}  // namespace dsmoe::cuda::portable
