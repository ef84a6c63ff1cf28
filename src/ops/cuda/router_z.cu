// The router z-loss of ST-MoE: the mean over tokens of logsumexp(logits)², whose gradient with respect to a logit is
// 2 / T logsumexp score.
#include "ops/cuda/launch.h"
#include "ops/cuda/numbers.cuh"
#include "ops/cuda/ptx.cuh"
#include "ops/cuda/router_z.h"
#include "ops/cuda/routing.cuh"

namespace dsmoe::cuda {

namespace {

inline constexpr int kThreads = 256, kLossThreads = 512;

// One warp per token; its lanes take neighbouring experts in turn, and their sums are a tree.
__global__ void __launch_bounds__(kThreads) lse_kernel(const float* logits, int tokens, int experts, float* lse) {
  ptx::wait_for_previous_kernel();
  ptx::let_next_kernel_start();
  const int token = blockIdx.x * (kThreads / 32) + threadIdx.x / 32, lane = threadIdx.x % 32;
  if (token >= tokens) return;
  const float* const row = logits + static_cast<std::size_t>(token) * experts;
  float most = -INFINITY, sum = 0;
  for (int e = lane; e < experts; e += 32) most = fmaxf(most, row[e]);
#pragma unroll
  for (int i = 16; i > 0; i /= 2) most = fmaxf(most, __shfl_xor_sync(~0u, most, i));
  for (int e = lane; e < experts; e += 32) sum += expf(row[e] - most);
  sum = warp_sum(sum);
  if (lane == 0) lse[token] = most + logf(sum);
}

// Thread t adds up the squares of tokens t, t + kLossThreads, ...; the threads' sums are a tree.
__global__ void __launch_bounds__(kLossThreads)
    loss_kernel(const float* lse, int tokens, int all, float alpha, double* loss) {
  __shared__ double sums[kLossThreads];
  ptx::wait_for_previous_kernel();
  ptx::let_next_kernel_start();
  double sum = 0;
#pragma unroll 8
  for (int t = threadIdx.x; t < tokens; t += kLossThreads) sum += static_cast<double>(lse[t]) * lse[t];
  sums[threadIdx.x] = sum;
  for (int half = kLossThreads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) sums[threadIdx.x] += sums[threadIdx.x + half];
  }
  if (threadIdx.x == 0) *loss = static_cast<double>(alpha) * sums[0] / all;
}

struct Args {
  const float *lse, *scores;
  LogitGrad dlogits;
  int tokens, experts, split;
  float factor;
  const float* more;
};

__global__ void __launch_bounds__(kThreads) backward_kernel(const __grid_constant__ Args args) {
  ptx::wait_for_previous_kernel();
  ptx::let_next_kernel_start();
  const std::size_t i = static_cast<std::size_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= static_cast<std::size_t>(args.tokens) * args.experts) return;
  const std::size_t token = i / args.experts, e = i % args.experts;
  const float factor = args.more ? args.factor * *args.more : args.factor;
  const float slope = factor * args.lse[token] * args.scores[i];
  if (args.dlogits.plain) args.dlogits.plain[i] += slope;
  if (args.dlogits.split == nullptr) return;
  bf16* const at = static_cast<bf16*>(args.dlogits.split) + token * 2 * args.split + e;
  const float sum = to_float(at[0]) + to_float(at[args.split]) + slope;
  at[0] = __float2bfloat16_rn(sum);
  at[args.split] = __float2bfloat16_rn(sum - to_float(at[0]));
}

}  // namespace

void logits_lse(const float* logits, int tokens, int experts, float* lse, cudaStream_t stream) {
  constexpr int kRows = kThreads / 32;
  launch(lse_kernel, static_cast<unsigned>((tokens + kRows - 1) / kRows), kThreads, 0, stream, logits, tokens, experts,
         lse);
}

void router_z_loss(const float* lse, int tokens, int all, float alpha, double* loss, cudaStream_t stream) {
  launch(loss_kernel, 1, kLossThreads, 0, stream, lse, tokens, all, alpha, loss);
}

void router_z_backward(const float* lse, const float* scores, int tokens, int experts, float factor, const float* more,
                       const LogitGrad& dlogits, cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>(
      (static_cast<std::size_t>(tokens) * static_cast<std::size_t>(experts) + kThreads - 1) / kThreads);
  launch(backward_kernel, blocks, kThreads, 0, stream,
         Args{lse, scores, dlogits, tokens, experts, split_experts(experts), factor, more});
}

}  // namespace dsmoe::cuda
