#include "ops/slice.h"

#include "core/fail.h"

namespace dsmoe::ops {

const cuda::SliceTables& Slices::tables() const {
  require(tables_ != nullptr, "the slices of the batch are not on the GPU; use placed()");
  return *tables_;
}

Slices placed(Context& ctx, std::span<const Slice> slices) {
  Slices result(slices);
  if (ctx.backend() == Backend::kCuda) result.tables_ = cuda::make_tables(ctx, slices);
  return result;
}

}  // namespace dsmoe::ops
