#include <cuda_bf16.h>

#include "ops/cuda/heads_mma.h"
#include "ops/cuda/launch.h"
#include "ops/cuda/ptx.cuh"

namespace dsmoe::cuda::heads {

namespace {

using bf16 = __nv_bfloat16;

constexpr int kDepth = 64, kRowBytes = 2 * kDepth;  // k of a stage

// Of 16 bytes in rows of 128.
__device__ __forceinline__ std::uint32_t place_of(int row, int chunk) {
  return static_cast<std::uint32_t>(row * kRowBytes + ((chunk ^ (row & 7)) << 4));
}

// Starts copying [rows, 64 columns] of a matrix to rows of 128 bytes; what lies outside of it becomes zeros.
template <int kRows, int kThreads>
__device__ __forceinline__ void load_block(std::uint32_t to, const bf16* from, Index stride, int rows, int columns) {
#pragma unroll
  for (int i = threadIdx.x; i < kRows * 8; i += kThreads) {
    const int row = i / 8, chunk = i % 8;
    const bool there = row < rows && chunk * 8 < columns;
    ptx::cp_async_16(to + place_of(row, chunk), there ? from + row * stride + chunk * 8 : from, there ? 16 : 0);
  }
}

// A block's tile: kM x 16 rows and kN x 16 columns of each of kWarpsM x kWarpsN warps; and the ring of its stages.
template <int kWarpsM_, int kWarpsN_, int kM_, int kN_, int kStages_>
struct Shape {
  static constexpr int kStages = kStages_;
  static constexpr int kWarpsM = kWarpsM_, kWarpsN = kWarpsN_, kM = kM_, kN = kN_;
  static constexpr int kThreads = 32 * kWarpsM * kWarpsN, kRows = 16 * kM * kWarpsM, kColumns = 16 * kN * kWarpsN;
  static constexpr int kRowsBytes = kRows * kRowBytes, kWeightBytes = kColumns * kRowBytes;
  static constexpr int kStageBytes = kRowsBytes + kWeightBytes;
};

// Turned weights lie in shared memory as [64 k][64 n] blocks, others as [n][64 k].
template <class S, bool kTurned>
__device__ __forceinline__ void load_weights(std::uint32_t to, const Product& p, const bf16* w, int n0, int k0) {
  if constexpr (kTurned) {
#pragma unroll
    for (int b = 0; b < S::kColumns / 64; ++b)
      load_block<kDepth, S::kThreads>(to + b * kDepth * kRowBytes, w + k0 * p.w.row + n0 + b * 64, p.w.row, p.k - k0,
                                      p.n - n0 - b * 64);
  } else {
    load_block<S::kColumns, S::kThreads>(to, w + n0 * p.w.row + k0, p.w.row, p.n - n0, p.k - k0);
  }
}

template <class S, bool kTurned>
__device__ __forceinline__ void add_stage(float (&sum)[S::kM][2 * S::kN][4], std::uint32_t rows, std::uint32_t weights,
                                          int steps) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int m0 = warp / S::kWarpsN * S::kM * 16, n0 = warp % S::kWarpsN * S::kN * 16;
#pragma unroll
  for (int k = 0; k < kDepth / 16; ++k) {
    if (k >= steps) break;
    std::uint32_t a[S::kM][4];
#pragma unroll
    for (int m = 0; m < S::kM; ++m) ptx::ldmatrix(a[m], rows + place_of(m0 + m * 16 + lane % 16, k * 2 + lane / 16));
#pragma unroll
    for (int n = 0; n < S::kN; ++n) {
      std::uint32_t b[4];
      const int column = n0 + n * 16;
      if constexpr (kTurned)
        ptx::ldmatrix_trans(
            b, weights + column / 64 * kDepth * kRowBytes + place_of(k * 16 + lane % 16, column % 64 / 8 + lane / 16));
      else
        ptx::ldmatrix(b, weights + place_of(column + lane / 16 * 8 + lane % 8, k * 2 + lane / 8 % 2));
#pragma unroll
      for (int m = 0; m < S::kM; ++m) {
        ptx::mma_16816(sum[m][2 * n], a[m][0], a[m][1], a[m][2], a[m][3], b[0], b[1]);
        ptx::mma_16816(sum[m][2 * n + 1], a[m][0], a[m][1], a[m][2], a[m][3], b[2], b[3]);
      }
    }
  }
}

template <class S>
__device__ __forceinline__ void store(const Product& p, const float (&sum)[S::kM][2 * S::kN][4], int head, int m0, int n0) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  bf16* const to = static_cast<bf16*>(const_cast<void*>(p.y.at)) + head * p.y.head;
#pragma unroll
  for (int m = 0; m < S::kM; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = m0 + warp / S::kWarpsN * S::kM * 16 + m * 16 + half * 8 + lane / 4;
      if (row >= p.m) continue;
#pragma unroll
      for (int n = 0; n < 2 * S::kN; ++n) {
        const int column = n0 + warp % S::kWarpsN * S::kN * 16 + n * 8 + lane % 4 * 2;
        if (column < p.n)
          *reinterpret_cast<std::uint32_t*>(to + row * p.y.row + column) =
              ptx::pack(sum[m][n][2 * half], sum[m][n][2 * half + 1]);
      }
    }
}

template <class S, bool kTurned>
__global__ void __launch_bounds__(S::kThreads) product_kernel(const __grid_constant__ Product p) {
  extern __shared__ __align__(128) unsigned char memory[];
  const std::uint32_t base = (ptx::smem_address(memory) + 127u) & ~127u;
  ptx::let_next_kernel_start();
  const int head = blockIdx.z, m0 = blockIdx.y * S::kRows, n0 = blockIdx.x * S::kColumns;
  const auto* const x = static_cast<const bf16*>(p.x.at) + head * p.x.head + m0 * p.x.row;
  const auto* const w = static_cast<const bf16*>(p.w.at) + head * p.w.head;
  const int stages = (p.k + kDepth - 1) / kDepth;
  constexpr int kStages = S::kStages;
  const auto place = [&](int stage) { return base + stage % kStages * S::kStageBytes; };
  const auto load_rows = [&](int stage) {
    load_block<S::kRows, S::kThreads>(place(stage), x + stage * kDepth, p.x.row, p.m - m0, p.k - stage * kDepth);
  };
  const auto load_columns = [&](int stage) {
    load_weights<S, kTurned>(place(stage) + S::kRowsBytes, p, w, n0, stage * kDepth);
  };
#pragma unroll
  for (int s = 0; s < kStages - 1; ++s)
    if (s < stages) load_columns(s);
  ptx::wait_for_previous_kernel();
#pragma unroll
  for (int s = 0; s < kStages - 1; ++s) {
    if (s < stages) load_rows(s);
    ptx::cp_async_commit();  // the first has all of the weights
  }
  float sum[S::kM][2 * S::kN][4] = {};
  for (int s = 0; s < stages; ++s) {
    ptx::cp_async_wait<kStages - 2>();
    __syncthreads();  // the stage is there, and nobody reads the one before it any more
    if (s + kStages - 1 < stages) load_rows(s + kStages - 1), load_columns(s + kStages - 1);
    ptx::cp_async_commit();
    add_stage<S, kTurned>(sum, place(s), place(s) + S::kRowsBytes, (p.k - s * kDepth + 15) / 16);
  }
  store<S>(p, sum, head, m0, n0);
}

template <class S>
void launch_shape(const Product& p, cudaStream_t stream) {
  const auto tiles = [](int size, int tile) { return static_cast<unsigned>((size + tile - 1) / tile); };
  const dim3 grid(tiles(p.n, S::kColumns), tiles(p.m, S::kRows), static_cast<unsigned>(p.heads));
  constexpr int kBytes = S::kStages * S::kStageBytes + 128;
  if constexpr (S::kColumns % 64 == 0) {
    if (p.turned) return launch(product_kernel<S, true>, grid, S::kThreads, kBytes, stream, p);
  }
  launch(product_kernel<S, false>, grid, S::kThreads, kBytes, stream, p);
}

}  // namespace

bool takes(const Product& p) {
  const auto fits = [](const Product::Place& place, Index numbers) {
    return reinterpret_cast<std::uintptr_t>(place.at) % 16 == 0 && place.head % 8 == 0 && place.row % 8 == 0 &&
           numbers % 8 == 0;
  };
  return fits(p.x, p.k) && fits(p.w, p.turned ? p.n : p.k) && fits(p.y, p.n) && p.k % 8 == 0 && p.heads < 65536;
}

// Few rows: as many blocks as there are columns for, each with all of its operand on the way at once.
void run(const Product& p, cudaStream_t stream) {
  constexpr int kFewRows = 64;
  if (p.m > kFewRows)
    launch_shape<Shape<4, 2, 2, 4, 3>>(p, stream);
  else if (p.turned)
    launch_shape<Shape<1, 4, 1, 1, 3>>(p, stream);
  else
    launch_shape<Shape<1, 2, 1, 1, 9>>(p, stream);
}

}  // namespace dsmoe::cuda::heads
