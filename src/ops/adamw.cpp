#include "ops/adamw.h"

#include <cmath>

#include "ops/backend.h"

namespace dsmoe::ops {

void adamw(Context& ctx, std::span<AdamTensor> tensors, const AdamOptions& options) {
  require(options.step >= 1, "[adamw] step {}; the first is 1", options.step);
  for (const AdamTensor& t : tensors) {
    for (const Tensor* x : {&t.gradient, &t.m, &t.v})
      require(x->shape() == t.weight.shape(), "[adamw] {} beside a weight of {}", x->shape(), t.weight.shape());
    require(t.stored.numel() == 0 || t.stored.shape() == t.weight.shape(), "[adamw] stored {} beside a weight of {}",
            t.stored.shape(), t.weight.shape());
  }
  const auto here = [&](auto update) {
    AdamOptions o = options;
    if (o.scale.numel() > 0) o.grad_scale = options.scale.data<double>()[0];
    if (!std::isnan(o.grad_scale)) update(o);
  };
  on_backend(
      ctx, [&] { here([&](const AdamOptions& o) { ref::adamw(tensors, o); }); },
      [&] { here([&](const AdamOptions& o) { cpu::adamw(ctx, tensors, o); }); },
      [&] { cuda::adamw(ctx, tensors, options); });
}

Tensor gradient_square(Context& ctx, std::span<const AdamTensor> tensors) {
  Tensor sum = ctx.empty(DType::kF64, {1});
  on_backend(
      ctx, [&] { sum.data<double>()[0] = ref::gradient_square(tensors); },
      [&] { sum.data<double>()[0] = cpu::gradient_square(ctx, tensors); },
      [&] { cuda::gradient_square(ctx, tensors, sum); });
  return sum;
}

void clip_scale(Context& ctx, const Tensor& square, double clip, Tensor& scale) {
  for (const Tensor* t : {&square, static_cast<const Tensor*>(&scale)})
    require(t->numel() == 1 && t->dtype() == DType::kF64, "[clip_scale] {} {}, expected f64 [1]", to_string(t->dtype()),
            t->shape());
  const auto here = [&] { ref::clip_scale(square.data<double>()[0], clip, scale.data<double>()[0]); };
  on_backend(ctx, here, here, [&] { cuda::clip_scale(ctx, square, clip, scale); });
}

}  // namespace dsmoe::ops
