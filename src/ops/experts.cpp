#include "ops/experts.h"

#include "ops/backend.h"
#include "ops/elementwise.h"
#include "ops/mixed.h"

namespace dsmoe::ops {

namespace {

void check_matrix(const char* op, const char* name, const Tensor& t, DType dtype, Index rows, Index columns) {
  require(t.shape() == Shape({rows, columns}) && t.dtype() == dtype, "[{}] {} is {} {}, expected {} [{}, {}]", op, name,
          to_string(t.dtype()), t.shape(), to_string(dtype), rows, columns);
}

void check_experts(const char* op, const Experts& w, const Plan& plan) {
  require(w.count() == plan.experts(), "[{}] the plan has {} experts, the weights have {}", op, plan.experts(), w.count());
}

void require_plain(const char* op, const Experts& w) {
  require(!w.mixed(), "[{}] f16 and quantized weights have no gradient; use f32 or bf16 weights", op);
}

// [R, F], or one flat list where the experts' widths differ.
Shape hidden_shape(const Experts& w, const Plan& plan) {
  if (!w.mixed()) return {plan.rows(), w.width(0)};
  Index numbers = 0;
  const ExpertRows rows = plan.view();
  for (Index e = 0; e < w.count(); ++e)
    numbers += (rows.offset[static_cast<std::size_t>(e) + 1] - rows.offset[static_cast<std::size_t>(e)]) * w.width(e);
  return {numbers};
}

}  // namespace

Tensor experts_gate_up(Context& ctx, const Experts& w, const Plan& plan, const Tensor& x, ExpertActivations* keep) {
  constexpr const char* kOp = "experts_gate_up";
  check_experts(kOp, w, plan);
  check_matrix(kOp, "x", x, w.dtype(), plan.tokens, w.model_width());
  if (keep) require_plain(kOp, w);
  const auto on_cpu = [&](auto&& run) {
    Tensor h = ctx.empty(w.dtype(), hidden_shape(w, plan));
    if (keep) keep->gate_up = ctx.empty(w.dtype(), {plan.rows(), 2 * w.width(0)});
    run(h);
    return h;
  };
  return on_backend(
      ctx,
      [&] {
        return on_cpu([&](Tensor& h) {
          w.mixed() ? ref::experts_gate_up_mixed(w, plan.view(), x, h) : ref::experts_gate_up(w, plan.view(), x, h, keep);
        });
      },
      [&] {
        return on_cpu([&](Tensor& h) {
          w.mixed() ? cpu::experts_gate_up_mixed(ctx, w, plan.view(), x, h)
                    : cpu::experts_gate_up(ctx, w, plan.view(), x, h, keep);
        });
      },
      [&] { return cuda::experts_gate_up(ctx, w, plan, x, keep); });
}

Tensor experts_down_combine(Context& ctx, const Experts& w, const Plan& plan, const Tensor& h) {
  constexpr const char* kOp = "experts_down_combine";
  check_experts(kOp, w, plan);
  require(h.dtype() == w.dtype(), "[{}] h is {}, expected {}", kOp, to_string(h.dtype()), to_string(w.dtype()));
  const auto on_cpu = [&](auto&& run) {
    require(h.shape() == hidden_shape(w, plan), "[{}] h is {}, expected {}", kOp, h.shape(), hidden_shape(w, plan));
    Tensor y = ctx.empty(w.dtype(), {plan.tokens, w.model_width()});
    run(y);
    return y;
  };
  return on_backend(
      ctx,
      [&] {
        return on_cpu([&](Tensor& y) {
          w.mixed() ? ref::experts_down_combine_mixed(w, plan.view(), h, y)
                    : ref::experts_down_combine(w, plan.view(), h, y);
        });
      },
      [&] {
        return on_cpu([&](Tensor& y) {
          w.mixed() ? cpu::experts_down_combine_mixed(ctx, w, plan.view(), h, y)
                    : cpu::experts_down_combine(ctx, w, plan.view(), h, y);
        });
      },
      [&] { return cuda::experts_down_combine(ctx, w, plan, h); });
}

ExpertRowGrads experts_down_backward(Context& ctx, const Experts& w, const Plan& plan, const Tensor& dy,
                                     ExpertActivations kept) {
  constexpr const char* kOp = "experts_down_backward";
  require_plain(kOp, w);
  check_experts(kOp, w, plan);
  const Index rows = plan.rows(), width = w.width(0);
  check_matrix(kOp, "dy", dy, w.dtype(), plan.tokens, w.model_width());
  check_matrix(kOp, "gate_up", kept.gate_up, w.dtype(), rows, 2 * width);
  const auto on_cpu = [&](auto&& run) {
    ExpertRowGrads d{kept.gate_up, ctx.empty(w.dtype(), {rows, width}), ctx.empty(DType::kF32, {rows, 1}), {}};
    run(d);
    return d;
  };
  return on_backend(
      ctx, [&] { return on_cpu([&](ExpertRowGrads& d) { ref::experts_down_backward(w, plan.view(), dy, kept, d); }); },
      [&] { return on_cpu([&](ExpertRowGrads& d) { cpu::experts_down_backward(ctx, w, plan.view(), dy, kept, d); }); },
      [&] { return cuda::experts_down_backward(ctx, w, plan, dy, std::move(kept)); });
}

void experts_weight_backward(Context& ctx, const Plan& plan, const Tensor& x, const Tensor& dy, ExpertRowGrads& d,
                             Experts& grads, bool accumulate) {
  constexpr const char* kOp = "experts_weight_backward";
  check_experts(kOp, grads, plan);
  const Index width = d.scaled_h.dim(1);
  require(grads.stacked() && grads.width(0) == width && grads.model_width() == x.dim(1) &&
              (grads.dtype() == DType::kF32 || grads.dtype() == x.dtype()),
          "[{}] the gradients are {} {}, expected stacks of {} experts of [2, {}, {}] in f32 or {}", kOp,
          to_string(grads.dtype()), grads.gate_up().shape(), plan.experts(), width, x.dim(1), to_string(x.dtype()));
  const auto on_cpu = [&](auto&& run) {
    if (!accumulate) ctx.fill_zero(grads.gate_up()), ctx.fill_zero(grads.down());
    if (grads.dtype() == DType::kF32) return run(grads);
    Experts sums = grads.stack(DType::kF32);
    run(sums);
    convert(ctx, sums.gate_up(), grads.gate_up());
    convert(ctx, sums.down(), grads.down());
  };
  on_backend(
      ctx, [&] { on_cpu([&](Experts& to) { ref::experts_weight_backward(plan.view(), x, dy, d, to); }); },
      [&] { on_cpu([&](Experts& to) { cpu::experts_weight_backward(ctx, plan.view(), x, dy, d, to); }); },
      [&] { cuda::experts_weight_backward(ctx, plan, x, dy, d, grads, accumulate); });
}

Tensor experts_gate_up_backward(Context& ctx, const Experts& w, const Plan& plan, const ExpertRowGrads& d, Tensor gate_dx) {
  constexpr const char* kOp = "experts_gate_up_backward";
  require_plain(kOp, w);
  check_experts(kOp, w, plan);
  check_matrix(kOp, "the gradient of gate_up", d.gate_up, w.dtype(), plan.rows(), 2 * w.width(0));
  const auto on_cpu = [&](auto&& run) {
    if (gate_dx.numel() == 0) gate_dx = ctx.zeros(DType::kF32, {plan.tokens, w.model_width()});
    check_matrix(kOp, "gate_dx", gate_dx, DType::kF32, plan.tokens, w.model_width());
    run();
    return converted(ctx, gate_dx, w.dtype());
  };
  return on_backend(
      ctx, [&] { return on_cpu([&] { ref::experts_gate_up_backward(w, plan.view(), d, gate_dx); }); },
      [&] { return on_cpu([&] { cpu::experts_gate_up_backward(ctx, w, plan.view(), d, gate_dx); }); },
      [&] { return cuda::experts_gate_up_backward(ctx, w, plan, d, std::move(gate_dx)); });
}

}  // namespace dsmoe::ops
