// The grouped products of a list of SwiGLU experts over rows that are sorted by expert (ops/gate.h). Rows are (token, slot)
// pairs; the rows of one expert are neighbours. On the CPU no tensor of rows x model width is ever made: inputs are
// gathered while they are packed, outputs are summed block by block.
//
// R rows, T tokens, X experts, D model width, F expert width. Activations and weights share one dtype, f32 or bf16; mixed
// experts take f32 activations, forward only.
#pragma once

#include "dsmoe/context.h"
#include "dsmoe/experts.h"
#include "dsmoe/tensor.h"
#include "ops/gate.h"

namespace dsmoe::ops {

// What backward needs; everything else is recomputed.
struct ExpertActivations {
  Tensor gate_up;  // [R, 2F]: W_gate x, and then W_up x
};

// h[r] = silu(W_gate x) * (W_up x) for x = x[token[r]]: [R, F], or a flat list of the experts' rows where their
// widths differ. The two products are kept when `keep` is given.
Tensor experts_gate_up(Context& ctx, const Experts& w, const Plan& plan, const Tensor& x, ExpertActivations* keep);

// y[t] = sum over the rows r of token t, in the order of the experts, of weight[r] * W_down h[r]. [T, D]
Tensor experts_down_combine(Context& ctx, const Experts& w, const Plan& plan, const Tensor& h);

// Gradients of the rows. With e = W_downᵀ dy[token[r]]: the gradient of weight[r] is <e, h[r]>, and that of
// h[r] is weight[r] * e, so the output of W_down is not needed.
struct ExpertRowGrads {
  Tensor gate_up;   // [R, 2F] of W_gate x, and then of W_up x: one product takes both
  Tensor scaled_h;  // [R, F] weight[r] * h[r], for the gradient of W_down
  Tensor weight;    // [R, parts] f32: their sum is the gradient of weight[r]
  // A GPU's: dy in the order of the rows, which the gradient of W_down needs again.
  Tensor gathered_dy;
};
// Consumes what forward kept: the gradients take over its memory.
ExpertRowGrads experts_down_backward(Context& ctx, const Experts& w, const Plan& plan, const Tensor& dy,
                                     ExpertActivations kept);

// Weight gradients, stacked, f32 or the dtype of x: accumulated, or overwritten without `accumulate`. May consume
// d.scaled_h and d.gathered_dy, whose memory a GPU reuses for the next op.
void experts_weight_backward(Context& ctx, const Plan& plan, const Tensor& x, const Tensor& dy, ExpertRowGrads& d,
                             Experts& grads, bool accumulate);

// dx[t] = gate_dx[t] + the sum over the rows of token t, in the order of the experts; [T, D] in the dtype of the weights.
// gate_dx is what gate_backward() left, or empty for zero; its memory may be used for the result.
Tensor experts_gate_up_backward(Context& ctx, const Experts& w, const Plan& plan, const ExpertRowGrads& d, Tensor gate_dx);

namespace ref {
void experts_gate_up(const Experts& w, const ExpertRows& rows, const Tensor& x, Tensor& h, ExpertActivations* keep);
void experts_down_combine(const Experts& w, const ExpertRows& rows, const Tensor& h, Tensor& y);
void experts_down_backward(const Experts& w, const ExpertRows& rows, const Tensor& dy, const ExpertActivations& kept,
                           ExpertRowGrads& d);
void experts_gate_up_backward(const Experts& w, const ExpertRows& rows, const ExpertRowGrads& d, Tensor& dx);
void experts_weight_backward(const ExpertRows& rows, const Tensor& x, const Tensor& dy, const ExpertRowGrads& d,
                             Experts& grads);
}  // namespace ref

namespace cpu {
void experts_gate_up(Context& ctx, const Experts& w, const ExpertRows& rows, const Tensor& x, Tensor& h,
                     ExpertActivations* keep);
void experts_down_combine(Context& ctx, const Experts& w, const ExpertRows& rows, const Tensor& h, Tensor& y);
void experts_down_backward(Context& ctx, const Experts& w, const ExpertRows& rows, const Tensor& dy,
                           const ExpertActivations& kept, ExpertRowGrads& d);
void experts_gate_up_backward(Context& ctx, const Experts& w, const ExpertRows& rows, const ExpertRowGrads& d, Tensor& dx);
void experts_weight_backward(Context& ctx, const ExpertRows& rows, const Tensor& x, const Tensor& dy,
                             const ExpertRowGrads& d, Experts& grads);
}  // namespace cpu

namespace cuda {
Tensor experts_gate_up(Context& ctx, const Experts& w, const Plan& plan, const Tensor& x, ExpertActivations* keep);
Tensor experts_down_combine(Context& ctx, const Experts& w, const Plan& plan, const Tensor& h);
ExpertRowGrads experts_down_backward(Context& ctx, const Experts& w, const Plan& plan, const Tensor& dy,
                                     ExpertActivations kept);
void experts_weight_backward(Context& ctx, const Plan& plan, const Tensor& x, const Tensor& dy, ExpertRowGrads& d,
                             Experts& grads, bool accumulate);
Tensor experts_gate_up_backward(Context& ctx, const Experts& w, const Plan& plan, const ExpertRowGrads& d, Tensor gate_dx);
}  // namespace cuda

}  // namespace dsmoe::ops
