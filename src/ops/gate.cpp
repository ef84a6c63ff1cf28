#include "ops/gate.h"

#include <numeric>

#include "ops/backend.h"
#include "ops/balance.h"
#include "ops/elementwise.h"
#include "ops/linear.h"
#include "ops/plan.h"
#include "ops/routing.h"

namespace dsmoe::ops {

namespace {

void check(const MoeConfig& c, const Tensor& x, const Tensor& weight, const Tensor& bias) {
  require(x.rank() == 2 && x.dim(1) == c.hidden_size, "[gate] x is {}, expected [T, {}]", x.shape(), c.hidden_size);
  require(weight.shape() == Shape({c.routed_experts, c.hidden_size}), "[gate] the weight is {}, expected [{}, {}]",
          weight.shape(), c.routed_experts, c.hidden_size);
  require(!c.selection_bias || (bias.shape() == Shape({c.routed_experts}) && bias.dtype() == DType::kF32),
          "[gate] the selection bias is {} {}, expected f32 [{}]", to_string(bias.dtype()), bias.shape(), c.routed_experts);
}

// Logits in the dtype of x where the gate's weight has it too, else in f32; then the choice, then the plan.
Gated gate_on_cpu(Context& ctx, const MoeConfig& c, const Tensor& x, const Tensor& weight, const Tensor& bias, Index shared,
                  const RoutingOverrides* overrides) {
  Tensor logits = ctx.empty(DType::kF32, {x.dim(0), c.routed_experts});
  const DType dtype = x.dtype() == weight.dtype() ? x.dtype() : DType::kF32;
  linear(ctx, converted(ctx, x, dtype), converted(ctx, weight, dtype), logits);
  Gated out;
  out.chosen = route(ctx, c, logits, bias, overrides);
  out.plan = make_plan(c, out.chosen, shared);
  return out;
}

// On a GPU overrides are for studies: its logits are looked at here, where the choice is the CPU's.
Gated gate_with_overrides(Context& ctx, const MoeConfig& c, const Tensor& x, const Tensor& weight, const Tensor& bias,
                          Index shared, const RoutingOverrides& overrides) {
  Tensor logits = ctx.empty(DType::kF32, {x.dim(0), c.routed_experts});
  linear(ctx, x, weight, logits);
  Context here(1);
  const Chosen chosen = route(here, c, ctx.fetch(logits), ctx.fetch(bias), &overrides);
  return cuda::gated(ctx, c, chosen, shared, x.dtype());
}

// [T, K]: the gradients of the chosen weights, from those of the rows.
Tensor chosen_grads(const Plan& plan, const Tensor& row_weight_grads) {
  require(row_weight_grads.shape() == Shape({plan.rows(), 1}),
          "[gate_backward] the rows' gradients are {}, expected [{}, 1]", row_weight_grads.shape(), plan.rows());
  Tensor out(DType::kF32, plan.slot_row.shape());
  const float* const from = row_weight_grads.data<float>();
  const std::int32_t* const row = plan.slot_row.data<std::int32_t>();
  float* const to = out.data<float>();
  for (Index i = 0; i < out.numel(); ++i) to[i] = from[row[i]];
  return out;
}

Tensor gate_backward_on_cpu(Context& ctx, const MoeConfig& c, const Tensor& x, const Tensor& weight,
                            const GateBackward& args, Tensor& dweight) {
  const Tensor dscores = balance_backward(c, args.chosen, args.sequence_length, args.aux_scale, args.whole);
  const Tensor dlogits = route_backward(ctx, c, args.chosen, chosen_grads(args.plan, args.row_weight_grads), dscores,
                                        router_z_backward(c, args.chosen, args.aux_scale, args.whole));
  const bool rounded = dweight.dtype() != DType::kF32;
  Tensor sum = rounded ? converted(ctx, dweight, DType::kF32) : dweight;
  if (!args.accumulate) ctx.fill_zero(sum);
  linear_backward_weight(ctx, dlogits, converted(ctx, x, DType::kF32), sum);
  if (rounded) convert(ctx, sum, dweight);
  Tensor dx(DType::kF32, x.shape());
  linear_backward_input(ctx, dlogits, converted(ctx, weight, DType::kF32), dx, /*accumulate=*/false);
  return dx;
}

}  // namespace

Gated gate(Context& ctx, const MoeConfig& c, const Tensor& x, const Tensor& weight, const Tensor& bias, Index shared,
           bool training, const RoutingOverrides* overrides) {
  check(c, x, weight, bias);
  const auto on_cpu = [&] { return gate_on_cpu(ctx, c, x, weight, bias, shared, overrides); };
  return on_backend(ctx, on_cpu, on_cpu, [&] {
    if (overrides) return gate_with_overrides(ctx, c, x, weight, bias, shared, *overrides);
    return cuda::gate(ctx, c, x, weight, bias, shared, training);
  });
}

Gated gate(Context& ctx, const MoeConfig& c, const AddNorm& x, const Tensor& weight, const Tensor& bias, Index shared,
           const Experts& experts, Tensor& h) {
  if (ctx.backend() == Backend::kCuda) {
    check(c, x.x, weight, bias);
    if (std::optional<Gated> gated = cuda::gate(ctx, c, x, weight, bias, shared, experts, h)) return *std::move(gated);
  }
  h = add_rms_norm(ctx, x);
  return gate(ctx, c, h, weight, bias, shared, /*training=*/false);
}

Plan plan_of_shared(Context& ctx, Index tokens, Index shared) {
  const auto on_cpu = [&] {
    Plan plan;
    plan.tokens = tokens, plan.shared = shared;
    plan.offset = Tensor(DType::kI32, {shared + 1});
    plan.token = Tensor(DType::kI32, {shared * tokens});
    plan.weight = Tensor(DType::kF32, {shared * tokens});
    std::int32_t* const token = plan.token.data<std::int32_t>();
    for (Index s = 0; s <= shared; ++s) plan.offset.data<std::int32_t>()[s] = static_cast<std::int32_t>(s * tokens);
    for (Index s = 0; s < shared; ++s) std::iota(token + s * tokens, token + (s + 1) * tokens, 0);
    for (float& w : plan.weight.span<float>()) w = 1;
    return plan;
  };
  return on_backend(ctx, on_cpu, on_cpu, [&] { return cuda::plan_of_shared(ctx, tokens, shared); });
}

Tensor balance_losses(Context& ctx, const MoeConfig& c, const Chosen& chosen, Index sequence_length,
                      const BatchLoad* whole) {
  const auto on_cpu = [&] { return balance_losses_on_cpu(c, chosen, sequence_length, whole); };
  return on_backend(ctx, on_cpu, on_cpu, [&] { return cuda::balance_losses(ctx, c, chosen, sequence_length, whole); });
}

Tensor gate_backward(Context& ctx, const MoeConfig& c, const Tensor& x, const Tensor& weight, const GateBackward& args,
                     Tensor& dweight) {
  require(dweight.shape() == weight.shape() && (dweight.dtype() == DType::kF32 || dweight.dtype() == x.dtype()),
          "[gate_backward] the gradient is {} {}, expected f32 or {} {}", to_string(dweight.dtype()), dweight.shape(),
          to_string(x.dtype()), weight.shape());
  const auto on_cpu = [&] { return gate_backward_on_cpu(ctx, c, x, weight, args, dweight); };
  return on_backend(ctx, on_cpu, on_cpu, [&] { return cuda::gate_backward(ctx, c, x, weight, args, dweight); });
}

}  // namespace dsmoe::ops
