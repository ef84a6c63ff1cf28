#include "model/mlp.h"

#include "model/modules.h"

namespace dsmoe {

void register_swiglu(ParameterRegistry& r, const SwigluRoles& roles, Index rows, Index width, const ParameterTraits& traits,
                     Index experts, Index expert) {
  r.add(roles.gate, {rows, width}, traits, ExpertPlace{ExpertPart::kGate, experts}, expert);
  r.add(roles.up, {rows, width}, traits, ExpertPlace{ExpertPart::kUp, experts}, expert);
  r.add(roles.down, {width, rows}, traits, ExpertPlace{ExpertPart::kDown, experts}, expert);
}

void register_parameters(const DenseSpec& spec, Index width, ParameterRegistry& r) {
  register_swiglu(r, {"dense.gate.weight", "dense.up.weight", "dense.down.weight"}, spec.width, width,
                  {.group = ParameterGroup::kDenseMlp, .adapter = true}, 1);
}

ExpertsShape experts_shape(const DenseSpec& spec) { return {1, 0, spec.width}; }

__int128 multiply_adds(const DenseSpec& spec, Index width, Index) { return static_cast<__int128>(3) * width * spec.width; }

// The normed input; gate and up.
KeptBytes kept_bytes(const DenseSpec& spec, Index width, Index element) {
  return {element * width, element * 2 * spec.width};
}

Tensor mlp_forward(Context& ctx, const Experts& w, const Tensor& h, ops::ExpertActivations* keep) {
  const ops::Plan plan = ops::plan_of_one(ctx, h.dim(0));
  return ops::experts_down_combine(ctx, w, plan, ops::experts_gate_up(ctx, w, plan, h, keep));
}

Tensor mlp_backward(Context& ctx, const Experts& w, const Tensor& h, const Tensor& dy, ops::ExpertActivations kept,
                    Experts& grads, bool add_grads) {
  const ops::Plan plan = ops::plan_of_one(ctx, h.dim(0));
  ops::ExpertRowGrads d = ops::experts_down_backward(ctx, w, plan, dy, std::move(kept));
  ops::experts_weight_backward(ctx, plan, h, dy, d, grads, add_grads);
  return ops::experts_gate_up_backward(ctx, w, plan, d, /*gate_dx=*/Tensor());
}

}  // namespace dsmoe
