// The plan: a stable counting sort of (token, choice) pairs by expert, in one launch. Every block adds up the counts
// of the blocks before it by itself, so no block waits for another.
#include "ops/cuda/gate.h"
#include "ops/cuda/launch.h"
#include "ops/cuda/ptx.cuh"

namespace dsmoe::cuda {

namespace {

inline constexpr int kThreads = 256;
inline constexpr int kChunksPerBlock = 4;

struct Args {
  const std::int32_t* ids;
  const float* weights;
  const std::int32_t* counts;  // [E, chunks]
  int tokens, experts, shared, chosen, chunks, chunk_tokens;
  Plan plan;
};

__device__ inline int warp_total(int v) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) v += __shfl_xor_sync(~0u, v, step);
  return v;
}

// totals[e], and starts[i][e]: how many pairs of expert e the chunks before first_chunk + i hold.
__device__ void count(const Args& args, int first_chunk, std::int32_t* totals, std::int32_t* starts) {
  const int lane = threadIdx.x % 32;
  for (int e = threadIdx.x / 32; e < args.experts; e += kThreads / 32) {
    const std::int32_t* row = args.counts + static_cast<std::size_t>(e) * args.chunks;
    int before = 0, all = 0;
    for (int c = lane; c < args.chunks; c += 32) {
      const int v = row[c];
      all += v;
      if (c < first_chunk) before += v;
    }
    before = warp_total(before);
    all = warp_total(all);
    if (lane == 0) {
      totals[e] = all;
      for (int i = 0; i < kChunksPerBlock; ++i) {
        starts[i * args.experts + e] = before;
        if (first_chunk + i < args.chunks) before += row[first_chunk + i];
      }
    }
  }
}

__global__ void __launch_bounds__(kThreads) plan_kernel(const __grid_constant__ Args args) {
  extern __shared__ std::int32_t smem[];
  std::int32_t* totals = smem;                                    // [E], then the first row of each expert
  std::int32_t* starts = totals + args.experts;                   // [chunks per block][E]
  std::int32_t* ids = starts + kChunksPerBlock * args.experts;    // this block's [tokens][K]
#if __CUDA_ARCH__ >= 900
  ptx::wait_for_previous_kernel();
  ptx::let_next_kernel_start();
#endif
  const int first_chunk = blockIdx.x * kChunksPerBlock;
  const int token0 = first_chunk * args.chunk_tokens;
  const int tokens = min(kChunksPerBlock * args.chunk_tokens, args.tokens - token0);
  for (int i = threadIdx.x; i < tokens * args.chosen; i += kThreads)
    ids[i] = args.ids[static_cast<std::size_t>(token0) * args.chosen + i];
  count(args, first_chunk, totals, starts);
  __syncthreads();
  if (threadIdx.x < 32) {
    // Exclusive sums over the experts, 32 at a time; block 0 also writes them out.
    int row = args.shared * args.tokens;
    int tile = args.shared * ((args.tokens + kTokenTile - 1) / kTokenTile);
    for (int e0 = 0; e0 < args.experts; e0 += 32) {
      const int e = e0 + threadIdx.x;
      const int n = e < args.experts ? totals[e] : 0;
      const int t = (n + kTokenTile - 1) / kTokenTile;
      int rows = n, tiles = t;
#pragma unroll
      for (int step = 1; step < 32; step *= 2) {
        const int r = __shfl_up_sync(~0u, rows, step), u = __shfl_up_sync(~0u, tiles, step);
        if (threadIdx.x >= step) rows += r, tiles += u;
      }
      if (e < args.experts) {
        totals[e] = row + rows - n;
        if (blockIdx.x == 0) {
          args.plan.row_offset[args.shared + e] = row + rows - n;
          args.plan.tile_offset[args.shared + e] = tile + tiles - t;
        }
      }
      row += __shfl_sync(~0u, rows, 31);
      tile += __shfl_sync(~0u, tiles, 31);
    }
    if (blockIdx.x == 0 && threadIdx.x == 0) {
      for (int s = 0; s < args.shared; ++s) {
        args.plan.row_offset[s] = s * args.tokens;
        args.plan.tile_offset[s] = s * ((args.tokens + kTokenTile - 1) / kTokenTile);
      }
      args.plan.row_offset[args.shared + args.experts] = row;
      args.plan.tile_offset[args.shared + args.experts] = tile;
    }
  }
  __syncthreads();
  for (int i = threadIdx.x; i < tokens * args.shared; i += kThreads) {
    const int row = i / tokens * args.tokens + token0 + i % tokens;
    args.plan.row_token[row] = token0 + i % tokens;
    args.plan.row_weight[row] = 1.0f;
  }
  // One thread per (chunk, expert) walks the chunk's pairs in order.
  for (int i = threadIdx.x; i < kChunksPerBlock * args.experts; i += kThreads) {
    const int chunk = i / args.experts, e = i % args.experts;
    const int begin = chunk * args.chunk_tokens * args.chosen;
    const int end = min(begin + args.chunk_tokens * args.chosen, tokens * args.chosen);
    int row = totals[e] + starts[i];
    for (int j = begin; j < end; ++j) {
      if (ids[j] != e) continue;
      const std::size_t pair = static_cast<std::size_t>(token0) * args.chosen + j;
      args.plan.row_token[row] = token0 + j / args.chosen;
      args.plan.row_weight[row] = args.weights[pair];
      args.plan.token_row[pair] = row++;
    }
  }
}

}  // namespace

void make_plan(const Problem& p, const Routing& routing, const std::int32_t* counts, const Plan& plan,
               cudaStream_t stream) {
  Args args{};
  args.ids = routing.ids;
  args.weights = routing.weights;
  args.counts = counts;
  args.tokens = static_cast<int>(p.tokens);
  args.experts = static_cast<int>(p.config.routed_experts);
  args.shared = static_cast<int>(p.config.shared_experts);
  args.chosen = static_cast<int>(p.config.experts_per_token);
  args.chunks = gate_chunks(p);
  args.chunk_tokens = gate_chunk(p);
  args.plan = plan;
  const int blocks = (args.chunks + kChunksPerBlock - 1) / kChunksPerBlock;
  const int ints = args.experts * (1 + kChunksPerBlock) + kChunksPerBlock * args.chunk_tokens * args.chosen;
  launch(plan_kernel, blocks, kThreads, ints * 4, stream, args);
}

}  // namespace dsmoe::cuda
