#include "ops/cuda/launch.h"
#include "ops/cuda/numbers.cuh"
#include "ops/cuda/ptx.cuh"
#include "ops/fill.h"

namespace dsmoe::ops::cuda {

namespace gpu = dsmoe::cuda;

namespace {

constexpr int kThreads = 256;

// The finalizer of MurmurHash3: every bit of the input changes every bit of the output with probability one half.
__device__ std::uint64_t mixed(std::uint64_t v) {
  v = (v ^ v >> 33) * 0xff51afd7ed558ccdull;
  v = (v ^ v >> 33) * 0xc4ceb9fe1a85ec53ull;
  return v ^ v >> 33;
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    fill_kernel(T* x, Index count, float mean, float deviation, std::uint64_t seed) {
  gpu::ptx::wait_for_previous_kernel();
  gpu::ptx::let_next_kernel_start();
  const Index step = static_cast<Index>(gridDim.x) * kThreads;
  for (Index i = static_cast<Index>(blockIdx.x) * kThreads + threadIdx.x; i < count; i += step) {
    const std::uint64_t bits = mixed(mixed(seed) + static_cast<std::uint64_t>(i));
    const float u = (static_cast<float>(bits >> 40) + 0.5f) * 0x1p-24f, v = static_cast<float>(bits & 0xffffff) * 0x1p-24f;
    gpu::from_float(mean + deviation * sqrtf(-2 * logf(u)) * cospif(2 * v), x[i]);  // Box and Muller
  }
}

}  // namespace

void fill_normal(Context& ctx, Tensor& x, float mean, float deviation, std::uint64_t seed) {
  if (x.numel() == 0) return;
  gpu::with_type(x.dtype(), [&]<class T>(T) {
    gpu::launch(fill_kernel<T>, static_cast<unsigned>(gpu::multiprocessors() * 8), kThreads, 0, ctx.stream(),
                static_cast<T*>(x.raw_mutable()), x.numel(), mean, deviation, seed);
  });
}

}  // namespace dsmoe::ops::cuda
