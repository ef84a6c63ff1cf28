#include "ops/adamw.h"

#include "core/fail.h"

namespace dsmoe::ops {

void adamw(Context& ctx, std::span<AdamTensor> tensors, const AdamOptions& options) {
  require(options.step >= 1, "[adamw] step {}; the first is 1", options.step);
  for (const AdamTensor& t : tensors) {
    for (const Tensor* x : {&t.gradient, &t.m, &t.v})
      require(x->shape() == t.weight.shape(), "[adamw] {} beside a weight of {}", x->shape(), t.weight.shape());
    require(t.stored.numel() == 0 || t.stored.shape() == t.weight.shape(), "[adamw] stored {} beside a weight of {}",
            t.stored.shape(), t.weight.shape());
  }
  ctx.backend() == Backend::kRef ? ref::adamw(tensors, options) : cpu::adamw(ctx, tensors, options);
}

double gradient_square(Context& ctx, std::span<const AdamTensor> tensors) {
  return ctx.backend() == Backend::kRef ? ref::gradient_square(tensors) : cpu::gradient_square(ctx, tensors);
}

}  // namespace dsmoe::ops
