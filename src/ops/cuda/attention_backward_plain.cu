// Attention's backward for every device, dtype and head size, in scalar f32: for correctness, not for speed.
//
// With p = e^(scale q.k - lse) and delta = <dout, out>: ds = scale p (dout.v - delta), dq = ds k, dk = dsᵀ q, dv = pᵀ dout.
// A block owns some rows of dq, or of dk and dv, and takes the rows on the other side 128 at a time: a thread has one of
// them for the scores, then some columns. Every sum is one chain in ascending order of the other side's positions (and
// heads, for keys that several share), and every score one chain over the head, so the result depends on the sequence
// alone.
#include <numbers>

#include "ops/cuda/attention_kernels.h"
#include "ops/cuda/launch.h"
#include "ops/cuda/numbers.cuh"
#include "ops/cuda/ptx.cuh"

namespace dsmoe::cuda {

namespace {

constexpr int kThreads = 128, kTile = kThreads;
constexpr int kMostRows = 8,
              kWideHead = 576;  // with 8 rows a block of heads of 576 has 36 KiB of operands in shared memory

__host__ __device__ constexpr int padded(int dim) { return (dim + 3) / 4 * 4; }

// A warp has one row of one head: lanes take every 32nd number, then pairs of lanes are added, pairs of those, ...
template <class T>
__global__ void __launch_bounds__(kThreads) delta_kernel(const __grid_constant__ AttentionGradArgs args, float* delta) {
  ptx::wait_for_previous_kernel();
  ptx::let_next_kernel_start();
  const long long item = static_cast<long long>(blockIdx.x) * (kThreads / 32) + threadIdx.x / 32;
  const long long row = item / args.heads, head = item % args.heads;
  if (row >= args.rows) return;
  const T* const out = static_cast<const T*>(args.out) + item * args.head_dim;
  const T* const dout = static_cast<const T*>(args.dout) + item * args.head_dim;
  float sum = 0;
  for (int d = threadIdx.x % 32; d < args.head_dim; d += 32) sum = __fmaf_rn(to_float(out[d]), to_float(dout[d]), sum);
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) sum = __fadd_rn(sum, __shfl_xor_sync(~0u, sum, distance));
  if (threadIdx.x % 32 == 0) delta[head * args.rows + row] = sum;
}

// The dot products of kRows rows in shared memory with a row in memory.
template <int kRows, class T>
__device__ __forceinline__ void dots(const float* own, const T* other, int dim, float (&sum)[kRows]) {
#pragma unroll
  for (int r = 0; r < kRows; ++r) sum[r] = 0;
  for (int d = 0; d < dim; d += 4) {
    float x[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) x[i] = d + i < dim ? to_float(other[d + i]) : 0.0f;
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const float4 y = *reinterpret_cast<const float4*>(own + r * padded(dim) + d);
      sum[r] = __fmaf_rn(y.x, x[0], sum[r]), sum[r] = __fmaf_rn(y.y, x[1], sum[r]);
      sum[r] = __fmaf_rn(y.z, x[2], sum[r]), sum[r] = __fmaf_rn(y.w, x[3], sum[r]);
    }
  }
}

// to[r * stride] += the sum over `count` rows of weight[r][j] x[j * x_stride], for `rows` rows.
template <int kRows, class T>
__device__ __forceinline__ void add_rows(const float (&weight)[kRows][kTile], const T* x, std::size_t x_stride, int count,
                                         float* to, std::size_t stride, int rows) {
  float sum[kRows];
#pragma unroll
  for (int r = 0; r < kRows; ++r) sum[r] = r < rows ? to[r * stride] : 0.0f;
  for (int j = 0; j < count; j += 4) {
    float v[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) v[i] = j + i < count ? to_float(x[(j + i) * x_stride]) : 0.0f;
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const float4 w = *reinterpret_cast<const float4*>(&weight[r][j]);
      sum[r] = __fmaf_rn(w.x, v[0], sum[r]), sum[r] = __fmaf_rn(w.y, v[1], sum[r]);
      sum[r] = __fmaf_rn(w.z, v[2], sum[r]), sum[r] = __fmaf_rn(w.w, v[3], sum[r]);
    }
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r)
    if (r < rows) to[r * stride] = sum[r];
}

// kKeys: the block's rows are keys and values, and it makes dk and dv; else they are queries, and it makes dq. `Side` is q
// and dout, or k and v.
template <class T>
struct Side {
  const T *first, *second;
  int heads;
  __device__ std::size_t stride(int dim) const { return static_cast<std::size_t>(heads) * dim; }
};

template <class T, int kRows, bool kKeys>
__global__ void __launch_bounds__(kThreads)
    grad_kernel(const __grid_constant__ AttentionGradArgs args, const float* delta) {
  extern __shared__ __align__(16) float memory[];
  __shared__ __align__(16) float p[kRows][kTile], ds[kRows][kTile];
  const int dim = args.head_dim, group = args.heads / args.kv_heads, own_heads = kKeys ? args.kv_heads : args.heads;
  const int own_head = blockIdx.x % own_heads, part = blockIdx.x / own_heads % (ops::cuda::kGradRows / kRows);
  const auto block = args.work.blocks[blockIdx.x / own_heads / (ops::cuda::kGradRows / kRows)];
  const ops::cuda::SliceEntry slice = args.work.entries[block.slice];
  const int first = block.index * ops::cuda::kGradRows + part * kRows, rows = min(kRows, slice.rows - first);
  if (rows <= 0) return;
  ptx::wait_for_previous_kernel();
  ptx::let_next_kernel_start();
  const Side<T> queries{static_cast<const T*>(args.q), static_cast<const T*>(args.dout), args.heads};
  const Side<T> keys{static_cast<const T*>(args.k), static_cast<const T*>(args.v), args.kv_heads};
  const Side<T>&own = kKeys ? keys : queries, &other = kKeys ? queries : keys;
  const std::size_t stride = own.stride(dim), other_stride = other.stride(dim);
  const std::size_t own_at = (slice.first_row + first) * stride + static_cast<std::size_t>(own_head) * dim;

  float *const x = memory, *const y = memory + kRows * padded(dim);
  for (int i = threadIdx.x; i < kRows * padded(dim); i += kThreads) {
    const int r = i / padded(dim), d = i % padded(dim);
    const bool there = r < rows && d < dim;
    x[i] = there ? to_float(own.first[own_at + r * stride + d]) : 0.0f;
    y[i] = there ? to_float(own.second[own_at + r * stride + d]) : 0.0f;
  }
  float *const slopes = static_cast<float*>(kKeys ? args.dk : args.dq), *const values = static_cast<float*>(args.dv);
  for (int r = 0; r < rows; ++r)
    for (int d = threadIdx.x; d < dim; d += kThreads) {
      slopes[own_at + r * stride + d] = 0;
      if (kKeys) values[own_at + r * stride + d] = 0;
    }
  __syncthreads();

  const int begin = kKeys ? first : 0, end = kKeys ? slice.rows : first + rows;  // of the other side
  for (int h = kKeys ? own_head * group : own_head / group; h < (kKeys ? (own_head + 1) * group : own_head / group + 1);
       ++h)
    for (int tile = begin; tile < end; tile += kTile) {
      const int count = min(kTile, end - tile), at = tile + threadIdx.x;
      const std::size_t other_at = (slice.first_row + tile) * other_stride + static_cast<std::size_t>(h) * dim;
      float s[kRows] = {}, slope[kRows] = {};
      if (at < end) {
        dots(x, other.first + other_at + threadIdx.x * other_stride, dim, s);
        dots(y, other.second + other_at + threadIdx.x * other_stride, dim, slope);
      }
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        const int query = kKeys ? at : first + r, key = kKeys ? first + r : at;
        const bool seen = r < rows && at < end && key <= query;
        const std::size_t row =
            static_cast<std::size_t>(kKeys ? h : own_head) * args.rows + slice.first_row + (seen ? query : 0);
        const float exponent = __fmul_rn(__fmaf_rn(s[r], args.scale, -args.lse[row]), std::numbers::log2e_v<float>);
        const float weight = seen ? ptx::exp2(exponent) : 0.0f;
        p[r][threadIdx.x] = weight;
        ds[r][threadIdx.x] = seen ? __fmul_rn(__fmul_rn(weight, args.scale), __fsub_rn(slope[r], delta[row])) : 0.0f;
      }
      __syncthreads();
      for (int d = threadIdx.x; d < dim; d += kThreads) {
        add_rows(ds, other.first + other_at + d, other_stride, count, slopes + own_at + d, stride, rows);
        if (kKeys) add_rows(p, other.second + other_at + d, other_stride, count, values + own_at + d, stride, rows);
      }
      __syncthreads();
    }
}

template <class T, int kRows>
void run(const AttentionGradArgs& args, const float* delta, cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>(args.work.counts.blocks * (ops::cuda::kGradRows / kRows));
  const int bytes = 2 * kRows * padded(args.head_dim) * static_cast<int>(sizeof(float));
  launch(grad_kernel<T, kRows, true>, blocks * static_cast<unsigned>(args.kv_heads), kThreads, bytes, stream, args, delta);
  launch(grad_kernel<T, kRows, false>, blocks * static_cast<unsigned>(args.heads), kThreads, bytes, stream, args, delta);
}

}  // namespace

void attention_backward_plain(const AttentionGradArgs& args, float* delta, DType dtype, cudaStream_t stream) {
  with_type(dtype, [&]<class T>(T) {
    const unsigned rows = static_cast<unsigned>(args.rows) * static_cast<unsigned>(args.heads);
    launch(delta_kernel<T>, (rows + kThreads / 32 - 1) / (kThreads / 32), kThreads, 0, stream, args, delta);
    args.head_dim <= kWideHead ? run<T, kMostRows>(args, delta, stream) : run<T, 1>(args, delta, stream);
  });
}

}  // namespace dsmoe::cuda
