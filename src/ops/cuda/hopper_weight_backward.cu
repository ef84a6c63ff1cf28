// Weight gradients: for each expert, the product of two tall matrices over its rows. Both operands are read with
// their contiguous dimension as M and N, which wgmma takes from shared memory as it is.
#include "ops/cuda/hopper.h"
#include "ops/cuda/hopper_gemm.cuh"
#include "ops/cuda/launch.h"
#include "ops/cuda/tensor_map.h"

namespace dsmoe::cuda::hopper {

namespace {

inline constexpr int kTileN = 256;

struct Args {
  CUtensorMap a;  // [R, m]
  const std::int32_t* row_offset;
  const std::int32_t* row_token;
  const bf16* b;  // [T, D]
  void* grad;
  int experts, m_blocks, n_blocks, m, width;
  bool transposed, f32, accumulate;
};

struct GradTile {
  int expert, m0, n0, row0, rows;
};

__device__ __forceinline__ GradTile find(const Args& args, int id) {
  const int per_expert = args.m_blocks * args.n_blocks;
  const int expert = id / per_expert, local = id % per_expert;
  const int row0 = args.row_offset[expert];
  return {expert, local % args.m_blocks * kTileM, local / args.m_blocks * kTileN, row0, args.row_offset[expert + 1] - row0};
}

// Rows of B, which are the k dimension: warp w copies rows w + 4 i, 512 bytes each, zeros past the last one.
__device__ __forceinline__ void copy_rows(const Args& args, const GradTile& tile, int kb, std::uint32_t dst_block) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int k0 = kb * kTileK;
  const int mine = k0 + warp + 4 * (lane % 16);
  const int my_token = mine < tile.rows ? args.row_token[tile.row0 + mine] : -1;
  const int n = tile.n0 + lane * 8;
  const std::uint32_t dst = dst_block + lane / 8 * 8192;
  const bf16* src = args.b + (n < args.width ? n : 0);
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    const int row = warp + 4 * i;
    const int token = __shfl_sync(~0u, my_token, i);
    const bool inside = token >= 0 && n < args.width;
    ptx::cp_async_16(dst + row * 128 + ((lane % 8 ^ (row & 7)) << 4), src + static_cast<std::size_t>(max(token, 0)) * args.width,
                     inside ? 16 : 0);
  }
}

__device__ __forceinline__ void put_f32(float* out, float v, bool accumulate) { *out = accumulate ? *out + v : v; }

// f32 gradients go straight to memory: eight lanes (transposed) or four lanes of pairs fill a 32-byte sector.
__device__ __forceinline__ void store_f32(const Args& args, const GradTile& tile, const float (&acc)[kTileN / 2], int group) {
  const int warp = threadIdx.x / 32 % 4, g = threadIdx.x % 32 / 4, c = threadIdx.x % 4 * 2;
  float* grad = static_cast<float*>(args.grad) + static_cast<std::size_t>(tile.expert) * args.m * args.width;
  const std::size_t step_m = args.transposed ? 1 : args.width, step_n = args.transposed ? args.m : 1;
#pragma unroll
  for (int j = 0; j < kTileN / 8; ++j)
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int m = tile.m0 + group * 64 + warp * 16 + g + i / 2 * 8, n = tile.n0 + j * 8 + c + i % 2;
      if (m < args.m && n < args.width) put_f32(grad + m * step_m + n * step_n, acc[4 * j + i], args.accumulate);
    }
}

// bf16 gradients that are summed over calls: read, add, round.
__device__ __forceinline__ void add_bf16(const Args& args, const GradTile& tile, float (&acc)[kTileN / 2], int group) {
  const int warp = threadIdx.x / 32 % 4, g = threadIdx.x % 32 / 4, c = threadIdx.x % 4 * 2;
  const bf16* grad = static_cast<const bf16*>(args.grad) + static_cast<std::size_t>(tile.expert) * args.m * args.width;
  const std::size_t step_m = args.transposed ? 1 : args.width, step_n = args.transposed ? args.m : 1;
#pragma unroll
  for (int j = 0; j < kTileN / 8; ++j)
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int m = tile.m0 + group * 64 + warp * 16 + g + i / 2 * 8, n = tile.n0 + j * 8 + c + i % 2;
      if (m < args.m && n < args.width) acc[4 * j + i] += __bfloat162float(grad[m * step_m + n * step_n]);
    }
}

// [m][n] output as bf16: 64 columns of n at a time through the staging area.
__device__ __forceinline__ void store_direct(const Args& args, const GradTile& tile, const float (&acc)[kTileN / 2],
                                             std::uint32_t staging, int group) {
  const int warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32, g = lane / 4, c = lane % 4;
  const int m = tile.m0 + group * 64;
  bf16* grad = static_cast<bf16*>(args.grad) + (static_cast<std::size_t>(tile.expert) * args.m + m) * args.width + tile.n0;
#pragma unroll
  for (int n = 0; n < kTileN; n += 64) {
    const std::uint32_t area = staging + n / 64 % 2 * 8192;  // two areas: one barrier per round
#pragma unroll
    for (int j = 0; j < 8; ++j)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = warp * 16 + half * 8 + g, at = (n / 8 + j) * 4 + half * 2;
        asm volatile("st.shared.b32 [%0], %1;" ::"r"(area + Staging<64>::offset(row, j) + c * 4),
                     "r"(ptx::pack(acc[at], acc[at + 1]))
                     : "memory");
      }
    ptx::named_barrier_sync(1 + group, 128);
    Staging<64>::copy_out(area, grad + n, args.width, min(64, args.m - m), args.width - tile.n0 - n);
  }
  ptx::named_barrier_sync(1 + group, 128);
}

__device__ __forceinline__ void store(const Args& args, const GradTile& tile, float (&acc)[kTileN / 2], const Shared& shared,
                                      int group) {
  if (args.f32) return store_f32(args, tile, acc, group);
  if (args.accumulate) add_bf16(args, tile, acc, group);
  const std::uint32_t staging = shared.staging + group * kStagingBytes;
  if (!args.transposed) return store_direct(args, tile, acc, staging, group);
  const int m = tile.m0 + group * 64;
  bf16* grad = static_cast<bf16*>(args.grad) + (static_cast<std::size_t>(tile.expert) * args.width + tile.n0) * args.m + m;
  store_transposed<kTileN>(acc, staging, group, grad, args.m, min(kTileN, args.width - tile.n0), args.m - m);
}

__global__ void __launch_bounds__(kThreads, 1) weight_backward_kernel(const __grid_constant__ Args args) {
  extern __shared__ char raw[];
  Shared shared = set_up(raw, 1 + 128);
  ptx::wait_for_previous_kernel();
  ptx::let_next_kernel_start();
  const int total = args.experts * args.m_blocks * args.n_blocks;
  if (threadIdx.x < 128) {
    ptx::registers_shrink<kProducerRegisters>();
    Ring& ring = shared.ring;
    for (int id = blockIdx.x; id < total; id += gridDim.x) {
      const GradTile tile = find(args, id);
      for (int kb = 0; kb * kTileK < tile.rows; ++kb) {
        ptx::barrier_wait(ring.empty_barrier(), ring.phase ^ 1);
        const std::uint32_t bar = ring.full_barrier();
        if (threadIdx.x == 0) {
          ptx::barrier_arrive_expect(bar, kBytesA);
          ptx::tma_load(ring.a(), &args.a, bar, tile.m0, tile.row0 + kb * kTileK);
          ptx::tma_load(ring.a() + 8192, &args.a, bar, tile.m0 + 64, tile.row0 + kb * kTileK);
        }
        copy_rows(args, tile, kb, ring.b());
        ptx::barrier_arrive_after_cp_async(bar);
        ring.advance();
      }
    }
  } else {
    ptx::registers_grow<kConsumerRegisters>();
    const int group = threadIdx.x / 128 - 1;
    for (int id = blockIdx.x; id < total; id += gridDim.x) {
      const GradTile tile = find(args, id);
      if (tile.rows == 0 && args.accumulate) continue;
      float acc[kTileN / 2] = {};
      multiply<kTileN, 1, 1, true>(acc, shared.ring, (tile.rows + kTileK - 1) / kTileK, group);
      store(args, tile, acc, shared, group);
    }
  }
}

}  // namespace

void weight_backward(const Sizes& s, const Plan& plan, const WeightGrad& g, cudaStream_t stream) {
  const std::uint64_t m = g.m, r = s.rows;
  Args args{};
  args.a = tensor_map(g.a, {m, r}, {m}, {64, kTileK});
  args.row_offset = plan.row_offset;
  args.row_token = plan.row_token;
  args.b = g.b;
  args.grad = g.grad;
  args.experts = s.experts;
  args.m_blocks = (g.m + kTileM - 1) / kTileM;
  args.n_blocks = (s.width + kTileN - 1) / kTileN;
  args.m = g.m;
  args.width = s.width;
  args.transposed = g.transposed;
  args.f32 = g.f32;
  args.accumulate = g.accumulate;
  launch(weight_backward_kernel, multiprocessors(), kThreads, kSmemBytes, stream, args);
}

}  // namespace dsmoe::cuda::hopper
