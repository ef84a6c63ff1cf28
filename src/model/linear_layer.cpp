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

void linear_backward(Context& ctx, std::initializer_list<LinearGrad> layers, const Tensor& x, bool add_grads, Tensor& dx) {
  std::vector<ops::ProjectionGrad> products;
  for (const LinearGrad& l : layers) {
    ops::linear_backward_weight(ctx, l.dy, x, l.grads.weight, add_grads);
    products.push_back({&l.dy, &l.w.weight});
    if (l.w.bias.numel() == 0) continue;
    if (!add_grads) ctx.fill_zero(l.grads.bias);
    ops::add_bias_backward(ctx, l.dy, l.grads.bias);
  }
  ops::linear_backward_input(ctx, products, dx);
}

}  // namespace dsmoe
