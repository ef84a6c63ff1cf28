#include "ops/linear.h"

#include "ops/backend.h"
#include "ops/elementwise.h"
#include "ops/mixed.h"

namespace dsmoe::ops {

namespace {

void check(const char* op, const Tensor& rows, const Tensor& w, Index inner) {
  require(rows.rank() == 2 && w.rank() == 2 && rows.dim(1) == inner, "[{}] shapes {} and {} do not fit", op, rows.shape(),
          w.shape());
  require(rows.dtype() == w.dtype() && (w.dtype() == DType::kF32 || w.dtype() == DType::kBF16),
          "[{}] operands must both be f32 or both bf16, got {} and {}", op, to_string(rows.dtype()), to_string(w.dtype()));
}

// f32 rows times a matrix in another dtype: ops/mixed.h.
bool is_mixed(const Tensor& x, const Tensor& w) { return x.dtype() == DType::kF32 && w.dtype() != DType::kF32; }
// bf16 rows times a matrix of ops/pack.h.
bool is_packed(const Tensor& x, const Tensor& w) {
  return x.dtype() == DType::kBF16 && w.device() == Device::kCuda && is_quantized(w.dtype());
}

}  // namespace

void linear(Context& ctx, const Tensor& x, const Tensor& w, Tensor& y) {
  const Projection one{&w, &y};
  linear(ctx, x, {&one, 1});
}

void linear(Context& ctx, const Tensor& x, std::span<const Projection> projections) {
  bool any_mixed = false, all_mixed = true;
  for (const auto& [w, y] : projections) {
    const bool mixed = is_mixed(x, *w);
    any_mixed = any_mixed || mixed, all_mixed = all_mixed && mixed;
    if (!mixed && !is_packed(x, *w)) check("linear", x, *w, w->dim(1));
    require(x.rank() == 2 && w->rank() == 2 && x.dim(1) == w->dim(1), "[linear] shapes {} and {} do not fit", x.shape(),
            w->shape());
    require(y->shape() == Shape({x.dim(0), w->dim(0)}), "[linear] output is {}, expected [{}, {}]", y->shape(), x.dim(0),
            w->dim(0));
    require(y->dtype() == DType::kF32 || y->dtype() == x.dtype(), "[linear] output must be f32 or {}",
            to_string(x.dtype()));
  }
  on_backend(
      ctx,
      [&] {
        for (const Projection& p : projections)
          is_mixed(x, *p.w) ? ref::linear_mixed(x, *p.w, *p.y) : ref::linear(x, *p.w, *p.y);
      },
      [&] {
        if (!any_mixed) return cpu::linear(ctx, x, projections);
        if (all_mixed) return cpu::linear_mixed(ctx, x, projections);
        for (const Projection& p : projections)
          is_mixed(x, *p.w) ? cpu::linear_mixed(ctx, x, {&p, 1}) : cpu::linear(ctx, x, {&p, 1});
      },
      [&] {
        require(!any_mixed, "[linear] f16 and quantized weights take bf16 rows on a GPU");
        cuda::linear(ctx, x, projections);
      });
}

void linear(Context& ctx, const AddNorm& x, std::span<const Projection> projections) {
  for (const auto& [w, y] : projections)
    require(y->shape() == Shape({x.x.dim(0), w->dim(0)}), "[linear] output is {}, expected [{}, {}]", y->shape(),
            x.x.dim(0), w->dim(0));
  if (ctx.backend() == Backend::kCuda && cuda::linear(ctx, x, projections)) return;
  linear(ctx, add_rms_norm(ctx, x), projections);
}

void linear_backward_input(Context& ctx, const Tensor& dy, const Tensor& w, Tensor& dx, bool accumulate) {
  check("linear_backward_input", dy, w, w.dim(0));
  require(dx.shape() == Shape({dy.dim(0), w.dim(1)}) && dx.dtype() == DType::kF32,
          "[linear_backward_input] dx is {} {}, expected f32 [{}, {}]", to_string(dx.dtype()), dx.shape(), dy.dim(0),
          w.dim(1));
  on_backend(
      ctx, [&] { ref::linear_backward_input(dy, w, dx, accumulate); },
      [&] { cpu::linear_backward_input(ctx, dy, w, dx, accumulate); },
      [&] { cuda::linear_backward_input(ctx, dy, w, dx, accumulate); });
}

void linear_backward_input(Context& ctx, std::span<const ProjectionGrad> products, Tensor& dx) {
  constexpr const char* kOp = "linear_backward_input";
  require(!products.empty(), "[{}] the sum of no products", kOp);
  for (const auto& [dy, w] : products) {
    check(kOp, *dy, *w, w->dim(0));
    require(dx.shape() == Shape({dy->dim(0), w->dim(1)}) && (dx.dtype() == DType::kF32 || dx.dtype() == dy->dtype()),
            "[{}] dx is {} {}, expected f32 or {} [{}, {}]", kOp, to_string(dx.dtype()), dx.shape(), to_string(dy->dtype()),
            dy->dim(0), w->dim(1));
  }
  if (ctx.backend() == Backend::kCuda && cuda::linear_backward_input(ctx, products, dx)) return;
  Tensor sum = dx.dtype() == DType::kF32 ? dx : ctx.empty(DType::kF32, dx.shape());
  for (const ProjectionGrad& p : products) linear_backward_input(ctx, *p.dy, *p.w, sum, &p != &products.front());
  if (dx.dtype() != DType::kF32) convert(ctx, sum, dx);
}

void linear_backward_weight(Context& ctx, const Tensor& dy, const Tensor& x, Tensor& dw, bool accumulate) {
  require(dy.rank() == 2 && x.rank() == 2 && dy.dim(0) == x.dim(0), "[linear_backward_weight] shapes {} and {} do not fit",
          dy.shape(), x.shape());
  require(dy.dtype() == x.dtype(), "[linear_backward_weight] operands must have one dtype, got {} and {}",
          to_string(dy.dtype()), to_string(x.dtype()));
  require(dw.shape() == Shape({dy.dim(1), x.dim(1)}) && dw.dtype() == DType::kF32,
          "[linear_backward_weight] dW is {} {}, expected f32 [{}, {}]", to_string(dw.dtype()), dw.shape(), dy.dim(1),
          x.dim(1));
  if (!accumulate && ctx.device() == Device::kCpu) ctx.fill_zero(dw);
  on_backend(
      ctx, [&] { ref::linear_backward_weight(dy, x, dw); }, [&] { cpu::linear_backward_weight(ctx, dy, x, dw); },
      [&] { cuda::linear_backward_weight(ctx, dy, x, dw, accumulate); });
}

}  // namespace dsmoe::ops
