// The gate: logits, scores and the K best experts of each token in one launch, and how often each expert was chosen
// by the tokens of each block, for the plan.
//
// The eight warps of a block take an eighth of D each; their partial sums are added in order. So a logit is the same
// sum whatever the number of tokens.
#include <cuda_bf16.h>

#include <type_traits>

#include "ops/cuda/kernels.h"
#include "ops/cuda/launch.h"
#include "ops/cuda/numbers.cuh"
#include "ops/cuda/ptx.cuh"
#include "ops/cuda/routing.cuh"

namespace dsmoe::cuda {

namespace {

using bf16 = __nv_bfloat16;
inline constexpr int kWarps = kGateParts;
inline constexpr int kGroup = 64;  // experts per pass
inline constexpr int kStride = kGroup + 1;

struct Args {
  RoutingRule rule;
  int tokens, width, chunks;
  const void* x;
  const void* gate;
  const float* bias;
  ChosenView out;
  std::int32_t* counts;
};

// part[warp][token][expert] of experts [first, first + 64): each lane reads 16 bytes of 32 k at a time, and both
// operands permute k alike.
template <int kTokens>
__device__ void partial_mma(const Args& args, int token0, int first, float* part) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, c = lane % 4;
  const int steps = (args.width + 31) / 32, per_warp = (steps + kWarps - 1) / kWarps;
  const bf16* x = static_cast<const bf16*>(args.x);
  const bf16* gate = static_cast<const bf16*>(args.gate);
  const bf16* a_row[8];
  const bf16* b_row[kTokens / 8];
#pragma unroll
  for (int i = 0; i < 8; ++i)
    a_row[i] = gate + static_cast<std::size_t>(min(first + i * 8 + g, args.rule.experts - 1)) * args.width;
#pragma unroll
  for (int i = 0; i < kTokens / 8; ++i)
    b_row[i] = x + static_cast<std::size_t>(min(token0 + i * 8 + g, args.tokens - 1)) * args.width;
  float acc[4][kTokens / 8][4] = {};
#pragma unroll(kTokens == 8 ? 4 : 2)  // as many loads in flight as there are registers for
  for (int s = warp * per_warp; s < min(steps, (warp + 1) * per_warp); ++s) {
    const int k = s * 32 + c * 8;
    const bool inside = k < args.width;
    uint4 a[8], b[kTokens / 8];
#pragma unroll
    for (int i = 0; i < 8; ++i) a[i] = inside ? __ldg(reinterpret_cast<const uint4*>(a_row[i] + k)) : uint4{};
#pragma unroll
    for (int i = 0; i < kTokens / 8; ++i) b[i] = inside ? __ldg(reinterpret_cast<const uint4*>(b_row[i] + k)) : uint4{};
#pragma unroll
    for (int m = 0; m < 4; ++m)
#pragma unroll
      for (int n = 0; n < kTokens / 8; ++n) {
        ptx::mma_16816(acc[m][n], a[2 * m].x, a[2 * m + 1].x, a[2 * m].y, a[2 * m + 1].y, b[n].x, b[n].y);
        ptx::mma_16816(acc[m][n], a[2 * m].z, a[2 * m + 1].z, a[2 * m].w, a[2 * m + 1].w, b[n].z, b[n].w);
      }
  }
#pragma unroll
  for (int m = 0; m < 4; ++m)
#pragma unroll
    for (int n = 0; n < kTokens / 8; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i)
        part[(warp * kTokens + n * 8 + 2 * c + i % 2) * kStride + m * 16 + g + i / 2 * 8] = acc[m][n][i];
}

// The same for any type and width.
template <int kTokens, class T>
__device__ void partial_plain(const Args& args, int token0, int first, float* part) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int per_warp = (args.width + kWarps - 1) / kWarps, end = min(args.width, (warp + 1) * per_warp);
  const T* x = static_cast<const T*>(args.x);
  for (int e = first; e < min(first + kGroup, args.rule.experts); ++e) {
    const T* weights = static_cast<const T*>(args.gate) + static_cast<std::size_t>(e) * args.width;
    float acc[kTokens] = {};
    for (int k = warp * per_warp + lane; k < end; k += 32) {
      const float w = to_float(weights[k]);
#pragma unroll
      for (int t = 0; t < kTokens; ++t)
        acc[t] = fmaf(w, to_float(x[static_cast<std::size_t>(min(token0 + t, args.tokens - 1)) * args.width + k]), acc[t]);
    }
#pragma unroll
    for (int t = 0; t < kTokens; ++t) {
      const float sum = warp_sum(acc[t]);
      if (lane == 0) part[(warp * kTokens + t) * kStride + e - first] = sum;
    }
  }
}

template <int kTokens, class T, bool kMma>
__global__ void __launch_bounds__(kWarps * 32, kTokens == 8 ? 1 : 2) gate_kernel(const __grid_constant__ Args args) {
  extern __shared__ float smem[];
  const int experts = args.rule.experts;
  float* part = smem;                                 // [warps][kTokens][kStride]
  float* scores = part + kWarps * kTokens * kStride;  // [kTokens][E]
  float* choices = scores + kTokens * experts;        // [warps][E + groups]
  auto* histogram = reinterpret_cast<std::int32_t*>(choices + kWarps * (experts + args.rule.groups));  // [E]
  const int token0 = blockIdx.x * kTokens;
  // The weights are in the cache when the kernel ahead has ended.
  const std::size_t bytes = static_cast<std::size_t>(experts) * args.width * sizeof(T);
  for (std::size_t i = (static_cast<std::size_t>(blockIdx.x) * blockDim.x + threadIdx.x) * 128; i < bytes;
       i += static_cast<std::size_t>(gridDim.x) * blockDim.x * 128)
    ptx::prefetch(static_cast<const char*>(args.gate) + i);
  ptx::wait_for_previous_kernel();
  ptx::let_next_kernel_start();
  for (int i = threadIdx.x; i < experts; i += blockDim.x) histogram[i] = 0;
  for (int first = 0; first < experts; first += kGroup) {
    if constexpr (kMma)
      partial_mma<kTokens>(args, token0, first, part);
    else
      partial_plain<kTokens, T>(args, token0, first, part);
    __syncthreads();
    for (int i = threadIdx.x; i < kTokens * kGroup; i += blockDim.x) {
      const int t = i / kGroup, e = i % kGroup;
      if (first + e >= experts) continue;
      float sum = part[t * kStride + e];
#pragma unroll
      for (int w = 1; w < kWarps; ++w) sum += part[(w * kTokens + t) * kStride + e];
      scores[t * experts + first + e] = sum;
    }
    __syncthreads();
  }
  const int warp = threadIdx.x / 32;
  for (int t = warp; t < kTokens && token0 + t < args.tokens; t += kWarps)
    choose(args.rule, args.bias, args.out, token0 + t, scores + t * experts, choices + warp * (experts + args.rule.groups),
           [&](int, int pick) { atomicAdd(&histogram[pick], 1); });
  __syncthreads();
  for (int i = threadIdx.x; i < experts; i += blockDim.x)
    args.counts[static_cast<std::size_t>(blockIdx.x) * experts + i] = histogram[i];
}

template <int kTokens, class T, bool kMma>
void run(const Args& args, cudaStream_t stream) {
  const int experts = args.rule.experts;
  const int floats = kWarps * kTokens * kStride + kTokens * experts + kWarps * (experts + args.rule.groups) + experts;
  launch(gate_kernel<kTokens, T, kMma>, args.chunks, kWarps * 32, floats * 4, stream, args);
}

}  // namespace

void gate(const MoeConfig& config, const GateInput& in, bool mma, int chunk, const ChosenView& out, std::int32_t* counts,
          cudaStream_t stream) {
  Args args{};
  args.rule = routing_rule(config);
  args.tokens = in.tokens;
  args.width = static_cast<int>(config.hidden_size);
  args.chunks = (in.tokens + chunk - 1) / chunk;
  args.x = in.x;
  args.gate = in.weight;
  args.bias = in.bias;
  args.out = out;
  args.counts = counts;
  if (in.dtype == DType::kF32) return run<8, float, false>(args, stream);
  const auto with_tokens = [&]<int kTokens>(std::integral_constant<int, kTokens>) {
    mma ? run<kTokens, bf16, true>(args, stream) : run<kTokens, bf16, false>(args, stream);
  };
  switch (chunk) {
    case 8: return with_tokens(std::integral_constant<int, 8>{});
    case 16: return with_tokens(std::integral_constant<int, 16>{});
    default: return with_tokens(std::integral_constant<int, 32>{});
  }
}

}  // namespace dsmoe::cuda
