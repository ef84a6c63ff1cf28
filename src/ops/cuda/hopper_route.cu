// Gate and plan of up to 64 tokens in one launch: a cluster of eight blocks, each of which takes an eighth of D. The
// logits are the same sums as in gate.cu.
#include <cooperative_groups.h>

#include "ops/cuda/hopper.h"
#include "ops/cuda/launch.h"
#include "ops/cuda/ptx.cuh"
#include "ops/cuda/routing.cuh"

namespace dsmoe::cuda::hopper {

namespace {

namespace cg = cooperative_groups;

inline constexpr int kWarps = 16;

struct Args {
  RoutingRule rule;
  int tokens, width, shared, token_tile;
  const bf16* x;
  const bf16* gate;
  const float* bias;
  ChosenView out;
  PlanView plan;
};

// This block's part of the logits, part[token][expert]; one warp per 16 experts and 8 tokens.
__device__ void partial_logits(const Args& args, int block, float* part) {
  const int experts = args.rule.experts, lane = threadIdx.x % 32, g = lane / 4, c = lane % 4;
  const int steps = (args.width + 31) / 32, per_part = (steps + kGateParts - 1) / kGateParts;
  const int first = block * per_part, last = min(steps, first + per_part);
  const int m_tiles = (experts + 15) / 16, n_tiles = (args.tokens + 7) / 8;
  for (int job = threadIdx.x / 32; job < m_tiles * n_tiles; job += kWarps) {
    const int e0 = job % m_tiles * 16, t0 = job / m_tiles * 8;
    const bf16* low = args.gate + static_cast<std::size_t>(min(e0 + g, experts - 1)) * args.width + c * 8;
    const bf16* high = args.gate + static_cast<std::size_t>(min(e0 + g + 8, experts - 1)) * args.width + c * 8;
    const bf16* token = args.x + static_cast<std::size_t>(min(t0 + g, args.tokens - 1)) * args.width + c * 8;
    float acc[4] = {};
#pragma unroll 8
    for (int s = first; s < last; ++s) {
      const int k = s * 32;
      const bool inside = k + c * 8 < args.width;
      const uint4 a = inside ? __ldg(reinterpret_cast<const uint4*>(low + k)) : uint4{};
      const uint4 b = inside ? __ldg(reinterpret_cast<const uint4*>(high + k)) : uint4{};
      const uint4 x = inside ? __ldg(reinterpret_cast<const uint4*>(token + k)) : uint4{};
      ptx::mma_16816(acc, a.x, b.x, a.y, b.y, x.x, x.y);
      ptx::mma_16816(acc, a.z, b.z, a.w, b.w, x.z, x.w);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int t = t0 + 2 * c + i % 2, e = e0 + g + i / 2 * 8;
      if (t < args.tokens && e < experts) part[t * experts + e] = acc[i];
    }
  }
}

// Loads this block's part of the gate into the cache while the previous kernel is still computing x.
__device__ void prefetch_gate(const Args& args, int block) {
  constexpr int kLine = 64;  // bf16 in 128 bytes
  const int steps = (args.width + 31) / 32, per_part = (steps + kGateParts - 1) / kGateParts;
  const int begin = block * per_part * 32, lines = (per_part * 32 + kLine - 1) / kLine;
  for (int i = threadIdx.x; i < args.rule.experts * lines; i += blockDim.x) {
    const int k = begin + i % lines * kLine;
    if (k < args.width) ptx::prefetch(args.gate + static_cast<std::size_t>(i / lines) * args.width + k);
  }
}

// The parts of a plan that inference needs. A token chooses an expert at most once, so the tokens of an expert are the bits
// of one word, in order.
__device__ void plan_few(const Args& args, const std::int32_t* ids, unsigned long long* chosen_by,
                         std::int32_t* first_row) {
  const int experts = args.rule.experts, pairs = args.tokens * args.rule.chosen;
  for (int e = threadIdx.x; e < experts; e += blockDim.x) chosen_by[e] = 0;
  __syncthreads();
  for (int i = threadIdx.x; i < pairs; i += blockDim.x) atomicOr(&chosen_by[ids[i]], 1ull << i / args.rule.chosen);
  __syncthreads();
  if (threadIdx.x < 32) {
    int row = args.shared * args.tokens, tile = 0;
    for (int e0 = 0; e0 < experts; e0 += 32) {
      const int e = e0 + threadIdx.x, n = e < experts ? __popcll(chosen_by[e]) : 0;
      const int t = (n + args.token_tile - 1) / args.token_tile;
      int rows = n, tiles = t;
#pragma unroll
      for (int step = 1; step < 32; step *= 2) {
        const int r = __shfl_up_sync(~0u, rows, step), u = __shfl_up_sync(~0u, tiles, step);
        if (threadIdx.x >= step) rows += r, tiles += u;
      }
      if (e < experts) {
        first_row[e] = args.plan.offset[args.shared + e] = row + rows - n;
        split_tiles(args.plan.tiles + tile + tiles - t, t, args.shared + e, row + rows - n, n, 0);
      }
      row += __shfl_sync(~0u, rows, 31);
      tile += __shfl_sync(~0u, tiles, 31);
    }
    if (threadIdx.x == 0) {
      args.plan.offset[args.shared + experts] = row;
      *args.plan.tile_count = tile;
    }
  }
  for (int i = threadIdx.x; i < args.shared * args.tokens; i += blockDim.x) {
    if (i % args.tokens == 0) args.plan.offset[i / args.tokens] = i;
    args.plan.token[i] = i % args.tokens;
  }
  __syncthreads();
  for (int i = threadIdx.x; i < pairs; i += blockDim.x) {
    const int token = i / args.rule.chosen, e = ids[i];
    const int row = first_row[e] + __popcll(chosen_by[e] & ((1ull << token) - 1));
    args.plan.token[row] = token;
    args.plan.slot_row[i] = row;
  }
}

__global__ void __cluster_dims__(kGateParts, 1, 1) __launch_bounds__(kWarps * 32)
    route_kernel(const __grid_constant__ Args args) {
  extern __shared__ float smem[];
  __shared__ unsigned long long chosen_by[kFewExperts];
  __shared__ std::int32_t first_row[kFewExperts];
  const cg::cluster_group cluster = cg::this_cluster();
  const int block = static_cast<int>(cluster.block_rank()), warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int experts = args.rule.experts, chosen = args.rule.chosen;
  float* part = smem;                                                         // [tokens][E]
  auto* ids = reinterpret_cast<std::int32_t*>(part + args.tokens * experts);  // [tokens][K], of block 0
  float* scratch = reinterpret_cast<float*>(ids + args.tokens * chosen) + warp * (2 * experts + args.rule.groups);
  prefetch_gate(args, block);
  ptx::wait_for_previous_kernel();
  ptx::let_next_kernel_start();
  partial_logits(args, block, part);
  cluster.sync();
  std::int32_t* all_ids = cluster.map_shared_rank(ids, 0);
  for (int t = block + kGateParts * warp; t < args.tokens; t += kGateParts * kWarps) {
    for (int e = lane; e < experts; e += 32) {
      float v[kGateParts];
#pragma unroll
      for (int i = 0; i < kGateParts; ++i) v[i] = cluster.map_shared_rank(part, i)[t * experts + e];
#pragma unroll
      for (int i = 1; i < kGateParts; ++i) v[0] += v[i];
      scratch[e] = v[0];
    }
    __syncwarp();
    choose(args.rule, args.bias, args.out, t, scratch, scratch + experts,
           [&](int k, int pick) { all_ids[t * chosen + k] = pick; });
  }
  cluster.sync();
  if (block == 0) plan_few(args, ids, chosen_by, first_row);
}

int smem_bytes(const MoeConfig& c, Index tokens) {
  return static_cast<int>(4 *
                          (tokens * (c.routed_experts + c.experts_per_token) + kWarps * (2 * c.routed_experts + c.groups)));
}

}  // namespace

bool can_route_few(const MoeConfig& config, Index tokens) {
  return routes_in_one_launch(tokens, config.routed_experts, smem_bytes(config, tokens));
}

void route_few(const MoeConfig& config, const Sizes& s, const GateInput& in, const ChosenView& out, const PlanView& plan,
               cudaStream_t stream) {
  Args args{};
  args.rule = routing_rule(config);
  args.tokens = s.tokens;
  args.width = s.width;
  args.shared = s.shared;
  args.token_tile = s.token_tile;
  args.x = static_cast<const bf16*>(in.x);
  args.gate = static_cast<const bf16*>(in.weight);
  args.bias = in.bias;
  args.out = out;
  args.plan = plan;
  launch(route_kernel, kGateParts, kWarps * 32, smem_bytes(config, s.tokens), stream, args);
}

}  // namespace dsmoe::cuda::hopper
