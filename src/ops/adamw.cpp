#include "ops/adamw.h"

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
  on_backend(
      ctx, [&] { ref::adamw(tensors, options); }, [&] { cpu::adamw(ctx, tensors, options); },
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

}  // namespace dsmoe::ops
