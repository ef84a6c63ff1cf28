// y = x · Wᵀ for few rows, where reading W is all that takes time: a block is one warp that owns 16 columns of y. It asks
// for its whole part of W, or a ring of it, before the kernel ahead has ended, and multiplies as the pieces arrive. A sum
// is the same chain of k16 steps as in hopper_linear.cu, by another instruction with the same arithmetic, so the bits are
// the same.
#include "ops/cuda/hopper.h"
#include "ops/cuda/launch.h"
#include "ops/cuda/linear.h"
#include "ops/cuda/ptx.cuh"
#include "ops/cuda/tensor_map.h"

namespace dsmoe::cuda::hopper {

namespace {

constexpr int kColumns = 16, kBoxK = 64, kBoxes = 4, kStageK = kBoxes * kBoxK, kStages = 8;
constexpr int kBoxBytes = kColumns * kBoxK * 2, kStageBytes = kBoxes * kBoxBytes;
constexpr int kSharedBytes = kStages * (kStageBytes + 8) + 1024;  // barriers; to align
constexpr int kSteps = kStageK / 16;
constexpr int kMost = kMostProjections;

struct Args {
  CUtensorMap weights[kMost];
  void* y[kMost];
  int columns[kMost], first_block[kMost];  // of unused ones: past the last block
  const bf16* x;
  int rows, inner;
};

// Operand B of the steps of one stage: 8 rows of x each. A lane has row lane / 4 and, of every 16 numbers, two pairs.
template <int kTiles>
struct Rows {
  std::uint32_t v[kTiles][kSteps][2];

  __device__ __forceinline__ void load(const Args& args, int first) {
    const int row = threadIdx.x / 4, k = first + threadIdx.x % 4 * 2;
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
      const bool there = t * 8 + row < args.rows;
      const bf16* const from = args.x + static_cast<std::size_t>(there ? t * 8 + row : 0) * args.inner + k;
#pragma unroll
      for (int s = 0; s < kSteps; ++s)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int at = s * 16 + half * 8;
          v[t][s][half] = there && k + at < args.inner ? *reinterpret_cast<const std::uint32_t*>(from + at) : 0;
        }
    }
  }
};

__device__ __forceinline__ int boxes_from(const Args& args, int k) {
  return min(kBoxes, (args.inner - k + kBoxK - 1) / kBoxK);
}

__device__ __forceinline__ void load_stage(const Args& args, int matrix, int column, int stage_k, std::uint32_t to,
                                           std::uint32_t barrier) {
  const int boxes = boxes_from(args, stage_k);
  ptx::barrier_arrive_expect(barrier, boxes * kBoxBytes);
  for (int i = 0; i < boxes; ++i)
    ptx::tma_load(to + i * kBoxBytes, &args.weights[matrix], barrier, stage_k + i * kBoxK, column);
}

// acc += W x' over `boxes` of the stage at `from`. Rows of a box are 128 bytes, their 16-byte chunks swizzled.
template <int kTiles>
__device__ __forceinline__ void multiply(float (&acc)[kTiles][4], const Rows<kTiles>& rows, std::uint32_t from, int boxes) {
  const int row = threadIdx.x % 16, chunk = threadIdx.x / 16;
#pragma unroll
  for (int s = 0; s < kSteps; ++s) {
    if (s / 4 >= boxes) break;
    std::uint32_t a[4];
    ptx::ldmatrix(a, from + s / 4 * kBoxBytes + row * 128 + (((s % 4 * 2 + chunk) ^ (row & 7)) << 4));
#pragma unroll
    for (int t = 0; t < kTiles; ++t) ptx::mma_16816(acc[t], a[0], a[1], a[2], a[3], rows.v[t][s][0], rows.v[t][s][1]);
  }
}

template <int kTiles, class Y>
__device__ __forceinline__ void store(const Args& args, int matrix, int column, const float (&acc)[kTiles][4]) {
  const int g = threadIdx.x / 4, c = threadIdx.x % 4 * 2, columns = args.columns[matrix];
#pragma unroll
  for (int t = 0; t < kTiles; ++t)
#pragma unroll
    for (int v = 0; v < 4; ++v) {
      const int row = t * 8 + c + v % 2, at = column + g + v / 2 * 8;
      if (row >= args.rows || at >= columns) continue;
      Y* const out = static_cast<Y*>(args.y[matrix]) + static_cast<std::size_t>(row) * columns + at;
      if constexpr (sizeof(Y) == 4)
        *out = acc[t][v];
      else
        *out = __float2bfloat16_rn(acc[t][v]);
    }
}

template <int kTiles, class Y>
__global__ void __launch_bounds__(32) few_kernel(const __grid_constant__ Args args) {
  extern __shared__ char raw[];
  const std::uint32_t data = (ptx::smem_address(raw) + 1023u) & ~1023u, barriers = data + kStages * kStageBytes;
  int matrix = 0;
#pragma unroll
  for (int i = 1; i < kMost; ++i) matrix += static_cast<int>(blockIdx.x) >= args.first_block[i];
  const int column = (static_cast<int>(blockIdx.x) - args.first_block[matrix]) * kColumns;
  const int stages = (args.inner + kStageK - 1) / kStageK;
  const auto ask_for = [&](int stage) {
    load_stage(args, matrix, column, stage * kStageK, data + stage % kStages * kStageBytes, barriers + stage % kStages * 8);
  };
  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; ++i) ptx::barrier_init(barriers + i * 8, 1);
    ptx::barrier_init_fence();
    for (int i = 0; i < min(stages, kStages); ++i) ask_for(i);
  }
  __syncwarp();
  ptx::wait_for_previous_kernel();
  ptx::let_next_kernel_start();
  Rows<kTiles> rows, next;
  rows.load(args, 0);
  float acc[kTiles][4] = {};
  for (int i = 0; i < stages; ++i) {
    if (i + 1 < stages) next.load(args, (i + 1) * kStageK);
    ptx::barrier_wait(barriers + i % kStages * 8, i / kStages % 2);
    multiply<kTiles>(acc, rows, data + i % kStages * kStageBytes, boxes_from(args, i * kStageK));
    __syncwarp();
    if (threadIdx.x == 0 && i + kStages < stages) ask_for(i + kStages);
    rows = next;
  }
  store<kTiles, Y>(args, matrix, column, acc);
}

template <class Y>
void run(const Args& args, int blocks, cudaStream_t stream) {
  launch(args.rows <= 8 ? few_kernel<1, Y> : few_kernel<2, Y>, static_cast<unsigned>(blocks), 32, kSharedBytes, stream,
         args);
}

}  // namespace

void linear_few(const LinearSizes& s, const bf16* x, std::span<const LinearMatrix> matrices, DType y_dtype,
                cudaStream_t stream) {
  const auto k = static_cast<std::uint64_t>(s.inner);
  Args args{};
  int blocks = 0;
  for (std::size_t i = 0; i < kMost; ++i) {
    args.first_block[i] = blocks;
    if (i >= matrices.size()) continue;
    const LinearMatrix& m = matrices[i];
    args.weights[i] = tensor_map(m.w, {k, static_cast<std::uint64_t>(m.columns)}, {k}, {kBoxK, kColumns});
    args.y[i] = m.y;
    args.columns[i] = m.columns;
    blocks += (m.columns + kColumns - 1) / kColumns;
  }
  args.x = x;
  args.rows = s.rows, args.inner = s.inner;
  y_dtype == DType::kF32 ? run<float>(args, blocks, stream) : run<bf16>(args, blocks, stream);
}

}  // namespace dsmoe::cuda::hopper
