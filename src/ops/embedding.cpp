#include "ops/embedding.h"

#include "ops/backend.h"

namespace dsmoe::ops {

namespace {

// On a GPU the kernel checks the ids.
void check(const char* op, const Tensor& table, const Tensor& ids, const Tensor& x) {
  const Index tokens = ids.numel();
  require(ids.dtype() == DType::kI32, "[{}] ids are {}, expected i32", op, to_string(ids.dtype()));
  require(table.rank() == 2 && x.shape() == Shape({tokens, table.dim(1)}) && x.dtype() == DType::kF32,
          "[{}] {} ids, table {} and rows {} {} do not fit", op, tokens, table.shape(), to_string(x.dtype()), x.shape());
  if (ids.device() != Device::kCpu) return;
  const std::int32_t* const id = ids.data<std::int32_t>();
  for (Index t = 0; t < tokens; ++t)
    require(0 <= id[t] && id[t] < table.dim(0), "token {} has id {}, but the vocabulary has {} tokens", t, id[t],
            table.dim(0));
}

}  // namespace

void embedding(Context& ctx, const Tensor& table, const Tensor& ids, Tensor& x) {
  check("embedding", table, ids, x);
  on_backend(
      ctx, [&] { ref::embedding(table, ids.span<std::int32_t>(), x); },
      [&] { cpu::embedding(ctx, table, ids.span<std::int32_t>(), x); }, [&] { cuda::embedding(ctx, table, ids, x); });
}

void embedding_backward(Context& ctx, const Tensor& ids, const Tensor& dx, Tensor& dtable) {
  check("embedding_backward", dtable, ids, dx);
  require(dtable.dtype() == DType::kF32, "[embedding_backward] the gradient is {}, expected f32",
          to_string(dtable.dtype()));
  on_backend(
      ctx, [&] { ref::embedding_backward(ids.span<std::int32_t>(), dx, dtable); },
      [&] { cpu::embedding_backward(ctx, ids.span<std::int32_t>(), dx, dtable); },
      [&] { cuda::embedding_backward(ctx, ids, dx, dtable); });
}

}  // namespace dsmoe::ops
