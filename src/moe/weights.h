// The weights and gradients as one list of S + E experts, shared ones first: what the grouped products take.
#pragma once

#include "dsmoe/moe.h"
#include "ops/experts.h"

namespace dsmoe {

ops::ExpertWeights expert_list(const MoeConfig& config, const MoeWeights& weights);
ops::ExpertGrads expert_list(const MoeConfig& config, MoeGradients& grads);

}  // namespace dsmoe
