// What latent attention does with new tokens between its projections and attention, in one launch: the queries' turned
// parts and the rows of the cache, [norm of the latent | turned part]. The numbers are those of the steps: the norm has the
// order of narrow rows in rms_norm.cu, and what is turned is rounded before, as in rope.cu.
#include "ops/attention.h"
#include "ops/cuda/launch.h"
#include "ops/cuda/numbers.cuh"
#include "ops/cuda/ptx.cuh"
#include "ops/cuda/slices.h"

namespace dsmoe::ops::cuda {

namespace gpu = dsmoe::cuda;

namespace {

using gpu::bf16;

constexpr int kThreads = 128, kPacks = 4, kMostRank = kPacks * 128;

template <class W>
struct NewLatents {
  const bf16* from;  // of the first head, and from there to the next head and token
  bf16* to;
  Index from_head, from_row, to_head, to_row;
  const float* projected;
  const W* weight;
  float eps;
  const float *cos, *sin;
  const std::int32_t* cache_row;
  bf16* cache;
  int rows, heads, rank, half;

  // A pair of numbers that are `half` apart.
  __device__ __forceinline__ void turn(Index row, int pair, bf16 a, bf16 b, bf16* out) const {
    const float c = cos[row * half + pair], s = sin[row * half + pair], u = gpu::to_float(a), v = gpu::to_float(b);
    gpu::from_float(fmaf(u, c, -__fmul_rn(v, s)), out[pair]);
    gpu::from_float(fmaf(v, c, __fmul_rn(u, s)), out[pair + half]);
  }
  // A warp per head of a token's queries.
  __device__ __forceinline__ void turn_query(Index row, int head) const {
    const bf16* const q = from + row * from_row + head * from_head;
    for (int i = threadIdx.x % 32; i < half; i += 32) turn(row, i, q[i], q[i + half], to + row * to_row + head * to_head);
  }
  // And one for the row of the cache.
  __device__ __forceinline__ void store_row(Index row, const gpu::Pack<W, 4> (&weights)[kPacks]) const {
    const float* const x = projected + row * (rank + 2 * half);
    bf16* const out = cache + static_cast<Index>(cache_row[row]) * (rank + 2 * half);
    const int first = threadIdx.x % 32 * 4;
    gpu::Pack<float, 4> kept[kPacks];
    float sum = 0;
#pragma unroll
    for (int i = 0; i < kPacks; ++i)
      if (first + i * 128 < rank) kept[i] = gpu::load<4>(x + first + i * 128);
    for (int i = threadIdx.x % 32; i < half; i += 32) {
      bf16 a, b;
      gpu::from_float(x[rank + i], a);
      gpu::from_float(x[rank + i + half], b);
      turn(row, i, a, b, out + rank);
    }
#pragma unroll
    for (int i = 0; i < kPacks; ++i)
#pragma unroll
      for (int j = 0; j < 4; ++j)
        if (first + i * 128 < rank) sum = fmaf(kept[i].v[j], kept[i].v[j], sum);
#pragma unroll
    for (int i = 16; i > 0; i /= 2) sum += __shfl_xor_sync(~0u, sum, i);
    const float inverse = __frsqrt_rn(__fadd_rn(__fdiv_rn(sum, static_cast<float>(rank)), eps));
#pragma unroll
    for (int i = 0; i < kPacks; ++i) {
      if (first + i * 128 >= rank) continue;
      gpu::Pack<bf16, 4> y;
#pragma unroll
      for (int j = 0; j < 4; ++j)
        gpu::from_float(__fmul_rn(__fmul_rn(inverse, kept[i].v[j]), gpu::to_float(weights[i].v[j])), y.v[j]);
      gpu::store(y, out + first + i * 128);
    }
  }
};

template <class W>
__global__ void __launch_bounds__(kThreads) new_latents_kernel(const __grid_constant__ NewLatents<W> n) {
  const Index warp = static_cast<Index>(blockIdx.x) * (kThreads / 32) + threadIdx.x / 32;
  const Index row = warp / (n.heads + 1);
  const int head = static_cast<int>(warp % (n.heads + 1)) - 1, first = threadIdx.x % 32 * 4;
  gpu::Pack<W, 4> weights[kPacks];
  if (head < 0)
#pragma unroll
    for (int i = 0; i < kPacks; ++i)
      if (first + i * 128 < n.rank) weights[i] = gpu::load<4>(n.weight + first + i * 128);
  gpu::ptx::let_next_kernel_start();
  gpu::ptx::wait_for_previous_kernel();
  if (row >= n.rows) return;
  head < 0 ? n.store_row(row, weights) : n.turn_query(row, head);
}

}  // namespace

bool store_latents(Context& ctx, const HeadNumbers& from, const HeadNumbers& to, const Tensor& projected,
                   const LatentNorm& norm, const RopeAngles& angles, const Slices& slices, Tensor& cache) {
  const Index rank = norm.weight.dim(0), width = projected.dim(1);
  if (from.x.dtype() != DType::kBF16 || cache.dtype() != DType::kBF16 || rank % 4 != 0 || rank > kMostRank ||
      width % 4 != 0)
    return false;
  if (projected.numel() == 0) return true;
  gpu::with_type(norm.weight.dtype(), [&]<class W>(W) {
    const NewLatents<W> n{static_cast<const bf16*>(from.x.raw()) + from.part.first,
                          static_cast<bf16*>(const_cast<void*>(to.x.raw())) + to.part.first,
                          from.dim(),
                          from.x.dim(1),
                          to.dim(),
                          to.x.dim(1),
                          static_cast<const float*>(projected.raw()),
                          static_cast<const W*>(norm.weight.raw()),
                          norm.eps,
                          static_cast<const float*>(angles.cos.raw()),
                          static_cast<const float*>(angles.sin.raw()),
                          slices.tables().cache_row,
                          static_cast<bf16*>(cache.raw_mutable()),
                          static_cast<int>(projected.dim(0)),
                          static_cast<int>(from.part.heads),
                          static_cast<int>(rank),
                          static_cast<int>(angles.head_dim() / 2)};
    const Index warps = projected.dim(0) * (from.part.heads + 1);
    gpu::launch(new_latents_kernel<W>, static_cast<unsigned>((warps + kThreads / 32 - 1) / (kThreads / 32)), kThreads, 0,
                ctx.stream(), n);
  });
  return true;
}

}  // namespace dsmoe::ops::cuda
