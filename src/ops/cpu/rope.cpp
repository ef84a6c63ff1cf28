#include "ops/rope.h"

#include "ops/cpu/tasks.h"
#include "ops/dispatch.h"

namespace dsmoe::ops::cpu {

using namespace dsmoe::cpu;

void apply_rope(Context& ctx, Tensor& x, const RopeTable& table, std::span<const std::int32_t> positions, bool inverse) {
  const KernelTable& kt = kernels();
  const auto tokens = static_cast<Index>(positions.size());
  const Index half = table.head_dim() / 2, width = tokens > 0 ? x.numel() / tokens : 0;
  const float sign = inverse ? -1.0f : 1.0f;
  dispatch(x.dtype(), [&]<class T>(T) {
    T* const data = x.data<T>();
    each_block(ctx, tokens, kTokensPerTask, [&](Index first, Index last, int worker) {
      for (Index t = first; t < last; ++t) {
        const Index angles = positions[static_cast<std::size_t>(t)] * half;
        const auto rotate = [&](float* row) {
          for (Index at = 0; at < width; at += 2 * half)
            kt.rotate(half, table.cos.data<float>() + angles, table.sin.data<float>() + angles, sign, row + at,
                      row + at + half);
        };
        if constexpr (sizeof(T) == 4) {
          rotate(data + t * width);
        } else {
          auto* const row = static_cast<float*>(ctx.scratch(worker, static_cast<std::size_t>(width) * sizeof(float)));
          to_f32(kt, width, data + t * width, row);
          rotate(row);
          from_f32(kt, width, row, data + t * width);
        }
      }
    });
  });
}

}  // namespace dsmoe::ops::cpu
