#include "model/linear_layer.h"

#include "ops/elementwise.h"
#include "ops/linear.h"

namespace dsmoe {

Tensor linear_forward(Context& ctx, const Tensor& x, const LinearWeights& w, DType dtype) {
  const bool biased = w.bias.numel() > 0;
  Tensor y(biased ? DType::kF32 : dtype, {x.dim(0), w.weight.dim(0)});
  ops::linear(ctx, x, w.weight, y);
  if (biased) ops::add_bias(ctx, w.bias, y);
  return ops::converted(ctx, y, dtype);
}

void linear_backward(Context& ctx, const Tensor& dy, const Tensor& x, const LinearWeights& w, LinearWeights& grads,
                     Tensor& dx, bool accumulate) {
  ops::linear_backward_weight(ctx, dy, x, grads.weight);
  ops::linear_backward_input(ctx, dy, w.weight, dx, accumulate);
  if (w.bias.numel() > 0) ops::add_bias_backward(ctx, dy, grads.bias);
}

}  // namespace dsmoe
