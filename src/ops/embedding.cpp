#include "ops/embedding.h"

#include "core/fail.h"

namespace dsmoe::ops {

namespace {

void check(const char* op, const Tensor& table, std::span<const std::int32_t> ids, const Tensor& x) {
  const auto tokens = static_cast<Index>(ids.size());
  require(table.rank() == 2 && x.shape() == Shape({tokens, table.dim(1)}) && x.dtype() == DType::kF32,
          "[{}] {} ids, table {} and rows {} {} do not fit", op, tokens, table.shape(), to_string(x.dtype()),
          x.shape());
  for (std::size_t t = 0; t < ids.size(); ++t)
    require(0 <= ids[t] && ids[t] < table.dim(0), "token {} has id {}, but the vocabulary has {} tokens", t, ids[t],
            table.dim(0));
}

}  // namespace

void embedding(Context& ctx, const Tensor& table, std::span<const std::int32_t> ids, Tensor& x) {
  check("embedding", table, ids, x);
  ctx.backend() == Backend::kRef ? ref::embedding(table, ids, x) : cpu::embedding(ctx, table, ids, x);
}

void embedding_backward(Context& ctx, std::span<const std::int32_t> ids, const Tensor& dx, Tensor& dtable) {
  check("embedding_backward", dtable, ids, dx);
  require(dtable.dtype() == DType::kF32, "[embedding_backward] the gradient is {}, expected f32",
          to_string(dtable.dtype()));
  ctx.backend() == Backend::kRef ? ref::embedding_backward(ids, dx, dtable) : cpu::embedding_backward(ctx, ids, dx, dtable);
}

}  // namespace dsmoe::ops
