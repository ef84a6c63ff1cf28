#include "ops/rms_norm.h"

#include "ops/backend.h"
#include "ops/elementwise.h"

namespace dsmoe::ops {

namespace {

void check(const char* op, const Tensor& x, const Tensor& weight, const Tensor& y) {
  require(x.rank() == 2 && x.dtype() == DType::kF32, "[{}] x is {} {}, expected f32 [T, D]", op, to_string(x.dtype()),
          x.shape());
  require(weight.shape() == Shape({x.dim(1)}), "[{}] weight is {}, expected [{}]", op, weight.shape(), x.dim(1));
  require(y.shape() == x.shape(), "[{}] shapes {} and {} do not fit", op, y.shape(), x.shape());
}

}  // namespace

void rms_norm(Context& ctx, const Tensor& x, const Tensor& weight, float eps, Tensor& y) {
  check("rms_norm", x, weight, y);
  on_backend(
      ctx, [&] { ref::rms_norm(x, weight, eps, y); }, [&] { cpu::rms_norm(ctx, x, weight, eps, y); },
      [&] { cuda::rms_norm(ctx, x, weight, eps, y); });
}

void add_rms_norm(Context& ctx, const Tensor& y, Tensor& x, const Tensor& weight, float eps, Tensor& h) {
  check("add_rms_norm", x, weight, h);
  require(y.shape() == x.shape(), "[add_rms_norm] {} cannot be added to {}", y.shape(), x.shape());
  const auto on_cpu = [&] {
    add(ctx, y, x);
    rms_norm(ctx, x, weight, eps, h);
  };
  on_backend(ctx, on_cpu, on_cpu, [&] { cuda::add_rms_norm(ctx, y, x, weight, eps, h); });
}

void rms_norm_backward(Context& ctx, const Tensor& dy, const Tensor& x, const Tensor& weight, float eps, Tensor& dx,
                       Tensor& dweight) {
  check("rms_norm_backward", x, weight, dy);
  require(dx.shape() == x.shape() && dx.dtype() == DType::kF32, "[rms_norm_backward] dx is {} {}, expected f32 {}",
          to_string(dx.dtype()), dx.shape(), x.shape());
  require(dweight.shape() == weight.shape() && dweight.dtype() == DType::kF32,
          "[rms_norm_backward] dweight is {} {}, expected f32 {}", to_string(dweight.dtype()), dweight.shape(),
          weight.shape());
  on_backend(
      ctx, [&] { ref::rms_norm_backward(dy, x, weight, eps, dx, dweight); },
      [&] { cpu::rms_norm_backward(ctx, dy, x, weight, eps, dx, dweight); },
      [&] { cuda::rms_norm_backward(ctx, dy, x, weight, eps, dx, dweight); });
}

}  // namespace dsmoe::ops
