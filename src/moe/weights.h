// The weights and gradients as one list of S + E experts, shared ones first: what the grouped products take.
#pragma once

#include "dsmoe/moe.h"
#include "ops/experts.h"

namespace dsmoe {

// With quantized or f16 matrices the shared experts are one wide expert of the list instead: columns of a quantized matrix
// cannot be cut anywhere.
ops::ExpertWeights expert_list(const MoeConfig& config, const MoeWeights& weights);
// Whether an expert has matrices that are neither f32 nor bf16, and how it then joins a list.
bool is_mixed(const ExpertTensors& expert);
void add_mixed_expert(ops::ExpertWeights& list, const ExpertTensors& expert);

ops::ExpertGrads expert_list(const MoeConfig& config, MoeGradients& grads);

// The stacks of weights on a GPU (stacks.cpp).
inline Shape gate_up_shape(const MoeConfig& c) { return {c.all_experts(), 2, c.expert_size, c.hidden_size}; }
inline Shape down_shape(const MoeConfig& c) { return {c.all_experts(), c.hidden_size, c.expert_size}; }
void check_stacks(const MoeConfig& config, const MoeWeights& weights);

}  // namespace dsmoe
