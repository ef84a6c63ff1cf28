#include "ops/linear.h"

#include <vector>

#include "core/fail.h"
#include "core/log.h"
#include "ops/cuda/heuristics.h"
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
  std::vector<gpu::LinearMatrix> together;  // that go in one launch, with one dtype of y
  DType dtype = DType::kF32;
  const auto flush = [&] {
    const auto* const rows = static_cast<const __nv_bfloat16*>(x.raw());
    if (!together.empty() && gpu::linear_tile(s.rows) == gpu::kTinyTile)
      gpu::hopper::linear_few(s, rows, together, dtype, ctx.stream());
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
    const gpu::LinearMatrix m{packed ? as_bf16.back().raw() : w->raw(), y->raw_mutable(), static_cast<int>(w->dim(0))};
    const Path path = gpu::choose_linear_path(x.dtype(), s.inner, m.columns, y->dtype());
    log("launch", "linear path={} T={} K={} N={}", gpu::to_string(path), s.rows, s.inner, m.columns);
    if (path != Path::kHopper) {
      gpu::portable::linear(s, x.dtype(), path == Path::kMma, x.raw(), m, y->dtype(), ctx.stream());
      continue;
    }
    if (y->dtype() != dtype || together.size() == gpu::hopper::kMostProjections) flush();
    dtype = y->dtype();
    together.push_back(m);
  }
  flush();
}

}  // namespace dsmoe::ops::cuda
