#include "ops/elementwise.h"

#include "ops/backend.h"

namespace dsmoe::ops {

void add(Context& ctx, const Tensor& y, Tensor& x) {
  require(y.shape() == x.shape() && x.dtype() == DType::kF32,
          "[add] {} cannot be added to {} {}, expected f32 of one shape", y.shape(), to_string(x.dtype()), x.shape());
  on_backend(
      ctx, [&] { ref::add(y, x); }, [&] { cpu::add(ctx, y, x); }, [&] { cuda::add(ctx, y, x); });
}

void convert(Context& ctx, const Tensor& from, Tensor& to) {
  require(from.shape() == to.shape(), "[convert] shapes {} and {} differ", from.shape(), to.shape());
  on_backend(
      ctx, [&] { ref::convert(from, to); }, [&] { cpu::convert(ctx, from, to); }, [&] { cuda::convert(ctx, from, to); });
}

void add_bias(Context& ctx, const Tensor& bias, Tensor& y) {
  require(y.rank() == 2 && bias.shape() == Shape({y.dim(1)}), "[add_bias] bias {} does not fit rows of {}", bias.shape(),
          y.shape());
  on_backend(
      ctx, [&] { ref::add_bias(bias, y); }, [&] { cpu::add_bias(ctx, bias, y); }, [&] { cuda::add_bias(ctx, bias, y); });
}

void add_bias_backward(Context& ctx, const Tensor& dy, Tensor& dbias) {
  require(dy.rank() == 2 && dbias.shape() == Shape({dy.dim(1)}) && dbias.dtype() == DType::kF32,
          "[add_bias_backward] dbias is {} {}, expected f32 for rows of {}", to_string(dbias.dtype()), dbias.shape(),
          dy.shape());
  on_backend(
      ctx, [&] { ref::add_bias_backward(dy, dbias); }, [&] { cpu::add_bias_backward(ctx, dy, dbias); },
      [&] { cuda::add_bias_backward(ctx, dy, dbias); });
}

void scale(Context& ctx, float factor, Tensor& x) {
  require(x.dtype() == DType::kF32, "[scale] x is {}, expected f32", to_string(x.dtype()));
  on_backend(
      ctx, [&] { ref::scale(factor, x); }, [&] { ref::scale(factor, x); }, [&] { cuda::scale(ctx, factor, x); });
}

void add_up(Context& ctx, const Tensor& parts, Tensor& to) {
  require(parts.rank() == 2 && parts.dim(1) == to.numel() && parts.dtype() == DType::kF32 && to.dtype() == DType::kF32,
          "[add_up] {} {} do not add up to {} {}", to_string(parts.dtype()), parts.shape(), to_string(to.dtype()),
          to.shape());
  on_backend(
      ctx, [&] { ref::add_up(parts, to); }, [&] { ref::add_up(parts, to); }, [&] { cuda::add_up(ctx, parts, to); });
}

Tensor converted(Context& ctx, const Tensor& x, DType dtype) {
  if (x.dtype() == dtype) return x;
  Tensor y = ctx.empty(dtype, x.shape());
  convert(ctx, x, y);
  return y;
}

}  // namespace dsmoe::ops
