// Logits of one sequence that begins in an empty KV cache.
#pragma once

#include <algorithm>
#include <cstring>
#include <span>

#include "model/transformer.h"

namespace dsmoe::test {

// Of all tokens, run in chunks. [T, V]
inline Tensor logits_of(Context& ctx, const Transformer& model, std::span<const std::int32_t> ids, Index chunk,
                        DType cache_dtype, const PassHooks& hooks = {}) {
  const auto tokens = static_cast<Index>(ids.size());
  Tensor all(DType::kF32, {tokens, model.config().vocab_size});
  KvSequence sequence(model.make_kv_pool(tokens, cache_dtype), tokens);
  for (Index t = 0; t < tokens; t += chunk) {
    const Index n = std::min(chunk, tokens - t);
    const auto part = ids.subspan(static_cast<std::size_t>(t), static_cast<std::size_t>(n));
    const Tensor logits = model.logits(ctx, ForwardBatch::of(ctx, sequence, part, n), hooks);
    std::memcpy(all.rows(t, t + n).raw_mutable(), logits.raw(), logits.bytes());
  }
  return all;
}
inline Tensor logits_of(Context& ctx, const Transformer& model, std::span<const std::int32_t> ids,
                        const PassHooks& hooks = {}) {
  return logits_of(ctx, model, ids, static_cast<Index>(ids.size()), model.dtype(), hooks);
}

}  // namespace dsmoe::test
