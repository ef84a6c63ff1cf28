#include "ops/fill.h"

#include "core/random.h"
#include "core/threads.h"
#include "ops/backend.h"
#include "ops/dispatch.h"

namespace dsmoe::ops {

void fill_normal(Context& ctx, Tensor& x, float mean, float deviation, std::uint64_t seed) {
  const auto on_cpu = [&] {
    const Philox rng(seed, 0);
    dispatch(x.dtype(), [&]<class T>(T) {
      T* const to = x.data<T>();
      constexpr Index kPiece = 1 << 16;
      ctx.pool().run((x.numel() + kPiece - 1) / kPiece, [&](Index task, int) {
        for (Index i = task * kPiece; i < std::min(x.numel(), (task + 1) * kPiece); ++i)
          to[i] = T(mean + deviation * rng.normal(static_cast<std::uint64_t>(i)));
      });
    });
  };
  on_backend(ctx, on_cpu, on_cpu, [&] { cuda::fill_normal(ctx, x, mean, deviation, seed); });
}

}  // namespace dsmoe::ops
