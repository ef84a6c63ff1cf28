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

// Of several layers of one x: dy [T, N] and x [T, K] in the dtype of the weights. Writes grads (adds with add_grads) and dx
// [T, K], which is f32 or in that dtype too.
struct LinearGrad {
  const Tensor& dy;
  const LinearWeights& w;
  LinearWeights& grads;
};
void linear_backward(Context& ctx, std::initializer_list<LinearGrad> layers, const Tensor& x, bool add_grads, Tensor& dx);

}  // namespace dsmoe
