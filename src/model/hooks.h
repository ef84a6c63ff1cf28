// What a caller may see and change of one pass of the model.
#pragma once

#include <functional>

#include "dsmoe/moe.h"
#include "dsmoe/routing_overrides.h"

namespace dsmoe {

// Hears what each MoE layer chose, for all rows of the pass.
using RoutingProbe = std::function<void(Index layer, const Routing& routing)>;
// Hears the residual stream [T, D] after each layer, and with -1 before the first.
using LayerProbe = std::function<void(Index layer, const Tensor& x)>;

struct PassHooks {
  RoutingProbe routing = {};  // these two are empty when nobody asks
  LayerProbe layer = {};
  const RoutingOverrides* overrides = nullptr;  // of every MoE layer; not in training
};

struct ModelSpec;

// Throws when a layer cannot do as they say, or a layer that is named has no experts.
void check_overrides(const ModelSpec& spec, const RoutingOverrides& overrides);

}  // namespace dsmoe
