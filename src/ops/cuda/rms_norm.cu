// RMSNorm on a GPU: one block per token, or one warp where rows are narrow. The sum of squares has an order that the width
// alone decides: thread t adds up the squares of its columns in ascending order, then the threads' sums are added as a
// tree.
#include "ops/cuda/launch.h"
#include "ops/cuda/numbers.cuh"
#include "ops/cuda/ptx.cuh"
#include "ops/rms_norm.h"

namespace dsmoe::ops::cuda {

namespace gpu = dsmoe::cuda;

namespace {

constexpr int kThreads = 256;
constexpr int kNarrow = 4;  // packs of four that a lane keeps of a narrow row: up to 512 columns

__device__ float block_sum(float value) {
  __shared__ float warps[kThreads / 32];
#pragma unroll
  for (int i = 16; i > 0; i /= 2) value += __shfl_xor_sync(~0u, value, i);
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = value;
  __syncthreads();
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kThreads / 32; ++i) sum += warps[i];
  return sum;
}

// kAdd: sum = x + added first, and its norm. A thread keeps up to kKept pieces of its row, and its weights, which it has
// before the kernel ahead has ended; kKept = 0 reads a row of any width twice.
template <int kVector, int kKept, bool kAdd, class A, class W, class Y>
__global__ void __launch_bounds__(kThreads)
    rms_norm_kernel(const A* added, const float* x, float* sum_of, const W* weight, float eps, int width, Y* y) {
  constexpr int kStep = kThreads * kVector;
  const int first = threadIdx.x * kVector;
  gpu::Pack<W, kVector> kept_weight[kKept + 1];
#pragma unroll
  for (int i = 0; i < kKept; ++i)
    if (first + i * kStep < width) kept_weight[i] = gpu::load<kVector>(weight + first + i * kStep);
  gpu::ptx::let_next_kernel_start();
  gpu::ptx::wait_for_previous_kernel();
  const Index row = static_cast<Index>(blockIdx.x) * width;
  x += row;
  y += row;
  float sum = 0;
  gpu::Pack<float, kVector> kept[kKept + 1];
  const auto square = [&](int c, gpu::Pack<float, kVector>& in) {
    in = gpu::load<kVector>(x + c);
    if constexpr (kAdd) {
      const auto more = gpu::load<kVector>(added + row + c);
#pragma unroll
      for (int i = 0; i < kVector; ++i) in.v[i] = __fadd_rn(in.v[i], gpu::to_float(more.v[i]));
      gpu::store(in, sum_of + row + c);
    }
#pragma unroll
    for (int i = 0; i < kVector; ++i) sum = fmaf(in.v[i], in.v[i], sum);
  };
  if constexpr (kKept > 0) {
#pragma unroll
    for (int i = 0; i < kKept; ++i)
      if (first + i * kStep < width) square(first + i * kStep, kept[i]);
  } else {
    for (int c = first; c < width; c += kStep) square(c, kept[0]);
  }
  // In single precision, rounded to nearest: all threads wait for this one number.
  const float inverse = __frsqrt_rn(__fadd_rn(__fdiv_rn(block_sum(sum), static_cast<float>(width)), eps));
  const auto scale = [&](int c, const gpu::Pack<float, kVector>& in, const gpu::Pack<W, kVector>& w) {
    gpu::Pack<Y, kVector> out;
#pragma unroll
    for (int i = 0; i < kVector; ++i)
      gpu::from_float(__fmul_rn(__fmul_rn(inverse, in.v[i]), gpu::to_float(w.v[i])), out.v[i]);
    gpu::store(out, y + c);
  };
  if constexpr (kKept > 0) {
#pragma unroll
    for (int i = 0; i < kKept; ++i)
      if (first + i * kStep < width) scale(first + i * kStep, kept[i], kept_weight[i]);
  } else {
    const float* const normed = kAdd ? sum_of + row : x;
    for (int c = first; c < width; c += kStep) scale(c, gpu::load<kVector>(normed + c), gpu::load<kVector>(weight + c));
  }
}

// A warp per row, whose width is a multiple of 4.
template <bool kAdd, class A, class W, class Y>
__global__ void __launch_bounds__(kThreads)
    narrow_kernel(const A* added, const float* x, float* sum_of, const W* weight, float eps, int rows, int width, Y* y) {
  const int first = threadIdx.x % 32 * 4, token = blockIdx.x * (kThreads / 32) + threadIdx.x / 32;
  const Index row = static_cast<Index>(token) * width;
  gpu::Pack<W, 4> kept_weight[kNarrow];
#pragma unroll
  for (int i = 0; i < kNarrow; ++i)
    if (first + i * 128 < width) kept_weight[i] = gpu::load<4>(weight + first + i * 128);
  gpu::ptx::let_next_kernel_start();
  gpu::ptx::wait_for_previous_kernel();
  if (token >= rows) return;
  gpu::Pack<float, 4> kept[kNarrow];
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kNarrow; ++i)
    if (first + i * 128 < width) kept[i] = gpu::load<4>(x + row + first + i * 128);
#pragma unroll
  for (int i = 0; i < kNarrow; ++i) {
    const int c = first + i * 128;
    if (c >= width) continue;
    if constexpr (kAdd) {
      const auto more = gpu::load<4>(added + row + c);
#pragma unroll
      for (int j = 0; j < 4; ++j) kept[i].v[j] = __fadd_rn(kept[i].v[j], gpu::to_float(more.v[j]));
    }
#pragma unroll
    for (int j = 0; j < 4; ++j) sum = fmaf(kept[i].v[j], kept[i].v[j], sum);
  }
#pragma unroll
  for (int i = 16; i > 0; i /= 2) sum += __shfl_xor_sync(~0u, sum, i);
  const float inverse = __frsqrt_rn(__fadd_rn(__fdiv_rn(sum, static_cast<float>(width)), eps));
#pragma unroll
  for (int i = 0; i < kNarrow; ++i) {
    const int c = first + i * 128;
    if (c >= width) continue;
    if constexpr (kAdd) gpu::store(kept[i], sum_of + row + c);
    gpu::Pack<Y, 4> out;
#pragma unroll
    for (int j = 0; j < 4; ++j)
      gpu::from_float(__fmul_rn(__fmul_rn(inverse, kept[i].v[j]), gpu::to_float(kept_weight[i].v[j])), out.v[j]);
    gpu::store(out, y + row + c);
  }
}

template <bool kAdd>
void run(Context& ctx, const Tensor& added, const Tensor& x, float* sum, const Tensor& weight, float eps, Tensor& y) {
  if (y.numel() == 0) return;
  const auto width = static_cast<int>(y.dim(1));
  gpu::with_type(added.dtype(), [&]<class A>(A) {
    gpu::with_type(weight.dtype(), [&]<class W>(W) {
      gpu::with_type(y.dtype(), [&]<class Y>(Y) {
        if (width % 4 == 0 && width <= kNarrow * 128) {
          const auto rows = static_cast<int>(y.dim(0));
          return gpu::launch(narrow_kernel<kAdd, A, W, Y>,
                             static_cast<unsigned>((rows + kThreads / 32 - 1) / (kThreads / 32)), kThreads, 0, ctx.stream(),
                             static_cast<const A*>(added.raw()), static_cast<const float*>(x.raw()), sum,
                             static_cast<const W*>(weight.raw()), eps, rows, width, static_cast<Y*>(y.raw_mutable()));
        }
        constexpr int kKept = 4;
        const auto kernel = width % 4 != 0                 ? rms_norm_kernel<1, 0, kAdd, A, W, Y>
                            : width > kThreads * 4 * kKept ? rms_norm_kernel<4, 0, kAdd, A, W, Y>
                                                           : rms_norm_kernel<4, kKept, kAdd, A, W, Y>;
        gpu::launch(kernel, static_cast<unsigned>(y.dim(0)), kThreads, 0, ctx.stream(), static_cast<const A*>(added.raw()),
                    static_cast<const float*>(x.raw()), sum, static_cast<const W*>(weight.raw()), eps, width,
                    static_cast<Y*>(y.raw_mutable()));
      });
    });
  });
}

}  // namespace

void rms_norm(Context& ctx, const Tensor& x, const Tensor& weight, float eps, Tensor& y) {
  run<false>(ctx, x, x, nullptr, weight, eps, y);
}

void add_rms_norm(Context& ctx, const Tensor& y, const Tensor& x, const Tensor& weight, float eps, Tensor& sum, Tensor& h) {
  run<true>(ctx, y, x, static_cast<float*>(sum.raw_mutable()), weight, eps, h);
}

}  // namespace dsmoe::ops::cuda
