// The loss on a GPU, and its gradient. A row's sum has one order: the threads of its block take neighbouring logits in
// turn, and their sums, in double, are added as a tree. The logits are read once if a row fits its threads' registers, else
// twice: for the sum, and for the gradient.
#include <type_traits>

#include "core/fault.h"
#include "ops/cross_entropy.h"
#include "ops/cuda/launch.h"
#include "ops/cuda/numbers.cuh"
#include "ops/cuda/ptx.cuh"

namespace dsmoe::ops::cuda {

namespace gpu = dsmoe::cuda;

namespace {

constexpr int kThreads = 512, kWarps = kThreads / 32;
constexpr int kMostKept = 8;  // times four logits that a thread keeps: 16384 words

// The largest number so far and the sum of e^(number - largest), which is put right when a larger one comes.
struct Softmax {
  float largest = -INFINITY;
  double sum = 0;

  template <int kCount>
  __device__ void add(const float (&x)[kCount]) {
    float most = x[0];
#pragma unroll
    for (int i = 1; i < kCount; ++i) most = fmaxf(most, x[i]);
    if (most > largest) {
      if (largest != -INFINITY) sum *= static_cast<double>(expf(largest - most));
      largest = most;
    }
    float some = 0;
#pragma unroll
    for (int i = 0; i < kCount; ++i) some += x[i] == -INFINITY ? 0.0f : expf(x[i] - largest);
    sum += static_cast<double>(some);
  }
  __device__ void add(const Softmax& other) {
    const float most = fmaxf(largest, other.largest);
    // An infinite logit makes the sum NaN here, which is reported as a fault; -infinity alone does not.
    const auto part = [&](const Softmax& s) {
      return s.largest == -INFINITY ? s.sum : s.sum * static_cast<double>(expf(s.largest - most));
    };
    sum = part(*this) + part(other);
    largest = most;
  }
};

// The largest of a block's numbers, and a sum as a tree over the lanes and then over the warps; the same in every thread.
__device__ float largest_of_block(float value) {
  __shared__ float warps[kWarps];
#pragma unroll
  for (int i = 16; i > 0; i /= 2) value = fmaxf(value, __shfl_xor_sync(~0u, value, i));
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = value;
  __syncthreads();
  value = warps[threadIdx.x % kWarps];
#pragma unroll
  for (int i = kWarps / 2; i > 0; i /= 2) value = fmaxf(value, __shfl_xor_sync(~0u, value, i));
  return value;
}
__device__ double sum_of_block(double value) {
  __shared__ double warps[kWarps];
#pragma unroll
  for (int i = 16; i > 0; i /= 2) value += __shfl_xor_sync(~0u, value, i);
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = value;
  __syncthreads();
  value = warps[threadIdx.x % kWarps];
#pragma unroll
  for (int i = kWarps / 2; i > 0; i /= 2) value += __shfl_xor_sync(~0u, value, i);
  return value;
}

// The same value in every thread: a tree over the lanes, then the warps in order.
__device__ Softmax over_block(Softmax own) {
  __shared__ float largest[kWarps];
  __shared__ double sum[kWarps];
#pragma unroll
  for (int i = 1; i < 32; i *= 2) {
    Softmax other;
    other.largest = __shfl_xor_sync(~0u, own.largest, i);
    other.sum = __shfl_xor_sync(~0u, own.sum, i);
    // Both lanes of a pair add in the same order.
    if (threadIdx.x & i) {
      other.add(own);
      own = other;
    } else {
      own.add(other);
    }
  }
  if (threadIdx.x % 32 == 0) largest[threadIdx.x / 32] = own.largest, sum[threadIdx.x / 32] = own.sum;
  __syncthreads();
  own = {largest[0], sum[0]};
  for (int i = 1; i < kWarps; ++i) own.add({largest[i], sum[i]});
  return own;
}

struct Rows {
  const float* logits;
  const std::int32_t* targets;
  int vocab;
  double* losses;
  float scale;
  unsigned long long fault;  // of a target that the vocabulary has not
  unsigned long long* faults;
};

// G: of the gradient, which may be written over the logits; void: none is wanted. kKept: pieces of a row that a thread
// keeps, all of them; 0: it reads them again.
template <int kVector, int kKept, class G>
__global__ void __launch_bounds__(kThreads) loss_kernel(const __grid_constant__ Rows r, G* dlogits) {
  constexpr int kStep = kThreads * kVector;
  gpu::ptx::wait_for_previous_kernel();
  gpu::ptx::let_next_kernel_start();
  const std::int32_t target = r.targets[blockIdx.x];
  const Index row = static_cast<Index>(blockIdx.x) * r.vocab;
  const int first = threadIdx.x * kVector;
  const bool known = 0 <= target && target < r.vocab;
  if (!known) {
    if (threadIdx.x == 0) r.losses[blockIdx.x] = 0;
    if (threadIdx.x == 0 && target != kIgnoredTarget) atomicMin(r.faults, r.fault | blockIdx.x);
    if constexpr (!std::is_void_v<G>)
      for (int c = first; c < r.vocab; c += kStep) gpu::store(gpu::Pack<G, kVector>{}, dlogits + row + c);
    return;
  }
  const float* const x = r.logits + row;
  Softmax own;
  gpu::Pack<float, kVector> kept[kKept + 1];
  if constexpr (kKept > 0) {
#pragma unroll
    for (int i = 0; i < kKept; ++i)
      if (first + i * kStep < r.vocab) kept[i] = gpu::load<kVector>(x + first + i * kStep);
#pragma unroll
    for (int i = 0; i < kKept; ++i)
      if (first + i * kStep < r.vocab)
#pragma unroll
        for (int j = 0; j < kVector; ++j) own.largest = fmaxf(own.largest, kept[i].v[j]);
    own.largest = largest_of_block(own.largest);
    // The powers take the logits' place. An infinite or NaN logit makes the sum NaN, which is reported as a fault.
#pragma unroll
    for (int i = 0; i < kKept; ++i)
      if (first + i * kStep < r.vocab) {
        float some = 0;
#pragma unroll
        for (int j = 0; j < kVector; ++j) some += kept[i].v[j] = expf(kept[i].v[j] - own.largest);
        own.sum += static_cast<double>(some);
      }
  } else {
    for (int c = first; c < r.vocab; c += kStep) own.add(gpu::load<kVector>(x + c).v);
  }
  const Softmax all = kKept > 0 ? Softmax{own.largest, sum_of_block(own.sum)} : over_block(own);
  if (threadIdx.x == 0) r.losses[blockIdx.x] = all.largest + log(all.sum) - static_cast<double>(x[target]);
  if constexpr (!std::is_void_v<G>) {
    __syncthreads();  // the target's logit has been read
    const auto inverse = static_cast<float>(1 / all.sum);
    const auto put = [&](int c, const gpu::Pack<float, kVector>& in) {
      gpu::Pack<G, kVector> out;
#pragma unroll
      for (int i = 0; i < kVector; ++i)
        gpu::from_float(
            r.scale * ((kKept > 0 ? in.v[i] : expf(in.v[i] - all.largest)) * inverse - (c + i == target ? 1.0f : 0.0f)),
            out.v[i]);
      gpu::store(out, dlogits + row + c);
    };
    if constexpr (kKept > 0) {
#pragma unroll
      for (int i = 0; i < kKept; ++i)
        if (first + i * kStep < r.vocab) put(first + i * kStep, kept[i]);
    } else {
      for (int c = first; c < r.vocab; c += kStep) put(c, gpu::load<kVector>(x + c));
    }
  }
}

// The losses' sum: thread t adds up those of tokens t, t + kThreads, ..., and the threads' sums are a tree.
__global__ void __launch_bounds__(kThreads)
    add_up_kernel(const double* losses, const std::int32_t* targets, int rows, unsigned long long fault,
                  unsigned long long* faults, float* token_losses, double* result) {
  __shared__ double sums[kThreads], counts[kThreads];
  gpu::ptx::wait_for_previous_kernel();
  gpu::ptx::let_next_kernel_start();
  double sum = 0, count = 0;
  for (int t = threadIdx.x; t < rows; t += kThreads) {
    if (!isfinite(losses[t])) atomicMin(faults, fault | static_cast<unsigned>(t));
    sum += losses[t];
    count += targets[t] != kIgnoredTarget;
    if (token_losses) token_losses[t] = static_cast<float>(losses[t]);
  }
  sums[threadIdx.x] = sum;
  counts[threadIdx.x] = count;
  for (int half = kThreads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x >= half) continue;
    sums[threadIdx.x] += sums[threadIdx.x + half];
    counts[threadIdx.x] += counts[threadIdx.x + half];
  }
  if (threadIdx.x > 0) return;
  result[0] = sums[0];
  result[1] = counts[0];
}

template <class G>
void run(Context& ctx, const Rows& r, Index rows, G* dlogits) {
  const auto kernel = r.vocab % 4 != 0                     ? loss_kernel<1, 0, G>
                      : r.vocab > kThreads * 4 * kMostKept ? loss_kernel<4, 0, G>
                                                           : loss_kernel<4, kMostKept, G>;
  gpu::launch(kernel, static_cast<unsigned>(rows), kThreads, 0, ctx.stream(), r, dlogits);
}

}  // namespace

Tensor cross_entropy(Context& ctx, const Tensor& logits, const Tensor& targets, Tensor* token_losses, Tensor* dlogits,
                     float scale) {
  Tensor result = ctx.zeros(DType::kF64, {2});
  const Index rows = logits.dim(0);
  if (rows == 0) return result;
  const Tensor placed = ctx.place(targets);
  const auto* const target = static_cast<const std::int32_t*>(placed.raw());
  const bool exact = token_losses && token_losses->dtype() == DType::kF64;
  Tensor losses = exact ? *token_losses : ctx.empty(DType::kF64, {rows});
  auto* const loss = static_cast<double*>(losses.raw_mutable());
  const Rows r{static_cast<const float*>(logits.raw()), target,          static_cast<int>(logits.dim(1)), loss, scale,
               fault_of(FaultCode::kNoSuchToken, -1),   ctx.fault_word()};
  if (dlogits)
    gpu::with_type(dlogits->dtype(), [&]<class G>(G) { run(ctx, r, rows, static_cast<G*>(dlogits->raw_mutable())); });
  else
    run(ctx, r, rows, static_cast<void*>(nullptr));
  gpu::launch(add_up_kernel, 1, kThreads, 0, ctx.stream(), loss, target, static_cast<int>(rows),
              fault_of(FaultCode::kLossNotFinite, -1), ctx.fault_word(),
              token_losses && !exact ? static_cast<float*>(token_losses->raw_mutable()) : nullptr,
              static_cast<double*>(result.raw_mutable()));
  return result;
}

}  // namespace dsmoe::ops::cuda
