// How evenly tokens use the experts, and so the ranks over which these are spread: in every layer all ranks of a group wait
// for the one that has the most to do.
#pragma once

#include <cstdint>
#include <vector>

#include "dsmoe/model_config.h"
#include "dsmoe/moe_config.h"
#include "train/rank_plan.h"

namespace dsmoe::train {

struct ExpertLoads {
  // How many times its even share the busiest expert of a layer has, as `expert_load_max` in the log of a run; 0: twice, or
  // what is possible. That is an assumption: what `inspect` calls overloaded, and about what a balance loss leaves.
  double busiest_expert = 0;
  // Or what was counted, of each MoE layer and expert.
  std::vector<std::vector<std::int64_t>> counted = {};

  void check(const ModelConfig& config) const;
};

// How many times its even share the busiest rank of a group of `ranks` has, when `tokens` of a group choose. Shares of
// experts are taken as lognormal, and as which ones a rank has is chance, it is the mean over some orders of them, always
// the same.
double busiest_rank(const MoeConfig& moe, Index ranks, double tokens, double busiest_expert);
// The same of experts that were counted.
double busiest_rank(const std::vector<std::int64_t>& counted, Index ranks);

}  // namespace dsmoe::train
