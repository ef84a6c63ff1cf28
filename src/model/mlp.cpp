#include "model/mlp.h"

namespace dsmoe {

Tensor mlp_forward(Context& ctx, const Experts& w, const Tensor& h, ops::ExpertActivations* keep) {
  const ops::Plan plan = ops::plan_of_one(ctx, h.dim(0));
  return ops::experts_down_combine(ctx, w, plan, ops::experts_gate_up(ctx, w, plan, h, keep));
}

Tensor mlp_backward(Context& ctx, const Experts& w, const Tensor& h, const Tensor& dy, ops::ExpertActivations kept,
                    Experts& grads) {
  const ops::Plan plan = ops::plan_of_one(ctx, h.dim(0));
  ops::ExpertRowGrads d = ops::experts_down_backward(ctx, w, plan, dy, std::move(kept));
  ops::experts_weight_backward(ctx, plan, h, dy, d, grads, /*accumulate=*/true);
  return ops::experts_gate_up_backward(ctx, w, plan, d, ctx.zeros(DType::kF32, h.shape()));
}

}  // namespace dsmoe
