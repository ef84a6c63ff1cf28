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

constexpr int kArgument = 128;  // frequencies that fit the arguments of a kernel: no copy then

// by_slice [slices, half]: frequencies that differ; null: those of `common` for all.
struct Angles {
  const std::int32_t *position, *slice;
  const float* by_slice;
  float common[kArgument];
  float divisor;
  int rows, half;
  float *cos, *sin;
};

__global__ void __launch_bounds__(kThreads) angles_kernel(const __grid_constant__ Angles a) {
  gpu::ptx::let_next_kernel_start();
  gpu::ptx::wait_for_previous_kernel();
  const int i = blockIdx.x * kThreads + threadIdx.x;
  if (i >= a.rows * a.half) return;
  const int row = i / a.half, column = i % a.half;
  const float place = __fdiv_rn(static_cast<float>(a.position[row]), a.divisor);
  const float frequency = a.by_slice ? a.by_slice[a.slice[row] * a.half + column] : a.common[column];
  double s, c;
  sincos(static_cast<double>(__fmul_rn(place, frequency)), &s, &c);
  a.cos[i] = static_cast<float>(c);
  a.sin[i] = static_cast<float>(s);
}

// One thread per pair of numbers that turn together.
template <class T>
__global__ void __launch_bounds__(kThreads)
    apply_kernel(T* x, const float* cos, const float* sin, Index rows, int heads, int half, float sign) {
  gpu::ptx::let_next_kernel_start();
  gpu::ptx::wait_for_previous_kernel();
  const Index i = static_cast<Index>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= rows * heads * half) return;
  const Index head = i / half, row = head / heads;
  const auto column = static_cast<int>(i % half);
  const float c = cos[row * half + column], s = sign * sin[row * half + column];
  T *const first = x + head * 2 * half + column, *const second = first + half;
  const float a = gpu::to_float(*first), b = gpu::to_float(*second);
  gpu::from_float(fmaf(a, c, -__fmul_rn(b, s)), *first);
  gpu::from_float(fmaf(b, c, __fmul_rn(a, s)), *second);
}

// One thread per pair of numbers of q, then of k, then of v, which does not turn. k is turned in registers only: it is read
// from the cache.
template <class T, class C>
struct NewTokens {
  T* q;
  const T *k, *v;
  C *k_cache, *v_cache;
  const float *cos, *sin;
  const std::int32_t* cache_row;
  Index rows;
  int half, q_pairs, k_pairs, v_pairs;  // per row

  __device__ void run(Index row, int pair) const {
    const float *const c = cos + row * half, *const s = sin + row * half;
    if (pair < q_pairs) {
      T* const first = q + row * 2 * q_pairs + place(pair);
      const Turned t = turned(first[0], first[half], c[pair % half], s[pair % half]);
      gpu::from_float(t.first, first[0]);
      gpu::from_float(t.second, first[half]);
      return;
    }
    pair -= q_pairs;
    const Index at = cache_row[row];
    if (pair < k_pairs) {
      const T* const first = k + row * 2 * k_pairs + place(pair);
      const Turned t = turned(first[0], first[half], c[pair % half], s[pair % half]);
      // Rounded to T before the cache's dtype, as on the CPU, where k itself is turned.
      T rounded[2];
      gpu::from_float(t.first, rounded[0]);
      gpu::from_float(t.second, rounded[1]);
      C* const to = k_cache + at * 2 * k_pairs + place(pair);
      gpu::from_float(gpu::to_float(rounded[0]), to[0]);
      gpu::from_float(gpu::to_float(rounded[1]), to[half]);
      return;
    }
    pair -= k_pairs;
    for (int i = 0; i < 2; ++i)
      gpu::from_float(gpu::to_float(v[row * 2 * v_pairs + 2 * pair + i]), v_cache[at * 2 * v_pairs + 2 * pair + i]);
  }
  struct Turned {
    float first, second;
  };
  __device__ int place(int pair) const { return pair / half * 2 * half + pair % half; }
  __device__ static Turned turned(T a, T b, float c, float s) {
    const float x = gpu::to_float(a), y = gpu::to_float(b);
    return {fmaf(x, c, -__fmul_rn(y, s)), fmaf(y, c, __fmul_rn(x, s))};
  }
};

template <class T, class C>
__global__ void __launch_bounds__(kThreads) new_tokens_kernel(const __grid_constant__ NewTokens<T, C> n) {
  gpu::ptx::let_next_kernel_start();
  gpu::ptx::wait_for_previous_kernel();
  const Index i = static_cast<Index>(blockIdx.x) * kThreads + threadIdx.x;
  const int pairs = n.q_pairs + n.k_pairs + n.v_pairs;
  if (i < n.rows * pairs) n.run(i / pairs, static_cast<int>(i % pairs));
}

}  // namespace

void rotate_and_store(Context& ctx, Tensor& q, Tensor& k, const Tensor& v, const RopeAngles& angles, const Slices& slices,
                      Tensor& k_cache, Tensor& v_cache) {
  if (q.numel() == 0) return;
  const auto pairs = [](const Tensor& x) { return static_cast<int>(x.dim(1) / 2); };
  gpu::with_type(q.dtype(), [&]<class T>(T) {
    gpu::with_type(k_cache.dtype(), [&]<class C>(C) {
      const NewTokens<T, C> n{static_cast<T*>(q.raw_mutable()),
                              static_cast<const T*>(k.raw()),
                              static_cast<const T*>(v.raw()),
                              static_cast<C*>(k_cache.raw_mutable()),
                              static_cast<C*>(v_cache.raw_mutable()),
                              static_cast<const float*>(angles.cos.raw()),
                              static_cast<const float*>(angles.sin.raw()),
                              slices.tables().cache_row,
                              q.dim(0),
                              static_cast<int>(angles.head_dim() / 2),
                              pairs(q),
                              pairs(k),
                              pairs(v)};
      gpu::launch(new_tokens_kernel<T, C>, blocks_for(n.rows * (n.q_pairs + n.k_pairs + n.v_pairs)), kThreads, 0,
                  ctx.stream(), n);
    });
  });
}

void rope_angles(Context& ctx, const Rope& rope, const Slices& slices, RopeAngles& angles) {
  const SliceTables& tables = slices.tables();
  const Index half = rope.head_dim() / 2;
  if (tables.rows == 0) return;
  bool per_slice = half > kArgument;
  for (const Slice& s : slices) per_slice = per_slice || rope.scaled_by(s.context);
  Angles a{tables.position,
           tables.slice,
           nullptr,
           {},
           rope.divisor(),
           tables.rows,
           static_cast<int>(half),
           static_cast<float*>(angles.cos.raw_mutable()),
           static_cast<float*>(angles.sin.raw_mutable())};
  std::vector<float> frequencies;
  for (const Slice& s : slices) {
    if (!per_slice && !frequencies.empty()) break;
    const std::vector<float> own = rope.frequencies(s.context);
    frequencies.insert(frequencies.end(), own.begin(), own.end());
  }
  Tensor placed;
  if (per_slice) {
    placed = ctx.place(Tensor::view_of(std::span<const float>(frequencies)));
    a.by_slice = static_cast<const float*>(placed.raw());
  } else {
    std::copy(frequencies.begin(), frequencies.end(), a.common);
  }
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
