#include "moe/gate.h"

#include "ops/elementwise.h"
#include "ops/linear.h"

namespace dsmoe {

ops::Chosen gate_forward(Context& ctx, const MoeConfig& config, const Tensor& x, const Tensor& weight, const Tensor& bias) {
  Tensor logits(DType::kF32, {x.dim(0), config.routed_experts});
  const DType dtype = x.dtype() == weight.dtype() ? x.dtype() : DType::kF32;
  ops::linear(ctx, ops::converted(ctx, x, dtype), ops::converted(ctx, weight, dtype), logits);
  return ops::route(ctx, config, logits, bias);
}

void gate_backward(Context& ctx, const MoeConfig& config, const Tensor& x, const Tensor& weight, const ops::Chosen& chosen,
                   const Tensor& dchosen, const Tensor& dscores, const Tensor& dlse, Tensor& dweight, Tensor& dx) {
  const Tensor dlogits = ops::route_backward(ctx, config, chosen, dchosen, dscores, dlse);
  ops::linear_backward_weight(ctx, dlogits, ops::converted(ctx, x, DType::kF32), dweight);
  ops::linear_backward_input(ctx, dlogits, ops::converted(ctx, weight, DType::kF32), dx, /*accumulate=*/false);
}

}  // namespace dsmoe
