// From one token's logits to its K experts, by one warp.
#pragma once

#include <cstdint>

#include "dsmoe/moe_config.h"

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

// The larger value; of equal ones the lower index. The same on every lane.
__device__ inline Best warp_best(Best b) {
  const std::uint32_t order = order_of(b.value), top = __reduce_max_sync(~0u, order);
  b.index = static_cast<int>(__reduce_min_sync(~0u, order == top ? static_cast<unsigned>(b.index) : 0x7fffffffu));
  b.value = __uint_as_float(top & 0x80000000u ? top & 0x7fffffffu : ~top);
  return b;
}
__device__ inline float warp_sum(float v) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) v += __shfl_xor_sync(~0u, v, step);
  return v;
}

// Best of choice[begin, end) by this warp; index INT_MAX when all are masked.
__device__ inline Best best_of(const float* choice, int begin, int end) {
  Best b{-INFINITY, INT32_MAX};
  for (int i = begin + threadIdx.x % 32; i < end; i += 32)
    if (choice[i] > b.value || (choice[i] == b.value && choice[i] > -INFINITY && i < b.index)) b = {choice[i], i};
  return warp_best(b);
}

// logits -> scores, in place. Returns false when a logit is not finite.
__device__ inline bool to_scores(const RoutingRule& rule, float* row) {
  const int lane = threadIdx.x % 32;
  bool finite = true;
  float top = -INFINITY;
  for (int i = lane; i < rule.experts; i += 32) {
    finite = finite && isfinite(row[i]);
    top = fmaxf(top, row[i]);
  }
  finite = __all_sync(~0u, finite);
  if (rule.score == ScoreFunction::kSigmoid) {
    for (int i = lane; i < rule.experts; i += 32) row[i] = 1.0f / (1.0f + expf(-row[i]));
  } else {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) top = fmaxf(top, __shfl_xor_sync(~0u, top, step));
    float sum = 0.0f;
    for (int i = lane; i < rule.experts; i += 32) sum += row[i] = expf(row[i] - top);
    const float inverse = 1.0f / warp_sum(sum);
    for (int i = lane; i < rule.experts; i += 32) row[i] *= inverse;
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
      for (int i = lane; i < size; i += 32) choice[g * size + i] = -INFINITY;
  }
  __syncwarp();
}

}  // namespace dsmoe::cuda
