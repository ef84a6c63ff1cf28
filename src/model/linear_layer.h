// A linear layer with an optional bias, forward and backward.
#pragma once

#include <initializer_list>
#include <vector>

#include "dsmoe/context.h"
#include "model/weights.h"

namespace dsmoe {

// x [T, K] -> [T, N] in `dtype` (f32 or the dtype of x).
Tensor linear_forward(Context& ctx, const Tensor& x, const LinearWeights& w, DType dtype);

// The same for several layers of one x.
std::vector<Tensor> linear_forward(Context& ctx, const Tensor& x, std::initializer_list<const LinearWeights*> layers,
                                   DType dtype);

// dy [T, N] and x [T, K] in the dtype of the weights: writes grads (adds with add_grads) and dx [T, K] f32 (adds with
// add_dx).
void linear_backward(Context& ctx, const Tensor& dy, const Tensor& x, const LinearWeights& w, LinearWeights& grads,
                     bool add_grads, Tensor& dx, bool add_dx);

}  // namespace dsmoe
