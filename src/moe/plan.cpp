#include "moe/plan.h"

#include <limits>

#include "core/fail.h"

namespace dsmoe {

Plan make_plan(const MoeConfig& c, const ops::Chosen& chosen, Index shared) {
  const Index tokens = chosen.experts.dim(0), k = c.experts_per_token;
  const Index rows = tokens * (shared + k);
  require(rows <= std::numeric_limits<std::int32_t>::max(), "{} tokens are too many for one call; split the batch", tokens);

  Plan plan;
  plan.tokens = tokens;
  plan.offset.assign(static_cast<std::size_t>(shared + c.routed_experts) + 1, 0);
  plan.token.resize(static_cast<std::size_t>(rows));
  plan.weight.resize(static_cast<std::size_t>(rows));
  plan.slot_row.resize(static_cast<std::size_t>(tokens * k));

  const std::int32_t* expert = chosen.experts.data<std::int32_t>();
  const float* weight = chosen.weights.data<float>();
  for (Index s = 0; s < shared; ++s) plan.offset[static_cast<std::size_t>(s) + 1] = tokens;
  for (Index i = 0; i < tokens * k; ++i) plan.offset[static_cast<std::size_t>(shared + expert[i]) + 1]++;
  for (std::size_t e = 1; e < plan.offset.size(); ++e) plan.offset[e] += plan.offset[e - 1];

  for (Index s = 0; s < shared; ++s) {
    for (Index t = 0; t < tokens; ++t) {
      plan.token[static_cast<std::size_t>(s * tokens + t)] = static_cast<std::int32_t>(t);
      plan.weight[static_cast<std::size_t>(s * tokens + t)] = 1.0f;
    }
  }
  std::vector<Index> next(plan.offset.begin() + shared, plan.offset.end() - 1);
  for (Index i = 0; i < tokens * k; ++i) {
    const auto row = static_cast<std::size_t>(next[static_cast<std::size_t>(expert[i])]++);
    plan.token[row] = static_cast<std::int32_t>(i / k);
    plan.weight[row] = weight[i];
    plan.slot_row[static_cast<std::size_t>(i)] = static_cast<std::int32_t>(row);
  }
  return plan;
}

}  // namespace dsmoe
