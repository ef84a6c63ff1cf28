// Rotary positions on a GPU. The frequencies are the host's; angles are rounded as on the CPU (ops/rope.cpp).
#include <vector>

#include "ops/cuda/launch.h"
#include "ops/cuda/numbers.cuh"
#include "ops/cuda/ptx.cuh"
#include "ops/cuda/slices.h"
#include "ops/rope.h"

namespace dsmoe::ops::cuda {

namespace gpu = dsmoe::cuda;

namespace {

constexpr int kThreads = 256;

unsigned blocks_for(Index threads) { return static_cast<unsigned>((threads + kThreads - 1) / kThreads); }

// frequencies: [1, half] for all slices, or [slices, half].
struct Angles {
  const std::int32_t *position, *slice;
  const float* frequencies;
  bool per_slice;
  float divisor;
  int rows, half;
  float *cos, *sin;
};

__global__ void __launch_bounds__(kThreads) angles_kernel(const __grid_constant__ Angles a) {
  gpu::ptx::wait_for_previous_kernel();
  gpu::ptx::let_next_kernel_start();
  const int i = blockIdx.x * kThreads + threadIdx.x;
  if (i >= a.rows * a.half) return;
  const int row = i / a.half, column = i % a.half;
  const float place = __fdiv_rn(static_cast<float>(a.position[row]), a.divisor);
  const float frequency = a.frequencies[(a.per_slice ? a.slice[row] : 0) * a.half + column];
  double s, c;
  sincos(static_cast<double>(__fmul_rn(place, frequency)), &s, &c);
  a.cos[i] = static_cast<float>(c);
  a.sin[i] = static_cast<float>(s);
}

// One thread per pair of numbers that turn together.
template <class T>
__global__ void __launch_bounds__(kThreads)
    apply_kernel(T* x, const float* cos, const float* sin, Index rows, int heads, int half, float sign) {
  gpu::ptx::wait_for_previous_kernel();
  gpu::ptx::let_next_kernel_start();
  const Index i = static_cast<Index>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= rows * heads * half) return;
  const Index head = i / half, row = head / heads;
  const auto column = static_cast<int>(i % half);
  const float c = cos[row * half + column], s = sign * sin[row * half + column];
  T *const first = x + head * 2 * half + column, *const second = first + half;
  const float a = gpu::as_float(*first), b = gpu::as_float(*second);
  gpu::assign(fmaf(a, c, -__fmul_rn(b, s)), *first);
  gpu::assign(fmaf(b, c, __fmul_rn(a, s)), *second);
}

}  // namespace

void rope_angles(Context& ctx, const Rope& rope, const Slices& slices, RopeAngles& angles) {
  const SliceTables& tables = slices.tables();
  const Index half = rope.head_dim() / 2;
  if (tables.rows == 0) return;
  bool per_slice = false;
  for (const Slice& s : slices) per_slice = per_slice || rope.scaled_by(s.length());
  std::vector<float> frequencies;
  for (const Slice& s : slices) {
    if (!per_slice && !frequencies.empty()) break;
    const std::vector<float> own = rope.frequencies(s.length());
    frequencies.insert(frequencies.end(), own.begin(), own.end());
  }
  const Tensor placed = ctx.place(Tensor::view_of(std::span<const float>(frequencies)));
  const Angles a{tables.position,
                 tables.slice,
                 static_cast<const float*>(placed.raw()),
                 per_slice,
                 rope.divisor(),
                 tables.rows,
                 static_cast<int>(half),
                 static_cast<float*>(angles.cos.raw_mutable()),
                 static_cast<float*>(angles.sin.raw_mutable())};
  gpu::launch(angles_kernel, blocks_for(tables.rows * half), kThreads, 0, ctx.stream(), a);
}

void apply_rope(Context& ctx, Tensor& x, const RopeAngles& angles, bool inverse) {
  if (x.numel() == 0) return;
  const Index rows = angles.rows();
  const auto half = static_cast<int>(angles.head_dim() / 2);
  const auto heads = static_cast<int>(x.numel() / rows / angles.head_dim());
  gpu::with_type(x.dtype(), [&]<class T>(T) {
    gpu::launch(apply_kernel<T>, blocks_for(rows * heads * half), kThreads, 0, ctx.stream(),
                static_cast<T*>(x.raw_mutable()), static_cast<const float*>(angles.cos.raw()),
                static_cast<const float*>(angles.sin.raw()), rows, heads, half, inverse ? -1.0f : 1.0f);
  });
}

}  // namespace dsmoe::ops::cuda
