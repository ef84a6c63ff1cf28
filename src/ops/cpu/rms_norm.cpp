#include "ops/rms_norm.h"

#include <cmath>
#include <cstring>

#include "ops/cpu/tasks.h"
#include "ops/dispatch.h"

namespace dsmoe::ops::cpu {

using namespace dsmoe::cpu;

namespace {

float inverse_root(const KernelTable& kt, const float* x, Index d, float eps) {
  return static_cast<float>(1 / std::sqrt(static_cast<double>(kt.dot(d, x, x)) / static_cast<double>(d) + eps));
}

}  // namespace

void rms_norm(Context& ctx, const Tensor& x, const Tensor& weight, float eps, Tensor& y) {
  const KernelTable& kt = kernels();
  const Index d = x.dim(1);
  dispatch(weight.dtype(), [&]<class W>(W) {
    dispatch(y.dtype(), [&]<class Y>(Y) {
      Y* const out = y.data<Y>();
      each_block(ctx, x.dim(0), kTokensPerTask, [&](Index first, Index last, int worker) {
        auto* const w = static_cast<float*>(ctx.scratch(worker, 2 * static_cast<std::size_t>(d) * sizeof(float)));
        float* const row = w + d;
        to_f32(kt, d, weight.data<W>(), w);
        for (Index t = first; t < last; ++t) {
          const float* in = x.data<float>() + t * d;
          kt.multiply(d, inverse_root(kt, in, d, eps), in, w, row);
          from_f32(kt, d, row, out + t * d);
        }
      });
    });
  });
}

// With r = 1 / sqrt(mean(x²) + eps) and g = dy * weight: dx = r g - r³ mean(g x) x.
void rms_norm_backward(Context& ctx, const Tensor& dy, const Tensor& x, const Tensor& weight, float eps, Tensor& dx,
                       Tensor& dweight) {
  const KernelTable& kt = kernels();
  const Index tokens = x.dim(0), d = x.dim(1), blocks = (tokens + kTokensPerTask - 1) / kTokensPerTask;
  Tensor partial = Tensor::zeros(DType::kF32, {blocks, d});  // of dweight, one per block of tokens
  float *const sums = partial.data<float>(), *const dw = dweight.data<float>(), *const out = dx.data<float>();
  dispatch(weight.dtype(), [&]<class W>(W) {
    dispatch(dy.dtype(), [&]<class Y>(Y) {
      each_block(ctx, tokens, kTokensPerTask, [&](Index first, Index last, int worker) {
        auto* const w = static_cast<float*>(ctx.scratch(worker, 3 * static_cast<std::size_t>(d) * sizeof(float)));
        float *const grad = w + d, *const g = grad + d;
        to_f32(kt, d, weight.data<W>(), w);
        for (Index t = first; t < last; ++t) {
          const float* in = x.data<float>() + t * d;
          const float r = inverse_root(kt, in, d, eps);
          to_f32(kt, d, dy.data<Y>() + t * d, grad);
          kt.add_multiplied(d, r, grad, in, sums + first / kTokensPerTask * d);
          kt.multiply(d, r, grad, w, g);
          kt.add_scaled(d, 1.0f, g, out + t * d);
          kt.add_scaled(d, -r * r * kt.dot(d, g, in) / static_cast<float>(d), in, out + t * d);
        }
      });
    });
  });
  for (Index b = 0; b < blocks; ++b) kt.add_scaled(d, 1.0f, sums + b * d, dw);
}

}  // namespace dsmoe::ops::cpu
