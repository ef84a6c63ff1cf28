#include "ops/pack.h"

#include "ops/backend.h"

namespace dsmoe::ops {

namespace {

// Files' blocks are what the CPU computes with.
template <class Fn>
Tensor on_gpu(Context& ctx, const char* op, Fn&& fn) {
  require(ctx.backend() == Backend::kCuda, "[{}] matrices are packed for a GPU only", op);
  return fn();
}

}  // namespace

Tensor packed(Context& ctx, std::span<const Tensor> matrices) {
  require(!matrices.empty(), "[packed] there is no matrix");
  const Tensor& first = matrices.front();
  for (const Tensor& m : matrices)
    require(m.rank() == 2 && m.shape() == first.shape() && m.dtype() == first.dtype() && is_quantized(m.dtype()) &&
                m.device() == Device::kCpu,
            "[packed] {} {} beside {} {}; matrices that are packed together are quantized and alike", to_string(m.dtype()),
            m.shape(), to_string(first.dtype()), first.shape());
  require(matrices.size() == 1 || first.dim(0) % 8 == 0,
          "[packed] matrices of {} rows cannot follow each other; a multiple of 8 can", first.dim(0));
  return on_gpu(ctx, "packed", [&] { return cuda::packed(ctx, matrices); });
}

Tensor unpacked(Context& ctx, const Tensor& matrix) {
  return on_gpu(ctx, "unpacked", [&] { return cuda::unpacked(ctx, matrix); });
}

Tensor packed_repeat(Context& ctx, const Tensor& some, Index rows) {
  require(some.dim(0) % 8 == 0, "[packed_repeat] {} rows are no multiple of 8", some.dim(0));
  return on_gpu(ctx, "packed_repeat", [&] { return cuda::packed_repeat(ctx, some, rows); });
}

}  // namespace dsmoe::ops
