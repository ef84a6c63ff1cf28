// What ranks add up about one step or evaluation. Each rank has the tokens of its share of a batch, in the order of the
// ranks, so the losses of all tokens one rank after another are those that one process has, and their sum has its bits.
#pragma once

#include <span>
#include <vector>

#include "dsmoe/trainer.h"
#include "model/transformer.h"
#include "parallel/comm.h"
#include "train/dataset.h"

namespace dsmoe::train {

// The sum over the tokens of a pass as Transformer has it on such a device: by the tokens that the head takes at a time,
// and among those in the order of ops::cross_entropy().
double sum_of_losses(std::span<const double> token_losses, Index vocab, Device device);

// What a rank knows of its part of a step, and then the step of all ranks.
struct StepSums {
  Index tokens = 0, targets = 0;
  std::vector<double> pass_losses;              // the sum over the tokens of each pass
  BalanceLosses balance;                        // mean over the passes
  std::vector<std::vector<std::int64_t>> load;  // [L][E]
};
void add_up_targets(parallel::Comm& comm, StepSums& sums);  // tokens and targets
void add_up_rest(parallel::Comm& comm, StepSums& sums);     // balance and load

// The sequences that a rank takes of a batch [first, first + count). All take at least one, since they compute together:
// where there are too few, the first one again, and none of its tokens is counted.
struct RankBatch {
  Batch batch;
  Index counted = 0;  // tokens, from the first
};
RankBatch batch_of_rank(const parallel::Comm& comm, const Dataset& data, Index first, Index count);

}  // namespace dsmoe::train
