#include "train/rank_time.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <string_view>

#include "core/fail.h"
#include "model/families/family.h"
#include "train/memory.h"

namespace dsmoe::train {

namespace {

struct DataSheet {
  const char* name;
  double flops, memory;
};
constexpr std::array kCards = {DataSheet{"a100", 312e12, 80e9}, DataSheet{"h100", 989.5e12, 80e9},
                               DataSheet{"h200", 989.5e12, 141e9}, DataSheet{"b200", 2250e12, 180e9}};

// Of the forward pass' products of so many experts, per token and layer.
double expert_flops(const MoeConfig& moe, Index experts) {
  return 6.0 * static_cast<double>(experts * moe.expert_size * moe.hidden_size);
}

// Seconds of the tokens' way to their experts that the shared experts take to compute: x while they run, and dy while their
// gradients are computed, which is twice the work.
struct HiddenTokens {
  double forward = 0, backward = 0;
};

// Bytes per second of what goes to other machines to such a share: the slower of the two ways decides.
double both_ways(const Cluster& cluster, double between, double all) {
  const double share = all > 0 ? between / all : 0;
  const double inside = cluster.inside > 0 ? cluster.inside : cluster.link;
  return 1 / std::max(share / cluster.link, (1 - share) / inside);
}

HiddenTokens hidden_tokens(const ModelConfig& config, DType dtype, const RankLayout& layout, double tokens, double flops,
                           double link) {
  HiddenTokens hidden;
  for (const LayerSpec& layer : spec_of(config).layers) {
    const auto* const moe = std::get_if<MoeConfig>(&layer.feed_forward);
    if (moe == nullptr) continue;
    const double travel = tokens * rows_to_others(*moe, layout).tokens * static_cast<double>(moe->hidden_size) *
                          static_cast<double>(size_of(dtype)) / link;
    const double shared = tokens * expert_flops(*moe, moe->shared_experts) / flops;
    hidden.forward += std::min(travel, shared);
    hidden.backward += std::min(travel, 2 * shared);
  }
  return hidden;
}

// Seconds of the gradients' way that backward takes for the layers that come after, in what tokens leave of it: all but
// those of the embedding, which is done last. What ZeRO sends back are weights, after the update.
double hidden_sums(const ModelSpec& spec, DType dtype, const RankLayout& layout, const StepTime& t,
                   double tokens_in_backward, double link) {
  const double in_backward = layout.zero == 0 ? 1 : 4 / (4 + static_cast<double>(size_of(dtype)));
  const double embedding = static_cast<double>(spec.vocab * spec.width) * (layout.zero == 0 ? 8 : 4) *
                           (1 - 1 / static_cast<double>(layout.ranks)) / link;
  const double free = t.compute * 2 / 3 - tokens_in_backward;
  return std::max(0.0, std::min(t.gradients * in_backward - embedding, free));
}

// What all wait for because experts are used unevenly. Each layer has its own busiest rank, forward and backward.
void add_uneven(const ModelConfig& config, DType dtype, const RankLayout& layout, const ExpertLoads& loads, double tokens,
                double flops, double link, StepTime& t) {
  double layers = 0, sum = 0, busiest = 1;
  const MoeConfig* before = nullptr;
  const ModelSpec spec = spec_of(config);
  for (const LayerSpec& layer : spec.layers) {
    const auto* const moe = std::get_if<MoeConfig>(&layer.feed_forward);
    if (moe == nullptr) continue;
    if (!loads.counted.empty())
      busiest = busiest_rank(loads.counted[static_cast<std::size_t>(layers)], layout.expert_parallel);
    else if (!before || before->routed_experts != moe->routed_experts ||
             before->experts_per_token != moe->experts_per_token)
      busiest = busiest_rank(*moe, layout.expert_parallel, tokens * static_cast<double>(layout.expert_parallel),
                             loads.busiest_expert);
    before = moe;
    t.uneven += (busiest - 1) * tokens *
                (3 * expert_flops(*moe, moe->experts_per_token) / flops + bytes_of_token(*moe, dtype, layout) / link);
    sum += busiest, ++layers;
  }
  if (layers > 0) t.busiest_rank = sum / layers;
}

}  // namespace

Card card_named(const std::string& name) {
  const auto found = std::ranges::find_if(kCards, [&](const DataSheet& c) { return c.name == name; });
  if (found != kCards.end()) return {found->name, found->flops, found->memory};
  char* unit = nullptr;
  const double number = std::strtod(name.c_str(), &unit);
  const double scale = std::string_view(unit) == "GFLOPS" ? 1e9 : std::string_view(unit) == "TFLOPS" ? 1e12 : 0;
  if (const double flops = number * scale; std::isfinite(flops) && flops >= 1)
    return {name, flops, std::numeric_limits<double>::infinity(), /*gpu=*/false};
  std::vector<std::string> names;
  for (const DataSheet& c : kCards) names.emplace_back(c.name);
  fail(ErrorCode::kInvalidArgument, "device is \"{}\"; known are {}, and what a CPU reaches, as 230GFLOPS", name,
       fmt::join(names, ", "));
}

StepTime step_time(const ModelConfig& config, const TrainOptions& o, const RankLayout& layout, const Cluster& cluster,
                   const ExpertLoads& loads) {
  require(cluster.link > 0 && cluster.efficiency > 0 && cluster.efficiency <= 1,
          "link is {} bytes per second and efficiency {}; they must be above 0, and efficiency at most 1", cluster.link,
          cluster.efficiency);
  RankLayout here = layout;
  here.device = cluster.card.gpu ? Device::kCuda : Device::kCpu;
  const Index all = o.batch_size * o.seq_len;
  const double tokens = static_cast<double>(all) / static_cast<double>(layout.ranks);
  const double flops = cluster.card.flops * cluster.efficiency;
  const RankTraffic traffic = rank_traffic(config, o.dtype, here, all);
  StepTime t;
  const double again = o.recompute == Recompute::kBlock ? 4.0 / 3 : 1;
  t.compute = tokens * static_cast<double>(training_flops(config, o.seq_len)) / flops * again;
  const double tokens_link = both_ways(cluster, traffic.tokens_between, traffic.tokens);
  const double sums_link = both_ways(cluster, traffic.gradients_between, traffic.gradients);
  t.tokens = traffic.tokens / tokens_link;
  t.gradients = traffic.gradients / sums_link;
  if (layout.expert_parallel > 1) add_uneven(config, o.dtype, here, loads, tokens, flops / again, tokens_link, t);
  if (!cluster.card.gpu) return t;
  HiddenTokens hidden;
  if (layout.expert_parallel > 1) hidden = hidden_tokens(config, o.dtype, layout, tokens, flops, tokens_link);
  t.hidden = hidden.forward + hidden.backward;
  if (layout.overlap) t.hidden_gradients = hidden_sums(spec_of(config), o.dtype, layout, t, hidden.backward, sums_link);
  return t;
}

std::optional<BestLayout> best_layout(const ModelConfig& config, const TrainOptions& options, Index ranks,
                                      const Cluster& cluster, const ExpertLoads& loads, Index per_machine) {
  std::optional<BestLayout> best;
  for (const Recompute recompute : {Recompute::kNone, Recompute::kBlock}) {
    for (Index group = 1; group <= std::min(ranks, std::max<Index>(config.routed_experts(), 1)); ++group) {
      if (ranks % group != 0) continue;
      for (const Index zero : {0, 1, 2}) {
        TrainOptions o = options;
        o.recompute = recompute;
        const RankLayout layout{.ranks = ranks, .expert_parallel = group, .zero = zero, .per_machine = per_machine};
        const std::size_t memory = gpu_training_bytes(config, o, layout);
        if (static_cast<double>(memory) > cluster.card.memory) continue;
        const StepTime time = step_time(config, o, layout, cluster, loads);
        if (!best || time.total() < best->time.total()) best = BestLayout{layout, recompute, memory, time};
      }
    }
    if (best) break;
  }
  return best;
}

}  // namespace dsmoe::train
