// Ablations of the routing for one forward call (section 4.5 of the paper). For inference only. Scores, and how weights
// follow from them, stay the same; only the choice of experts changes.
#pragma once

#include <utility>
#include <vector>

#include "dsmoe/moe_config.h"

namespace dsmoe {

struct RoutingOverrides {
  Index skip_best = 0;          // mask each token's N highest-scoring experts; the next best are chosen instead
  Index experts_per_token = 0;  // K; 0: as the config says
  bool drop_shared = false;     // drop the shared experts; unless K is given, select as many more routed ones
  std::vector<std::pair<Index, Index>> disabled;  // {layer, expert}: never chosen

  // The layer's config with these changes; throws when not enough experts are left.
  MoeConfig apply(MoeConfig config) const;
};

}  // namespace dsmoe
