// Gate and plan of up to 64 tokens in one launch: a cluster of eight blocks, each of which takes an eighth of D. The
// logits are the same sums as in gate.cu.
#include <cooperative_groups.h>

#include "ops/cuda/gate_rows.cuh"
#include "ops/cuda/hopper.h"
#include "ops/cuda/launch.h"
#include "ops/cuda/ptx.cuh"
#include "ops/cuda/routing.cuh"

namespace dsmoe::cuda::hopper {

namespace {

namespace cg = cooperative_groups;

inline constexpr int kWarps = 8;

struct Args {
  RoutingRule rule;
  GateWeight gate;
  int tokens, width, shared, token_tile;
  const bf16* x;
  const float* bias;
  ChosenView out;
  PlanView plan;
};

// This block's part of the logits, stored in the block that adds up the token's parts: parts[block][token / 8][expert] of
// block token % 8. One warp per 16 experts and 8 tokens; `ahead` has what the warp's first product needs of the gate.
__device__ __forceinline__ void partial_logits(const Args& args, const cg::cluster_group& cluster, GateRows& ahead,
                                               float* parts) {
  const int experts = args.rule.experts, lane = threadIdx.x % 32, g = lane / 4, c = lane % 4;
  const int block = static_cast<int>(cluster.block_rank()), per_block = (args.tokens + kGateParts - 1) / kGateParts;
  const int m_tiles = (experts + 15) / 16, n_tiles = (args.tokens + 7) / 8, warp = threadIdx.x / 32;
  const GatePart part(args.width, block);
  for (int job = warp; job < m_tiles * n_tiles; job += kWarps) {
    const int e0 = job % m_tiles * 16, t0 = job / m_tiles * 8;
    const bf16* const token = args.x + static_cast<std::size_t>(min(t0 + g, args.tokens - 1)) * args.width;
    float acc[4] = {};
    for (int from = part.first; from < part.last; from += GateRows::kSteps) {
      if (job != warp || from != part.first) ahead.load(args.gate, part, e0, from);
      ahead.multiply(args.gate, part, from, acc, [&](int k) { return __ldg(reinterpret_cast<const uint4*>(token + k)); });
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int t = t0 + 2 * c + i % 2, e = e0 + g + i / 2 * 8;
      if (t < args.tokens && e < experts)
        cluster.map_shared_rank(parts, t % kGateParts)[(block * per_block + t / kGateParts) * experts + e] = acc[i];
    }
  }
}

// Loads this block's part of the gate into the cache while the previous kernel is still computing x.
__device__ void prefetch_gate(const Args& args, int block) {
  constexpr int kLine = 64;  // bf16 in 128 bytes
  const GatePart part(args.width, block);
  const int begin = part.first * 32, lines = ((part.last - part.first) * 32 + kLine - 1) / kLine;
  for (int i = threadIdx.x; i < args.rule.experts * lines; i += blockDim.x) {
    const int k = begin + i % lines * kLine;
    if (k < args.width) ptx::prefetch(args.gate.rows + static_cast<std::size_t>(i / lines) * args.width + k);
  }
}

// The parts of a plan that inference needs, of up to 32 pairs of a token and an expert, by one warp: a lane has a pair.
__device__ void plan_fewest(const Args& args, const std::int32_t* ids) {
  const int lane = threadIdx.x % 32, experts = args.rule.experts, chosen = args.rule.chosen;
  const int pairs = args.tokens * chosen, first = args.shared * args.tokens;
  const int mine = lane < pairs ? ids[lane] : INT32_MAX;
  const unsigned alike = __match_any_sync(~0u, mine);
  const bool leads = lane < pairs && __ffs(static_cast<int>(alike)) - 1 == lane;
  const unsigned leaders = __ballot_sync(~0u, leads);
  int row = first, tile = 0;
#pragma unroll 1
  for (int i = 0; i < pairs; ++i) {
    const int other = __shfl_sync(~0u, mine, i);
    row += other < mine || (other == mine && i < lane);
    tile += other < mine && (leaders >> i & 1);
  }
  if (lane < pairs) {
    args.plan.token[row] = lane / chosen;
    args.plan.slot_row[lane] = row;
  }
  if (leads) split_tiles(args.plan.tiles + tile, 1, args.shared + mine, row, __popc(alike), 0);
#pragma unroll 1
  for (int e0 = 0; e0 < experts; e0 += 32) {
    int offset = first;
#pragma unroll 1
    for (int i = 0; i < pairs; ++i) offset += __shfl_sync(~0u, mine, i) < e0 + lane;
    if (e0 + lane < experts) args.plan.offset[args.shared + e0 + lane] = offset;
  }
  if (lane == 0) {
    args.plan.offset[args.shared + experts] = first + pairs;
    *args.plan.tile_count = __popc(leaders);
  }
  for (int i = lane; i < first; i += 32) {
    if (i % args.tokens == 0) args.plan.offset[i / args.tokens] = i;
    args.plan.token[i] = i % args.tokens;
  }
}

// The same for more. A token chooses an expert at most once, so the tokens of an expert are the bits
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
  const int per_block = (args.tokens + kGateParts - 1) / kGateParts;
  float* parts = smem;                                                                    // of partial_logits()
  auto* ids = reinterpret_cast<std::int32_t*>(parts + kGateParts * per_block * experts);  // [tokens][K], of block 0
  float* scratch = reinterpret_cast<float*>(ids + args.tokens * chosen) + warp * (2 * experts + args.rule.groups);
  GateRows ahead;
  const GatePart part(args.width, block);
  ahead.load(args.gate, part, warp % ((experts + 15) / 16) * 16, part.first);
  if (per_block > 1 || experts > kWarps * 16) prefetch_gate(args, block);
  cluster.sync();  // all blocks are there, and can be written to
  ptx::wait_for_previous_kernel();
  ptx::let_next_kernel_start();
  partial_logits(args, cluster, ahead, parts);
  cluster.sync();
  std::int32_t* all_ids = cluster.map_shared_rank(ids, 0);
  for (int t = block + kGateParts * warp; t < args.tokens; t += kGateParts * kWarps) {
#pragma unroll 1
    for (int e = lane; e < experts; e += 32) {
      float v[kGateParts];
#pragma unroll
      for (int i = 0; i < kGateParts; ++i) v[i] = parts[(i * per_block + t / kGateParts) * experts + e];
#pragma unroll
      for (int i = 1; i < kGateParts; ++i) v[0] += v[i];
      scratch[e] = v[0];
    }
    __syncwarp();
    choose(args.rule, args.bias, args.out, t, scratch, scratch + experts,
           [&](int k, int pick) { all_ids[t * chosen + k] = pick; });
  }
  if (args.tokens > 1) cluster.sync();  // of one token, the warp that chose makes the plan
  __syncwarp();
  if (block != 0) return;
  if (args.tokens * chosen > 32)
    plan_few(args, ids, chosen_by, first_row);
  else if (warp == 0)
    plan_fewest(args, ids);
}

int smem_bytes(const MoeConfig& c, Index tokens) {
  const Index parts = (tokens + kGateParts - 1) / kGateParts * kGateParts;
  return static_cast<int>(
      4 * (parts * c.routed_experts + tokens * c.experts_per_token + kWarps * (2 * c.routed_experts + c.groups)));
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
  args.gate = {static_cast<const bf16*>(in.weight), args.rule.experts, s.width};
  args.bias = in.bias;
  args.out = out;
  args.plan = plan;
  launch(route_kernel, kGateParts, kWarps * 32, smem_bytes(config, s.tokens), stream, args);
}

}  // namespace dsmoe::cuda::hopper
