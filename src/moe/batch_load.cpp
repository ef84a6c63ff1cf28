#include "moe/batch_load.h"

namespace dsmoe {

bool needs_load_of_all(const MoeConfig& c, const parallel::Comm* others) {
  return others != nullptr && !others->alone() && (c.batch_balance_alpha > 0 || c.device_balance_alpha > 0);
}

std::vector<std::int64_t> load_here(Context& ctx, const MoeConfig& c, const ops::Plan& plan) {
  std::vector<std::int64_t> load(static_cast<std::size_t>(c.routed_experts));
  const Tensor offset = ctx.fetch(plan.offset);
  const std::int32_t* const first = offset.data<std::int32_t>() + offset.numel() - 1 - c.routed_experts;
  for (std::size_t e = 0; e < load.size(); ++e) load[e] = first[e + 1] - first[e];
  return load;
}

std::vector<std::int64_t> load_here(const MoeConfig& c, const Tensor& experts) {
  std::vector<std::int64_t> load(static_cast<std::size_t>(c.routed_experts));
  for (const std::int32_t e : experts.span<std::int32_t>()) ++load[static_cast<std::size_t>(e)];
  return load;
}

std::optional<ops::BatchLoad> batch_load(const MoeConfig& c, const std::vector<std::int64_t>& load, Index tokens,
                                         Index sequence_length, parallel::Comm* others) {
  const bool asked = c.seq_balance_alpha > 0 || c.router_z_alpha > 0 || needs_load_of_all(c, others);
  if (others == nullptr || others->alone() || !asked) return {};
  // Integers: their sum has no order.
  std::vector<std::int64_t> sums = load;
  sums.insert(sums.end(), {tokens, tokens / sequence_length});
  others->all_reduce(std::span(sums));
  ops::BatchLoad whole;
  whole.tokens = sums[load.size()], whole.sequences = sums[load.size() + 1];
  sums.resize(load.size());
  whole.load = std::move(sums);
  whole.load.resize(static_cast<std::size_t>(c.routed_experts));  // zeros that nothing depends on
  return whole;
}

}  // namespace dsmoe
