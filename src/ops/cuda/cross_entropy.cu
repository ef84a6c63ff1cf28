// The loss on a GPU. A row's sum has one order: the threads of its block take neighbouring logits in turn, and their sums,
// in double, are added as a tree; the tokens' losses are added one after another by one thread.
#include "core/fault.h"
#include "ops/cross_entropy.h"
#include "ops/cuda/launch.h"
#include "ops/cuda/ptx.cuh"

namespace dsmoe::ops::cuda {

namespace gpu = dsmoe::cuda;

namespace {

constexpr int kThreads = 512, kWarps = kThreads / 32;

// The same value in every thread, for sum and max alike.
template <class T, class Fn>
__device__ T reduce(T value, T* warps, Fn fn) {
#pragma unroll
  for (int i = 16; i > 0; i /= 2) value = fn(value, __shfl_xor_sync(~0u, value, i));
  __syncthreads();
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = value;
  __syncthreads();
  value = warps[0];
  for (int i = 1; i < kWarps; ++i) value = fn(value, warps[i]);
  return value;
}

struct Rows {
  const float* logits;
  const std::int32_t* targets;
  int vocab;
  double* losses;
};

__global__ void __launch_bounds__(kThreads) loss_kernel(const __grid_constant__ Rows r) {
  __shared__ float largest_of[kWarps];
  __shared__ double sum_of[kWarps];
  gpu::ptx::wait_for_previous_kernel();
  gpu::ptx::let_next_kernel_start();
  const std::int32_t target = r.targets[blockIdx.x];
  if (target == kIgnoredTarget) {
    if (threadIdx.x == 0) r.losses[blockIdx.x] = 0;
    return;
  }
  const float* const x = r.logits + static_cast<Index>(blockIdx.x) * r.vocab;
  float largest = -INFINITY;
  for (int c = threadIdx.x; c < r.vocab; c += kThreads) largest = fmaxf(largest, x[c]);
  largest = reduce(largest, largest_of, [](float a, float b) { return fmaxf(a, b); });
  double sum = 0;
  for (int c = threadIdx.x; c < r.vocab; c += kThreads) sum += static_cast<double>(expf(x[c] - largest));
  sum = reduce(sum, sum_of, [](double a, double b) { return a + b; });
  if (threadIdx.x == 0) r.losses[blockIdx.x] = largest + log(sum) - static_cast<double>(x[target]);
}

__global__ void add_up_kernel(const double* losses, const std::int32_t* targets, int rows, unsigned long long fault,
                              unsigned long long* faults, float* token_losses, double* result) {
  gpu::ptx::wait_for_previous_kernel();
  gpu::ptx::let_next_kernel_start();
  double sum = 0, count = 0;
  for (int t = 0; t < rows; ++t) {
    if (!isfinite(losses[t])) atomicMin(faults, fault | static_cast<unsigned>(t));
    sum += losses[t];
    count += targets[t] != kIgnoredTarget;
    if (token_losses) token_losses[t] = static_cast<float>(losses[t]);
  }
  result[0] = sum;
  result[1] = count;
}

}  // namespace

Tensor cross_entropy(Context& ctx, const Tensor& logits, const Tensor& targets, Tensor* token_losses) {
  Tensor result = ctx.zeros(DType::kF64, {2});
  const Index rows = logits.dim(0);
  if (rows == 0) return result;
  const Tensor placed = ctx.place(targets);
  const auto* const target = static_cast<const std::int32_t*>(placed.raw());
  Tensor losses = ctx.empty(DType::kF64, {rows});
  auto* const loss = static_cast<double*>(losses.raw_mutable());
  gpu::launch(loss_kernel, static_cast<unsigned>(rows), kThreads, 0, ctx.stream(),
              Rows{static_cast<const float*>(logits.raw()), target, static_cast<int>(logits.dim(1)), loss});
  gpu::launch(add_up_kernel, 1, 1, 0, ctx.stream(), loss, target, static_cast<int>(rows),
              fault_of(FaultCode::kLossNotFinite, -1), ctx.fault_word(),
              token_losses ? static_cast<float*>(token_losses->raw_mutable()) : nullptr,
              static_cast<double*>(result.raw_mutable()));
  return result;
}

}  // namespace dsmoe::ops::cuda
