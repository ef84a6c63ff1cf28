#include "ops/shared_gate.h"

#include <cmath>

#include "ops/backend.h"
#include "ops/elementwise.h"
#include "ops/linear.h"

namespace dsmoe::ops {

namespace {

void check(const char* op, const Tensor& x, const Tensor& w, const Plan& plan) {
  require(x.rank() == 2 && x.dim(0) == plan.tokens && w.shape() == Shape({x.dim(1)}),
          "[{}] x is {} and the gate {}, expected [{}, D] and [D]", op, x.shape(), w.shape(), plan.tokens);
  require(plan.shared > 0, "[{}] the plan has no shared experts", op);
}

Tensor as_matrix(const Tensor& w) { return w.reshape({1, w.dim(0)}); }

void weigh_on_cpu(Context& ctx, const Tensor& x, const Tensor& w, Plan& plan) {
  const DType dtype = x.dtype() == w.dtype() ? x.dtype() : DType::kF32;
  Tensor logits = ctx.empty(DType::kF32, {plan.tokens, 1});
  linear(ctx, converted(ctx, x, dtype), converted(ctx, as_matrix(w), dtype), logits);
  const float* const logit = logits.data<float>();
  float* const weight = plan.weight.data<float>();
  for (Index i = 0; i < plan.shared * plan.tokens; ++i) weight[i] = 1 / (1 + std::exp(-logit[i % plan.tokens]));
}

void backward_on_cpu(Context& ctx, const Tensor& x, const Tensor& w, const Plan& plan, const SharedGateBackward& args,
                     Tensor& dw, Tensor& dx) {
  const float *const weight = plan.weight.data<float>(), *const from = args.row_weight_grads.data<float>();
  Tensor dlogits(DType::kF32, {plan.tokens, 1});
  for (Index t = 0; t < plan.tokens; ++t) {
    double sum = 0;
    for (Index s = 0; s < plan.shared; ++s) sum += from[s * plan.tokens + t];
    dlogits.data<float>()[t] = static_cast<float>(sum * weight[t] * (1 - weight[t]));
  }
  Tensor grad = as_matrix(converted(ctx, dw, DType::kF32));
  linear_backward_weight(ctx, dlogits, converted(ctx, x, DType::kF32), grad, args.accumulate);
  if (dw.dtype() != DType::kF32) convert(ctx, grad.reshape(dw.shape()), dw);
  linear_backward_input(ctx, dlogits, converted(ctx, as_matrix(w), DType::kF32), dx, /*accumulate=*/true);
}

}  // namespace

void weigh_shared(Context& ctx, const Tensor& x, const Tensor& w, Plan& plan) {
  check("weigh_shared", x, w, plan);
  const auto on_cpu = [&] { weigh_on_cpu(ctx, x, w, plan); };
  on_backend(ctx, on_cpu, on_cpu, [&] { cuda::weigh_shared(ctx, x, w, plan); });
  plan.weighs_shared = true;
}

void weigh_shared_backward(Context& ctx, const Tensor& x, const Tensor& w, const Plan& plan, const SharedGateBackward& args,
                           Tensor& dw, Tensor& dx) {
  constexpr const char* kOp = "weigh_shared_backward";
  check(kOp, x, w, plan);
  require(dw.shape() == w.shape() && (dw.dtype() == DType::kF32 || dw.dtype() == x.dtype()),
          "[{}] the gradient is {} {}, expected f32 or {} {}", kOp, to_string(dw.dtype()), dw.shape(), to_string(x.dtype()),
          w.shape());
  require(dx.shape() == x.shape() && args.row_weight_grads.rank() == 2 && args.row_weight_grads.dim(0) == plan.rows(),
          "[{}] dx is {} and the rows' gradients {}, expected {} and {} rows", kOp, dx.shape(),
          args.row_weight_grads.shape(), x.shape(), plan.rows());
  const auto on_cpu = [&] { backward_on_cpu(ctx, x, w, plan, args, dw, dx); };
  on_backend(ctx, on_cpu, on_cpu, [&] { cuda::weigh_shared_backward(ctx, x, w, plan, args, dw, dx); });
}

}  // namespace dsmoe::ops
