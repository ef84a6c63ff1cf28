#include "dsmoe/segmentation.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "core/big_uint.h"
#include "core/fail.h"

namespace dsmoe {

MoeConfig Architecture::apply(MoeConfig base) const {
  base.routed_experts = routed;
  base.experts_per_token = active;
  base.shared_experts = shared;
  base.expert_size = width;
  return base;
}

void Segmentation::validate() const {
  require(experts >= 1, "N (experts) is {}; a layer needs at least 1", experts);
  require(active >= 1, "K (active experts) is {}; a token needs at least 1", active);
  require(active <= experts, "K (active experts) is {}, more than the {} experts of N; choose K <= N", active, experts);
  require(split >= 1, "m (split) is {}; 1 keeps the experts whole, more splits them", split);
  require(experts <= kMaxExperts && split <= kMaxExperts && experts * split <= kMaxExperts,
          "N = {} experts split by m = {} are more than {}; choose a smaller N or m", experts, split, kMaxExperts);
  require(shared >= 0, "Ks (shared experts) is {}; it cannot be negative", shared);
  require(shared < active * split,
          "Ks (shared experts) is {}, but a token runs mK = {} experts and at least one must be routed; choose Ks <= {}",
          shared, active * split, active * split - 1);
  constexpr Index kMaxWidth = std::numeric_limits<std::int32_t>::max();
  require(expert_size >= 0 && expert_size <= kMaxWidth, "F (expert size) is {}; it must be between 0 and {}", expert_size,
          kMaxWidth);
  require(expert_size % split == 0, "F (expert size) is {}, which m = {} does not divide; the next that fits is {}",
          expert_size, split, (expert_size / split + 1) * split);
}

Architecture Segmentation::conventional() const {
  validate();
  return {experts, active, 0, expert_size};
}

Architecture Segmentation::fine_grained() const {
  validate();
  return {split * experts, split * active, 0, expert_size / split};
}

Architecture Segmentation::deepseek_moe() const {
  validate();
  return {split * experts - shared, split * active - shared, shared, expert_size / split};
}

Segmentation Segmentation::of(const Architecture& layer, Index split) {
  const Index all = layer.routed + layer.shared;
  const Index running = layer.active + layer.shared;
  require(split >= 1, "m (split) is {}; it must be at least 1", split);
  require(all % split == 0 && running % split == 0,
          "m (split) is {}, which does not divide both the {} experts of a layer and the {} that run per token; choose a "
          "divisor of {}",
          split, all, running, std::gcd(all, running));
  const Segmentation whole{all / split, running / split, split, layer.shared, layer.width * split};
  whole.validate();
  return whole;
}

Index Segmentation::coarsest_split(const Architecture& layer) {
  const Index running = layer.active + layer.shared;
  const Index common = std::gcd(layer.routed + layer.shared, running);
  for (Index split = common; split > 1; --split)
    if (common % split == 0 && running / split >= 2) return split;
  return 1;
}

std::string expert_combinations(Index routed, Index active) {
  require(routed >= 0 && routed <= Segmentation::kMaxExperts, "combinations of {} experts cannot be counted; at most {}",
          routed, Segmentation::kMaxExperts);
  require(active >= 0 && active <= routed, "{} experts cannot be chosen from {}", active, routed);
  BigUint count(1);
  // After step i the count is C(routed, i): every division leaves no remainder.
  for (Index i = 1; i <= std::min(active, routed - active); ++i) {
    count *= static_cast<std::uint64_t>(routed - i + 1);
    invariant(count.divide(static_cast<std::uint64_t>(i)) == 0, "a binomial coefficient is not a whole number");
  }
  return count.str();
}

}  // namespace dsmoe
