#include "ops/linear.h"

#include <algorithm>
#include <array>
#include <vector>

#include "core/fail.h"
#include "core/log.h"
#include "ops/cuda/add_norm.h"
#include "ops/cuda/heuristics.h"
#include "ops/cuda/kernels.h"
#include "ops/cuda/linear.h"
#include "ops/cuda/packed.h"
#include "ops/pack.h"

namespace dsmoe::ops::cuda {

namespace gpu = dsmoe::cuda;
using gpu::Path;

namespace {

// Few rows: packed matrices in one launch, as many as it takes.
void few_times_packed(Context& ctx, const gpu::LinearSizes& s, const Tensor& x, std::span<const Projection> projections) {
  std::vector<gpu::packed::Product> together;
  const auto flush = [&] {
    if (!together.empty()) gpu::packed::linear_few(s, static_cast<const __nv_bfloat16*>(x.raw()), together, ctx.stream());
    together.clear();
  };
  for (const auto& [w, y] : projections) {
    if (!is_quantized(w->dtype()) || w->dim(0) == 0) continue;
    log("launch", "linear path=packed dtype={} T={} K={} N={}", to_string(w->dtype()), s.rows, s.inner, w->dim(0));
    if (together.size() == gpu::packed::kMostProjections) flush();
    together.push_back({gpu::packed::matrix_of(*w), y->raw_mutable(), y->dtype() == DType::kF32});
  }
  flush();
}

}  // namespace

void linear(Context& ctx, const Tensor& x, std::span<const Projection> projections) {
  const gpu::LinearSizes s{static_cast<int>(x.dim(0)), static_cast<int>(x.dim(1))};
  if (s.rows == 0) return;
  const bool unpacks = gpu::unpacks_in_product(s.rows, /*grouped=*/false);
  if (unpacks) few_times_packed(ctx, s, x, projections);
  std::vector<Tensor> as_bf16;              // packed matrices, until their launch
  std::vector<gpu::LinearMatrix> together;  // that go in one launch; of many rows with one dtype of y
  DType dtype = DType::kF32;
  const auto flush = [&] {
    const auto* const rows = static_cast<const __nv_bfloat16*>(x.raw());
    if (!together.empty() && s.rows <= gpu::kTinyTile)
      gpu::hopper::linear_few(s, rows, together, ctx.stream());
    else if (!together.empty())
      gpu::hopper::linear(s, rows, together, dtype, ctx.stream());
    together.clear();
  };
  for (const auto& [w, y] : projections) {
    require(w->device() == Device::kCuda && x.device() == Device::kCuda,
            "[linear] the operands of a GPU's product are in its memory; place them there");
    const bool packed = is_quantized(w->dtype());
    if (w->dim(0) == 0 || (packed && unpacks)) continue;
    if (packed) as_bf16.push_back(unpacked(ctx, *w));
    const gpu::LinearMatrix m{packed ? as_bf16.back().raw() : w->raw(), y->raw_mutable(), static_cast<int>(w->dim(0)),
                              y->dtype()};
    const Path path = gpu::choose_linear_path(x.dtype(), s.inner, m.columns, y->dtype());
    log("launch", "linear path={} T={} K={} N={}", gpu::to_string(path), s.rows, s.inner, m.columns);
    if (path != Path::kHopper) {
      gpu::portable::linear(s, x.dtype(), path == Path::kMma, x.raw(), m, y->dtype(), ctx.stream());
      continue;
    }
    if ((y->dtype() != dtype && s.rows > gpu::kTinyTile) || together.size() == gpu::hopper::kMostProjections) flush();
    dtype = y->dtype();
    together.push_back(m);
  }
  flush();
}

bool linear(Context& ctx, const AddNorm& in, std::span<const Projection> projections) {
  const gpu::LinearSizes s{static_cast<int>(in.x.dim(0)), static_cast<int>(in.x.dim(1))};
  if (s.rows != 1 || in.y.numel() == 0 || in.y.dtype() != DType::kBF16 || in.weight.dtype() != DType::kBF16 ||
      in.dtype != DType::kBF16 || !gpu::norms_rows_of(s.inner) || projections.size() > gpu::hopper::kMostProjections)
    return false;
  std::vector<gpu::LinearMatrix> matrices;
  for (const auto& [w, y] : projections) {
    if (w->device() != Device::kCuda || w->dtype() != DType::kBF16 || w->dim(0) == 0 ||
        gpu::choose_linear_path(DType::kBF16, s.inner, w->dim(0), y->dtype()) != Path::kHopper)
      return false;
    matrices.push_back({w->raw(), y->raw_mutable(), static_cast<int>(w->dim(0)), y->dtype()});
  }
  log("launch", "linear path=hopper T=1 K={} matrices={} normed", s.inner, matrices.size());
  Tensor sum = ctx.empty(DType::kF32, in.x.shape());
  gpu::hopper::linear_few(s, gpu::add_norm_row<__nv_bfloat16>(in, sum), matrices, ctx.stream());
  in.x = sum;
  return true;
}

namespace {

gpu::LinearGradSizes gradient_sizes(const Tensor& dy, Index inner) {
  return {static_cast<int>(dy.dim(0)), static_cast<int>(dy.dim(1)), static_cast<int>(inner)};
}

bool on_gpu(std::initializer_list<const Tensor*> tensors) {
  return std::all_of(tensors.begin(), tensors.end(), [](const Tensor* t) { return t->device() == Device::kCuda; });
}

const __nv_bfloat16* bf16_of(const Tensor& t) { return static_cast<const __nv_bfloat16*>(t.raw()); }

}  // namespace

void linear_backward_input(Context& ctx, const Tensor& dy, const Tensor& w, Tensor& dx, bool accumulate) {
  const gpu::LinearGradSizes s = gradient_sizes(dy, w.dim(1));
  require(on_gpu({&dy, &w, &dx}), "[linear_backward_input] the operands of a GPU's product are in its memory");
  if (s.rows == 0 || s.inner == 0) return;
  if (s.columns == 0) {
    if (!accumulate) ctx.fill_zero(dx);
    return;
  }
  const Path path = gpu::choose_path(dy.dtype(), s.inner, s.columns);
  log("launch", "linear_backward_input path={} T={} N={} K={}", gpu::to_string(path), s.rows, s.columns, s.inner);
  auto* const to = static_cast<float*>(dx.raw_mutable());
  if (path == Path::kHopper)
    gpu::hopper::linear_backward_input({s.rows, s.inner},
                                       std::array{gpu::hopper::LinearInputGrad{bf16_of(dy), bf16_of(w), s.columns}}, to,
                                       DType::kF32, accumulate, ctx.stream());
  else
    gpu::portable::linear_backward_input(s, dy.dtype(), path == Path::kMma, dy.raw(), w.raw(), to, accumulate,
                                         ctx.stream());
}

bool linear_backward_input(Context& ctx, std::span<const ProjectionGrad> products, Tensor& dx) {
  const gpu::LinearSizes s{static_cast<int>(dx.dim(0)), static_cast<int>(dx.dim(1))};
  std::vector<gpu::hopper::LinearInputGrad> together;
  for (const auto& [dy, w] : products) {
    require(on_gpu({dy, w, &dx}), "[linear_backward_input] the operands of a GPU's product are in its memory");
    if (gpu::choose_path(dy->dtype(), s.inner, dy->dim(1)) != Path::kHopper) return false;
    if (dy->dim(1) > 0) together.push_back({bf16_of(*dy), bf16_of(*w), static_cast<int>(dy->dim(1))});
  }
  if (together.empty() || together.size() > gpu::hopper::kMostProjections) return false;
  if (dx.numel() == 0) return true;
  log("launch", "linear_backward_input path=hopper T={} N={} K={} products={}", s.rows, together.front().columns, s.inner,
      together.size());
  gpu::hopper::linear_backward_input(s, together, dx.raw_mutable(), dx.dtype(), /*accumulate=*/false, ctx.stream());
  return true;
}

void linear_backward_weight(Context& ctx, const Tensor& dy, const Tensor& x, Tensor& dw, bool accumulate) {
  const gpu::LinearGradSizes s = gradient_sizes(dy, x.dim(1));
  require(on_gpu({&dy, &x, &dw}), "[linear_backward_weight] the operands of a GPU's product are in its memory");
  if (s.rows == 0 && !accumulate) ctx.fill_zero(dw);
  if (s.rows == 0 || dw.numel() == 0) return;
  const Path path = gpu::choose_path(dy.dtype(), s.inner, s.columns);
  const int slice = gpu::linear_slice(s.rows, s.columns, s.inner), slices = (s.rows + slice - 1) / slice;
  log("launch", "linear_backward_weight path={} T={} N={} K={} slices={}", gpu::to_string(path), s.rows, s.columns, s.inner,
      path == Path::kHopper ? slices : 1);
  auto* const to = static_cast<float*>(dw.raw_mutable());
  if (path != Path::kHopper)
    return gpu::portable::linear_backward_weight(s, dy.dtype(), path == Path::kMma, dy.raw(), x.raw(), to, accumulate,
                                                 ctx.stream());
  if (slices == 1)
    return gpu::hopper::linear_backward_weight(s, slice, bf16_of(dy), bf16_of(x), to, accumulate, ctx.stream());
  Tensor partial = ctx.empty(DType::kF32, {slices, s.columns, s.inner});
  auto* const parts = static_cast<float*>(partial.raw_mutable());
  gpu::hopper::linear_backward_weight(s, slice, bf16_of(dy), bf16_of(x), parts, /*accumulate=*/false, ctx.stream());
  const auto size = static_cast<std::size_t>(dw.numel());
  gpu::add_slices(parts, slices, size, size, DType::kF32, to, accumulate, ctx.stream());
}

}  // namespace dsmoe::ops::cuda
