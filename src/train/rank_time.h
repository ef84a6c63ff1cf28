// How long a step of many ranks takes at best, and which layout takes least: products at the speed of a card, messages at
// that of a link, and in every layer as much more as the busiest rank has to do. What is left out makes a step longer:
// ranks that wait for one that is slow for other reasons, latency, and the copies of rows. So it says which of two layouts
// is better, not what will be measured.
#pragma once

#include <optional>
#include <string>

#include "dsmoe/train_options.h"
#include "train/expert_loads.h"
#include "train/rank_plan.h"

namespace dsmoe::train {

// A GPU by its data sheet: products of bf16 without sparsity, FLOP/s, and bytes of memory. Or the CPU of a rank by what was
// measured there ("230GFLOPS"): its own cores move the bytes too, so nothing is hidden under the computation.
struct Card {
  std::string name;
  double flops, memory;
  bool gpu = true;
};
Card card_named(const std::string& name);  // throws with the names there are

struct Cluster {
  Card card;
  double link = 0;        // bytes per second that a rank sends to others, or to those on other machines
  double efficiency = 1;  // share of the card's peak that one rank by itself reaches
  double inside = 0;      // bytes per second that it sends to those of its machine, at the same time; 0: as to all
};

// Seconds of a step of one pass.
struct StepTime {
  double compute = 0, tokens = 0, gradients = 0;
  double hidden = 0;            // of the tokens' way to their experts: the shared experts are computed meanwhile
  double hidden_gradients = 0;  // of the gradients': backward computes others meanwhile
  double uneven = 0;            // what the busiest rank of each layer takes more, of the computation and of the tokens' way
  double busiest_rank = 1;      // times its even share, on average over the layers
  double total() const { return compute + tokens + gradients - hidden - hidden_gradients + uneven; }
};
// Of batch_size sequences of all ranks, once through the model; What options.recompute does again is
// more to compute.
StepTime step_time(const ModelConfig& config, const TrainOptions& options, const RankLayout& layout, const Cluster& cluster,
                   const ExpertLoads& loads = {});

struct BestLayout {
  RankLayout layout;
  Recompute recompute = Recompute::kNone;
  std::size_t memory = 0;
  StepTime time;
};
// The fastest one whose memory a card has, of so many ranks, `per_machine` of them on a machine; of equals the one with the
// smallest groups. Blocks are computed again only where nothing fits without.
std::optional<BestLayout> best_layout(const ModelConfig& config, const TrainOptions& options, Index ranks,
                                      const Cluster& cluster, const ExpertLoads& loads = {}, Index per_machine = 0);

}  // namespace dsmoe::train
