// The gate of the shared experts, where they have one: one number per token, sigmoid(<x, w>), which their outputs are
// multiplied by. In the one list of experts it is the weight of the token's rows there, so the products, forward and
// backward, need not know of it.
#pragma once

#include "ops/gate.h"

namespace dsmoe::ops {

// Weighs the rows of the shared experts of a plan: x [T, D] f32 or bf16, w [D] in the same dtype (on the CPU either).
void weigh_shared(Context& ctx, const Tensor& x, const Tensor& w, Plan& plan);

// From the gradients of the rows' weights, as gate_backward() takes them: adds to dw [D] (overwrites it without
// `accumulate`), and to dx [T, D], which is in the dtype that gate_backward() returns.
struct SharedGateBackward {
  const Tensor& row_weight_grads;  // [R, parts] f32
  bool accumulate = true;
};
void weigh_shared_backward(Context& ctx, const Tensor& x, const Tensor& w, const Plan& plan, const SharedGateBackward& args,
                           Tensor& dw, Tensor& dx);

namespace cuda {
void weigh_shared(Context& ctx, const Tensor& x, const Tensor& w, Plan& plan);
// h [R, F] with the rows of the shared experts times their weights: the products on a GPU take those rows as they are.
Tensor weighed_rows(Context& ctx, const Plan& plan, const Tensor& h);
void weigh_shared_backward(Context& ctx, const Tensor& x, const Tensor& w, const Plan& plan, const SharedGateBackward& args,
                           Tensor& dw, Tensor& dx);
}  // namespace cuda

}  // namespace dsmoe::ops
