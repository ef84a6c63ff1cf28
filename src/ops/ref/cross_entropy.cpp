#include "ops/cross_entropy.h"

#include <algorithm>
#include <cmath>

#include "ops/dispatch.h"

namespace dsmoe::ops::ref {

void cross_entropy(const Tensor& logits, std::span<const std::int32_t> targets, std::span<double> losses, Tensor* dlogits,
                   float scale) {
  const Index v = logits.dim(1);
  for (std::size_t t = 0; t < targets.size(); ++t) {
    const float* x = logits.data<float>() + static_cast<Index>(t) * v;
    const double largest = *std::max_element(x, x + v);
    double sum = 0;
    for (Index i = 0; i < v; ++i) sum += std::exp(x[i] - largest);
    if (targets[t] != kIgnoredTarget) losses[t] = largest + std::log(sum) - x[targets[t]];
    if (!dlogits) continue;
    dispatch(dlogits->dtype(), [&]<class T>(T) {
      T* const out = dlogits->data<T>() + static_cast<Index>(t) * v;
      for (Index i = 0; i < v; ++i) {
        const double slope = std::exp(x[i] - largest) / sum - (i == targets[t] ? 1 : 0);
        out[i] = T(targets[t] == kIgnoredTarget ? 0.0f : static_cast<float>(scale * slope));
      }
    });
  }
}

}  // namespace dsmoe::ops::ref
