// Backward of the gate: row weights and balance losses -> scores -> logits -> x and the gate's weights.
#include "ops/cuda/kernels.h"
#include "ops/cuda/portable.cuh"
#include "ops/cuda/routing.cuh"

namespace dsmoe::cuda {

namespace {

inline constexpr int kWarps = 8;

struct Args {
  const std::int32_t* ids;
  const std::int32_t* slot_row;
  const float* scores;
  const float* weight_grad;  // [R, parts]
  const float* counts;       // [sequences + 2, E]; null: no balance loss
  const float* factor;       // multiplies the three factors below; null: 1
  LogitGrad dlogits;
  int split;  // row length of one half of dlogits.split
  int tokens, experts, chosen, parts, length, sequences;
  bool sigmoid, normalise;
  float scale, seq_factor, batch_factor, device_factor;  // times a count: the gradient of a score
};

// ds, the gradient of scores / sum of scores, becomes that of the scores. Each lane has its own experts of a token.
__device__ void through_normalised(float* ds, const float* scores, int experts) {
  float sum = 0.0f, dot = 0.0f;
  for (int e = threadIdx.x % 32; e < experts; e += 32) {
    sum += scores[e];
    dot += ds[e] * scores[e];
  }
  sum = warp_sum(sum) + 1e-20f;
  const float mean = warp_sum(dot) / sum;
  for (int e = threadIdx.x % 32; e < experts; e += 32) ds[e] = (ds[e] - mean) / sum;
}

// One warp per token.
__global__ void __launch_bounds__(kWarps * 32) scores_backward_kernel(const __grid_constant__ Args args) {
  extern __shared__ float smem[];
  ptx::wait_for_previous_kernel();
  ptx::let_next_kernel_start();
  const int lane = threadIdx.x % 32, token = blockIdx.x * kWarps + threadIdx.x / 32;
  if (token >= args.tokens) return;
  float* ds = smem + threadIdx.x / 32 * args.experts;
  const float* scores = args.scores + static_cast<std::size_t>(token) * args.experts;
  const float factor = args.counts && args.factor ? *args.factor : 1.0f;
  for (int e = lane; e < args.experts; e += 32) {
    float v = 0.0f;
    if (args.counts) {
      const std::size_t all = static_cast<std::size_t>(args.sequences) * args.experts;
      v = args.seq_factor * args.counts[static_cast<std::size_t>(token / args.length) * args.experts + e] +
          args.batch_factor * args.counts[all + e] + args.device_factor * args.counts[all + args.experts + e];
      v *= factor;
    }
    ds[e] = v;
  }
  if (args.counts && args.sigmoid) through_normalised(ds, scores, args.experts);
  __syncwarp();
  const std::size_t first = static_cast<std::size_t>(token) * args.chosen;
  float* grads = smem + kWarps * args.experts + threadIdx.x / 32 * args.chosen;
  float sum = 0.0f, dot = 0.0f;  // over the chosen: scores, gradients times scores
  for (int k = 0; k < args.chosen; ++k) {
    const float* parts = args.weight_grad + static_cast<std::size_t>(args.slot_row[first + k]) * args.parts;
    float grad = 0.0f;
    for (int i = lane; i < args.parts; i += 32) grad += parts[i];
    grad = args.scale * warp_sum(grad);
    const float score = scores[args.ids[first + k]];
    sum += score;
    dot += grad * score;
    if (lane == 0) grads[k] = grad;
  }
  sum += 1e-20f;
  __syncwarp();
  for (int k = lane; k < args.chosen; k += 32)
    ds[args.ids[first + k]] += args.normalise ? (grads[k] - dot / sum) / sum : grads[k];
  __syncwarp();
  float mean = 0.0f;
  if (!args.sigmoid) {
    for (int e = lane; e < args.experts; e += 32) mean += ds[e] * scores[e];
    mean = warp_sum(mean);
  }
  const int padded = args.dlogits.split ? args.split : args.experts;
  for (int e = lane; e < padded; e += 32) {
    float v = 0.0f;
    if (e < args.experts) {
      const float s = scores[e];
      v = args.sigmoid ? ds[e] * s * (1.0f - s) : s * (ds[e] - mean);
    }
    if (args.dlogits.plain) args.dlogits.plain[static_cast<std::size_t>(token) * args.experts + e] = v;
    if (args.dlogits.split) {
      bf16* out = static_cast<bf16*>(args.dlogits.split) + static_cast<std::size_t>(token) * 2 * args.split + e;
      const bf16 high = __float2bfloat16_rn(v);
      out[0] = high;
      out[args.split] = __float2bfloat16_rn(v - __bfloat162float(high));
    }
  }
}

// A value as the sum of two bf16: half 0 the rounded value, half 1 what rounding lost. In f32 products half 1 is 0.
template <class T>
__device__ float part_of(float v, int half) {
  if constexpr (std::is_same_v<T, float>) return half == 0 ? v : 0.0f;
  const float high = __bfloat162float(__float2bfloat16_rn(v));
  return half == 0 ? high : v - high;
}

// m: tokens, n: D, k: experts, twice (high and low halves of dlogits).
template <class T>
struct InputBackward {
  static constexpr bool kContiguousM = false, kContiguousN = true;
  const float* dlogits;
  const T* gate;
  T* dx;
  int tokens, experts, width;
  __device__ portable::Rows rows(int) const { return {0, 0, tokens}; }
  __device__ int m_size(const portable::Rows&) const { return tokens; }
  __device__ int n_size() const { return width; }
  __device__ int k_size(const portable::Rows&) const { return std::is_same_v<T, float> ? experts : 2 * experts; }
  __device__ float a(const portable::Rows&, int m, int k) const {
    return part_of<T>(dlogits[static_cast<std::size_t>(m) * experts + k % experts], k / experts);
  }
  __device__ float b(const portable::Rows&, int n, int k) const {
    return to_float(gate[static_cast<std::size_t>(k % experts) * width + n]);
  }
  __device__ void store(const portable::Rows&, const portable::Result& c) const {
    for (int i = threadIdx.x; i < portable::kTile * portable::kTile; i += portable::kThreads) {
      const int m = c.m0 + i / portable::kTile, n = c.n0 + i % portable::kTile;
      if (m < tokens && n < width)
        portable::put(c.tile[i / portable::kTile][i % portable::kTile], dx + static_cast<std::size_t>(m) * width + n);
    }
  }
};

// m: experts, n: D, k: the tokens of slice z, twice.
template <class T>
struct WeightBackward {
  static constexpr bool kContiguousM = true, kContiguousN = true;
  const float* dlogits;
  const T* x;
  float* partial;  // [slices, E, D]
  int tokens, experts, width, slice;
  __device__ portable::Rows rows(int z) const { return {z, z * slice, min(slice, tokens - z * slice)}; }
  __device__ int m_size(const portable::Rows&) const { return experts; }
  __device__ int n_size() const { return width; }
  __device__ int k_size(const portable::Rows& r) const { return std::is_same_v<T, float> ? r.count : 2 * r.count; }
  __device__ float a(const portable::Rows& r, int m, int k) const {
    return part_of<T>(dlogits[static_cast<std::size_t>(r.begin + k % r.count) * experts + m], k / r.count);
  }
  __device__ float b(const portable::Rows& r, int n, int k) const {
    return to_float(x[static_cast<std::size_t>(r.begin + k % r.count) * width + n]);
  }
  __device__ void store(const portable::Rows& r, const portable::Result& c) const {
    for (int i = threadIdx.x; i < portable::kTile * portable::kTile; i += portable::kThreads) {
      const int m = c.m0 + i / portable::kTile, n = c.n0 + i % portable::kTile;
      if (m < experts && n < width)
        partial[(static_cast<std::size_t>(r.expert) * experts + m) * width + n] =
            c.tile[i / portable::kTile][i % portable::kTile];
    }
  }
};

template <class G>
__global__ void __launch_bounds__(256)
    add_slices_kernel(const float* partial, int slices, std::size_t stride, std::size_t size, G* grad, bool accumulate) {
  ptx::wait_for_previous_kernel();
  ptx::let_next_kernel_start();
  const std::size_t i = static_cast<std::size_t>(blockIdx.x) * 256 + threadIdx.x;
  if (i >= size) return;
  float sum = accumulate ? to_float(grad[i]) : 0.0f;
#pragma unroll 8
  for (int s = 0; s < slices; ++s) sum += partial[s * stride + i];
  portable::put(sum, grad + i);
}

}  // namespace

void gate_scores_backward(const MoeConfig& c, const ScoresBackward& in, const LogitGrad& out, cudaStream_t stream) {
  Args args{};
  args.ids = in.chosen.experts;
  args.slot_row = in.slot_row;
  args.scores = in.chosen.scores;
  args.weight_grad = in.weight_grad;
  args.counts = in.balance_counts;
  args.factor = in.scale_factor;
  args.dlogits = out;
  args.split = split_experts(c.routed_experts);
  args.tokens = static_cast<int>(in.chosen.tokens);
  args.experts = static_cast<int>(c.routed_experts);
  args.chosen = static_cast<int>(c.experts_per_token);
  args.parts = in.parts;
  args.length = static_cast<int>(in.chosen.sequence_length);
  args.sequences = args.tokens / args.length;
  args.sigmoid = c.score == ScoreFunction::kSigmoid;
  args.normalise = c.norm_topk_prob && args.chosen > 1;
  args.scale = c.routed_scaling_factor;
  const float frequency = in.balance_scale * static_cast<float>(args.experts) / static_cast<float>(args.chosen);
  const float t = static_cast<float>(in.chosen.all_tokens()), length = static_cast<float>(args.length);
  args.seq_factor = c.seq_balance_alpha * frequency / length / t;  // / L for f, / L / B for the means
  args.batch_factor = c.batch_balance_alpha * frequency / t / t;
  args.device_factor = c.device_balance_alpha * frequency / t / t;
  launch(scores_backward_kernel, static_cast<unsigned>((args.tokens + kWarps - 1) / kWarps), kWarps * 32,
         kWarps * (args.experts + args.chosen) * 4, stream, args);
}

void gate_input_backward(const GateProducts& p, const void* gate, void* dx, cudaStream_t stream) {
  const auto go = [&]<class T>(T*, bool mma) {
    portable::run(
        InputBackward<T>{p.dlogits, static_cast<const T*>(gate), static_cast<T*>(dx), p.tokens, p.experts, p.width}, mma,
        p.tokens, p.width, 1, stream);
  };
  p.dtype == DType::kF32 ? go(static_cast<float*>(nullptr), false) : go(static_cast<bf16*>(nullptr), p.mma);
}

void gate_weight_backward(const GateProducts& p, const void* x, float* partial, cudaStream_t stream) {
  const int slice = gate_slice(p.tokens), slices = gate_slices(p.tokens);
  const auto go = [&]<class T>(T*, bool mma) {
    portable::run(WeightBackward<T>{p.dlogits, static_cast<const T*>(x), partial, p.tokens, p.experts, p.width, slice}, mma,
                  p.experts, p.width, slices, stream);
  };
  p.dtype == DType::kF32 ? go(static_cast<float*>(nullptr), false) : go(static_cast<bf16*>(nullptr), p.mma);
}

void add_slices(const float* partial, int slices, std::size_t stride, std::size_t size, DType grad_dtype, void* grad,
                bool accumulate, cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>((size + 255) / 256);
  if (grad_dtype == DType::kF32)
    launch(add_slices_kernel<float>, blocks, 256, 0, stream, partial, slices, stride, size, static_cast<float*>(grad),
           accumulate);
  else
    launch(add_slices_kernel<bf16>, blocks, 256, 0, stream, partial, slices, stride, size, static_cast<bf16*>(grad),
           accumulate);
}

}  // namespace dsmoe::cuda
