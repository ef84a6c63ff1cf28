// From one token's logits to its K experts, by one warp. Loops over experts take two turns as a rule; unrolled, they would
// only be more instructions.
#pragma once

#include <cstdint>

#include "ops/cuda/kernels.h"

namespace dsmoe::cuda {

struct RoutingRule {
  int experts, chosen, groups, groups_per_token;
  ScoreFunction score;
  GroupScore group_score;
  bool normalise;
  float scale;
};

struct Best {
  float value;
  int index;
};

// Floats as integers of the same order.
__device__ inline std::uint32_t order_of(float v) {
  const std::uint32_t bits = __float_as_uint(v + 0.0f);  // -0 and 0 are equal
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

__device__ inline float float_of(std::uint32_t order) {
  return __uint_as_float(order & 0x80000000u ? order & 0x7fffffffu : ~order);
}

__device__ inline std::uint32_t warp_max(std::uint32_t v) {
#if __CUDA_ARCH__ >= 800
  return __reduce_max_sync(~0u, v);
#else
  for (int step = 16; step > 0; step /= 2) v = max(v, __shfl_xor_sync(~0u, v, step));
  return v;
#endif
}
// The larger value; of equal ones the lower index. The same on every lane.
__device__ inline Best warp_best(Best b) {
  const std::uint32_t order = order_of(b.value), top = warp_max(order);
  b.index = static_cast<int>(~warp_max(order == top ? ~static_cast<unsigned>(b.index) : ~0x7fffffffu));
  b.value = float_of(top);
  return b;
}
__device__ inline float warp_sum(float v) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) v += __shfl_xor_sync(~0u, v, step);
  return v;
}

// In the two functions that choose, nothing is fused: they have one result.
__device__ inline float sigmoid(float v) { return 1.0f / __fadd_rn(1.0f, expf(-v)); }

// Best of choice[begin, end) by this warp; index INT_MAX when all are masked.
__device__ inline Best best_of(const float* choice, int begin, int end) {
  Best b{-INFINITY, INT32_MAX};
#pragma unroll 1
  for (int i = begin + threadIdx.x % 32; i < end; i += 32)
    if (choice[i] > b.value || (choice[i] == b.value && choice[i] > -INFINITY && i < b.index)) b = {choice[i], i};
  return warp_best(b);
}

// The same of up to 64 of which a lane has number `lane` and that + 32, in registers.
struct Pair {
  float low, high;

  __device__ Best best(int lane) const {
    const bool first = low >= high;
    const float value = first ? low : high;
    return warp_best({value, value == -INFINITY ? INT32_MAX : first ? lane : lane + 32});
  }
  __device__ void drop(int lane, int index) {
    if (index == lane) low = -INFINITY;
    if (index == lane + 32) high = -INFINITY;
  }
};

// logits -> scores, in place. Returns false on the lanes that saw a logit that is not finite.
__device__ inline bool to_scores(const RoutingRule& rule, float* row) {
  const int lane = threadIdx.x % 32;
  bool finite = true;
  float top = -INFINITY;
#pragma unroll 1
  for (int i = lane; i < rule.experts; i += 32) {
    finite = finite && isfinite(row[i]);
    top = fmaxf(top, row[i]);
  }
  if (rule.score == ScoreFunction::kSigmoid) {
#pragma unroll 1
    for (int i = lane; i < rule.experts; i += 32) row[i] = sigmoid(row[i]);
  } else {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) top = fmaxf(top, __shfl_xor_sync(~0u, top, step));
    float sum = 0.0f;
#pragma unroll 1
    for (int i = lane; i < rule.experts; i += 32) sum = __fadd_rn(sum, row[i] = expf(row[i] - top));
    const float inverse = 1.0f / warp_sum(sum);
#pragma unroll 1
    for (int i = lane; i < rule.experts; i += 32) row[i] = __fmul_rn(row[i], inverse);
  }
  __syncwarp();
  return finite;
}

// Masks the experts outside the best groups. group_value is scratch of `groups` floats.
__device__ inline void keep_best_groups(const RoutingRule& rule, float* choice, float* group_value) {
  const int size = rule.experts / rule.groups, lane = threadIdx.x % 32;
  for (int g = 0; g < rule.groups; ++g) {
    const Best first = best_of(choice, g * size, (g + 1) * size);
    float value = first.value;
    if (rule.group_score == GroupScore::kTop2Sum && size > 1) {
      __syncwarp();
      if (lane == 0) choice[first.index] = -INFINITY;
      __syncwarp();
      value += best_of(choice, g * size, (g + 1) * size).value;
      __syncwarp();
      if (lane == 0) choice[first.index] = first.value;
    }
    if (lane == 0) group_value[g] = value;
    __syncwarp();
  }
  for (int g = 0; g < rule.groups; ++g) {
    int better = 0;
    for (int other = 0; other < rule.groups; ++other)
      better += group_value[other] > group_value[g] || (group_value[other] == group_value[g] && other < g);
    if (better >= rule.groups_per_token)
#pragma unroll 1
      for (int i = lane; i < size; i += 32) choice[g * size + i] = -INFINITY;
  }
  __syncwarp();
}

// One token by one warp: scores[E] (logits on entry), its K experts and their weights. choice is scratch of E + groups
// floats; on_pick(k, expert) is called by lane 0.
template <class OnPick>
__device__ inline void choose(const RoutingRule& rule, const float* bias, const ChosenView& out, int token, float* scores,
                              float* choice, OnPick&& on_pick) {
  const int lane = threadIdx.x % 32;
  bool finite = to_scores(rule, scores);
#pragma unroll 1
  for (int i = lane; i < rule.experts; i += 32) {
    out.scores[static_cast<std::size_t>(token) * rule.experts + i] = scores[i];
    choice[i] = bias ? __fadd_rn(scores[i], bias[i]) : scores[i];
    finite = finite && isfinite(choice[i]);
  }
  finite = __all_sync(~0u, finite);
  if (!finite && lane == 0) atomicMin(out.fault_word, out.fault | static_cast<unsigned>(token));
  __syncwarp();
  if (rule.groups > 1) keep_best_groups(rule, choice, choice + rule.experts);
  float sum = 0.0f, mine = 0.0f, mine_high = 0.0f;  // this lane's weights: ranks lane and lane + 32
  const bool few = rule.experts <= 64;
  Pair own{few && lane < rule.experts ? choice[lane] : -INFINITY,
           few && lane + 32 < rule.experts ? choice[lane + 32] : -INFINITY};
#pragma unroll 1
  for (int k = 0; k < rule.chosen; ++k) {
    int pick = few ? own.best(lane).index : best_of(choice, 0, rule.experts).index;
    if (!finite || pick >= rule.experts) pick = k;  // the weights are NaN then: nothing is chosen silently
    const float weight = finite ? scores[pick] : NAN;
    own.drop(lane, pick);
    __syncwarp();
    if (lane == 0) {
      choice[pick] = -INFINITY;
      out.experts[static_cast<std::size_t>(token) * rule.chosen + k] = pick;
      on_pick(k, pick);
    }
    __syncwarp();
    sum += weight;
    if (k == lane) mine = weight;
    if (k == lane + 32) mine_high = weight;
  }
  const float divisor = rule.normalise && rule.chosen > 1 ? sum + 1e-20f : 1.0f;
  float* weights = out.weights + static_cast<std::size_t>(token) * rule.chosen;
  if (lane < rule.chosen) weights[lane] = mine / divisor * rule.scale;
  if (lane + 32 < rule.chosen) weights[lane + 32] = mine_high / divisor * rule.scale;
}

// `count` rows of an expert over `tiles` tiles: an even split wastes less than full tiles and a remainder, and all but the
// last are multiples of 16, a width that the products have. Every other expert has its larger tiles last, so that it is not
// always the same blocks that get them.
__device__ inline void split_tiles(TokenTile* out, int tiles, int expert, int row, int count, int sorted_row) {
  constexpr int kUnit = 16;
  if (tiles == 0) return;
  const int units = (count + kUnit - 1) / kUnit, size = units / tiles, larger = units % tiles;
  for (int i = 0, at = 0; i < tiles; ++i) {
    const bool large = expert % 2 ? i >= tiles - larger : i < larger;
    const int rows = min((size + large) * kUnit, count - at);
    out[i] = {expert, row + at, rows, sorted_row + at};
    at += rows;
  }
}

inline RoutingRule routing_rule(const MoeConfig& c) {
  return {static_cast<int>(c.routed_experts),
          static_cast<int>(c.experts_per_token),
          static_cast<int>(c.groups),
          static_cast<int>(c.groups_per_token),
          c.score,
          c.group_score,
          c.norm_topk_prob,
          c.routed_scaling_factor};
}

// The gate's logits are sums of this many parts of D, added in order, whatever kernel makes them.
inline constexpr int kGateParts = 8;

}  // namespace dsmoe::cuda
