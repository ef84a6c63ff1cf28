#include "moe/weights.h"

#include <cmath>
#include <cstring>

#include "core/device.h"
#include "core/fail.h"
#include "core/random.h"
#include "ops/dispatch.h"

namespace dsmoe {

namespace {

// Shared expert s of a wide MLP: rows [sF, (s+1)F) of gate and up, columns [sF, (s+1)F) of down.
template <class List, class Entry>
void append(List& list, const MoeConfig& c, Index s, Index width, Entry entry) {
  const Index f = c.expert_size;
  list.gate.push_back(entry(0, s * f * c.hidden_size, c.hidden_size));
  list.up.push_back(entry(1, s * f * c.hidden_size, c.hidden_size));
  list.down.push_back(entry(2, s * f, width));
}

void check_tensor(const char* name, const Tensor& t, DType dtype, Shape shape) {
  require(t.shape() == shape && t.dtype() == dtype, "{} is {} {}, expected {} {}", name, to_string(t.dtype()), t.shape(),
          to_string(dtype), shape);
}

void check_expert(const std::string& name, const ExpertTensors& e, DType dtype, Index width, Index model) {
  check_tensor((name + "gate_proj").c_str(), e.gate_proj, dtype, {width, model});
  check_tensor((name + "up_proj").c_str(), e.up_proj, dtype, {width, model});
  check_tensor((name + "down_proj").c_str(), e.down_proj, dtype, {model, width});
}

ExpertTensors zero_expert(Index width, Index model) {
  return {Tensor::zeros(DType::kF32, {width, model}), Tensor::zeros(DType::kF32, {width, model}),
          Tensor::zeros(DType::kF32, {model, width})};
}

template <class Fn>
void fill(Tensor& t, Fn fn) {
  ops::dispatch(t.dtype(), [&]<class T>(T) {
    T* const to = t.data<T>();
    for (Index i = 0; i < t.numel(); ++i) to[i] = T(fn(static_cast<std::uint64_t>(i)));
  });
}

}  // namespace

ops::ExpertWeights expert_list(const MoeConfig& c, const MoeWeights& w) {
  ops::ExpertWeights list;
  list.dtype = w.routed.front().gate_proj.dtype();
  list.model_width = c.hidden_size;
  list.expert_width = c.expert_size;
  const auto add = [&](const ExpertTensors& e, Index s, Index width) {
    append(list, c, s, width, [&](int which, Index first, Index ld) {
      const Tensor& t = which == 0 ? e.gate_proj : which == 1 ? e.up_proj : e.down_proj;
      return ops::Matrix{static_cast<const char*>(t.raw()) + static_cast<std::size_t>(first) * size_of(t.dtype()), ld};
    });
  };
  for (Index s = 0; s < c.shared_experts; ++s) add(w.shared, s, c.shared_experts * c.expert_size);
  for (const ExpertTensors& e : w.routed) add(e, 0, c.expert_size);
  return list;
}

ops::ExpertGrads expert_list(const MoeConfig& c, MoeGradients& g) {
  ops::ExpertGrads list;
  const auto add = [&](ExpertTensors& e, Index s, Index width) {
    append(list, c, s, width, [&](int which, Index first, Index ld) {
      Tensor& t = which == 0 ? e.gate_proj : which == 1 ? e.up_proj : e.down_proj;
      return ops::GradMatrix{t.data<float>() + first, ld};
    });
  };
  for (Index s = 0; s < c.shared_experts; ++s) add(g.shared, s, c.shared_experts * c.expert_size);
  for (ExpertTensors& e : g.routed) add(e, 0, c.expert_size);
  return list;
}

void MoeWeights::check(const MoeConfig& c) const {
  if (device() == Device::kCuda) return check_stacks(c, *this);
  require(static_cast<Index>(routed.size()) == c.routed_experts, "the config has {} routed experts, the weights have {}",
          c.routed_experts, routed.size());
  const DType dtype = routed.front().gate_proj.dtype();
  require(dtype == DType::kF32 || dtype == DType::kBF16, "experts must be f32 or bf16, got {}", to_string(dtype));
  require(gate.dtype() == DType::kF32 || gate.dtype() == DType::kBF16, "the gate must be f32 or bf16, got {}",
          to_string(gate.dtype()));
  check_tensor("gate", gate, gate.dtype(), {c.routed_experts, c.hidden_size});
  if (c.selection_bias) check_tensor("gate_bias", gate_bias, DType::kF32, {c.routed_experts});
  for (std::size_t i = 0; i < routed.size(); ++i)
    check_expert(fmt::format("experts.{}.", i), routed[i], dtype, c.expert_size, c.hidden_size);
  if (c.shared_experts > 0) check_expert("shared_experts.", shared, dtype, c.shared_experts * c.expert_size, c.hidden_size);
}

MoeWeights MoeWeights::random(const MoeConfig& c, DType dtype, std::uint64_t seed, float std) {
  c.validate();
  MoeWeights w;
  std::uint64_t stream = 0;
  const auto normal = [&](Shape shape) {
    Tensor t(dtype, shape);
    const Philox rng(seed, stream++);
    fill(t, [&](std::uint64_t i) { return std * rng.normal(i); });
    return t;
  };
  const auto expert = [&](Index width) {
    return ExpertTensors{normal({width, c.hidden_size}), normal({width, c.hidden_size}), normal({c.hidden_size, width})};
  };
  const float bound = 1.0f / std::sqrt(static_cast<float>(c.hidden_size));
  w.gate = Tensor(dtype, {c.routed_experts, c.hidden_size});
  const Philox rng(seed, stream++);
  fill(w.gate, [&](std::uint64_t i) { return bound * (2 * rng.uniform(i) - 1); });
  if (c.selection_bias) w.gate_bias = Tensor::zeros(DType::kF32, {c.routed_experts});
  for (Index e = 0; e < c.routed_experts; ++e) w.routed.push_back(expert(c.expert_size));
  if (c.shared_experts > 0) w.shared = expert(c.shared_experts * c.expert_size);
  return w;
}

MoeGradients::MoeGradients(const MoeConfig& c, Device device)
    : gate(Tensor::zeros(DType::kF32, {c.routed_experts, c.hidden_size}, device)) {
  if (device == Device::kCuda) {
    gate_up = Tensor::zeros(DType::kF32, gate_up_shape(c), device);
    down = Tensor::zeros(DType::kF32, down_shape(c), device);
    return;
  }
  for (Index e = 0; e < c.routed_experts; ++e) routed.push_back(zero_expert(c.expert_size, c.hidden_size));
  if (c.shared_experts > 0) shared = zero_expert(c.shared_experts * c.expert_size, c.hidden_size);
}

void MoeGradients::zero() {
  if (gate.device() == Device::kCuda) {
    for (Tensor* t : {&gate, &gate_up, &down}) device::clear(t->raw_mutable(), t->bytes());
    return;
  }
  const auto clear = [](Tensor& t) {
    if (t.bytes() != 0) std::memset(t.raw_mutable(), 0, t.bytes());
  };
  clear(gate);
  for (ExpertTensors& e : routed) clear(e.gate_proj), clear(e.up_proj), clear(e.down_proj);
  clear(shared.gate_proj), clear(shared.up_proj), clear(shared.down_proj);
}

}  // namespace dsmoe
