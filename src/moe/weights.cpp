#include <cmath>

#include "core/fail.h"
#include "core/random.h"
#include "dsmoe/moe.h"
#include "ops/dispatch.h"

namespace dsmoe {

namespace {

void check_tensor(const char* name, const Tensor& t, DType dtype, Shape shape) {
  require(t.shape() == shape && t.dtype() == dtype, "{} is {} {}, expected {} {}", name, to_string(t.dtype()), t.shape(),
          to_string(dtype), shape);
}

template <class Fn>
void fill(Tensor& t, Fn fn) {
  ops::dispatch(t.dtype(), [&]<class T>(T) {
    T* const to = t.data<T>();
    for (Index i = 0; i < t.numel(); ++i) to[i] = T(fn(static_cast<std::uint64_t>(i)));
  });
}

}  // namespace

void MoeWeights::check(const MoeConfig& c) const {
  require(gate.dtype() == DType::kF32 || gate.dtype() == DType::kBF16, "the gate must be f32 or bf16, got {}",
          to_string(gate.dtype()));
  check_tensor("gate", gate, gate.dtype(), {c.routed_experts, c.hidden_size});
  if (c.selection_bias) check_tensor("gate_bias", gate_bias, DType::kF32, {c.routed_experts});
  if (c.shared_gate) check_tensor("shared_gate", shared_gate, gate.dtype(), {c.hidden_size});
  experts.check(c.shared_experts, c.routed_experts, c.expert_size, c.hidden_size);
  require(experts.device() == gate.device() && (!c.selection_bias || gate_bias.device() == gate.device()) &&
              (!c.shared_gate || shared_gate.device() == gate.device()),
          "the gate and the experts are not in one memory; copy the weights with to()");
  require(device() == Device::kCpu || ((experts.stacked() || experts.packed()) && gate.dtype() == experts.dtype()),
          "on a GPU the gate has the dtype of the experts, and these are stacked or packed; got {} and {}",
          to_string(gate.dtype()), to_string(experts.dtype()));
}

// Random values depend only on the seed and on the tensor's place in the reference's state dict: routed experts first,
// then the shared ones as one wide MLP.
MoeWeights MoeWeights::random(const MoeConfig& c, DType dtype, std::uint64_t seed, float std) {
  c.validate();
  std::uint64_t stream = 0;
  const auto normal = [&](Shape shape) {
    Tensor t(dtype, shape);
    const Philox rng(seed, stream++);
    fill(t, [&](std::uint64_t i) { return std * rng.normal(i); });
    return t;
  };
  const auto mlp = [&](Index width) {
    ExpertTensors e;
    e.gate_proj = normal({width, c.hidden_size});
    e.up_proj = normal({width, c.hidden_size});
    e.down_proj = normal({c.hidden_size, width});
    return e;
  };
  MoeWeights w;
  const float bound = 1.0f / std::sqrt(static_cast<float>(c.hidden_size));
  w.gate = Tensor(dtype, {c.routed_experts, c.hidden_size});
  const Philox rng(seed, stream++);
  fill(w.gate, [&](std::uint64_t i) { return bound * (2 * rng.uniform(i) - 1); });
  if (c.selection_bias) w.gate_bias = Tensor::zeros(DType::kF32, {c.routed_experts});
  std::vector<ExpertTensors> routed;
  for (Index e = 0; e < c.routed_experts; ++e) routed.push_back(mlp(c.expert_size));
  const ExpertTensors shared = c.shared_experts > 0 ? mlp(c.shared_experts * c.expert_size) : ExpertTensors{};
  w.experts = Experts::listed(c.shared_experts, shared, routed).stack(dtype);
  if (c.shared_gate) w.shared_gate = normal({c.hidden_size});
  return w;
}

MoeWeights MoeWeights::to(Device device) const {
  if (device == this->device()) return *this;
  const auto moved = [&](const Tensor& t) { return t.numel() > 0 ? t.to(device) : t; };
  return {gate.to(device), moved(gate_bias), experts.to(device), moved(shared_gate)};
}

MoeGradients::MoeGradients(const MoeConfig& c, Device device, DType dtype)
    : gate(Tensor::zeros(dtype, {c.routed_experts, c.hidden_size}, device)),
      experts(Experts::zeros(c.all_experts(), c.expert_size, c.hidden_size, dtype, device)),
      shared_gate(c.shared_gate ? Tensor::zeros(dtype, {c.hidden_size}, device) : Tensor()) {}

void MoeGradients::zero(Context& ctx) {
  for (Tensor* t : {&gate, &experts.gate_up(), &experts.down()}) ctx.fill_zero(*t);
  if (shared_gate.numel() > 0) ctx.fill_zero(shared_gate);
}

}  // namespace dsmoe
