#include "train/rank_plan.h"

#include <algorithm>

#include "core/fail.h"
#include "model/families/family.h"
#include "model/parameters.h"
#include "model/weights.h"
#include "moe/dispatch.h"

namespace dsmoe::train {

namespace {

// Numbers that are trained: those that every rank has, and of routed experts those of one rank (the most) of a group.
struct Held {
  Index everywhere = 0, spread = 0;
};

template <class Wanted>
Held held(const ModelSpec& spec, const RankLayout& layout, Wanted wanted) {
  Held n;
  visit_parameters(spec, [&](const Parameter& p) {
    if (!wanted(p)) return;
    const auto* const place = std::get_if<ExpertPlace>(&p.place);
    if (place == nullptr || p.expert < 0 || layout.expert_parallel == 1) {
      n.everywhere += p.shape.numel();
    } else if (p.expert < (place->experts + layout.expert_parallel - 1) / layout.expert_parallel) {
      n.spread += p.shape.numel();
    }
  });
  return n;
}

bool any(const Parameter&) { return true; }
bool is_trained(const Parameter& p) { return p.traits.gradient; }

}  // namespace

namespace {

// Of the others in a group of `size` ranks that are `apart` from each other, the share that is on other machines: each gets
// as much.
double others_elsewhere(const RankLayout& layout, Index size, Index apart) {
  if (layout.per_machine == 0 || size == 1) return 0;
  Index elsewhere = 0;
  for (Index rank = 0; rank < layout.ranks; ++rank) {
    const Index first = rank / (size * apart) * size * apart + rank % apart;
    for (Index i = 0; i < size; ++i) elsewhere += (first + i * apart) / layout.per_machine != rank / layout.per_machine;
  }
  return static_cast<double>(elsewhere) / static_cast<double>(layout.ranks * (size - 1));
}

}  // namespace

void RankLayout::check(const ModelConfig& config) const {
  require(ranks >= 1 && expert_parallel >= 1 && ranks % expert_parallel == 0,
          "expert-parallel is {}, but there are {} ranks: it must divide their number", expert_parallel, ranks);
  require(expert_parallel == 1 || expert_parallel <= config.routed_experts(),
          "expert-parallel is {}, but a layer has only {} routed experts; use at most as many", expert_parallel,
          config.routed_experts());
  require(per_machine >= 0 && (per_machine == 0 || ranks % per_machine == 0),
          "ranks-per-machine is {}, but there are {} ranks: it must divide their number", per_machine, ranks);
}

TrainingMemory rank_memory(const ModelConfig& config, DType dtype, const RankLayout& layout) {
  layout.check(config);
  const ModelSpec spec = spec_of(config);
  const Held all = held(spec, layout, any), trained = held(spec, layout, is_trained);
  const auto share = [](Index n, Index ranks) { return (n + ranks - 1) / ranks; };
  const Index kept =
      layout.zero ? share(trained.everywhere, layout.ranks) + share(trained.spread, layout.ranks / layout.expert_parallel)
                  : trained.everywhere + trained.spread;
  TrainingMemory m;
  m.weights = (all.everywhere + all.spread) * static_cast<Index>(size_of(dtype));
  m.gradients = 4 * (trained.everywhere + trained.spread);
  if (layout.zero == 2) {
    const std::vector<std::size_t> turns = turns_of(spec);
    const Held places = held(spec, layout, [&](const Parameter& p) {
      return is_trained(p) &&
             (p.layer < 0 || turns[static_cast<std::size_t>(p.layer)] == static_cast<std::size_t>(p.layer));
    });
    m.gradients = 4 * (places.everywhere + places.spread + kept);
  }
  m.master_weights = dtype == DType::kF32 ? 0 : 4 * kept;
  m.moments = 8 * kept;
  return m;
}

Index largest_stage(const ModelConfig& config, const RankLayout& layout) {
  const ModelSpec spec = spec_of(config);
  Index largest = spec.vocab * spec.width;
  for (Index l = 0; l < static_cast<Index>(spec.layers.size()); ++l) {
    const Held n = held(spec, layout, [&](const Parameter& p) { return is_trained(p) && p.layer == l; });
    largest = std::max(largest, n.everywhere + (layout.ranks > layout.expert_parallel ? n.spread : 0));
  }
  return largest;
}

RowsToOthers rows_to_others(const MoeConfig& moe, const RankLayout& layout) {
  const auto group = static_cast<double>(layout.expert_parallel);
  const auto e = static_cast<double>(moe.routed_experts), k = static_cast<double>(moe.experts_per_token);
  // Where a token chooses from some groups only, and these are the ranks: from so many ranks.
  const double from = moe.groups == layout.expert_parallel ? static_cast<double>(moe.groups_per_token) : group;
  // That none of the K choices, all different, is among the experts of one of those ranks.
  const double all = e / group * from;
  double none = 1;
  for (double i = 0; i < k; ++i) none *= std::max(0.0, all - e / group - i) / (all - i);
  return {from * (group - 1) / group * (1 - none), k * (group - 1) / group};
}

double bytes_of_token(const MoeConfig& moe, DType dtype, const RankLayout& layout) {
  if (layout.expert_parallel == 1) return 0;
  const auto element = static_cast<double>(size_of(dtype)), width = static_cast<double>(moe.hidden_size);
  const auto [ranks, rows] = rows_to_others(moe, layout);
  const double there = 2 * ranks * width * element + rows * sizeof(TravellingRow);  // x and dy
  const double number = layout.device == Device::kCuda && !layout.partial_sums ? element : 4;
  const double back = 2 * (layout.partial_sums ? ranks : rows) * width * number + rows * 4;  // sums, dx; of the weights
  return there + back;
}

RankTraffic rank_traffic(const ModelConfig& config, DType dtype, const RankLayout& layout, Index tokens) {
  layout.check(config);
  const ModelSpec spec = spec_of(config);
  const Held trained = held(spec, layout, is_trained);
  const auto element = static_cast<double>(size_of(dtype));
  RankTraffic t;
  // There as shares to be summed, and back as sums, or with ZeRO as weights.
  const auto summed = [&](Index numbers, Index ranks, Index apart) {
    const double others = 1 - 1 / static_cast<double>(ranks);
    const double bytes = others * static_cast<double>(numbers) * (4 + (layout.zero ? element : 4));
    t.gradients += bytes;
    t.gradients_between += bytes * others_elsewhere(layout, ranks, apart);
  };
  summed(trained.everywhere, layout.ranks, 1);
  summed(trained.spread, layout.ranks / layout.expert_parallel, layout.expert_parallel);

  const double mine = static_cast<double>(tokens) / static_cast<double>(layout.ranks);
  for (const LayerSpec& layer : spec.layers) {
    if (const auto* const moe = std::get_if<MoeConfig>(&layer.feed_forward))
      t.tokens += mine * bytes_of_token(*moe, dtype, layout);
  }
  t.tokens_between = t.tokens * others_elsewhere(layout, layout.expert_parallel, 1);
  return t;
}

}  // namespace dsmoe::train
