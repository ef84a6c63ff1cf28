#include "moe/gate.h"

#include <algorithm>

#include "core/fail.h"
#include "ops/elementwise.h"
#include "ops/linear.h"

namespace dsmoe {

ops::Chosen gate_forward(Context& ctx, const MoeConfig& config, const Tensor& x, const Tensor& weight, const Tensor& bias,
                         const RoutingOverrides* overrides) {
  Tensor logits(DType::kF32, {x.dim(0), config.routed_experts});
  const DType dtype = x.dtype() == weight.dtype() ? x.dtype() : DType::kF32;
  ops::linear(ctx, ops::converted(ctx, x, dtype), ops::converted(ctx, weight, dtype), logits);
  return ops::route(ctx, config, logits, bias, overrides);
}

MoeConfig RoutingOverrides::apply(MoeConfig config) const {
  require(skip_best >= 0 && experts_per_token >= 0, "{} experts skipped and {} per token; neither can be negative",
          skip_best, experts_per_token);
  Index left = config.routed_experts - skip_best;
  for (const auto& [layer, expert] : disabled) {
    require(expert >= 0 && expert < config.routed_experts, "there is no expert {} to disable, only 0 to {}", expert,
            config.routed_experts - 1);
    left -= layer == config.layer_index;
  }
  if (experts_per_token > 0)
    config.experts_per_token = experts_per_token;
  else if (drop_shared)
    config.experts_per_token += config.shared_experts;
  if (drop_shared) config.shared_experts = 0;
  require(left >= config.experts_per_token, "layer {}: {} of {} routed experts are left, and {} per token are to be chosen",
          config.layer_index, std::max<Index>(left, 0), config.routed_experts, config.experts_per_token);
  return config;
}

void gate_backward(Context& ctx, const MoeConfig& config, const Tensor& x, const Tensor& weight, const ops::Chosen& chosen,
                   const Tensor& dchosen, const Tensor& dscores, const Tensor& dlse, Tensor& dweight, Tensor& dx) {
  const Tensor dlogits = ops::route_backward(ctx, config, chosen, dchosen, dscores, dlse);
  ops::linear_backward_weight(ctx, dlogits, ops::converted(ctx, x, DType::kF32), dweight);
  ops::linear_backward_input(ctx, dlogits, ops::converted(ctx, weight, DType::kF32), dx, /*accumulate=*/false);
}

}  // namespace dsmoe
