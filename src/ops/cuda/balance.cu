// Balance losses over a sequence, the batch and device groups. Counts carry no gradient; the losses' gradients with
// respect to the scores need the counts alone. Scores that do not sum to 1 (sigmoid) are divided by their sum per token.
#include <algorithm>

#include "ops/cuda/kernels.h"
#include "ops/cuda/launch.h"
#include "ops/cuda/ptx.cuh"
#include "ops/cuda/routing.cuh"

namespace dsmoe::cuda {

namespace {

inline constexpr int kSlice = 512;  // tokens of one sequence that one block adds up
inline constexpr int kThreads = 512;

struct Args {
  const std::int32_t* ids;
  const float* scores;
  float* partial;  // [sequences, slices, 2, E]: counts, sums of scores
  float* counts;   // [sequences + 2, E]
  double* loss;
  const float* whole;  // [E] counts of a whole batch of which these are some tokens; null: they are all
  float all_tokens, all_sequences;
  int experts, chosen, sequences, length, slices, devices;
  float seq_alpha, batch_alpha, device_alpha;
};

// The threads of one expert add up parts of the tokens; the parts are added in order.
template <bool kNormalise>
__global__ void __launch_bounds__(kThreads) slice_kernel(const __grid_constant__ Args args) {
  extern __shared__ std::int32_t histogram[];  // [E], then the parts' sums [parts][E]
  __shared__ float inverse[kSlice];            // what a token's scores are multiplied by
  const int experts = args.experts;
  float* sums = reinterpret_cast<float*>(histogram + experts);
  ptx::wait_for_previous_kernel();
  ptx::let_next_kernel_start();
  const int sequence = blockIdx.x / args.slices, begin = blockIdx.x % args.slices * kSlice;
  const std::size_t token0 = static_cast<std::size_t>(sequence) * args.length + begin;
  const int tokens = min(kSlice, args.length - begin);
  for (int e = threadIdx.x; e < experts; e += kThreads) histogram[e] = 0;
  for (int t = threadIdx.x / 32; kNormalise && t < tokens; t += kThreads / 32) {
    float sum = 0.0f;
    for (int e = threadIdx.x % 32; e < experts; e += 32) sum += args.scores[(token0 + t) * experts + e];
    sum = warp_sum(sum);
    if (threadIdx.x % 32 == 0) inverse[t] = 1.0f / (sum + 1e-20f);
  }
  __syncthreads();
  for (int i = threadIdx.x; i < tokens * args.chosen; i += kThreads)
    atomicAdd(&histogram[args.ids[token0 * args.chosen + i]], 1);
  const int width = min(experts, kThreads), parts = kThreads / width, part = threadIdx.x / width;
  const int per_part = (tokens + parts - 1) / parts;
  for (int e = threadIdx.x % width; e < experts && part < parts; e += width) {
    float sum = 0.0f;
#pragma unroll 16
    for (int t = part * per_part; t < min(tokens, (part + 1) * per_part); ++t)
      sum += args.scores[(token0 + t) * experts + e] * (kNormalise ? inverse[t] : 1.0f);
    sums[part * experts + e] = sum;
  }
  __syncthreads();
  float* out = args.partial + static_cast<std::size_t>(blockIdx.x) * 2 * experts;
  for (int e = threadIdx.x; e < experts; e += kThreads) {
    float sum = 0.0f;
    for (int i = 0; i < parts; ++i) sum += sums[i * experts + e];
    out[e] = static_cast<float>(histogram[e]);
    out[experts + e] = sum;
  }
}

// Sum of v over the block's experts, in one order; every thread gets it.
__device__ float block_sum(float v, float* scratch) {
  v = warp_sum(v);
  __syncthreads();
  if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = v;
  __syncthreads();
  float sum = 0.0f;
  for (int i = 0; i < kThreads / 32; ++i) sum += scratch[i];
  return sum;
}

__global__ void __launch_bounds__(kThreads) finish_kernel(const __grid_constant__ Args args) {
  __shared__ float scratch[kThreads / 32];
  ptx::wait_for_previous_kernel();
  ptx::let_next_kernel_start();
  const int experts = args.experts;
  const float tokens = args.all_tokens;
  float* total = args.counts + static_cast<std::size_t>(args.sequences) * experts;
  float* device_mean = total + experts;
  // f_i = E / (K T) * count_i
  const float frequency = static_cast<float>(experts) / static_cast<float>(args.chosen);
  float seq = 0.0f, batch = 0.0f, device = 0.0f;
  // The slices of every sequence, by all threads; the sums of scores stay where the first slice's were.
  const auto first_slice = [&](int b) { return args.partial + static_cast<std::size_t>(b) * args.slices * 2 * experts; };
  for (int i = threadIdx.x; i < args.sequences * experts; i += kThreads) {
    const int b = i / experts, e = i % experts;
    float count = 0.0f, sum = 0.0f;
#pragma unroll 16
    for (int s = 0; s < args.slices; ++s) {
      const float* in = first_slice(b) + static_cast<std::size_t>(s) * 2 * experts;
      count += in[e];
      sum += in[experts + e];
    }
    args.counts[i] = count;
    first_slice(b)[experts + e] = sum;
  }
  __syncthreads();
  for (int e = threadIdx.x; e < experts; e += kThreads) {
    float all_count = 0.0f, all_sum = 0.0f;
#pragma unroll 16
    for (int b = 0; b < args.sequences; ++b) {
      const float count = args.counts[static_cast<std::size_t>(b) * experts + e], sum = first_slice(b)[experts + e];
      seq += count * frequency / args.length * (sum / args.length);
      all_count += count;
      all_sum += sum;
    }
    if (args.whole) all_count = args.whole[e];
    total[e] = all_count;
    batch += all_count * frequency / tokens * (all_sum / tokens);
    device_mean[e] = all_sum;  // for the moment
  }
  __syncthreads();
  const int size = experts / args.devices;
  float mean_count = 0.0f;
  // Without a loss over devices nothing reads the mean counts but times zero.
  for (int g = threadIdx.x; args.device_alpha != 0 && g < args.devices; g += kThreads) {
    float count = 0.0f, sum = 0.0f;
    for (int e = g * size; e < (g + 1) * size; ++e) {
      count += total[e];
      sum += device_mean[e];
    }
    mean_count = count / size;
    device += mean_count * frequency / tokens * (sum / tokens);
    for (int e = g * size; e < (g + 1) * size; ++e) device_mean[e] = mean_count;
  }
  seq = block_sum(seq, scratch);
  batch = block_sum(batch, scratch);
  device = block_sum(device, scratch);
  if (threadIdx.x == 0 && args.loss) {
    args.loss[0] = args.seq_alpha * seq / args.all_sequences;
    args.loss[1] = args.batch_alpha * batch;
    args.loss[2] = args.device_alpha * device;
    args.loss[3] = 0;
  }
}

}  // namespace

std::size_t balance_floats(const MoeConfig& c, Index tokens, Index length) {
  const Index sequences = tokens / length, slices = (length + kSlice - 1) / kSlice;
  return static_cast<std::size_t>((sequences + 2 + sequences * slices * 2) * c.routed_experts);
}

void balance(const MoeConfig& c, const BalanceInput& in, float* scratch, double* loss, cudaStream_t stream) {
  Args args{};
  args.ids = in.experts;
  args.scores = in.scores;
  args.experts = static_cast<int>(c.routed_experts);
  args.chosen = static_cast<int>(c.experts_per_token);
  args.length = static_cast<int>(in.sequence_length);
  args.sequences = static_cast<int>(in.tokens / in.sequence_length);
  args.whole = in.whole_counts;
  args.all_tokens = static_cast<float>(in.all_tokens()), args.all_sequences = static_cast<float>(in.all_sequences());
  args.slices = (args.length + kSlice - 1) / kSlice;
  args.devices = static_cast<int>(c.devices);
  args.seq_alpha = c.seq_balance_alpha;
  args.batch_alpha = c.batch_balance_alpha;
  args.device_alpha = c.device_balance_alpha;
  args.counts = scratch;
  args.partial = scratch + static_cast<std::size_t>(args.sequences + 2) * args.experts;
  args.loss = loss;
  const auto kernel = c.score == ScoreFunction::kSigmoid ? slice_kernel<true> : slice_kernel<false>;
  launch(kernel, args.sequences * args.slices, kThreads, (args.experts + std::max(args.experts, kThreads)) * 4, stream,
         args);
  launch(finish_kernel, 1, kThreads, 0, stream, args);
}

}  // namespace dsmoe::cuda
