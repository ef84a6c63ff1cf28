// What training by many ranks takes, before it is tried: memory of a rank, and bytes that it sends in a step.
#pragma once

#include "dsmoe/model_config.h"
#include "dsmoe/moe_config.h"
#include "model/plan.h"

namespace dsmoe::train {

struct RankLayout {
  Index ranks = 1, expert_parallel = 1;
  Index zero = 0;  // ZeRO's stage
  bool partial_sums = false;
  Device device = Device::kCpu;  // GPUs send rows in the dtype of the weights
  bool overlap = true;           // gradients are summed while backward runs
  Index per_machine = 0;         // ranks of a machine, one machine after another as mpirun places them; 0: all of them

  void check(const ModelConfig& config) const;  // throws for what make_mesh() and the layers refuse
};

// Numbers of the largest stage's gradients (gradient_sums.h): those of the others are held beside them while they are
// summed.
Index largest_stage(const ModelConfig& config, const RankLayout& layout);

// Of the rank with the most experts.
TrainingMemory rank_memory(const ModelConfig& config, DType dtype, const RankLayout& layout);

// Bytes that a rank sends to others in a step of one pass over `tokens` tokens of all ranks, with even shares. Tokens
// choose experts at random in it; lengths and counts, some bytes per layer, are left out.
struct RankTraffic {
  double gradients = 0;  // and, with ZeRO, the new weights
  double tokens = 0;     // to their experts and back, forward and backward
  // Of these, what goes to other machines, on average over the ranks.
  double gradients_between = 0, tokens_between = 0;
  double total() const { return gradients + tokens; }
};
RankTraffic rank_traffic(const ModelConfig& config, DType dtype, const RankLayout& layout, Index tokens);
// Of them, what one token causes in one layer.
double bytes_of_token(const MoeConfig& moe, DType dtype, const RankLayout& layout);

// Of one token, on average: how many other ranks it goes to, and how many of its rows come from there.
struct RowsToOthers {
  double tokens = 0, rows = 0;
};
RowsToOthers rows_to_others(const MoeConfig& moe, const RankLayout& layout);

}  // namespace dsmoe::train
