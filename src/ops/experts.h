// The grouped products of a list of SwiGLU experts, FFN(x) = W_down (silu(W_gate x) * (W_up x)), over rows that
// are sorted by expert. Rows are (token, slot) pairs; the rows of one expert are neighbours. No tensor of
// rows x model width is ever made: inputs are gathered while they are packed, outputs are summed block by block.
//
// R rows, T tokens, X experts, D model width, F expert width. Activations and weights share one dtype.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "dsmoe/context.h"
#include "dsmoe/tensor.h"

namespace dsmoe::ops {

// Which rows belong to which expert, and to which token.
struct ExpertRows {
  Index tokens = 0;                     // T
  std::span<const Index> offset;        // [X + 1]: expert e has rows [offset[e], offset[e + 1])
  std::span<const std::int32_t> token;  // [R]
  std::span<const float> weight;        // [R]: what the row's output is multiplied by

  Index experts() const { return static_cast<Index>(offset.size()) - 1; }
  Index rows() const { return static_cast<Index>(token.size()); }
};

// One row-major matrix per expert, wherever each lies: in a tensor of its own, in a slice of a stacked one, or
// in columns of a wider one (the reference stores the shared experts so).
template <class Pointer>
struct MatrixOf {
  Pointer data = nullptr;
  Index ld = 0;  // elements from one row to the next
};
using Matrix = MatrixOf<const void*>;
using GradMatrix = MatrixOf<float*>;

// How the matrices of one expert lie in a file, where they are not all f32 or bf16.
struct ExpertForm {
  DType gate, up, down;
  Index width;
};

struct ExpertWeights {
  DType dtype = DType::kF32;     // of the activations; of all matrices too unless there are forms
  Index model_width = 0;         // D
  Index expert_width = 0;        // F
  std::vector<Matrix> gate, up;  // [F, D] each
  std::vector<Matrix> down;      // [D, F] each
  // Empty, or one per expert: then matrices have dtypes and experts have widths of their own, activations are f32 and
  // there is no backward (ops/mixed.h). The rows of an expert are [rows, its width] in h, one expert after another.
  std::vector<ExpertForm> forms;
};

struct ExpertGrads {  // as above, in f32
  std::vector<GradMatrix> gate, up, down;
};

// What backward needs again: everything else is recomputed.
struct ExpertActivations {
  Tensor gate;  // [R, F] W_gate x
  Tensor up;    // [R, F] W_up x
};

// h[r] = silu(W_gate x) * (W_up x) for x = x[token[r]]; the two products are kept when `keep` is given.
void experts_gate_up(Context& ctx, const ExpertWeights& w, const ExpertRows& rows, const Tensor& x, Tensor& h,
                     ExpertActivations* keep);

// y[t] = sum over the rows r of token t, in the order of the experts, of weight[r] * W_down h[r]. [T, D]
void experts_down_combine(Context& ctx, const ExpertWeights& w, const ExpertRows& rows, const Tensor& h, Tensor& y);

// Gradients of the rows. With e = W_downᵀ dy[token[r]]: the gradient of weight[r] is <e, h[r]>, and that of
// h[r] is weight[r] * e, so the output of W_down is not needed.
struct ExpertRowGrads {
  Tensor gate_up;             // [R, 2F] of W_gate x, and then of W_up x: one product takes both
  Tensor scaled_h;            // [R, F] weight[r] * h[r], for the gradient of W_down
  std::vector<float> weight;  // [R]
};
ExpertRowGrads experts_down_backward(Context& ctx, const ExpertWeights& w, const ExpertRows& rows, const Tensor& dy,
                                     const ExpertActivations& kept);

// dx[t] += sum over the rows of token t, in the order of the experts; dx f32 [T, D].
void experts_gate_up_backward(Context& ctx, const ExpertWeights& w, const ExpertRows& rows, const ExpertRowGrads& d,
                              Tensor& dx);

// Weight gradients, added to what is there.
void experts_weight_backward(Context& ctx, const ExpertRows& rows, const Tensor& x, const Tensor& dy,
                             const ExpertRowGrads& d, ExpertGrads& grads);

namespace ref {
void experts_gate_up(const ExpertWeights& w, const ExpertRows& rows, const Tensor& x, Tensor& h, ExpertActivations* keep);
void experts_down_combine(const ExpertWeights& w, const ExpertRows& rows, const Tensor& h, Tensor& y);
void experts_down_backward(const ExpertWeights& w, const ExpertRows& rows, const Tensor& dy, const ExpertActivations& kept,
                           ExpertRowGrads& d);
void experts_gate_up_backward(const ExpertWeights& w, const ExpertRows& rows, const ExpertRowGrads& d, Tensor& dx);
void experts_weight_backward(const ExpertRows& rows, const Tensor& x, const Tensor& dy, const ExpertRowGrads& d,
                             ExpertGrads& grads);
}  // namespace ref

namespace cpu {
void experts_gate_up(Context& ctx, const ExpertWeights& w, const ExpertRows& rows, const Tensor& x, Tensor& h,
                     ExpertActivations* keep);
void experts_down_combine(Context& ctx, const ExpertWeights& w, const ExpertRows& rows, const Tensor& h, Tensor& y);
void experts_down_backward(Context& ctx, const ExpertWeights& w, const ExpertRows& rows, const Tensor& dy,
                           const ExpertActivations& kept, ExpertRowGrads& d);
void experts_gate_up_backward(Context& ctx, const ExpertWeights& w, const ExpertRows& rows, const ExpertRowGrads& d,
                              Tensor& dx);
void experts_weight_backward(Context& ctx, const ExpertRows& rows, const Tensor& x, const Tensor& dy,
                             const ExpertRowGrads& d, ExpertGrads& grads);
}  // namespace cpu

}  // namespace dsmoe::ops
