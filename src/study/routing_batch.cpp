#include "study/routing_batch.h"

#include <algorithm>

#include "core/fail.h"

namespace dsmoe::study {

namespace {
constexpr Index kMaxExperts = 4096;  // of one layer
}

RoutingShape RoutingShape::of(const ModelConfig& config) {
  RoutingShape shape{config.vocab_size, config.routed_experts(), config.experts_per_token(), {}};
  for (Index layer = 0; layer < config.num_hidden_layers; ++layer)
    if (config.is_moe_layer(layer)) shape.layers.push_back(layer);
  require(!shape.layers.empty(), "this model has no MoE layer, so there is no routing to look at");
  shape.validate();
  return shape;
}

void RoutingShape::validate() const {
  const auto in = [](const char* name, Index value, Index most) {
    require(value >= 1 && value <= most, "{} is {}; expected 1 to {}", name, value, most);
  };
  in("the vocabulary", vocab_size, Index{1} << 22);
  in("the number of routed experts", routed_experts, kMaxExperts);
  in("the number of experts per token", experts_per_token, std::min<Index>(routed_experts, 512));
  in("the number of MoE layers", static_cast<Index>(layers.size()), 4096);
  in("the number of pairs of experts in all layers", routed_experts * routed_experts * static_cast<Index>(layers.size()),
     Index{1} << 25);
  for (std::size_t i = 0; i < layers.size(); ++i)
    require(layers[i] >= 0 && layers[i] < 65536 && (i == 0 || layers[i] > layers[i - 1]), "layer {} is out of order",
            layers[i]);
}

void Recorder::start(std::span<const std::int32_t> sequence, Index domain) {
  rest_ = sequence;
  batch_ = {};
  batch_.domain = domain;
}

RoutingProbe Recorder::probe() {
  return [this](Index layer, const Routing& routing) { hear(layer, routing); };
}

void Recorder::hear(Index layer, const Routing& routing) {
  const std::size_t at = batch_.layers.size();
  invariant(at < shape_.layers.size() && shape_.layers[at] == layer, "a MoE layer spoke out of turn");
  batch_.layers.push_back({routing.experts, routing.weights});
  if (at + 1 < shape_.layers.size()) return;
  const auto tokens = static_cast<std::size_t>(routing.experts.dim(0));
  require(tokens <= rest_.size(), "{} tokens ran, but only {} were announced", tokens, rest_.size());
  batch_.tokens.assign(rest_.begin(), rest_.begin() + static_cast<std::ptrdiff_t>(tokens));
  rest_ = rest_.subspan(tokens);
  sink_(batch_);
  batch_.position += static_cast<Index>(tokens);
  batch_.layers.clear();
}

}  // namespace dsmoe::study
