#include "moe/gate.h"

#include "ops/linear.h"

namespace dsmoe {

ops::Chosen gate_forward(Context& ctx, const MoeConfig& config, const Tensor& x, const Tensor& weight, const Tensor& bias) {
  Tensor logits(DType::kF32, {x.dim(0), config.routed_experts});
  const DType dtype = x.dtype() == weight.dtype() ? x.dtype() : DType::kF32;
  ops::linear(ctx, x.to(dtype), weight.to(dtype), logits);
  return ops::route(ctx, config, logits, bias);
}

void gate_backward(Context& ctx, const MoeConfig& config, const Tensor& x, const Tensor& weight, const ops::Chosen& chosen,
                   const Tensor& dchosen, const Tensor& dscores, Tensor& dweight, Tensor& dx) {
  const Tensor dlogits = ops::route_backward(ctx, config, chosen, dchosen, dscores);
  ops::linear_backward_weight(ctx, dlogits, x.to(DType::kF32), dweight);
  ops::linear_backward_input(ctx, dlogits, weight.to(DType::kF32), dx, /*accumulate=*/false);
}

}  // namespace dsmoe
