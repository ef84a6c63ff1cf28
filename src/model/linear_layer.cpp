#include "model/linear_layer.h"

#include "ops/elementwise.h"
#include "ops/linear.h"

namespace dsmoe {

Tensor linear_forward(Context& ctx, const Tensor& x, const LinearWeights& w, DType dtype) {
  return linear_forward(ctx, x, {&w}, dtype)[0];
}

std::vector<Tensor> linear_forward(Context& ctx, const Tensor& x, std::initializer_list<const LinearWeights*> layers,
                                   DType dtype) {
  std::vector<Tensor> y;
  std::vector<ops::Projection> projections;
  y.reserve(layers.size());
  for (const LinearWeights* w : layers) {
    const bool biased = w->bias.numel() > 0;
    y.push_back(ctx.empty(biased ? DType::kF32 : dtype, {x.dim(0), w->weight.dim(0)}));
    projections.push_back({&w->weight, &y.back()});
  }
  ops::linear(ctx, x, projections);
  for (std::size_t i = 0; i < y.size(); ++i) {
    const Tensor& bias = layers.begin()[i]->bias;
    if (bias.numel() > 0) ops::add_bias(ctx, bias, y[i]);
    y[i] = ops::converted(ctx, y[i], dtype);
  }
  return y;
}

void linear_backward(Context& ctx, const Tensor& dy, const Tensor& x, const LinearWeights& w, LinearWeights& grads,
                     bool add_grads, Tensor& dx, bool add_dx) {
  ops::linear_backward_weight(ctx, dy, x, grads.weight, add_grads);
  ops::linear_backward_input(ctx, dy, w.weight, dx, add_dx);
  if (w.bias.numel() == 0) return;
  if (!add_grads) ctx.fill_zero(grads.bias);
  ops::add_bias_backward(ctx, dy, grads.bias);
}

}  // namespace dsmoe
