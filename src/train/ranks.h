// What ranks add up about one step or evaluation. Each rank has the tokens of its share of a batch, in the order of the
// ranks, so the losses of all tokens one rank after another are those that one process has, and their sum has its bits.
#pragma once

#include <span>
#include <utility>
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
  double waited = 0;                            // seconds that all ranks together waited
  Index slowest_rank = -1;                      // the one that waited least; -1 for a process alone
};
void add_up_targets(parallel::Comm& comm, StepSums& sums);  // tokens and targets
// Balance and load, and what each rank waited, in the same messages.
void add_up_rest(parallel::Comm& comm, StepSums& sums, double waited);

// Seconds that this rank waits for others in steps, from one gathering to the next: the end of the step before is among
// them, but no evaluation or checkpoint between two steps.
class StepWait {
 public:
  void begin(const parallel::Comm& world) { from_ = world.seconds_waited(); }
  void end(const parallel::Comm& world) {
    const double now = world.seconds_waited();
    sum_ += now - std::exchange(from_, now);
  }
  double gathered(const parallel::Comm& world) {
    end(world);
    return std::exchange(sum_, 0);
  }

 private:
  double sum_ = 0, from_ = 0;  // from_: what the world's clock said when sum_ was right
};

// The sequences that a rank takes of a batch [first, first + count). All take at least one, since they compute together:
// where there are too few, the first one again, and none of its tokens is counted.
struct RankBatch {
  Batch batch;
  Index counted = 0;  // tokens, from the first
};
RankBatch batch_of_rank(const parallel::Comm& comm, const Dataset& data, Index first, Index count);

}  // namespace dsmoe::train
