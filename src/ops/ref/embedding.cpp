#include "ops/embedding.h"

#include <map>
#include <vector>

#include "ops/mixed.h"

namespace dsmoe::ops::ref {

void embedding(const Tensor& table, std::span<const std::int32_t> ids, Tensor& x) {
  const Index d = table.dim(1);
  const auto bytes = static_cast<Index>(row_bytes(table.dtype(), d));
  for (Index t = 0; t < x.dim(0); ++t)
    to_floats(table.dtype(), static_cast<const char*>(table.raw()) + ids[static_cast<std::size_t>(t)] * bytes,
              {x.data<float>() + t * d, static_cast<std::size_t>(d)});
}

void embedding_backward(std::span<const std::int32_t> ids, const Tensor& dx, Tensor& dtable) {
  const Index d = dtable.dim(1);
  std::map<std::int32_t, std::vector<Index>> tokens_of;
  for (std::size_t t = 0; t < ids.size(); ++t) tokens_of[ids[t]].push_back(static_cast<Index>(t));
  for (const auto& [id, tokens] : tokens_of) {
    for (Index i = 0; i < d; ++i) {
      double sum = dtable.data<float>()[id * d + i];
      for (const Index t : tokens) sum += dx.data<float>()[t * d + i];
      dtable.data<float>()[id * d + i] = static_cast<float>(sum);
    }
  }
}

}  // namespace dsmoe::ops::ref
