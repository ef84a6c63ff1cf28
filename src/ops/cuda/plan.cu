// The plan: a stable counting sort of (token, choice) pairs by expert, in one launch. Every block adds up the counts
// of the blocks before it by itself, so no block waits for another.
#include <algorithm>

#include "ops/cuda/kernels.h"
#include "ops/cuda/launch.h"
#include "ops/cuda/ptx.cuh"
#include "ops/cuda/routing.cuh"

namespace dsmoe::cuda {

namespace {

inline constexpr int kThreads = 1024;  // many loads of counts in flight
inline constexpr int kChunksPerBlock = 4;

struct Args {
  const std::int32_t* ids;
  const float* weights;
  const std::int32_t* counts;  // [chunks, E]
  int tokens, experts, shared, chosen, chunks, chunk_tokens, token_tile;
  PlanView plan;
};

// totals[e], and starts[i][e]: how many pairs of expert e the chunks before first_chunk + i hold. The threads of one
// expert take turns at the chunks; scratch holds their sums, [2][parts][E].
__device__ void count(const Args& args, int first_chunk, std::int32_t* totals, std::int32_t* starts,
                      std::int32_t* scratch) {
  const int width = min(args.experts, kThreads), parts = kThreads / width, part = threadIdx.x / width;
  for (int e = threadIdx.x % width; e < args.experts && part < parts; e += width) {
    int before = 0, all = 0;
#pragma unroll 16
    for (int c = part; c < args.chunks; c += parts) {
      const int v = args.counts[static_cast<std::size_t>(c) * args.experts + e];
      all += v;
      before += c < first_chunk ? v : 0;
    }
    scratch[part * args.experts + e] = before;
    scratch[(parts + part) * args.experts + e] = all;
  }
  for (int i = threadIdx.x; i < kChunksPerBlock * args.experts; i += kThreads)
    starts[i] = first_chunk + i / args.experts < args.chunks
                    ? args.counts[static_cast<std::size_t>(first_chunk) * args.experts + i]
                    : 0;
  __syncthreads();
  for (int e = threadIdx.x; e < args.experts; e += kThreads) {
    int before = 0, all = 0;
    for (int i = 0; i < parts; ++i) {
      before += scratch[i * args.experts + e];
      all += scratch[(parts + i) * args.experts + e];
    }
    totals[e] = all;
    for (int i = 0; i < kChunksPerBlock; ++i) {
      const int v = starts[i * args.experts + e];
      starts[i * args.experts + e] = before;
      before += v;
    }
  }
}

// Exclusive sums over the experts by one warp, 32 at a time: first rows (over totals), first gathered rows and token
// tiles. Block 0 also writes them out.
__device__ void offsets(const Args& args, std::int32_t* totals, std::int32_t* sorted) {
  const int lane = threadIdx.x;
  int row = args.shared * args.tokens, tile = 0, gathered = 0;
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
        args.plan.offset[args.shared + e] = totals[e];
        args.plan.sorted_offset[e] = sorted[e];
        split_tiles(args.plan.tiles + tile + tiles - t, t, args.shared + e, totals[e], n, sorted[e]);
      }
    }
    row += __shfl_sync(~0u, rows, 31);
    tile += __shfl_sync(~0u, tiles, 31);
    gathered += __shfl_sync(~0u, places, 31);
  }
  if (blockIdx.x != 0 || lane != 0) return;
  for (int s = 0; s < args.shared; ++s) args.plan.offset[s] = s * args.tokens;
  args.plan.offset[args.shared + args.experts] = row;
  args.plan.sorted_offset[args.experts] = gathered;
  *args.plan.tile_count = tile;
}

__global__ void __launch_bounds__(kThreads) plan_kernel(const __grid_constant__ Args args) {
  extern __shared__ std::int32_t smem[];
  std::int32_t* totals = smem;                                  // [E], then the first row of each expert
  std::int32_t* sorted = totals + args.experts;                 // [E] first gathered row of each expert
  std::int32_t* starts = sorted + args.experts;                 // [chunks per block][E]
  std::int32_t* ids = starts + kChunksPerBlock * args.experts;  // this block's [tokens][K]
  float* weights = reinterpret_cast<float*>(ids + kChunksPerBlock * args.chunk_tokens * args.chosen);
  auto* scratch = reinterpret_cast<std::int32_t*>(weights + kChunksPerBlock * args.chunk_tokens * args.chosen);
  // The gate has waited before it let this kernel start, so what the shared experts need is there: their tiles can begin
  // while the gate still runs.
  ptx::let_next_kernel_start();
  ptx::wait_for_previous_kernel();
  const int first_chunk = blockIdx.x * kChunksPerBlock;
  const int token0 = first_chunk * args.chunk_tokens;
  const int tokens = min(kChunksPerBlock * args.chunk_tokens, args.tokens - token0);
  for (int i = threadIdx.x; i < tokens * args.chosen; i += kThreads) {
    ids[i] = args.ids[static_cast<std::size_t>(token0) * args.chosen + i];
    weights[i] = args.weights[static_cast<std::size_t>(token0) * args.chosen + i];
  }
  count(args, first_chunk, totals, starts, scratch);
  __syncthreads();
  if (threadIdx.x < 32) offsets(args, totals, sorted);
  __syncthreads();
  for (int i = threadIdx.x; i < tokens * args.shared; i += kThreads) {
    const int row = i / tokens * args.tokens + token0 + i % tokens;
    args.plan.token[row] = token0 + i % tokens;
    args.plan.weight[row] = 1.0f;
  }
  // A pair's row: the expert's first, and as many on as pairs of that expert come before it.
  const int chunk_pairs = args.chunk_tokens * args.chosen;
  for (int i = threadIdx.x; i < tokens * args.chosen; i += kThreads) {
    const int chunk = i / chunk_pairs, e = ids[i];
    int row = totals[e] + starts[chunk * args.experts + e];
    for (int j = chunk * chunk_pairs; j < i; ++j) row += ids[j] == e;
    const std::size_t pair = static_cast<std::size_t>(token0) * args.chosen + i;
    args.plan.token[row] = token0 + i / args.chosen;
    args.plan.weight[row] = weights[i];
    args.plan.slot_row[pair] = row;
    args.plan.token_sorted[pair] = row + sorted[e] - totals[e];
  }
}

inline constexpr int kWarps = 8;

struct GatherArgs {
  const std::int32_t* row_offset;  // of the routed experts
  const std::int32_t* sorted_offset;
  const std::int32_t* token_sorted;
  const uint4* in;
  uint4* out;
  int tokens, experts, chosen, chunks, token_blocks;
};

// One warp per token: reads it once, writes it to each of its experts. The blocks after those of the tokens write the
// zeros, one per expert.
__global__ void __launch_bounds__(32 * kWarps) gather_kernel(const __grid_constant__ GatherArgs args) {
  ptx::wait_for_previous_kernel();
  ptx::let_next_kernel_start();
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  if (blockIdx.x >= args.token_blocks) {
    const int e = blockIdx.x - args.token_blocks;
    const int end = args.sorted_offset[e + 1];
    for (int row = args.sorted_offset[e] + args.row_offset[e + 1] - args.row_offset[e] + warp; row < end; row += kWarps)
      for (int i = lane; i < args.chunks; i += 32) args.out[static_cast<std::size_t>(row) * args.chunks + i] = uint4{};
    return;
  }
  const int token = blockIdx.x * kWarps + warp;
  if (token >= args.tokens) return;
  const uint4* in = args.in + static_cast<std::size_t>(token) * args.chunks;
  const std::int32_t* rows = args.token_sorted + static_cast<std::size_t>(token) * args.chosen;
  constexpr int kBatch = 8;
  for (int i0 = lane; i0 < args.chunks; i0 += 32 * kBatch) {
    uint4 v[kBatch];
#pragma unroll
    for (int b = 0; b < kBatch; ++b)
      if (i0 + 32 * b < args.chunks) v[b] = __ldg(in + i0 + 32 * b);
    for (int k = 0; k < args.chosen; ++k) {
      uint4* out = args.out + static_cast<std::size_t>(rows[k]) * args.chunks;
#pragma unroll
      for (int b = 0; b < kBatch; ++b)
        if (i0 + 32 * b < args.chunks) out[i0 + 32 * b] = v[b];
    }
  }
}

__global__ void __launch_bounds__(kThreads) plan_of_shared_kernel(int tokens, int shared, PlanView plan) {
  ptx::wait_for_previous_kernel();
  ptx::let_next_kernel_start();
  const int row = blockIdx.x * kThreads + threadIdx.x;
  if (row <= shared) plan.offset[row] = row * tokens;
  if (row >= shared * tokens) return;
  plan.token[row] = row % tokens;
  plan.weight[row] = 1.0f;
}

}  // namespace

void gather_rows(const Sizes& s, const PlanView& plan, std::size_t row_bytes, const void* in, void* out,
                 cudaStream_t stream) {
  GatherArgs args{};
  args.row_offset = plan.offset + s.shared;
  args.sorted_offset = plan.sorted_offset;
  args.token_sorted = plan.token_sorted;
  args.in = static_cast<const uint4*>(in);
  args.out = static_cast<uint4*>(out);
  args.tokens = s.tokens;
  args.experts = s.routed();
  args.chosen = s.chosen;
  args.chunks = static_cast<int>(row_bytes / 16);
  args.token_blocks = (args.tokens + kWarps - 1) / kWarps;
  launch(gather_kernel, args.token_blocks + args.experts, 32 * kWarps, 0, stream, args);
}

void make_plan(const Sizes& s, const ChosenView& chosen, const std::int32_t* counts, int chunk, const PlanView& plan,
               cudaStream_t stream) {
  Args args{};
  args.ids = chosen.experts;
  args.weights = chosen.weights;
  args.counts = counts;
  args.tokens = s.tokens;
  args.experts = s.routed();
  args.shared = s.shared;
  args.chosen = s.chosen;
  args.chunks = (s.tokens + chunk - 1) / chunk;
  args.chunk_tokens = chunk;
  args.token_tile = s.token_tile;
  args.plan = plan;
  const int blocks = (args.chunks + kChunksPerBlock - 1) / kChunksPerBlock;
  const int ints = args.experts * (2 + kChunksPerBlock) + 2 * kChunksPerBlock * args.chunk_tokens * args.chosen +
                   2 * std::max(args.experts, kThreads);
  launch(plan_kernel, blocks, kThreads, ints * 4, stream, args);
}

void make_plan_of_shared(int tokens, int shared, const PlanView& plan, cudaStream_t stream) {
  launch(plan_of_shared_kernel, static_cast<unsigned>((shared * tokens + shared) / kThreads + 1), kThreads, 0, stream,
         tokens, shared, plan);
}

}  // namespace dsmoe::cuda
