// What a MoE layer says of itself; the layer is MoeLayer of src/moe.
#include "model/modules.h"
#include "model/weights.h"

namespace dsmoe {

void register_parameters(const MoeConfig& m, Index width, ParameterRegistry& r) {
  using Group = ParameterGroup;
  ParameterTraits expert{.group = Group::kRoutedExperts, .adapter = true};
  for (Index e = 0; e < m.routed_experts; ++e) {
    expert.activated = e < m.experts_per_token;  // which K run does not matter: all are alike
    register_swiglu(r, {"experts.gate.weight", "experts.up.weight", "experts.down.weight"}, m.expert_size, width, expert,
                    m.routed_experts, e);
  }
  r.add("router.weight", {m.routed_experts, width}, {.group = Group::kRouter, .initial = InitialValue::kUniform},
        [](LayerTensors& l) -> Tensor& { return l.gate; });
  // For choosing only: balancing moves it, gradients never do.
  if (m.selection_bias)
    r.add("router.bias", {m.routed_experts},
          {.group = Group::kRouter, .initial = InitialValue::kZeros, .decay = false, .gradient = false, .always_f32 = true},
          [](LayerTensors& l) -> Tensor& { return l.gate_bias; });
  if (m.shared_experts > 0)
    register_swiglu(r, {"shared_experts.gate.weight", "shared_experts.up.weight", "shared_experts.down.weight"},
                    m.shared_experts * m.expert_size, width, {.group = Group::kSharedExperts, .adapter = true},
                    m.shared_experts);
  if (m.shared_gate)
    r.add("shared_gate.weight", {width}, {.group = Group::kSharedExperts},
          [](LayerTensors& l) -> Tensor& { return l.shared_gate; });
}

ExpertsShape experts_shape(const MoeConfig& m) { return {m.shared_experts, m.routed_experts, m.expert_size}; }

__int128 multiply_adds(const MoeConfig& m, Index width, Index) {
  return static_cast<__int128>(width) * (m.routed_experts + (m.shared_gate ? 1 : 0) + 3 * m.slots() * m.expert_size);
}

KeptBytes recomputable_bytes(const LayerSpec& spec, Index width, Index element) {
  const auto* const m = std::get_if<MoeConfig>(&spec.feed_forward);
  if (m == nullptr) return {};
  return {element * width, element * 2 * m->slots() * m->expert_size};  // the normed input; gate and up
}

KeptBytes kept_bytes(const MoeConfig& m, Index width, Index element) {
  const Index scores = 4 * m.routed_experts, chosen = 4 * m.experts_per_token, slots = 4 * m.slots();
  return {element * width, element * 2 * m.slots() * m.expert_size,  // the normed input; gate and up
          scores,          chosen,
          chosen,  // scores; experts and weights
          slots,           slots,
          chosen};  // the plan
}

}  // namespace dsmoe
