#include "ops/rope.h"

#include "ops/dispatch.h"

namespace dsmoe::ops::ref {

void apply_rope(Tensor& x, const RopeTable& table, std::span<const std::int32_t> positions, bool inverse) {
  const auto tokens = static_cast<Index>(positions.size());
  const Index half = table.head_dim() / 2, heads = tokens > 0 ? x.numel() / tokens / table.head_dim() : 0;
  dispatch(x.dtype(), [&]<class T>(T) {
    for (Index t = 0; t < tokens; ++t) {
      for (Index h = 0; h < heads; ++h) {
        for (Index i = 0; i < half; ++i) {
          const Index angle = positions[static_cast<std::size_t>(t)] * half + i;
          const double cos = table.cos.data<float>()[angle];
          const double sin = (inverse ? -1.0 : 1.0) * table.sin.data<float>()[angle];
          T& first = x.data<T>()[(t * heads + h) * 2 * half + i];
          T& second = x.data<T>()[(t * heads + h) * 2 * half + half + i];
          const double a = static_cast<float>(first), b = static_cast<float>(second);
          first = T(static_cast<float>(a * cos - b * sin));
          second = T(static_cast<float>(b * cos + a * sin));
        }
      }
    }
  });
}

}  // namespace dsmoe::ops::ref
