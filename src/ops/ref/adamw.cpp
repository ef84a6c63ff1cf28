#include "ops/adamw.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace dsmoe::ops::ref {

void adamw(std::span<AdamTensor> tensors, const AdamOptions& o) {
  const double correct1 = 1 - std::pow(o.beta1, static_cast<double>(o.step));
  const double correct2 = 1 - std::pow(o.beta2, static_cast<double>(o.step));
  for (AdamTensor& t : tensors) {
    float *const w = t.weight.data<float>(), *const gradient = t.gradient.data<float>();
    float *const m = t.m.data<float>(), *const v = t.v.data<float>();
    for (Index i = 0; i < t.weight.numel(); ++i) {
      const double g = o.grad_scale * gradient[i];
      m[i] = static_cast<float>(o.beta1 * m[i] + (1 - o.beta1) * g);
      v[i] = static_cast<float>(o.beta2 * v[i] + (1 - o.beta2) * g * g);
      const double kept = w[i] * (t.decay ? 1 - o.rate * o.weight_decay : 1.0);
      w[i] = static_cast<float>(kept - o.rate * (m[i] / correct1) / (std::sqrt(v[i] / correct2) + o.epsilon));
      gradient[i] = 0;
      if (t.stored.numel() > 0) t.stored.data<BFloat16>()[i] = BFloat16(w[i]);
    }
  }
}

double gradient_square(std::span<const AdamTensor> tensors) {
  double sum = 0;
  for (const AdamTensor& t : tensors)
    for (const float g : t.gradient.span<float>()) sum += static_cast<double>(g) * g;
  return sum;
}

// The epsilon is that of PyTorch's clip_grad_norm_.
void clip_scale(double square, double clip, double& scale) {
  if (std::isnan(scale) || !std::isfinite(square))
    scale = std::numeric_limits<double>::quiet_NaN();
  else
    scale = clip > 0 ? std::min(1.0, clip / (std::sqrt(square) + 1e-6)) : 1.0;
}

}  // namespace dsmoe::ops::ref
