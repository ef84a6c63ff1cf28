#include "ops/elementwise.h"

#include "ops/cpu/tasks.h"
#include "ops/dispatch.h"

namespace dsmoe::ops::cpu {

using namespace dsmoe::cpu;

namespace {
constexpr Index kElementsPerTask = 1 << 15;
constexpr Index kPiece = 1 << 10;  // elements widened at a time: a buffer that stays in the first-level cache
}  // namespace

void add(Context& ctx, const Tensor& y, Tensor& x) {
  const KernelTable& kt = kernels();
  float* const to = x.data<float>();
  dispatch(y.dtype(), [&]<class T>(T) {
    const T* const from = y.data<T>();
    each_block(ctx, x.numel(), kElementsPerTask, [&](Index first, Index last, int) {
      if constexpr (sizeof(T) == 4) {
        kt.add_scaled(last - first, 1.0f, from + first, to + first);
      } else {
        float wide[kPiece];
        for (Index i = first; i < last; i += kPiece) {
          const Index n = std::min(kPiece, last - i);
          to_f32(kt, n, from + i, wide);
          kt.add_scaled(n, 1.0f, wide, to + i);
        }
      }
    });
  });
}

void convert(Context& ctx, const Tensor& from, Tensor& to) {
  const KernelTable& kt = kernels();
  dispatch(from.dtype(), [&]<class From>(From) {
    dispatch(to.dtype(), [&]<class To>(To) {
      const From* const in = from.data<From>();
      To* const out = to.data<To>();
      each_block(ctx, from.numel(), kElementsPerTask, [&](Index first, Index last, int) {
        if constexpr (sizeof(To) == 4) {
          to_f32(kt, last - first, in + first, out + first);
        } else if constexpr (sizeof(From) == 4) {
          from_f32(kt, last - first, in + first, out + first);
        } else {
          std::copy(in + first, in + last, out + first);
        }
      });
    });
  });
}

void add_bias(Context& ctx, const Tensor& bias, Tensor& y) {
  const KernelTable& kt = kernels();
  const Index n = y.dim(1);
  dispatch(bias.dtype(), [&]<class B>(B) {
    dispatch(y.dtype(), [&]<class T>(T) {
      T* const out = y.data<T>();
      each_block(ctx, y.dim(0), kTokensPerTask, [&](Index first, Index last, int worker) {
        auto* const wide = static_cast<float*>(ctx.scratch(worker, 2 * static_cast<std::size_t>(n) * sizeof(float)));
        float* const row = wide + n;
        to_f32(kt, n, bias.data<B>(), wide);
        for (Index t = first; t < last; ++t) {
          to_f32(kt, n, out + t * n, row);
          kt.add_scaled(n, 1.0f, wide, row);
          from_f32(kt, n, row, out + t * n);
        }
      });
    });
  });
}

void add_bias_backward(Context& ctx, const Tensor& dy, Tensor& dbias) {
  const KernelTable& kt = kernels();
  const Index n = dy.dim(1);
  float* const sum = dbias.data<float>();
  dispatch(dy.dtype(), [&]<class T>(T) {
    each_block(ctx, n, kColumnsPerTask, [&](Index first, Index last, int) {  // a task owns its columns of all rows
      float wide[kColumnsPerTask];
      for (Index t = 0; t < dy.dim(0); ++t) {
        to_f32(kt, last - first, dy.data<T>() + t * n + first, wide);
        kt.add_scaled(last - first, 1.0f, wide, sum + first);
      }
    });
  });
}

}  // namespace dsmoe::ops::cpu
