#include "ops/linear.h"

#include "core/fail.h"
#include "core/log.h"
#include "ops/cuda/heuristics.h"
#include "ops/cuda/linear.h"

namespace dsmoe::ops::cuda {

namespace gpu = dsmoe::cuda;
using gpu::Path;

void linear(Context& ctx, const Tensor& x, std::span<const Projection> projections) {
  for (const auto& [w, y] : projections) {
    require(w->device() == Device::kCuda && x.device() == Device::kCuda,
            "[linear] the operands of a GPU's product are in its memory; place them there");
    const gpu::LinearSizes s{static_cast<int>(x.dim(0)), static_cast<int>(x.dim(1)), static_cast<int>(w->dim(0))};
    if (s.rows == 0 || s.columns == 0) continue;
    const Path path = gpu::choose_linear_path(x.dtype(), s.inner, s.columns, y->dtype());
    log("launch", "linear path={} T={} K={} N={}", gpu::to_string(path), s.rows, s.inner, s.columns);
    if (path == Path::kHopper)
      gpu::hopper::linear(s, static_cast<const __nv_bfloat16*>(x.raw()), static_cast<const __nv_bfloat16*>(w->raw()),
                          y->dtype(), y->raw_mutable(), ctx.stream());
    else
      gpu::portable::linear(s, x.dtype(), path == Path::kMma, x.raw(), w->raw(), y->dtype(), y->raw_mutable(),
                            ctx.stream());
  }
}

}  // namespace dsmoe::ops::cuda
