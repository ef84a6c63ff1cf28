#include "ops/embedding.h"

#include "ops/cpu/tasks.h"
#include "ops/dispatch.h"
#include "ops/mixed.h"

namespace dsmoe::ops::cpu {

using namespace dsmoe::cpu;

void embedding(Context& ctx, const Tensor& table, std::span<const std::int32_t> ids, Tensor& x) {
  const KernelTable& kt = kernels();
  const Index d = table.dim(1);
  float* const out = x.data<float>();
  if (is_quantized(table.dtype()) || table.dtype() == DType::kF16) {
    const auto bytes = static_cast<Index>(row_bytes(table.dtype(), d));
    each_block(ctx, x.dim(0), kTokensPerTask, [&](Index first, Index last, int) {
      for (Index t = first; t < last; ++t)
        to_floats(table.dtype(), static_cast<const char*>(table.raw()) + ids[static_cast<std::size_t>(t)] * bytes,
                  {out + t * d, static_cast<std::size_t>(d)});
    });
    return;
  }
  dispatch(table.dtype(), [&]<class T>(T) {
    each_block(ctx, x.dim(0), kTokensPerTask, [&](Index first, Index last, int) {
      for (Index t = first; t < last; ++t)
        to_f32(kt, d, table.data<T>() + ids[static_cast<std::size_t>(t)] * d, out + t * d);
    });
  });
}

void embedding_backward(Context& ctx, std::span<const std::int32_t> ids, const Tensor& dx, Tensor& dtable) {
  const KernelTable& kt = kernels();
  const Index d = dtable.dim(1);
  float* const out = dtable.data<float>();
  each_block(ctx, d, kColumnsPerTask, [&](Index first, Index last, int) {  // a task owns its columns of the whole table
    for (Index t = 0; t < dx.dim(0); ++t)
      kt.add_scaled(last - first, 1.0f, dx.data<float>() + t * d + first,
                    out + ids[static_cast<std::size_t>(t)] * d + first);
  });
}

}  // namespace dsmoe::ops::cpu
