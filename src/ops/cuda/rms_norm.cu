// RMSNorm on a GPU: one block per token. The sum of squares has an order that the width alone decides: thread t adds up the
// squares of its columns in ascending order, then the threads' sums are added as a tree.
#include "ops/cuda/launch.h"
#include "ops/cuda/numbers.cuh"
#include "ops/cuda/ptx.cuh"
#include "ops/rms_norm.h"

namespace dsmoe::ops::cuda {

namespace gpu = dsmoe::cuda;

namespace {

constexpr int kThreads = 256;

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

// kAdd: x += added first. A thread keeps up to kKept pieces of its row, and its weights, which it has before the kernel
// ahead has ended; kKept = 0 reads a row of any width twice.
template <int kVector, int kKept, bool kAdd, class A, class W, class Y>
__global__ void __launch_bounds__(kThreads)
    rms_norm_kernel(const A* added, float* x, const W* weight, float eps, int width, Y* y) {
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
      gpu::store(in, x + c);
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
    for (int c = first; c < width; c += kStep) scale(c, gpu::load<kVector>(x + c), gpu::load<kVector>(weight + c));
  }
}

template <bool kAdd>
void run(Context& ctx, const Tensor& added, float* x, const Tensor& weight, float eps, Tensor& y) {
  if (y.numel() == 0) return;
  const auto width = static_cast<int>(y.dim(1));
  gpu::with_type(added.dtype(), [&]<class A>(A) {
    gpu::with_type(weight.dtype(), [&]<class W>(W) {
      gpu::with_type(y.dtype(), [&]<class Y>(Y) {
        constexpr int kKept = 4;
        const auto kernel = width % 4 != 0                 ? rms_norm_kernel<1, 0, kAdd, A, W, Y>
                            : width > kThreads * 4 * kKept ? rms_norm_kernel<4, 0, kAdd, A, W, Y>
                                                           : rms_norm_kernel<4, kKept, kAdd, A, W, Y>;
        gpu::launch(kernel, static_cast<unsigned>(y.dim(0)), kThreads, 0, ctx.stream(), static_cast<const A*>(added.raw()),
                    x, static_cast<const W*>(weight.raw()), eps, width, static_cast<Y*>(y.raw_mutable()));
      });
    });
  });
}

}  // namespace

// Without a sum x is only read.
void rms_norm(Context& ctx, const Tensor& x, const Tensor& weight, float eps, Tensor& y) {
  run<false>(ctx, x, const_cast<float*>(static_cast<const float*>(x.raw())), weight, eps, y);
}

void add_rms_norm(Context& ctx, const Tensor& y, Tensor& x, const Tensor& weight, float eps, Tensor& h) {
  run<true>(ctx, y, static_cast<float*>(x.raw_mutable()), weight, eps, h);
}

}  // namespace dsmoe::ops::cuda
