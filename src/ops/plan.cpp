#include "ops/plan.h"

#include <limits>
#include <vector>

#include "core/fail.h"

namespace dsmoe::ops {

ExpertRows Plan::view() const {
  return {tokens, offset.span<std::int32_t>(), token.span<std::int32_t>(), weight.span<float>()};
}

Plan make_plan(const MoeConfig& c, const Chosen& chosen, Index shared) {
  Plan plan;
  plan.tokens = chosen.experts.dim(0), plan.shared = shared, plan.routed = c.routed_experts;
  plan.chosen = c.experts_per_token;
  const Index tokens = plan.tokens, k = plan.chosen, rows = tokens * (shared + k);
  require(rows <= std::numeric_limits<std::int32_t>::max(), "{} tokens are too many for one call; split the batch", tokens);

  plan.offset = Tensor::zeros(DType::kI32, {shared + c.routed_experts + 1});
  plan.token = Tensor(DType::kI32, {rows});
  plan.weight = Tensor(DType::kF32, {rows});
  plan.slot_row = Tensor(DType::kI32, {tokens, k});
  plan.slot_weight = chosen.weights;

  const std::int32_t* expert = chosen.experts.data<std::int32_t>();
  const float* weight = chosen.weights.data<float>();
  auto *const offset = plan.offset.data<std::int32_t>(), *const token = plan.token.data<std::int32_t>();
  float* const row_weight = plan.weight.data<float>();
  for (Index s = 0; s < shared; ++s) offset[s + 1] = static_cast<std::int32_t>(tokens);
  for (Index i = 0; i < tokens * k; ++i) offset[shared + expert[i] + 1]++;
  for (Index e = 0; e < plan.experts(); ++e) offset[e + 1] += offset[e];

  for (Index s = 0; s < shared; ++s) {
    for (Index t = 0; t < tokens; ++t) {
      token[s * tokens + t] = static_cast<std::int32_t>(t);
      row_weight[s * tokens + t] = 1.0f;
    }
  }
  std::vector<std::int32_t> next(offset + shared, offset + plan.experts());
  auto* const slot_row = plan.slot_row.data<std::int32_t>();
  for (Index i = 0; i < tokens * k; ++i) {
    const std::int32_t row = next[static_cast<std::size_t>(expert[i])]++;
    token[row] = static_cast<std::int32_t>(i / k);
    row_weight[row] = weight[i];
    slot_row[i] = row;
  }
  return plan;
}

}  // namespace dsmoe::ops
