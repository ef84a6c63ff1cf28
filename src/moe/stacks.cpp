// Weights and gradients between their two forms: a tensor per matrix on the CPU, and on a GPU all experts in two stacks,
// gate_up [S + E, 2, F, D] and down [S + E, D, F], shared experts first.
#include <cstring>

#include "core/fail.h"
#include "moe/weights.h"

namespace dsmoe {

namespace {

std::size_t z(Index i) { return static_cast<std::size_t>(i); }

// Matrices of `rows` rows of `row` bytes, each with its own distance between rows.
void copy_rows(char* to, std::size_t to_pitch, const char* from, std::size_t from_pitch, std::size_t row, Index rows) {
  for (std::size_t i = 0; i < z(rows); ++i) std::memcpy(to + i * to_pitch, from + i * from_pitch, row);
}

// Calls fn(tensors, expert in the stack, part, parts) for every expert: a shared one is part of the wide MLP.
template <class Experts, class Fn>
void for_each_expert(const MoeConfig& c, Experts& e, Fn&& fn) {
  for (Index s = 0; s < c.shared_experts; ++s) fn(e.shared, s, s, c.shared_experts);
  for (Index i = 0; i < c.routed_experts; ++i) fn(e.routed[z(i)], c.shared_experts + i, Index{0}, Index{1});
}

struct Stacks {
  Tensor gate_up, down;  // on the CPU
};

template <class Experts>
Stacks stack(const MoeConfig& c, const Experts& from) {
  const DType dtype = from.routed.front().gate_proj.dtype();
  require(dtype == DType::kF32 || dtype == DType::kBF16, "the experts are {}; on a GPU they must be f32 or bf16",
          to_string(dtype));
  const std::size_t element = size_of(dtype), narrow = z(c.expert_size) * element, matrix = narrow * z(c.hidden_size);
  Stacks to{Tensor(dtype, gate_up_shape(c)), Tensor(dtype, down_shape(c))};
  for_each_expert(c, from, [&](const ExpertTensors& e, Index expert, Index part, Index parts) {
    for (const Tensor* t : {&e.gate_proj, &e.up_proj, &e.down_proj})
      require(t->dtype() == dtype, "the experts are {} and {}; on a GPU they must be f32 or bf16, all alike",
              to_string(dtype), to_string(t->dtype()));
    char* const up = static_cast<char*>(to.gate_up.raw_mutable()) + z(expert) * 2 * matrix;
    std::memcpy(up, static_cast<const char*>(e.gate_proj.raw()) + z(part) * matrix, matrix);
    std::memcpy(up + matrix, static_cast<const char*>(e.up_proj.raw()) + z(part) * matrix, matrix);
    copy_rows(static_cast<char*>(to.down.raw_mutable()) + z(expert) * matrix, narrow,
              static_cast<const char*>(e.down_proj.raw()) + z(part) * narrow, z(parts) * narrow, narrow, c.hidden_size);
  });
  return to;
}

template <class Experts>
void unstack(const MoeConfig& c, const Stacks& from, Experts& to) {
  const DType dtype = from.down.dtype();
  const std::size_t element = size_of(dtype), narrow = z(c.expert_size) * element, matrix = narrow * z(c.hidden_size);
  const auto make = [&](Index width) {
    return ExpertTensors{Tensor(dtype, {width, c.hidden_size}), Tensor(dtype, {width, c.hidden_size}),
                         Tensor(dtype, {c.hidden_size, width})};
  };
  for (Index i = 0; i < c.routed_experts; ++i) to.routed.push_back(make(c.expert_size));
  if (c.shared_experts > 0) to.shared = make(c.shared_experts * c.expert_size);
  for_each_expert(c, to, [&](ExpertTensors& e, Index expert, Index part, Index parts) {
    const char* const up = static_cast<const char*>(from.gate_up.raw()) + z(expert) * 2 * matrix;
    std::memcpy(static_cast<char*>(e.gate_proj.raw_mutable()) + z(part) * matrix, up, matrix);
    std::memcpy(static_cast<char*>(e.up_proj.raw_mutable()) + z(part) * matrix, up + matrix, matrix);
    copy_rows(static_cast<char*>(e.down_proj.raw_mutable()) + z(part) * narrow, z(parts) * narrow,
              static_cast<const char*>(from.down.raw()) + z(expert) * matrix, narrow, narrow, c.hidden_size);
  });
}

// Both have routed and shared on the CPU, gate_up and down on a GPU.
template <class Experts>
void move_experts(const MoeConfig& c, const Experts& from, Device device, Experts& to) {
  if (device == Device::kCuda) {
    const Stacks stacks = stack(c, from);
    to.gate_up = stacks.gate_up.to(device);
    to.down = stacks.down.to(device);
  } else {
    unstack(c, {from.gate_up.to(device), from.down.to(device)}, to);
  }
}

void check_stack(const char* name, const Tensor& t, DType dtype, const Shape& shape) {
  require(t.shape() == shape && t.dtype() == dtype && t.device() == Device::kCuda,
          "{} is {} {}{}, expected {} {} on the GPU", name, to_string(t.dtype()), t.shape(),
          t.device() == Device::kCuda ? "" : " on the CPU", to_string(dtype), shape);
}

}  // namespace

void check_stacks(const MoeConfig& c, const MoeWeights& w) {
  const DType dtype = w.down.dtype();
  require(dtype == DType::kF32 || dtype == DType::kBF16, "experts must be f32 or bf16, got {}", to_string(dtype));
  check_stack("gate", w.gate, dtype, {c.routed_experts, c.hidden_size});
  if (c.selection_bias) check_stack("gate_bias", w.gate_bias, DType::kF32, {c.routed_experts});
  check_stack("gate_up", w.gate_up, dtype, gate_up_shape(c));
  check_stack("down", w.down, dtype, down_shape(c));
}

MoeWeights MoeWeights::to(const MoeConfig& c, Device device) const {
  if (device == this->device()) return *this;
  check(c);
  MoeWeights out;
  move_experts(c, *this, device, out);
  out.gate = gate.to(device);
  if (c.selection_bias) out.gate_bias = gate_bias.to(device);
  out.check(c);
  return out;
}

MoeGradients MoeGradients::to(const MoeConfig& c, Device device) const {
  if (device == gate.device()) return *this;
  MoeGradients out;
  move_experts(c, *this, device, out);
  out.gate = gate.to(device);
  return out;
}

}  // namespace dsmoe
