// Rotary positions on a GPU. The frequencies are the host's; angles are rounded as on the CPU (ops/rope.cpp).
#include <type_traits>
#include <vector>

#include "ops/cuda/launch.h"
#include "ops/cuda/numbers.cuh"
#include "ops/cuda/ptx.cuh"
#include "ops/cuda/q8_0.cuh"
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
  float divisor, factor;  // of positions; of the cosines and sines of the first `turned` pairs
  int rows, half, turned;
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
  const float factor = column < a.turned ? a.factor : 1.0f;
  a.cos[i] = __fmul_rn(factor, static_cast<float>(c));
  a.sin[i] = __fmul_rn(factor, static_cast<float>(s));
}

// One thread per kVector neighbouring pairs of numbers that turn together.
template <int kVector, class T>
__global__ void __launch_bounds__(kThreads)
    apply_kernel(T* x, const float* cos, const float* sin, Index rows, int heads, int half, float sign) {
  gpu::ptx::let_next_kernel_start();
  gpu::ptx::wait_for_previous_kernel();
  const Index i = (static_cast<Index>(blockIdx.x) * kThreads + threadIdx.x) * kVector;
  if (i >= rows * heads * half) return;
  const Index head = i / half, row = head / heads;
  const auto column = static_cast<int>(i % half);
  const auto c = gpu::load<kVector>(cos + row * half + column), s = gpu::load<kVector>(sin + row * half + column);
  T *const first = x + head * 2 * half + column, *const second = first + half;
  auto a = gpu::load<kVector>(first), b = gpu::load<kVector>(second);
#pragma unroll
  for (int j = 0; j < kVector; ++j) {
    const float u = gpu::to_float(a.v[j]), v = gpu::to_float(b.v[j]), turn = sign * s.v[j];
    gpu::from_float(fmaf(u, c.v[j], -__fmul_rn(v, turn)), a.v[j]);
    gpu::from_float(fmaf(v, c.v[j], __fmul_rn(u, turn)), b.v[j]);
  }
  gpu::store(a, first);
  gpu::store(b, second);
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

  __device__ void turn_query(Index row, int pair) const {
    T* const first = q + row * 2 * q_pairs + place(pair);
    const Turned t = turned(first[0], first[half], cos[row * half + pair % half], sin[row * half + pair % half]);
    gpu::from_float(t.first, first[0]);
    gpu::from_float(t.second, first[half]);
  }
  __device__ void run(Index row, int pair) const {
    if (pair < q_pairs) return turn_query(row, pair);
    const float *const c = cos + row * half, *const s = sin + row * half;
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

// The same for a cache of q8_0: a warp per 32 pairs of q, then per block of k, then of v. Each number of k is turned by its
// own lane, which is half of the work done twice, and needs no word to the lane that has its partner.
template <class T>
struct NewBlocks {
  NewTokens<T, gpu::BlockQ8_0> to;

  __device__ int q_warps() const { return (to.q_pairs + 31) / 32; }
  __device__ int warps() const { return q_warps() + (to.k_pairs + to.v_pairs) / 16; }
  __device__ void run(Index row, int warp) const {
    const int lane = threadIdx.x % 32, half = to.half;
    if (warp < q_warps()) {
      if (warp * 32 + lane < to.q_pairs) to.turn_query(row, warp * 32 + lane);
      return;
    }
    warp -= q_warps();
    const Index at = to.cache_row[row];
    const int k_blocks = to.k_pairs / 16, v_blocks = to.v_pairs / 16;
    if (warp < k_blocks) {
      const int column = warp * 32 + lane, in_head = column % (2 * half), pair = in_head % half;
      const T* const first = to.k + row * 2 * to.k_pairs + column - in_head + pair;
      const auto turned = to.turned(first[0], first[half], to.cos[row * half + pair], to.sin[row * half + pair]);
      T rounded;
      gpu::from_float(in_head < half ? turned.first : turned.second, rounded);
      return gpu::store_block(gpu::to_float(rounded), to.k_cache + at * k_blocks + warp);
    }
    warp -= k_blocks;
    gpu::store_block(gpu::to_float(to.v[row * 2 * to.v_pairs + warp * 32 + lane]), to.v_cache + at * v_blocks + warp);
  }
};

template <class T>
__global__ void __launch_bounds__(kThreads) new_blocks_kernel(const __grid_constant__ NewBlocks<T> n) {
  gpu::ptx::let_next_kernel_start();
  gpu::ptx::wait_for_previous_kernel();
  const Index i = static_cast<Index>(blockIdx.x) * (kThreads / 32) + threadIdx.x / 32;
  const int warps = n.warps();
  if (i < n.to.rows * warps) n.run(i / warps, static_cast<int>(i % warps));
}

}  // namespace

void rotate_and_store(Context& ctx, Tensor& q, Tensor& k, const Tensor& v, const RopeAngles& angles, const Slices& slices,
                      Tensor& k_cache, Tensor& v_cache) {
  if (q.numel() == 0) return;
  const auto pairs = [](const Tensor& x) { return static_cast<int>(x.dim(1) / 2); };
  gpu::with_type(q.dtype(), [&]<class T>(T) {
    const auto run = [&]<class C>(C) {
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
      if constexpr (std::is_same_v<C, gpu::BlockQ8_0>)
        gpu::launch(new_blocks_kernel<T>, blocks_for(n.rows * ((n.q_pairs + 31) / 32 * 32 + 2 * (n.k_pairs + n.v_pairs))),
                    kThreads, 0, ctx.stream(), NewBlocks<T>{n});
      else
        gpu::launch(new_tokens_kernel<T, C>, blocks_for(n.rows * (n.q_pairs + n.k_pairs + n.v_pairs)), kThreads, 0,
                    ctx.stream(), n);
    };
    k_cache.dtype() == DType::kQ8_0 ? run(gpu::BlockQ8_0{}) : gpu::with_type(k_cache.dtype(), run);
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
           rope.angle_factor(),
           tables.rows,
           static_cast<int>(half),
           static_cast<int>(rope.turned_pairs()),
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
    const bool wide = half % 4 == 0 && reinterpret_cast<std::uintptr_t>(x.raw()) % 16 == 0;
    gpu::launch(wide ? apply_kernel<4, T> : apply_kernel<1, T>, blocks_for(rows * heads * half / (wide ? 4 : 1)), kThreads,
                0, ctx.stream(), static_cast<T*>(x.raw_mutable()), static_cast<const float*>(angles.cos.raw()),
                static_cast<const float*>(angles.sin.raw()), rows, heads, half, inverse ? -1.0f : 1.0f);
  });
}

}  // namespace dsmoe::ops::cuda
