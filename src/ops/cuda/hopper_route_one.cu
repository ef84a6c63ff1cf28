// One token's residual sum, norm, gate and plan in one launch, where its experts' kernels follow (hopper_one_token.cu): a
// cluster as in hopper_route.cu, with the same sums, and one warp that chooses among up to 64 experts in registers.
#include <cooperative_groups.h>

#include "ops/cuda/gate_rows.cuh"
#include "ops/cuda/hopper.h"
#include "ops/cuda/launch.h"
#include "ops/cuda/norm_row.cuh"
#include "ops/cuda/ptx.cuh"
#include "ops/cuda/routing.cuh"

namespace dsmoe::cuda::hopper {

namespace {

namespace cg = cooperative_groups;

constexpr int kThreads = 256, kMostExperts = 64, kMostWidth = 2048;

struct Args {
  RoutingRule rule;
  GateWeight gate;
  AddNormRow<float> norm;
  bf16* normed;
  int shared;
  const float* bias;
  ChosenView out;
  PlanView plan;
};

// What a lane has of two numbers per lane: of expert `lane`, and of that + 32.
struct Two {
  float low, high;
};

// logits -> scores; those of experts that are not there are 0. As to_scores() of routing.cuh.
__device__ __forceinline__ Two scores_of(const RoutingRule& rule, Two logits, bool low_there, bool high_there) {
  if (rule.score == ScoreFunction::kSigmoid)
    return {low_there ? sigmoid(logits.low) : 0.0f, high_there ? sigmoid(logits.high) : 0.0f};
  const float own = fmaxf(low_there ? logits.low : -INFINITY, high_there ? logits.high : -INFINITY);
  const float top = float_of(warp_max(order_of(own)));
  const Two e{low_there ? expf(logits.low - top) : 0.0f, high_there ? expf(logits.high - top) : 0.0f};
  const float inverse = 1.0f / warp_sum(__fadd_rn(e.low, e.high));
  return {__fmul_rn(e.low, inverse), __fmul_rn(e.high, inverse)};
}

// As choose() and the plan of hopper_route.cu, by one warp. `logit(e)`: of expert e.
template <class Logit>
__device__ __forceinline__ void choose_and_plan(const Args& args, Logit&& logit) {
  const RoutingRule& rule = args.rule;
  const int lane = threadIdx.x % 32, high = lane + 32, experts = rule.experts, chosen = rule.chosen;
  const bool low_there = lane < experts, high_there = high < experts;
  const Two logits{low_there ? logit(lane) : 0.0f, high_there ? logit(high) : 0.0f};
  const Two score = scores_of(rule, logits, low_there, high_there);
  Two choice = score;
  if (args.bias && low_there) choice.low = __fadd_rn(score.low, args.bias[lane]);
  if (args.bias && high_there) choice.high = __fadd_rn(score.high, args.bias[high]);
  const bool finite =
      __all_sync(~0u, isfinite(logits.low) && isfinite(logits.high) && isfinite(choice.low) && isfinite(choice.high));
  // Every number that is there is over 0.
  std::uint32_t order[2] = {low_there ? order_of(choice.low) : 0, high_there ? order_of(choice.high) : 0};
  std::uint32_t taken[2] = {};  // the experts chosen so far, as bits
  int mine = 0;                 // lane k: the k-th choice
#pragma unroll 1
  for (int k = 0; k < chosen; ++k) {
    const std::uint32_t top = warp_max(max(order[0], order[1]));
    const std::uint32_t low_best = __ballot_sync(~0u, order[0] == top), high_best = __ballot_sync(~0u, order[1] == top);
    int pick = low_best ? __ffs(static_cast<int>(low_best)) - 1 : __ffs(static_cast<int>(high_best)) + 31;
    if (!finite) pick = k;  // the weights are NaN then: nothing is chosen silently
    if (pick == lane) order[0] = 0;
    if (pick == high) order[1] = 0;
    if (k == lane) mine = pick;
    taken[0] |= pick < 32 ? 1u << pick : 0;
    taken[1] |= pick < 32 ? 0 : 1u << (pick - 32);
  }
  const float weight_low = __shfl_sync(~0u, score.low, mine % 32), weight_high = __shfl_sync(~0u, score.high, mine % 32);
  const float weight = !finite ? NAN : mine < 32 ? weight_low : weight_high;
  float divisor = 1.0f;
  if (rule.normalise && chosen > 1) {
    divisor = 0.0f;
#pragma unroll 1
    for (int k = 0; k < chosen; ++k) divisor += __shfl_sync(~0u, weight, k);
    divisor += 1e-20f;
  }
  // Rows are sorted by expert: that of one is how many of those before it are chosen.
  const auto chosen_before = [&](int e) {
    const std::uint32_t before = (1u << e % 32) - 1;
    return e < 32 ? __popc(taken[0] & before) : __popc(taken[0]) + __popc(taken[1] & before);
  };
  if (lane < chosen) {
    const int tile = chosen_before(mine), row = args.shared + tile;
    args.plan.tiles[tile] = {args.shared + mine, row, 1, 0};
    args.plan.slot_row[lane] = row;
    args.plan.token[row] = 0;
    args.out.experts[lane] = mine;
    args.out.weights[lane] = weight / divisor * rule.scale;
  }
  if (low_there)
    args.out.scores[lane] = score.low, args.plan.offset[args.shared + lane] = args.shared + chosen_before(lane);
  if (high_there)
    args.out.scores[high] = score.high, args.plan.offset[args.shared + high] = args.shared + chosen_before(high);
  if (lane < args.shared) args.plan.offset[lane] = lane, args.plan.token[lane] = 0;
  if (lane == 0) {
    args.plan.offset[args.shared + experts] = args.shared + chosen;
    *args.plan.tile_count = chosen;
    if (!finite) atomicMin(args.out.fault_word, args.out.fault);
  }
}

__global__ void __cluster_dims__(kGateParts, 1, 1) __launch_bounds__(kThreads)
    route_one_kernel(const __grid_constant__ Args args) {
  __shared__ float scratch[kThreads / 32];
  __shared__ alignas(16) bf16 row[kMostWidth];
  __shared__ float parts[kGateParts][kMostExperts];  // of the logits, in block 0
  const cg::cluster_group cluster = cg::this_cluster();
  const int block = static_cast<int>(cluster.block_rank()), warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const GatePart part(args.gate.width, block);
  const bool multiplies = warp * 16 < args.gate.experts;
  GateRows gate;
  NormRow<kThreads, float> norm;
  ptx::let_next_kernel_start();  // which waits for the end of this one before it reads x or the plan
  if (multiplies) gate.load(args.gate, part, warp * 16, part.first);
  norm.load_weight(args.norm);
  cluster.sync();  // all blocks are there, and can be written to
  ptx::wait_for_previous_kernel();
  // Every block makes the whole row for itself and keeps its part of the results.
  norm.norm(
      args.norm, scratch, [] { __syncthreads(); },
      [&](int column, const Pack<float, 4>& sum, const Pack<bf16, 4>& normed) {
        store(normed, row + column);
        if (column < part.first * 32 || column >= part.last * 32) return;
        store(sum, args.norm.sum + column);
        store(normed, args.normed + column);
      });
  __syncthreads();
  if (multiplies) {
    float acc[4] = {};
    gate.multiply(args.gate, part, part.first, acc, [&](int k) { return *reinterpret_cast<const uint4*>(row + k); });
    if (lane % 4 == 0) {
      float* const to = cluster.map_shared_rank(parts[block], 0) + warp * 16 + lane / 4;
      to[0] = acc[0], to[8] = acc[2];
    }
  }
  cluster.sync();
  if (block != 0 || warp != 0) return;
  choose_and_plan(args, [&](int e) {
    float sum = parts[0][e];
#pragma unroll
    for (int i = 1; i < kGateParts; ++i) sum += parts[i][e];
    return sum;
  });
}

}  // namespace

bool can_route_one(const MoeConfig& c) {
  constexpr Index kMostPart = Index{GateRows::kSteps} * 32 * kGateParts;  // of D: a block has its part in registers
  static_assert(kMostPart == kMostWidth);
  return c.routed_experts <= kMostExperts && c.experts_per_token <= 32 && c.shared_experts <= 32 && c.groups == 1 &&
         norms_rows_of(static_cast<int>(c.hidden_size));
}

void route_one(const MoeConfig& config, const Sizes& s, const GateInput& in, const AddNormRow<float>& norm, bf16* normed,
               const ChosenView& out, const PlanView& plan, cudaStream_t stream) {
  Args args{};
  args.rule = routing_rule(config);
  args.gate = {static_cast<const bf16*>(in.weight), args.rule.experts, s.width};
  args.norm = norm;
  args.normed = normed;
  args.shared = s.shared;
  args.bias = in.bias;
  args.out = out;
  args.plan = plan;
  launch(route_one_kernel, kGateParts, kThreads, 0, stream, args);
}

}  // namespace dsmoe::cuda::hopper
