// The matrices of single experts in a stack, as tensors; plans of chosen rows.
#pragma once

#include <vector>

#include "dsmoe/experts.h"
#include "ops/gate.h"

namespace dsmoe::test {

// Of one expert of stacked ones, the same memory: [F, D], [F, D], [D, F].
inline ExpertTensors expert_tensors(const Experts& stack, Index expert) {
  const Index f = stack.width(expert), d = stack.model_width();
  const Tensor both = stack.gate_up().rows(expert, expert + 1).reshape({2 * f, d});
  return {both.rows(0, f), both.rows(f, 2 * f), stack.down().rows(expert, expert + 1).reshape({d, f})};
}

// Experts [0, count) of f32 stacks as one wide MLP, as files have the shared ones: copies.
inline ExpertTensors wide_mlp(const Experts& stack, Index count) {
  const Index f = stack.width(0), d = stack.model_width();
  ExpertTensors wide{Tensor(DType::kF32, {count * f, d}), Tensor(DType::kF32, {count * f, d}),
                     Tensor(DType::kF32, {d, count * f})};
  for (Index e = 0; e < count; ++e) {
    const ExpertTensors one = expert_tensors(stack, e);
    for (Index i = 0; i < f * d; ++i) {
      wide.gate_proj.data<float>()[e * f * d + i] = one.gate_proj.data<float>()[i];
      wide.up_proj.data<float>()[e * f * d + i] = one.up_proj.data<float>()[i];
      wide.down_proj.data<float>()[i / f * count * f + e * f + i % f] = one.down_proj.data<float>()[i];
    }
  }
  return wide;
}

// Any rows: token[r] goes to the expert whose rows [offset[e], offset[e + 1]) hold r.
inline ops::Plan plan_of_rows(Index tokens, const std::vector<std::int32_t>& offset, const std::vector<std::int32_t>& token,
                              const std::vector<float>& weight) {
  ops::Plan plan;
  plan.tokens = tokens, plan.shared = static_cast<Index>(offset.size()) - 1;
  plan.offset = Tensor::view_of(std::span<const std::int32_t>(offset)).clone();
  plan.token = Tensor::view_of(std::span<const std::int32_t>(token)).clone();
  plan.weight = Tensor::view_of(std::span<const float>(weight)).clone();
  return plan;
}

}  // namespace dsmoe::test
