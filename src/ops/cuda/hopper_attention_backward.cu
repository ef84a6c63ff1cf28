// The statistics of rows, and the order of the kernels of attention's backward (hopper_attention_grad.cuh).
#include <cuda_bf16.h>

#include <algorithm>
#include <numbers>

#include "ops/cuda/heuristics.h"
#include "ops/cuda/hopper_attention_grad.cuh"
#include "ops/cuda/tensor_map.h"

namespace dsmoe::cuda {

namespace attention_grad {

namespace {

using bf16 = __nv_bfloat16;

// A block has 64 rows of one head. Eight lanes (head_dim 64) or 16 have one row: 8 numbers each, then pairs of lanes, ...
template <int kDim>
__global__ void __launch_bounds__(256)
    stats_kernel(const __grid_constant__ AttentionGradArgs args, float* stats, int* next, int counters) {
  constexpr int kLanes = kDim / 8;
  ptx::wait_for_previous_kernel();
  ptx::let_next_kernel_start();
  if (blockIdx.x == 0)
    for (int i = threadIdx.x; i < counters; i += 256) next[i] = 0;
  const int item = blockIdx.x / args.heads, head = blockIdx.x % args.heads;
  const auto block = args.work.blocks[item];
  const ops::cuda::SliceEntry slice = args.work.entries[block.slice];
  float* const to = stats + (static_cast<std::size_t>(head) * args.work.counts.blocks + item) * 2 * kGradRows;
#pragma unroll
  for (int i = threadIdx.x / kLanes; i < kGradRows; i += 256 / kLanes) {
    const int row = block.index * kGradRows + i;
    const bool there = row < slice.rows;
    float sum = 0;
    const std::size_t at = static_cast<std::size_t>(slice.first_row + row) * args.heads + head;
    if (there) {
      const uint4 a =
          *(reinterpret_cast<const uint4*>(static_cast<const bf16*>(args.out) + at * kDim) + threadIdx.x % kLanes);
      const uint4 b =
          *(reinterpret_cast<const uint4*>(static_cast<const bf16*>(args.dout) + at * kDim) + threadIdx.x % kLanes);
      const std::uint32_t x[4] = {a.x, a.y, a.z, a.w}, y[4] = {b.x, b.y, b.z, b.w};
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float2 u = ptx::unpack(x[j]), v = ptx::unpack(y[j]);
        sum = __fmaf_rn(u.x, v.x, sum), sum = __fmaf_rn(u.y, v.y, sum);
      }
    }
#pragma unroll
    for (int distance = 1; distance < kLanes; distance *= 2) sum = __fadd_rn(sum, __shfl_xor_sync(~0u, sum, distance));
    if (threadIdx.x % kLanes > 0) continue;
    // 2^-infinity is 0: rows that the sequence does not have weigh nothing.
    to[i] =
        there ? -args.lse[static_cast<std::size_t>(head) * args.rows + slice.first_row + row] * std::numbers::log2e_v<float>
              : -INFINITY;
    to[kGradRows + i] = sum;
  }
}

CUtensorMap map_of(const void* rows, const AttentionGradArgs& args, int heads) {
  const auto width = static_cast<std::uint64_t>(heads) * static_cast<std::uint64_t>(args.head_dim);
  return tensor_map(rows, {width, static_cast<std::uint64_t>(args.rows)}, {width}, {64, kGradRows});
}

}  // namespace

}  // namespace attention_grad

void attention_backward_hopper(const AttentionGradArgs& args, const AttentionGradMemory& memory, cudaStream_t stream) {
  using namespace attention_grad;
  const int group = args.heads / args.kv_heads, counters = 2 * memory.launches(args);
  const unsigned blocks = static_cast<unsigned>(args.work.counts.blocks) * static_cast<unsigned>(args.heads);
  launch(args.head_dim == 64 ? stats_kernel<64> : stats_kernel<128>, blocks, 256, 0, stream, args, memory.stats,
         memory.counters, counters);
  Args a{map_of(args.q, args, args.heads), map_of(args.dout, args, args.heads), map_of(args.k, args, args.kv_heads),
         map_of(args.v, args, args.kv_heads)};
  a.to = args;
  a.stats = memory.stats, a.ds = static_cast<unsigned char*>(memory.ds), a.next = memory.counters;
  a.to_log2 = args.scale * std::numbers::log2e_v<float>;
  const int band = grad_band(args.rows, args.head_dim);
  for (int first = 0; first < args.kv_heads; first += memory.kv_heads) {
    const int kv_heads = std::min(memory.kv_heads, args.kv_heads - first);
    a.first_kv_head = first, a.first_head = first * group;
    a.order = {args.work.keys, args.work.counts.keys, kv_heads, std::max(1, band / group)};
    run_keys(a, stream);
    ++a.next;
    a.order = {args.work.queries, args.work.counts.queries, kv_heads * group, band};
    run_queries(a, stream);
    ++a.next;
  }
}

}  // namespace dsmoe::cuda
