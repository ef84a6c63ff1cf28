// Products that every head has for itself, and parts of heads: what latent attention (MLA) does beside projections and
// attention. Tensors are f32 or bf16; x, w and y of a product have one dtype, unless it says otherwise; sums are f32.
#pragma once

#include "dsmoe/context.h"
#include "dsmoe/tensor.h"

namespace dsmoe::ops {

// Of each of `heads` equal parts of something: [first, first + width).
struct Part {
  Index heads = 1, first = 0, width = 0;
};

// A part of the numbers of every head, in x [T, heads * dim].
struct HeadNumbers {
  Tensor x;
  Part part;
  Index dim() const { return x.dim(1) / part.heads; }
};

// A part of the rows of every head: W_h, in w [heads * rows, K].
struct HeadRows {
  Tensor w;
  Part part;
  Index rows() const { return w.dim(0) / part.heads; }
};

// to = from, rounded where their dtypes differ. The same heads and width.
void copy_heads(Context& ctx, const HeadNumbers& from, HeadNumbers to);

// y_h = x_h · W_hᵀ for every head: x has parts of K numbers, y as many as W_h has rows. But on a GPU, w may be of any other
// dtype, and x and y f32 or bf16 each: a product of ops/mixed.h, of x in f32, rounded at the end.
void head_linear(Context& ctx, const HeadNumbers& x, const HeadRows& w, HeadNumbers y);

// dx_h = dy_h · W_h: the gradient of head_linear(), and the same product turned round for forward.
void head_linear_backward_input(Context& ctx, const HeadNumbers& dy, const HeadRows& w, HeadNumbers dx);

// dW_h += dy_hᵀ · x_h, dw f32; the rows outside the part stay as they are.
void head_linear_backward_weight(Context& ctx, const HeadNumbers& dy, const HeadNumbers& x, HeadRows dw);

namespace ref {
void copy_heads(const HeadNumbers& from, HeadNumbers& to);
void head_linear(const HeadNumbers& x, const HeadRows& w, HeadNumbers& y);
void head_linear_backward_input(const HeadNumbers& dy, const HeadRows& w, HeadNumbers& dx);
void head_linear_backward_weight(const HeadNumbers& dy, const HeadNumbers& x, HeadRows& dw);
}  // namespace ref

namespace cpu {
void copy_heads(Context& ctx, const HeadNumbers& from, HeadNumbers& to);
void head_linear(Context& ctx, const HeadNumbers& x, const HeadRows& w, HeadNumbers& y);
void head_linear_backward_input(Context& ctx, const HeadNumbers& dy, const HeadRows& w, HeadNumbers& dx);
void head_linear_backward_weight(Context& ctx, const HeadNumbers& dy, const HeadNumbers& x, HeadRows& dw);
}  // namespace cpu

namespace cuda {
void copy_heads(Context& ctx, const HeadNumbers& from, HeadNumbers& to);
void head_linear(Context& ctx, const HeadNumbers& x, const HeadRows& w, HeadNumbers& y);
void head_linear_backward_input(Context& ctx, const HeadNumbers& dy, const HeadRows& w, HeadNumbers& dx);
void head_linear_backward_weight(Context& ctx, const HeadNumbers& dy, const HeadNumbers& x, HeadRows& dw);
}  // namespace cuda

}  // namespace dsmoe::ops
