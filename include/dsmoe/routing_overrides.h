// Changes to what a layer's gate may choose, for one forward call: the paper's way of asking what experts are worth
// (section 4.5). For inference only. Scores and the rule for the weights stay as they are; only the choice changes.
#pragma once

#include <utility>
#include <vector>

#include "dsmoe/moe_config.h"

namespace dsmoe {

struct RoutingOverrides {
  Index skip_best = 0;          // the so many best experts of each token may not be chosen: the next best are
  Index experts_per_token = 0;  // K; 0: as the config says
  bool drop_shared = false;     // leave the shared experts out; unless K is given, choose as many more routed ones
  std::vector<std::pair<Index, Index>> disabled;  // {layer, expert}: never chosen; the next best is

  // What the layer then is; throws when there are not enough experts left.
  MoeConfig apply(MoeConfig config) const;
};

}  // namespace dsmoe
