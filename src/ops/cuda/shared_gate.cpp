// The shared experts' gate on a GPU (ops/shared_gate.h), in steps of its own around the products.
#include "ops/shared_gate.h"

#include "core/fail.h"
#include "ops/cuda/kernels.h"
#include "ops/cuda/shared_gate.h"

namespace dsmoe::ops::cuda {

namespace gpu = dsmoe::cuda;

namespace {

gpu::SharedGate view(const Tensor& x, const Tensor& w, const Plan& plan) {
  require(x.dtype() == w.dtype(), "x is {}, but the shared experts' gate is {}; on a GPU they have one dtype",
          to_string(x.dtype()), to_string(w.dtype()));
  return {x.raw(),
          w.raw(),
          x.dtype(),
          static_cast<int>(plan.tokens),
          static_cast<int>(plan.shared),
          static_cast<int>(x.dim(1)),
          static_cast<float*>(const_cast<void*>(plan.weight.raw()))};
}

}  // namespace

void weigh_shared(Context& ctx, const Tensor& x, const Tensor& w, Plan& plan) {
  const gpu::SharedGate gate = view(x, w, plan);
  if (plan.tokens > 0) gpu::weigh_shared(gate, ctx.stream());
}

Tensor weighed_rows(Context& ctx, const Plan& plan, const Tensor& h) {
  Tensor out = ctx.empty(h.dtype(), h.shape());
  if (h.numel() > 0)
    gpu::weigh_rows(h.raw(), h.dtype(), plan.rows(), plan.shared * plan.tokens, h.dim(1),
                    static_cast<const float*>(plan.weight.raw()), out.raw_mutable(), ctx.stream());
  return out;
}

void weigh_shared_backward(Context& ctx, const Tensor& x, const Tensor& w, const Plan& plan, const SharedGateBackward& args,
                           Tensor& dw, Tensor& dx) {
  const gpu::SharedGate gate = view(x, w, plan);
  require(dx.dtype() == x.dtype(), "dx is {}, expected {}", to_string(dx.dtype()), to_string(x.dtype()));
  if (plan.tokens == 0) {
    if (!args.accumulate) ctx.fill_zero(dw);
    return;
  }
  const Index width = x.dim(1);
  const int slices = gpu::gate_slices(plan.tokens);
  Tensor dlogits = ctx.empty(DType::kF32, {plan.tokens}), partial = ctx.empty(DType::kF32, {slices, width});
  auto* const sums = static_cast<float*>(partial.raw_mutable());
  gpu::weigh_shared_backward(gate, static_cast<const float*>(args.row_weight_grads.raw()),
                             static_cast<int>(args.row_weight_grads.dim(1)), gpu::gate_slice(plan.tokens),
                             {static_cast<float*>(dlogits.raw_mutable()), sums, dx.raw_mutable()}, ctx.stream());
  gpu::add_slices(sums, slices, static_cast<std::size_t>(width), static_cast<std::size_t>(width), dw.dtype(),
                  dw.raw_mutable(), args.accumulate, ctx.stream());
}

}  // namespace dsmoe::ops::cuda
