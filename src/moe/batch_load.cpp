#include "moe/batch_load.h"

namespace dsmoe {

std::optional<ops::BatchLoad> batch_load(Context& ctx, const MoeConfig& c, const ops::Plan& plan, Index sequence_length,
                                         parallel::Comm* others) {
  const bool asked =
      c.seq_balance_alpha > 0 || c.batch_balance_alpha > 0 || c.device_balance_alpha > 0 || c.router_z_alpha > 0;
  if (others == nullptr || others->alone() || !asked) return {};
  // Integers: their sum has no order.
  const auto routed = static_cast<std::size_t>(c.routed_experts);
  std::vector<std::int64_t> sums(routed + 2);
  const Tensor offset = ctx.fetch(plan.offset);
  const std::int32_t* const first = offset.data<std::int32_t>() + offset.numel() - 1 - c.routed_experts;
  for (std::size_t e = 0; e < routed; ++e) sums[e] = first[e + 1] - first[e];
  sums[routed] = plan.tokens;
  sums[routed + 1] = plan.tokens / sequence_length;
  others->all_reduce(std::span(sums));
  ops::BatchLoad whole;
  whole.tokens = sums[routed], whole.sequences = sums[routed + 1];
  sums.resize(routed);
  whole.load = std::move(sums);
  return whole;
}

}  // namespace dsmoe
