#include "ops/heads.h"

#include "core/fail.h"
#include "ops/backend.h"
#include "ops/mixed.h"
#include "ops/repacked_layout.h"

namespace dsmoe::ops {

namespace {

void check_part(const char* op, const Tensor& t, int dimension, const Part& p) {
  require(t.rank() == 2 && p.heads > 0 && t.dim(dimension) % p.heads == 0, "[{}] {} is not of {} heads", op, t.shape(),
          p.heads);
  const Index dim = t.dim(dimension) / p.heads;
  require(p.first >= 0 && p.width >= 0 && p.first <= dim - p.width, "[{}] numbers {} to {} of heads of {}", op, p.first,
          p.first + p.width, dim);
}

void check_numbers(const char* op, const Tensor& t, const Part& p) {
  check_part(op, t, 1, p);
  require(t.dtype() == DType::kF32 || t.dtype() == DType::kBF16, "[{}] expected f32 or bf16, got {}", op,
          to_string(t.dtype()));
}

// narrow: as wide as W_h has rows; wide: as wide as it has columns.
void check_product(const char* op, const HeadNumbers& narrow, const HeadNumbers& wide, const HeadRows& w) {
  check_numbers(op, narrow.x, narrow.part);
  check_numbers(op, wide.x, wide.part);
  check_part(op, w.w, 0, w.part);
  require(narrow.part.heads == w.part.heads && wide.part.heads == w.part.heads && narrow.x.dim(0) == wide.x.dim(0),
          "[{}] {}, {} and {} differ in heads or rows", op, narrow.x.shape(), wide.x.shape(), w.w.shape());
  require(narrow.part.width == w.part.width && wide.part.width == w.w.dim(1),
          "[{}] parts of {} and {} do not fit a matrix [{}, {}] per head", op, narrow.part.width, wide.part.width,
          w.part.width, w.w.dim(1));
}

void check_dtypes(const char* op, const HeadNumbers& narrow, const HeadNumbers& wide, const HeadRows& w, DType weights) {
  require(narrow.x.dtype() == wide.x.dtype(), "[{}] {} and {} numbers; expected one dtype", op, to_string(narrow.x.dtype()),
          to_string(wide.x.dtype()));
  require(w.w.dtype() == weights, "[{}] the weights are {}, expected {}", op, to_string(w.w.dtype()), to_string(weights));
}

}  // namespace

void copy_heads(Context& ctx, const HeadNumbers& from, HeadNumbers to) {
  constexpr const char* kOp = "copy_heads";
  check_numbers(kOp, from.x, from.part);
  check_numbers(kOp, to.x, to.part);
  require(from.part.heads == to.part.heads && from.part.width == to.part.width && from.x.dim(0) == to.x.dim(0),
          "[{}] {} of {} heads of {} to {} of {} heads of {}", kOp, from.part.width, from.part.heads, from.x.shape(),
          to.part.width, to.part.heads, to.x.shape());
  on_backend(
      ctx, [&] { ref::copy_heads(from, to); }, [&] { cpu::copy_heads(ctx, from, to); },
      [&] { cuda::copy_heads(ctx, from, to); });
}

void head_linear(Context& ctx, const HeadNumbers& x, const HeadRows& w, HeadNumbers y) {
  check_product("head_linear", y, x, w);
  const bool mixed = ctx.backend() != Backend::kCuda && (w.w.dtype() != x.x.dtype() || w.w.dtype() != y.x.dtype());
  if (!mixed) check_dtypes("head_linear", y, x, w, x.x.dtype());
  require(!is_repacked(w.w.dtype()) ||
              (w.rows() % kRepackedRows == 0 && w.part.first % kRepackedRows == 0 && w.part.width % kRepackedRows == 0),
          "[head_linear] rows {} to {} of heads of {} are no whole groups of {} repacked ones", w.part.first,
          w.part.first + w.part.width, w.rows(), kRepackedRows);
  on_backend(
      ctx, [&] { mixed ? ref::head_linear_mixed(x, w, y) : ref::head_linear(x, w, y); },
      [&] { mixed ? cpu::head_linear_mixed(ctx, x, w, y) : cpu::head_linear(ctx, x, w, y); },
      [&] { cuda::head_linear(ctx, x, w, y); });
}

void head_linear_backward_input(Context& ctx, const HeadNumbers& dy, const HeadRows& w, HeadNumbers dx) {
  check_product("head_linear_backward_input", dy, dx, w);
  check_dtypes("head_linear_backward_input", dy, dx, w, dy.x.dtype());
  on_backend(
      ctx, [&] { ref::head_linear_backward_input(dy, w, dx); }, [&] { cpu::head_linear_backward_input(ctx, dy, w, dx); },
      [&] { cuda::head_linear_backward_input(ctx, dy, w, dx); });
}

void head_linear_backward_weight(Context& ctx, const HeadNumbers& dy, const HeadNumbers& x, HeadRows dw) {
  check_product("head_linear_backward_weight", dy, x, dw);
  check_dtypes("head_linear_backward_weight", dy, x, dw, DType::kF32);
  on_backend(
      ctx, [&] { ref::head_linear_backward_weight(dy, x, dw); }, [&] { cpu::head_linear_backward_weight(ctx, dy, x, dw); },
      [&] { cuda::head_linear_backward_weight(ctx, dy, x, dw); });
}

}  // namespace dsmoe::ops
