#include "ops/rms_norm.h"

#include "ops/backend.h"
#include "ops/elementwise.h"

namespace dsmoe::ops {

namespace {

void check_norm(const char* op, const Tensor& x, const Tensor& weight, const Tensor& y) {
  require(x.rank() == 2 && x.dtype() == DType::kF32, "[{}] x is {} {}, expected f32 [T, D]", op, to_string(x.dtype()),
          x.shape());
  require(weight.shape() == Shape({x.dim(1)}), "[{}] weight is {}, expected [{}]", op, weight.shape(), x.dim(1));
  require(y.shape() == x.shape(), "[{}] shapes {} and {} do not fit", op, y.shape(), x.shape());
}

}  // namespace

void rms_norm(Context& ctx, const Tensor& x, const Tensor& weight, float eps, Tensor& y) {
  check_norm("rms_norm", x, weight, y);
  on_backend(
      ctx, [&] { ref::rms_norm(x, weight, eps, y); }, [&] { cpu::rms_norm(ctx, x, weight, eps, y); },
      [&] { cuda::rms_norm(ctx, x, weight, eps, y); });
}

void add_rms_norm(Context& ctx, const Tensor& y, const Tensor& x, const Tensor& weight, float eps, Tensor& sum, Tensor& h) {
  check_norm("add_rms_norm", x, weight, h);
  require(y.shape() == x.shape(), "[add_rms_norm] {} cannot be added to {}", y.shape(), x.shape());
  require(sum.shape() == x.shape() && sum.dtype() == DType::kF32, "[add_rms_norm] the sum is {} {}, expected f32 {}",
          to_string(sum.dtype()), sum.shape(), x.shape());
  const auto on_cpu = [&] {
    if (sum.raw() != x.raw()) convert(ctx, x, sum);
    add(ctx, y, sum);
    rms_norm(ctx, sum, weight, eps, h);
  };
  on_backend(ctx, on_cpu, on_cpu, [&] { cuda::add_rms_norm(ctx, y, x, weight, eps, sum, h); });
}

Tensor add_rms_norm(Context& ctx, const AddNorm& in) {
  Tensor h = ctx.empty(in.dtype, in.x.shape());
  if (in.y.numel() == 0) {
    rms_norm(ctx, in.x, in.weight, in.eps, h);
    return h;
  }
  Tensor sum = in.keep ? ctx.empty(DType::kF32, in.x.shape()) : in.x;
  add_rms_norm(ctx, in.y, in.x, in.weight, in.eps, sum, h);
  in.x = sum;
  return h;
}

void rms_norm_backward(Context& ctx, const Tensor& dy, const Tensor& x, const Tensor& weight, float eps, Tensor& dx,
                       Tensor& dweight, Tensor* rounded) {
  check_norm("rms_norm_backward", x, weight, dy);
  require(dx.shape() == x.shape() && dx.dtype() == DType::kF32, "[rms_norm_backward] dx is {} {}, expected f32 {}",
          to_string(dx.dtype()), dx.shape(), x.shape());
  require(dweight.shape() == weight.shape() && dweight.dtype() == DType::kF32,
          "[rms_norm_backward] dweight is {} {}, expected f32 {}", to_string(dweight.dtype()), dweight.shape(),
          weight.shape());
  require(rounded == nullptr || (rounded->shape() == x.shape() && rounded->dtype() == DType::kBF16),
          "[rms_norm_backward] the rounded copy of dx must be bf16 {}", x.shape());
  const auto then_round = [&](auto backward) {
    backward();
    if (rounded) convert(ctx, dx, *rounded);
  };
  on_backend(
      ctx, [&] { then_round([&] { ref::rms_norm_backward(dy, x, weight, eps, dx, dweight); }); },
      [&] { then_round([&] { cpu::rms_norm_backward(ctx, dy, x, weight, eps, dx, dweight); }); },
      [&] { cuda::rms_norm_backward(ctx, dy, x, weight, eps, dx, dweight, rounded); });
}

}  // namespace dsmoe::ops
