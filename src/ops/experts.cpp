#include "ops/experts.h"

#include "core/fail.h"
#include "ops/mixed.h"

namespace dsmoe::ops {

namespace {

void check(const char* op, const ExpertWeights& w, const ExpertRows& rows, const Tensor& t, Index n, Index width) {
  require(t.rank() == 2 && t.dim(0) == n && t.dim(1) == width && t.dtype() == w.dtype,
          "[{}] expected {} [{}, {}], got {} {}", op, to_string(w.dtype), n, width, to_string(t.dtype()), t.shape());
  const auto experts = static_cast<std::size_t>(rows.experts());
  require(w.gate.size() == experts && w.up.size() == experts && w.down.size() == experts,
          "[{}] the plan has {} experts, the weights have {}", op, experts, w.gate.size());
}

// Numbers of the hidden rows, for experts of different widths.
Index hidden_numbers(const char* op, const ExpertWeights& w, const ExpertRows& rows) {
  require(static_cast<Index>(w.forms.size()) == rows.experts(), "[{}] the plan has {} experts, the weights have {}", op,
          rows.experts(), w.forms.size());
  Index numbers = 0;
  for (std::size_t e = 0; e < w.forms.size(); ++e) numbers += (rows.offset[e + 1] - rows.offset[e]) * w.forms[e].width;
  return numbers;
}

void require_no_forms(const char* op, const ExpertWeights& w) {
  require(w.forms.empty(), "[{}] quantized weights have no gradient; use f32 or bf16 weights", op);
}

}  // namespace

void experts_gate_up(Context& ctx, const ExpertWeights& w, const ExpertRows& rows, const Tensor& x, Tensor& h,
                     ExpertActivations* keep) {
  check("experts_gate_up", w, rows, x, rows.tokens, w.model_width);
  if (!w.forms.empty()) {
    require(keep == nullptr && h.dtype() == DType::kF32 && h.numel() == hidden_numbers("experts_gate_up", w, rows),
            "[experts_gate_up] h {} {} does not fit the experts, or gradients of quantized weights were asked for",
            to_string(h.dtype()), h.shape());
    return ctx.backend() == Backend::kRef ? ref::experts_gate_up_mixed(w, rows, x, h)
                                          : cpu::experts_gate_up_mixed(ctx, w, rows, x, h);
  }
  check("experts_gate_up", w, rows, h, rows.rows(), w.expert_width);
  if (keep) {
    keep->gate = Tensor(w.dtype, h.shape());
    keep->up = Tensor(w.dtype, h.shape());
  }
  ctx.backend() == Backend::kRef ? ref::experts_gate_up(w, rows, x, h, keep)
                                 : cpu::experts_gate_up(ctx, w, rows, x, h, keep);
}

void experts_down_combine(Context& ctx, const ExpertWeights& w, const ExpertRows& rows, const Tensor& h, Tensor& y) {
  check("experts_down_combine", w, rows, y, rows.tokens, w.model_width);
  if (!w.forms.empty()) {
    require(h.dtype() == DType::kF32 && h.numel() == hidden_numbers("experts_down_combine", w, rows),
            "[experts_down_combine] h {} {} does not fit the experts", to_string(h.dtype()), h.shape());
    return ctx.backend() == Backend::kRef ? ref::experts_down_combine_mixed(w, rows, h, y)
                                          : cpu::experts_down_combine_mixed(ctx, w, rows, h, y);
  }
  check("experts_down_combine", w, rows, h, rows.rows(), w.expert_width);
  ctx.backend() == Backend::kRef ? ref::experts_down_combine(w, rows, h, y) : cpu::experts_down_combine(ctx, w, rows, h, y);
}

ExpertRowGrads experts_down_backward(Context& ctx, const ExpertWeights& w, const ExpertRows& rows, const Tensor& dy,
                                     const ExpertActivations& kept) {
  require_no_forms("experts_down_backward", w);
  check("experts_down_backward", w, rows, dy, rows.tokens, w.model_width);
  check("experts_down_backward", w, rows, kept.gate, rows.rows(), w.expert_width);
  const Shape shape{rows.rows(), w.expert_width};
  ExpertRowGrads d{Tensor(w.dtype, {rows.rows(), 2 * w.expert_width}), Tensor(w.dtype, shape),
                   std::vector<float>(static_cast<std::size_t>(rows.rows()))};
  ctx.backend() == Backend::kRef ? ref::experts_down_backward(w, rows, dy, kept, d)
                                 : cpu::experts_down_backward(ctx, w, rows, dy, kept, d);
  return d;
}

void experts_gate_up_backward(Context& ctx, const ExpertWeights& w, const ExpertRows& rows, const ExpertRowGrads& d,
                              Tensor& dx) {
  require_no_forms("experts_gate_up_backward", w);
  check("experts_gate_up_backward", w, rows, d.gate_up, rows.rows(), 2 * w.expert_width);
  require(dx.shape() == Shape({rows.tokens, w.model_width}) && dx.dtype() == DType::kF32,
          "[experts_gate_up_backward] dx is {} {}, expected f32 [{}, {}]", to_string(dx.dtype()), dx.shape(), rows.tokens,
          w.model_width);
  ctx.backend() == Backend::kRef ? ref::experts_gate_up_backward(w, rows, d, dx)
                                 : cpu::experts_gate_up_backward(ctx, w, rows, d, dx);
}

void experts_weight_backward(Context& ctx, const ExpertRows& rows, const Tensor& x, const Tensor& dy,
                             const ExpertRowGrads& d, ExpertGrads& grads) {
  require(static_cast<Index>(grads.gate.size()) == rows.experts() && grads.up.size() == grads.gate.size() &&
              grads.down.size() == grads.gate.size(),
          "[experts_weight_backward] the plan has {} experts, the gradients have {}", rows.experts(), grads.gate.size());
  ctx.backend() == Backend::kRef ? ref::experts_weight_backward(rows, x, dy, d, grads)
                                 : cpu::experts_weight_backward(ctx, rows, x, dy, d, grads);
}

}  // namespace dsmoe::ops
