#include "moe/batch_load.h"

namespace dsmoe {

std::optional<ops::BatchLoad> batch_load(const MoeConfig& c, const ops::Chosen& chosen, Index sequence_length,
                                         parallel::Comm* others) {
  const bool asked =
      c.seq_balance_alpha > 0 || c.batch_balance_alpha > 0 || c.device_balance_alpha > 0 || c.router_z_alpha > 0;
  if (others == nullptr || others->alone() || !asked) return {};
  // Integers: their sum has no order.
  const Index tokens = chosen.experts.dim(0);
  std::vector<std::int64_t> sums(static_cast<std::size_t>(c.routed_experts) + 2);
  for (const std::int32_t e : chosen.experts.span<std::int32_t>()) ++sums[static_cast<std::size_t>(e)];
  sums[sums.size() - 2] = tokens;
  sums[sums.size() - 1] = tokens / sequence_length;
  others->all_reduce(std::span(sums));
  ops::BatchLoad whole;
  whole.tokens = sums[sums.size() - 2], whole.sequences = sums[sums.size() - 1];
  sums.resize(sums.size() - 2);
  whole.load = std::move(sums);
  return whole;
}

}  // namespace dsmoe
