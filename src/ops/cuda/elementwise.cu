// Sums and conversions of whole tensors: every number is rounded once, as on the CPU.
#include "ops/attention.h"
#include "ops/cuda/kernels.h"
#include "ops/cuda/launch.h"
#include "ops/cuda/numbers.cuh"
#include "ops/cuda/ptx.cuh"
#include "ops/cuda/q8_0.cuh"
#include "ops/cuda/slices.h"
#include "ops/elementwise.h"

namespace dsmoe::ops::cuda {

namespace gpu = dsmoe::cuda;
using gpu::from_float;
using gpu::to_float;

namespace {

constexpr int kThreads = 256;

// Four neighbours per thread where rows allow it, else one: fn(row, column, pack size) does them.
template <int kVector, class Fn>
__global__ void __launch_bounds__(kThreads) each_kernel(const __grid_constant__ Fn fn, Index rows, Index columns) {
  gpu::ptx::wait_for_previous_kernel();
  gpu::ptx::let_next_kernel_start();
  const Index packs = columns / kVector;
  const Index i = static_cast<Index>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < rows * packs) fn.template run<kVector>(i / packs, i % packs * kVector);
}

template <class Fn>
void each(Context& ctx, Index rows, Index columns, const Fn& fn) {
  if (rows * columns == 0) return;
  const auto go = [&](auto kernel, Index vector) {
    const Index threads = rows * (columns / vector);
    gpu::launch(kernel, static_cast<unsigned>((threads + kThreads - 1) / kThreads), kThreads, 0, ctx.stream(), fn, rows,
                columns);
  };
  columns % 4 == 0 ? go(each_kernel<4, Fn>, 4) : go(each_kernel<1, Fn>, 1);
}

template <class T>
struct Add {
  const T* y;
  float* x;
  Index columns;
  template <int kVector>
  __device__ void run(Index row, Index column) const {
    const Index at = row * columns + column;
    const auto in = gpu::load<kVector>(y + at);
    auto sum = gpu::load<kVector>(x + at);
#pragma unroll
    for (int i = 0; i < kVector; ++i) sum.v[i] = __fadd_rn(sum.v[i], to_float(in.v[i]));
    gpu::store(sum, x + at);
  }
};

// to[place[row]] = from[row]; without places, to[row].
template <class From, class To>
struct Copy {
  const From* from;
  To* to;
  const std::int32_t* place;
  Index columns;
  template <int kVector>
  __device__ void run(Index row, Index column) const {
    const auto in = gpu::load<kVector>(from + row * columns + column);
    gpu::Pack<To, kVector> out;
#pragma unroll
    for (int i = 0; i < kVector; ++i) from_float(to_float(in.v[i]), out.v[i]);
    gpu::store(out, to + (place ? place[row] : row) * columns + column);
  }
};

struct Scale {
  float factor;
  float* x;
  Index columns;
  template <int kVector>
  __device__ void run(Index row, Index column) const {
    const Index at = row * columns + column;
    auto in = gpu::load<kVector>(x + at);
#pragma unroll
    for (int i = 0; i < kVector; ++i) in.v[i] = __fmul_rn(factor, in.v[i]);
    gpu::store(in, x + at);
  }
};

template <class B, class Y>
struct AddBias {
  const B* bias;
  Y* y;
  Index columns;
  template <int kVector>
  __device__ void run(Index row, Index column) const {
    Y* const at = y + row * columns + column;
    const auto add = gpu::load<kVector>(bias + column);
    auto sum = gpu::load<kVector>(at);
#pragma unroll
    for (int i = 0; i < kVector; ++i) from_float(__fadd_rn(to_float(sum.v[i]), to_float(add.v[i])), sum.v[i]);
    gpu::store(sum, at);
  }
};

void copy(Context& ctx, const Tensor& from, Tensor& to, const std::int32_t* place, Index rows, Index columns) {
  gpu::with_type(from.dtype(), [&]<class From>(From) {
    gpu::with_type(to.dtype(), [&]<class To>(To) {
      each(ctx, rows, columns,
           Copy<From, To>{static_cast<const From*>(from.raw()), static_cast<To*>(to.raw_mutable()), place, columns});
    });
  });
}

// A warp per block of 32 numbers.
template <class T>
__global__ void __launch_bounds__(kThreads)
    blocks_kernel(const T* from, gpu::BlockQ8_0* to, const std::int32_t* place, Index rows, int blocks) {
  gpu::ptx::let_next_kernel_start();
  gpu::ptx::wait_for_previous_kernel();
  const Index i = static_cast<Index>(blockIdx.x) * (kThreads / 32) + threadIdx.x / 32;
  if (i >= rows * blocks) return;
  gpu::store_block(to_float(from[i * 32 + threadIdx.x % 32]),
                   to + place[i / blocks] * static_cast<Index>(blocks) + i % blocks);
}

void store_blocks(Context& ctx, const Tensor& rows, const std::int32_t* place, Tensor& cache) {
  if (rows.numel() == 0) return;
  gpu::with_type(rows.dtype(), [&]<class T>(T) {
    gpu::launch(blocks_kernel<T>, static_cast<unsigned>((rows.numel() + kThreads - 1) / kThreads), kThreads, 0,
                ctx.stream(), static_cast<const T*>(rows.raw()), static_cast<gpu::BlockQ8_0*>(cache.raw_mutable()), place,
                rows.dim(0), static_cast<int>(rows.dim(1) / 32));
  });
}

}  // namespace

void add(Context& ctx, const Tensor& y, Tensor& x) {
  gpu::with_type(y.dtype(), [&]<class T>(T) {
    const Index n = x.numel();
    each(ctx, 1, n, Add<T>{static_cast<const T*>(y.raw()), static_cast<float*>(x.raw_mutable()), n});
  });
}

void convert(Context& ctx, const Tensor& from, Tensor& to) { copy(ctx, from, to, nullptr, 1, from.numel()); }

void add_bias(Context& ctx, const Tensor& bias, Tensor& y) {
  gpu::with_type(bias.dtype(), [&]<class B>(B) {
    gpu::with_type(y.dtype(), [&]<class Y>(Y) {
      each(ctx, y.dim(0), y.dim(1),
           AddBias<B, Y>{static_cast<const B*>(bias.raw()), static_cast<Y*>(y.raw_mutable()), y.dim(1)});
    });
  });
}

void scale(Context& ctx, float factor, Tensor& x) {
  each(ctx, 1, x.numel(), Scale{factor, static_cast<float*>(x.raw_mutable()), x.numel()});
}

void add_up(Context& ctx, const Tensor& parts, Tensor& to) {
  const auto size = static_cast<std::size_t>(to.numel());
  if (size == 0) return;
  gpu::add_slices(static_cast<const float*>(parts.raw()), static_cast<int>(parts.dim(0)), size, size, DType::kF32,
                  to.raw_mutable(), /*accumulate=*/false, ctx.stream());
}

void store_rows(Context& ctx, const Tensor& rows, const Slices& slices, Tensor& cache) {
  if (cache.dtype() == DType::kQ8_0) return store_blocks(ctx, rows, slices.tables().cache_row, cache);
  copy(ctx, rows, cache, slices.tables().cache_row, rows.dim(0), rows.dim(1));
}

}  // namespace dsmoe::ops::cuda
