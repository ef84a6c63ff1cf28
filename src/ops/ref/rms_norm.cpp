#include "ops/rms_norm.h"

#include <cmath>
#include <vector>

#include "ops/dispatch.h"

namespace dsmoe::ops::ref {

namespace {

double inverse_root(const float* x, Index d, double eps) {
  double sum = 0;
  for (Index i = 0; i < d; ++i) sum += static_cast<double>(x[i]) * x[i];
  return 1 / std::sqrt(sum / static_cast<double>(d) + eps);
}

}  // namespace

void rms_norm(const Tensor& x, const Tensor& weight, float eps, Tensor& y) {
  const Index tokens = x.dim(0), d = x.dim(1);
  const Tensor wide = weight.to(DType::kF32);
  const float* w = wide.data<float>();
  dispatch(y.dtype(), [&]<class Y>(Y) {
    for (Index t = 0; t < tokens; ++t) {
      const float* in = x.data<float>() + t * d;
      const double inverse = inverse_root(in, d, eps);
      for (Index i = 0; i < d; ++i) y.data<Y>()[t * d + i] = Y(static_cast<float>(w[i] * inverse * in[i]));
    }
  });
}

// With r = 1 / sqrt(mean(x²) + eps) and g = dy * weight: dx = r g - r³ mean(g x) x.
void rms_norm_backward(const Tensor& dy, const Tensor& x, const Tensor& weight, float eps, Tensor& dx, Tensor& dweight) {
  const Index tokens = x.dim(0), d = x.dim(1);
  const Tensor wide = weight.to(DType::kF32), wide_dy = dy.to(DType::kF32);
  const float* w = wide.data<float>();
  std::vector<double> dw(dweight.data<float>(), dweight.data<float>() + d);
  for (Index t = 0; t < tokens; ++t) {
    const float *in = x.data<float>() + t * d, *grad = wide_dy.data<float>() + t * d;
    float* out = dx.data<float>() + t * d;
    const double r = inverse_root(in, d, eps);
    double mean = 0;
    for (Index i = 0; i < d; ++i) mean += static_cast<double>(grad[i]) * w[i] * in[i] / static_cast<double>(d);
    for (Index i = 0; i < d; ++i) {
      out[i] = static_cast<float>(out[i] + r * grad[i] * w[i] - r * r * r * mean * in[i]);
      dw[static_cast<std::size_t>(i)] += r * grad[i] * in[i];
    }
  }
  for (Index i = 0; i < d; ++i) dweight.data<float>()[i] = static_cast<float>(dw[static_cast<std::size_t>(i)]);
}

}  // namespace dsmoe::ops::ref
