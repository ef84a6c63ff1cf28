#include "moe/weights.h"

#include <algorithm>
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

// Any dtype that weights may have.
bool is_weight(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kBF16 || dtype == DType::kF16 || is_quantized(dtype);
}

bool any_mixed(const MoeWeights& w) {
  return is_mixed(w.shared) || std::any_of(w.routed.begin(), w.routed.end(), is_mixed);
}

void check_tensor(const char* name, const Tensor& t, DType dtype, Shape shape) {
  require(t.shape() == shape && t.dtype() == dtype, "{} is {} {}, expected {} {}", name, to_string(t.dtype()), t.shape(),
          to_string(dtype), shape);
}

// With a quantized matrix in the layer, every matrix may have a dtype of its own.
void check_expert(const std::string& name, const ExpertTensors& e, DType dtype, bool mixed, Index width, Index model) {
  const auto check = [&](const char* matrix, const Tensor& t, Shape shape) {
    check_tensor((name + matrix).c_str(), t, mixed && is_weight(t.dtype()) ? t.dtype() : dtype, shape);
  };
  check("gate_proj", e.gate_proj, {width, model});
  check("up_proj", e.up_proj, {width, model});
  check("down_proj", e.down_proj, {model, width});
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

bool is_mixed(const ExpertTensors& e) {
  const auto from_file_only = [](const Tensor& t) { return is_quantized(t.dtype()) || t.dtype() == DType::kF16; };
  return from_file_only(e.gate_proj) || from_file_only(e.up_proj) || from_file_only(e.down_proj);
}

void add_mixed_expert(ops::ExpertWeights& list, const ExpertTensors& e) {
  const Index width = e.gate_proj.dim(0), model = e.gate_proj.dim(1);
  list.gate.push_back({e.gate_proj.raw(), model});
  list.up.push_back({e.up_proj.raw(), model});
  list.down.push_back({e.down_proj.raw(), width});
  list.forms.push_back({e.gate_proj.dtype(), e.up_proj.dtype(), e.down_proj.dtype(), width});
}

ops::ExpertWeights expert_list(const MoeConfig& c, const MoeWeights& w) {
  ops::ExpertWeights list;
  list.model_width = c.hidden_size;
  list.expert_width = c.expert_size;
  if (any_mixed(w)) {
    if (c.shared_experts > 0) add_mixed_expert(list, w.shared);
    for (const ExpertTensors& e : w.routed) add_mixed_expert(list, e);
    return list;
  }
  list.dtype = w.routed.front().gate_proj.dtype();
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
  const bool mixed = any_mixed(*this);
  require(is_weight(dtype), "experts must be f32, bf16, f16 or quantized, got {}", to_string(dtype));
  require(gate.dtype() == DType::kF32 || gate.dtype() == DType::kBF16, "the gate must be f32 or bf16, got {}",
          to_string(gate.dtype()));
  check_tensor("gate", gate, gate.dtype(), {c.routed_experts, c.hidden_size});
  if (c.selection_bias) check_tensor("gate_bias", gate_bias, DType::kF32, {c.routed_experts});
  for (std::size_t i = 0; i < routed.size(); ++i)
    check_expert(fmt::format("experts.{}.", i), routed[i], dtype, mixed, c.expert_size, c.hidden_size);
  if (c.shared_experts > 0)
    check_expert("shared_experts.", shared, dtype, mixed, c.shared_experts * c.expert_size, c.hidden_size);
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
