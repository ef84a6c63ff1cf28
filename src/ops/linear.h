// y = x · Wᵀ and its gradients. x [T, K], W [N, K], y [T, N]; x and W have one dtype (f32 or bf16). Forward also takes f32
// x with W in any other dtype (ops/mixed.h), and on a GPU bf16 x with a packed W (ops/pack.h).
#pragma once

#include <span>

#include "dsmoe/context.h"
#include "dsmoe/tensor.h"
#include "ops/rms_norm.h"

namespace dsmoe::ops {

// y may be f32 or the dtype of x; sums are f32 either way.
void linear(Context& ctx, const Tensor& x, const Tensor& w, Tensor& y);

// Several products of one x, y = x · Wᵀ each, as one piece of work: with few rows the threads' meeting after each product
// would cost as much as a good part of it.
struct Projection {
  const Tensor* w;
  Tensor* y;
};
void linear(Context& ctx, const Tensor& x, std::span<const Projection> projections);
// The same of x = the norm of a sum.
void linear(Context& ctx, const AddNorm& x, std::span<const Projection> projections);

// dx = dy · W (or += with accumulate; dx is f32), dy [T, N] in the dtype of W.
void linear_backward_input(Context& ctx, const Tensor& dy, const Tensor& w, Tensor& dx, bool accumulate);

// dx = the sum of dy · W over several products of one x, in their order. dx is f32 or the dtype of dy: then the f32 sum is
// rounded once.
struct ProjectionGrad {
  const Tensor *dy, *w;
};
void linear_backward_input(Context& ctx, std::span<const ProjectionGrad> products, Tensor& dx);

// dW += dyᵀ · x (or = without accumulate), dW [N, K] f32, dy and x of one dtype.
void linear_backward_weight(Context& ctx, const Tensor& dy, const Tensor& x, Tensor& dw, bool accumulate = true);

namespace ref {
void linear(const Tensor& x, const Tensor& w, Tensor& y);
void linear_backward_input(const Tensor& dy, const Tensor& w, Tensor& dx, bool accumulate);
void linear_backward_weight(const Tensor& dy, const Tensor& x, Tensor& dw);
}  // namespace ref

namespace cpu {
void linear(Context& ctx, const Tensor& x, std::span<const Projection> projections);
void linear_backward_input(Context& ctx, const Tensor& dy, const Tensor& w, Tensor& dx, bool accumulate);
void linear_backward_weight(Context& ctx, const Tensor& dy, const Tensor& x, Tensor& dw);
}  // namespace cpu

namespace cuda {
void linear(Context& ctx, const Tensor& x, std::span<const Projection> projections);
// False, and nothing done, where no kernel does it in one go.
bool linear(Context& ctx, const AddNorm& x, std::span<const Projection> projections);
void linear_backward_input(Context& ctx, const Tensor& dy, const Tensor& w, Tensor& dx, bool accumulate);
// False, and nothing done, where no kernel does it in one go.
bool linear_backward_input(Context& ctx, std::span<const ProjectionGrad> products, Tensor& dx);
void linear_backward_weight(Context& ctx, const Tensor& dy, const Tensor& x, Tensor& dw, bool accumulate);
}  // namespace cuda

}  // namespace dsmoe::ops
