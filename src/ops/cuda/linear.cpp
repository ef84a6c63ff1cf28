#include "ops/linear.h"

#include <vector>

#include "core/fail.h"
#include "core/log.h"
#include "ops/cuda/heuristics.h"
#include "ops/cuda/linear.h"

namespace dsmoe::ops::cuda {

namespace gpu = dsmoe::cuda;
using gpu::Path;

void linear(Context& ctx, const Tensor& x, std::span<const Projection> projections) {
  const gpu::LinearSizes s{static_cast<int>(x.dim(0)), static_cast<int>(x.dim(1))};
  if (s.rows == 0) return;
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
    const gpu::LinearMatrix m{w->raw(), y->raw_mutable(), static_cast<int>(w->dim(0))};
    if (m.columns == 0) continue;
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
