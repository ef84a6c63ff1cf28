// The gradient of RMSNorm on a GPU. A block has eight tokens: first each warp adds up one token's two sums, in an order
// that the width alone decides; then each thread goes down the eight tokens of its columns, which leaves the block's part
// of the weight's gradient in its register. The parts of all blocks are added up by column_sums.cu.
#include "ops/cuda/kernels.h"
#include "ops/cuda/launch.h"
#include "ops/cuda/numbers.cuh"
#include "ops/cuda/ptx.cuh"
#include "ops/rms_norm.h"

namespace dsmoe::ops::cuda {

namespace gpu = dsmoe::cuda;
using gpu::to_float;

namespace {

constexpr int kRows = 8, kThreads = 32 * kRows;

// dx = r g - r³ mean(g x) x, with g = dy * weight: two factors per token.
struct Factors {
  float inverse;  // r
  float back;     // r³ mean(g x)
};

template <int kVector, class Y, class W>
__device__ Factors factors_of(const Y* dy, const float* x, const W* weight, float eps, int width) {
  float squares = 0, dot = 0;
  for (int c = threadIdx.x % 32 * kVector; c < width; c += 32 * kVector) {
    const auto in = gpu::load<kVector>(x + c);
    const auto d = gpu::load<kVector>(dy + c);
    const auto w = gpu::load<kVector>(weight + c);
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      squares = fmaf(in.v[i], in.v[i], squares);
      dot = fmaf(to_float(d.v[i]) * to_float(w.v[i]), in.v[i], dot);
    }
  }
#pragma unroll
  for (int i = 16; i > 0; i /= 2) {
    squares += __shfl_xor_sync(~0u, squares, i);
    dot += __shfl_xor_sync(~0u, dot, i);
  }
  const double inverse = 1 / sqrt(static_cast<double>(squares) / width + eps);
  return {static_cast<float>(inverse),
          static_cast<float>(inverse * inverse * inverse * (static_cast<double>(dot) / width))};
}

template <int kVector, class Y, class W>
__global__ void __launch_bounds__(kThreads)
    rms_norm_backward_kernel(const Y* dy, const float* x, const W* weight, float eps, int tokens, int width, float* dx,
                             gpu::bf16* rounded, float* partial) {
  __shared__ Factors factors[kRows];
  gpu::ptx::wait_for_previous_kernel();
  gpu::ptx::let_next_kernel_start();
  const int first = blockIdx.x * kRows, rows = min(kRows, tokens - first), warp = threadIdx.x / 32;
  const Index begin = static_cast<Index>(first) * width;
  if (warp < rows) {
    const Index row = begin + static_cast<Index>(warp) * width;
    const Factors own = factors_of<kVector>(dy + row, x + row, weight, eps, width);
    if (threadIdx.x % 32 == 0) factors[warp] = own;
  }
  __syncthreads();
  for (int c = threadIdx.x * kVector; c < width; c += kThreads * kVector) {
    const auto w = gpu::load<kVector>(weight + c);
    gpu::Pack<float, kVector> sum{};
#pragma unroll 4
    for (int r = 0; r < rows; ++r) {
      const Index at = begin + static_cast<Index>(r) * width + c;
      const auto in = gpu::load<kVector>(x + at);
      const auto d = gpu::load<kVector>(dy + at);
      auto out = gpu::load<kVector>(dx + at);
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        const float scaled = factors[r].inverse * to_float(d.v[i]);
        out.v[i] += fmaf(scaled, to_float(w.v[i]), -factors[r].back * in.v[i]);
        sum.v[i] = fmaf(scaled, in.v[i], sum.v[i]);
      }
      gpu::store(out, dx + at);
      if (rounded) {
        gpu::Pack<gpu::bf16, kVector> narrow;
#pragma unroll
        for (int i = 0; i < kVector; ++i) gpu::from_float(out.v[i], narrow.v[i]);
        gpu::store(narrow, rounded + at);
      }
    }
    gpu::store(sum, partial + static_cast<Index>(blockIdx.x) * width + c);
  }
}

}  // namespace

void rms_norm_backward(Context& ctx, const Tensor& dy, const Tensor& x, const Tensor& weight, float eps, Tensor& dx,
                       Tensor& dweight, Tensor* rounded) {
  if (x.numel() == 0) return;
  const auto tokens = static_cast<int>(x.dim(0)), width = static_cast<int>(x.dim(1));
  const int pieces = (tokens + kRows - 1) / kRows;
  Tensor partial = ctx.empty(DType::kF32, {pieces, width});
  auto* const sums = static_cast<float*>(partial.raw_mutable());
  gpu::with_type(dy.dtype(), [&]<class Y>(Y) {
    gpu::with_type(weight.dtype(), [&]<class W>(W) {
      const auto kernel = width % 4 == 0 ? rms_norm_backward_kernel<4, Y, W> : rms_norm_backward_kernel<1, Y, W>;
      gpu::launch(kernel, static_cast<unsigned>(pieces), kThreads, 0, ctx.stream(), static_cast<const Y*>(dy.raw()),
                  static_cast<const float*>(x.raw()), static_cast<const W*>(weight.raw()), eps, tokens, width,
                  static_cast<float*>(dx.raw_mutable()),
                  rounded ? static_cast<gpu::bf16*>(rounded->raw_mutable()) : nullptr, sums);
    });
  });
  gpu::add_pieces(sums, pieces, width, static_cast<float*>(dweight.raw_mutable()), ctx.stream());
}

}  // namespace dsmoe::ops::cuda
