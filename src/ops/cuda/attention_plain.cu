// Attention for every device, dtype and head size, in scalar f32: for correctness, not for speed. A block has one query and
// one head, and takes keys in the tiles of attention_tile.cuh: a thread has one key of a tile, then some columns of the
// values. A sum has a fixed place for every key of a tile, or their order, so it depends on the query's own keys alone.
#include <type_traits>

#include "ops/cuda/attention_kernels.h"
#include "ops/cuda/attention_tile.cuh"
#include "ops/cuda/launch.h"
#include "ops/cuda/numbers.cuh"

namespace dsmoe::cuda {

namespace {

using namespace attention;

constexpr int kThreads = kTile, kWarps = kThreads / 32;

__device__ inline void put(float v, float* out) { *out = v; }
__device__ inline void put(float v, bf16* out) { *out = __float2bfloat16_rn(v); }

// Number i of the cache.
template <class C>
__device__ __forceinline__ float stored(const void* cache, std::size_t i) {
  if constexpr (std::is_same_v<C, BlockQ8_0>)
    return value_of(static_cast<const BlockQ8_0*>(cache), i);
  else
    return to_float(static_cast<const C*>(cache)[i]);
}

// The same for all threads: pairs of lanes, then of those, ..., then the warps in order.
template <class Op>
__device__ float over_block(float v, Op op) {
  __shared__ float parts[kWarps];
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) v = op(v, __shfl_xor_sync(~0u, v, distance));
  __syncthreads();  // who still reads the last result
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = v;
  __syncthreads();
  v = parts[0];
#pragma unroll
  for (int w = 1; w < kWarps; ++w) v = op(v, parts[w]);
  return v;
}

// The slice that has a row of the batch; slices without rows lie before one that begins at the same row.
__device__ inline int slice_of(const ops::cuda::SliceEntry* entries, int count, int row) {
  int low = 0, high = count;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (entries[middle].first_row <= row ? low : high) = middle;
  }
  return low;
}

struct Place {
  int slices;
  const std::int32_t* position;
};

template <class T, class C>
__global__ void __launch_bounds__(kThreads) plain_kernel(const __grid_constant__ AttentionArgs args, const Place place) {
  extern __shared__ float memory[];
  __shared__ float p[kTile];
  const int dim = args.head_dim, row = blockIdx.x / args.heads, head = blockIdx.x % args.heads;
  float *const q = memory, *const o = memory + dim;
  ptx::wait_for_previous_kernel();
  ptx::let_next_kernel_start();
  const std::size_t at = (static_cast<std::size_t>(row) * args.heads + head) * dim;
  for (int d = threadIdx.x; d < dim; d += kThreads) {
    q[d] = to_float(static_cast<const T*>(args.q)[at + d]);
    o[d] = 0;
  }
  __syncthreads();
  const int position = place.position[row];
  const std::int32_t* const pages =
      args.work.tiles + args.work.entries[slice_of(args.work.entries, place.slices, row)].first_tile;
  const std::size_t stride = static_cast<std::size_t>(args.kv_heads) * dim;
  State state;
  for (int tile = 0; tile * kTile <= position; ++tile) {
    const int keys = min(kTile, position + 1 - tile * kTile), key = threadIdx.x;
    const std::size_t first =
        cache_row(pages, tile) * stride + static_cast<std::size_t>(head / (args.heads / args.kv_heads)) * dim;
    float s = -INFINITY;
    if (key < keys) {
      const std::size_t k = first + key * stride;
      s = 0;
      for (int d = 0; d < dim; ++d) s = __fmaf_rn(q[d], stored<C>(args.k, k + d), s);
    }
    const float m = over_block(s, [](float a, float b) { return fmaxf(a, b); });
    const float w = weight(s, reference(m), args.to_log2);
    const float l = over_block(w, [](float a, float b) { return __fadd_rn(a, b); });
    p[key] = w;
    __syncthreads();
    const Factors f = merge(state, m, l, args.to_log2);
    for (int d = threadIdx.x; d < dim; d += kThreads) {
      float o_t = 0;
      for (int j = 0; j < keys; ++j) o_t = __fmaf_rn(p[j], stored<C>(args.v, first + d + j * stride), o_t);
      o[d] = merged(o[d], o_t, f);
    }
    __syncthreads();
  }
  for (int d = threadIdx.x; d < dim; d += kThreads) put(__fdiv_rn(o[d], state.sum), static_cast<T*>(args.out) + at + d);
  if (args.lse && threadIdx.x == 0) args.lse[static_cast<std::size_t>(head) * args.rows + row] = log_sum(state, args.scale);
}

}  // namespace

void attention_plain(const AttentionArgs& args, int slices, const std::int32_t* position, DType dtype,
                     cudaStream_t stream) {
  const unsigned blocks = static_cast<unsigned>(args.rows) * static_cast<unsigned>(args.heads);
  const auto run = [&]<class T, class C>(T, C) {
    launch(plain_kernel<T, C>, blocks, kThreads, 2 * args.head_dim * static_cast<int>(sizeof(float)), stream, args,
           Place{slices, position});
  };
  with_type(dtype, [&](auto type) {
    args.stored == DType::kQ8_0 ? run(type, BlockQ8_0{}) : with_type(args.stored, [&](auto c) { run(type, c); });
  });
}

}  // namespace dsmoe::cuda
