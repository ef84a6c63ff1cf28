#include "model/hooks.h"

#include "core/fail.h"
#include "model/spec.h"

namespace dsmoe {

void check_overrides(const ModelSpec& spec, const RoutingOverrides& overrides) {
  const auto experts_of = [&](Index layer) -> const MoeConfig* {
    const bool there = layer >= 0 && layer < static_cast<Index>(spec.layers.size());
    return there ? std::get_if<MoeConfig>(&spec.layers[static_cast<std::size_t>(layer)].feed_forward) : nullptr;
  };
  for (const auto& [layer, expert] : overrides.disabled)
    require(experts_of(layer), "expert {} of layer {} is to be disabled, but layer {} of {} is not a MoE layer", expert,
            layer, layer, spec.layers.size());
  for (Index layer = 0; layer < static_cast<Index>(spec.layers.size()); ++layer)
    if (const MoeConfig* moe = experts_of(layer)) overrides.apply(*moe);
}

}  // namespace dsmoe
