#include "ops/slice.h"

#include "core/fail.h"

namespace dsmoe::ops {

Slices placed(Context& ctx, std::span<const Slice> slices) {
  Slices result(slices);
  if (ctx.backend() == Backend::kCuda) result.tables_ = cuda::make_tables(ctx, slices);
  return result;
}

Slices reserved(Context& ctx, const SliceRoom& room) {
  require(ctx.backend() == Backend::kCuda, "only passes on a GPU are captured");
  Slices result(std::span<const Slice>{});
  result.tables_ = cuda::reserve_tables(ctx, room);
  return result;
}

void fill(Context& ctx, Slices& to, std::span<const Slice> slices) {
  require(to.tables_ != nullptr, "the slices have no tables to fill; use reserved()");
  cuda::fill_tables(ctx, *to.tables_, slices);
  to.slices_ = slices;
}

Index keys_of(std::span<const Slice> slices) { return cuda::keys_of(slices); }

}  // namespace dsmoe::ops
