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
  int tokens, experts, shared, chosen, chunks, chunk_tokens, token_tile;
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
#pragma unroll 16
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

// Exclusive sums over the experts by one warp, 32 at a time: first rows (over totals), first gathered rows and token
// tiles. Block 0 also writes them out, and marks the gathered rows between the experts.
__device__ void offsets(const Args& args, std::int32_t* totals, std::int32_t* sorted) {
  const int lane = threadIdx.x, shared_tiles = (args.tokens + args.token_tile - 1) / args.token_tile;
  int row = args.shared * args.tokens, tile = args.shared * shared_tiles, gathered = 0;
  for (int e0 = 0; e0 < args.experts; e0 += 32) {
    const int e = e0 + lane;
    const int n = e < args.experts ? totals[e] : 0;
    const int t = (n + args.token_tile - 1) / args.token_tile;
    const int padded = (n + kSortedAlign - 1) / kSortedAlign * kSortedAlign;
    int rows = n, tiles = t, places = padded;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const int r = __shfl_up_sync(~0u, rows, step), u = __shfl_up_sync(~0u, tiles, step);
      const int g = __shfl_up_sync(~0u, places, step);
      if (lane >= step) rows += r, tiles += u, places += g;
    }
    if (e < args.experts) {
      totals[e] = row + rows - n;
      sorted[e] = gathered + places - padded;
      if (blockIdx.x == 0) {
        args.plan.row_offset[args.shared + e] = totals[e];
        args.plan.tile_offset[args.shared + e] = tile + tiles - t;
        args.plan.sorted_offset[e] = sorted[e];
        for (int i = n; i < padded; ++i) args.plan.sorted_token[sorted[e] + i] = -1;
      }
    }
    row += __shfl_sync(~0u, rows, 31);
    tile += __shfl_sync(~0u, tiles, 31);
    gathered += __shfl_sync(~0u, places, 31);
  }
  if (blockIdx.x != 0 || lane != 0) return;
  for (int s = 0; s < args.shared; ++s) {
    args.plan.row_offset[s] = s * args.tokens;
    args.plan.tile_offset[s] = s * shared_tiles;
  }
  args.plan.row_offset[args.shared + args.experts] = row;
  args.plan.tile_offset[args.shared + args.experts] = tile;
  args.plan.sorted_offset[args.experts] = gathered;
}

__global__ void __launch_bounds__(kThreads) plan_kernel(const __grid_constant__ Args args) {
  extern __shared__ std::int32_t smem[];
  std::int32_t* totals = smem;                     // [E], then the first row of each expert
  std::int32_t* sorted = totals + args.experts;    // [E] first gathered row of each expert
  std::int32_t* starts = sorted + args.experts;    // [chunks per block][E]
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
  if (threadIdx.x < 32) offsets(args, totals, sorted);
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
    const int to_sorted = sorted[e] - totals[e];
    for (int j = begin; j < end; ++j) {
      if (ids[j] != e) continue;
      const std::size_t pair = static_cast<std::size_t>(token0) * args.chosen + j;
      args.plan.row_token[row] = token0 + j / args.chosen;
      args.plan.sorted_token[row + to_sorted] = token0 + j / args.chosen;
      args.plan.row_weight[row] = args.weights[pair];
      args.plan.token_row[pair] = row++;
    }
  }
}

inline constexpr int kRowsPerBlock = 8;

// One warp per gathered row.
__global__ void __launch_bounds__(32 * kRowsPerBlock) gather_kernel(const std::int32_t* count, const std::int32_t* sorted_token,
                                                                    const uint4* in, uint4* out, int chunks) {
#if __CUDA_ARCH__ >= 900
  ptx::wait_for_previous_kernel();
  ptx::let_next_kernel_start();
#endif
  const int row = blockIdx.x * kRowsPerBlock + threadIdx.x / 32;
  if (row >= *count) return;
  const int token = sorted_token[row];
  const uint4* from = in + static_cast<std::size_t>(max(token, 0)) * chunks;
#pragma unroll 8
  for (int i = threadIdx.x % 32; i < chunks; i += 32)
    out[static_cast<std::size_t>(row) * chunks + i] = token >= 0 ? __ldg(from + i) : uint4{};
}

}  // namespace

void gather_rows(const Problem& p, const Plan& plan, const void* in, void* out, cudaStream_t stream) {
  const int chunks = static_cast<int>(static_cast<std::size_t>(p.config.hidden_size) * size_of(p.dtype) / 16);
  const auto blocks = static_cast<unsigned>((sorted_rows(p) + kRowsPerBlock - 1) / kRowsPerBlock);
  launch(gather_kernel, blocks, 32 * kRowsPerBlock, 0, stream, plan.sorted_offset + p.config.routed_experts, plan.sorted_token,
         static_cast<const uint4*>(in), static_cast<uint4*>(out), chunks);
}

void make_plan(const Problem& p, const Routing& routing, const std::int32_t* counts, int token_tile, const Plan& plan,
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
  args.token_tile = token_tile;
  args.plan = plan;
  const int blocks = (args.chunks + kChunksPerBlock - 1) / kChunksPerBlock;
  const int ints = args.experts * (2 + kChunksPerBlock) + kChunksPerBlock * args.chunk_tokens * args.chosen;
  launch(plan_kernel, blocks, kThreads, ints * 4, stream, args);
}

}  // namespace dsmoe::cuda
