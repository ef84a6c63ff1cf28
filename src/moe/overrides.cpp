#include <algorithm>
#include <set>

#include "core/fail.h"
#include "dsmoe/routing_overrides.h"

namespace dsmoe {

MoeConfig RoutingOverrides::apply(MoeConfig config) const {
  require(skip_best >= 0 && experts_per_token >= 0, "{} experts skipped and {} per token; neither can be negative",
          skip_best, experts_per_token);
  std::set<Index> off;  // one that is named twice is one
  for (const auto& [layer, expert] : disabled) {
    require(expert >= 0 && expert < config.routed_experts, "there is no expert {} to disable, only 0 to {}", expert,
            config.routed_experts - 1);
    if (layer == config.layer_index) off.insert(expert);
  }
  const Index left = config.routed_experts - skip_best - static_cast<Index>(off.size());
  if (experts_per_token > 0)
    config.experts_per_token = experts_per_token;
  else if (drop_shared)
    config.experts_per_token += config.shared_experts;
  if (drop_shared) config.shared_experts = 0;
  require(left >= config.experts_per_token, "layer {}: {} of {} routed experts are left, and {} per token are to be chosen",
          config.layer_index, std::max<Index>(left, 0), config.routed_experts, config.experts_per_token);
  return config;
}

}  // namespace dsmoe
