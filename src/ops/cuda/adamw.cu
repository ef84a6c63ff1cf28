// AdamW on a GPU: one launch for many tensors, each number on its own, in the CPU's arithmetic (cpu/kernels_impl.h). The
// sum of squares is made of partial sums over a fixed number of neighbours, which are added up as a tree.
#include <math_constants.h>

#include <cmath>
#include <vector>

#include "core/fault.h"
#include "ops/adamw.h"
#include "ops/cuda/launch.h"
#include "ops/cuda/numbers.cuh"
#include "ops/cuda/ptx.cuh"

namespace dsmoe::ops::cuda {

namespace gpu = dsmoe::cuda;
using gpu::bf16;

namespace {

constexpr int kThreads = 256;
constexpr Index kPiece = Index{1} << 16;  // numbers of one partial sum
constexpr int kMany = 64;                 // tensors of one launch: as many as fit its arguments

struct Step {
  const double* scale;  // null: grad_scale
  float grad_scale, beta1, beta2, new1, new2, rate, root_scale, epsilon;
};
struct Numbers {
  float *weight, *gradient, *m, *v;
  bf16* stored;  // null: the weight itself is used
  Index count;
  float keep;  // what decay leaves of the weight
  bool wide;   // four neighbours at a time
};

// Work on several tensors, whose blocks are numbered one after another.
template <class T>
struct Many {
  T tensors[kMany];
  unsigned first_block[kMany];
  int count = 0;
  unsigned blocks = 0;

  void add(const T& tensor, Index tensor_blocks) {
    tensors[count] = tensor;
    first_block[count++] = blocks;
    blocks += static_cast<unsigned>(tensor_blocks);
  }
  // The tensor that a block works on: the last whose first block is not after it.
  __device__ int of(unsigned block) const {
    int low = 0, high = count;
    while (high - low > 1) {
      const int middle = (low + high) / 2;
      (first_block[middle] <= block ? low : high) = middle;
    }
    return low;
  }
};

__device__ void update(const Step& s, float scale, float keep, float gradient, float& m, float& v, float& w) {
  const float g = __fmul_rn(scale, gradient);
  m = __fmaf_rn(s.beta1, m, __fmul_rn(s.new1, g));
  v = __fmaf_rn(s.beta2, v, __fmul_rn(s.new2, __fmul_rn(g, g)));
  const float step = __fdiv_rn(m, __fmaf_rn(s.root_scale, __fsqrt_rn(v), s.epsilon));
  w = __fmaf_rn(-s.rate, step, __fmul_rn(keep, w));
}

// Read once and written once: nothing of it is worth a place in the cache.
template <int kVector>
__device__ gpu::Pack<float, kVector> stream_in(const float* from) {
  gpu::Pack<float, kVector> pack;
  if constexpr (kVector == 4)
    *reinterpret_cast<float4*>(&pack) = __ldcs(reinterpret_cast<const float4*>(from));
  else
    pack.v[0] = __ldcs(from);
  return pack;
}
template <int kVector>
__device__ void stream_out(const gpu::Pack<float, kVector>& pack, float* to) {
  if constexpr (kVector == 4)
    __stcs(reinterpret_cast<float4*>(to), *reinterpret_cast<const float4*>(&pack));
  else
    __stcs(to, pack.v[0]);
}

template <int kVector>
__device__ void update_some(const Step& s, float scale, const Numbers& n, unsigned block, bool clear) {
  const Index at = (static_cast<Index>(block) * kThreads + threadIdx.x) * kVector;
  if (at >= n.count) return;
  const auto g = stream_in<kVector>(n.gradient + at);
  auto m = stream_in<kVector>(n.m + at), v = stream_in<kVector>(n.v + at), w = stream_in<kVector>(n.weight + at);
  if (isnan(scale)) return;  // only now: the loads need not wait for it
#pragma unroll
  for (int i = 0; i < kVector; ++i) update(s, scale, n.keep, g.v[i], m.v[i], v.v[i], w.v[i]);
  if (clear) stream_out<kVector>({}, n.gradient + at);
  stream_out<kVector>(m, n.m + at);
  stream_out<kVector>(v, n.v + at);
  stream_out<kVector>(w, n.weight + at);
  if (n.stored == nullptr) return;
  gpu::Pack<bf16, kVector> rounded;
#pragma unroll
  for (int i = 0; i < kVector; ++i) gpu::from_float(w.v[i], rounded.v[i]);
  gpu::store(rounded, n.stored + at);
}

__global__ void __launch_bounds__(kThreads)
    adamw_kernel(const __grid_constant__ Step s, const __grid_constant__ Many<Numbers> all, bool clear) {
  gpu::ptx::wait_for_previous_kernel();
  gpu::ptx::let_next_kernel_start();
  const float scale = s.scale ? static_cast<float>(*s.scale) : s.grad_scale;
  const int i = all.of(blockIdx.x);
  const unsigned block = blockIdx.x - all.first_block[i];
  if (all.tensors[i].wide)
    update_some<4>(s, scale, all.tensors[i], block, clear);
  else
    update_some<1>(s, scale, all.tensors[i], block, clear);
}

// The same value in every thread: a tree over the lanes, then the warps in order.
__device__ double block_sum(double value) {
  __shared__ double warps[kThreads / 32];
#pragma unroll
  for (int i = 16; i > 0; i /= 2) value += __shfl_xor_sync(~0u, value, i);
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = value;
  __syncthreads();
  double sum = 0;
  for (int i = 0; i < kThreads / 32; ++i) sum += warps[i];
  return sum;
}

// Four neighbours are added up in f32 where the tensor is aligned for it, and else too, so that both give the same bits.
struct Squares {
  const float* x;
  Index count;
  bool aligned;
};
__global__ void __launch_bounds__(kThreads) squares_kernel(const __grid_constant__ Many<Squares> all, double* partial) {
  gpu::ptx::wait_for_previous_kernel();
  gpu::ptx::let_next_kernel_start();
  const int tensor = all.of(blockIdx.x);
  const auto [x, count, aligned] = all.tensors[tensor];
  const Index begin = (blockIdx.x - all.first_block[tensor]) * kPiece, end = min(begin + kPiece, count);
  double sum = 0;
  for (Index i = begin + threadIdx.x * 4; i < end; i += kThreads * 4) {
    gpu::Pack<float, 4> four{};
    if (aligned && i + 4 <= end) {
      four = gpu::load<4>(x + i);
    } else {
      for (int j = 0; j < 4; ++j) four.v[j] = i + j < end ? x[i + j] : 0.0f;
    }
    sum += static_cast<double>(
        fmaf(four.v[3], four.v[3], fmaf(four.v[2], four.v[2], fmaf(four.v[1], four.v[1], four.v[0] * four.v[0]))));
  }
  sum = block_sum(sum);
  if (threadIdx.x == 0) partial[blockIdx.x] = sum;
}

__global__ void __launch_bounds__(kThreads) sum_kernel(const double* partial, Index count, double* result) {
  gpu::ptx::wait_for_previous_kernel();
  gpu::ptx::let_next_kernel_start();
  double sum = 0;
#pragma unroll 8
  for (Index i = threadIdx.x; i < count; i += kThreads) sum += partial[i];
  sum = block_sum(sum);
  if (threadIdx.x == 0) *result = sum;
}

// As ref::clip_scale().
__global__ void clip_kernel(const double* square, double clip, const unsigned long long* fault, double* scale) {
  gpu::ptx::wait_for_previous_kernel();
  gpu::ptx::let_next_kernel_start();
  if (isnan(*scale) || !isfinite(*square) || *fault != kNoFault)
    *scale = CUDART_NAN;
  else
    *scale = clip > 0 ? fmin(1.0, __ddiv_rn(clip, __dadd_rn(__dsqrt_rn(*square), 1e-6))) : 1.0;
}

float* floats(const Tensor& t) { return static_cast<float*>(const_cast<void*>(t.raw())); }

bool aligned(std::initializer_list<const void*> pointers) {
  std::uintptr_t bits = 0;
  for (const void* p : pointers) bits |= reinterpret_cast<std::uintptr_t>(p);
  return bits % 16 == 0;
}

}  // namespace

void adamw(Context& ctx, std::span<AdamTensor> tensors, const AdamOptions& o) {
  const auto beta1 = static_cast<float>(o.beta1), beta2 = static_cast<float>(o.beta2);
  Step s{.scale = o.scale.numel() > 0 ? static_cast<const double*>(o.scale.raw()) : nullptr,
         .grad_scale = static_cast<float>(o.grad_scale),
         .beta1 = beta1,
         .beta2 = beta2,
         .new1 = 1 - beta1,
         .new2 = 1 - beta2,
         .rate = static_cast<float>(o.rate / (1 - std::pow(o.beta1, static_cast<double>(o.step)))),
         .root_scale = static_cast<float>(1 / std::sqrt(1 - std::pow(o.beta2, static_cast<double>(o.step)))),
         .epsilon = static_cast<float>(o.epsilon)};
  Many<Numbers> some;
  const auto flush = [&] {
    if (some.blocks > 0) gpu::launch(adamw_kernel, some.blocks, kThreads, 0, ctx.stream(), s, some, o.clear);
    some = {};
  };
  for (AdamTensor& t : tensors) {
    Numbers n{floats(t.weight),
              floats(t.gradient),
              floats(t.m),
              floats(t.v),
              t.stored.numel() > 0 ? static_cast<bf16*>(t.stored.raw_mutable()) : nullptr,
              t.weight.numel(),
              t.decay ? static_cast<float>(1 - o.rate * o.weight_decay) : 1,
              false};
    if (n.count == 0) continue;
    n.wide = n.count % 4 == 0 && aligned({n.weight, n.gradient, n.m, n.v}) &&
             reinterpret_cast<std::uintptr_t>(n.stored) % 8 == 0;
    const Index per_block = kThreads * (n.wide ? 4 : 1);
    some.add(n, (n.count + per_block - 1) / per_block);
    if (some.count == kMany) flush();
  }
  flush();
}

void gradient_square(Context& ctx, std::span<const AdamTensor> tensors, Tensor& sum) {
  Index pieces = 0, done = 0;
  for (const AdamTensor& t : tensors) pieces += (t.gradient.numel() + kPiece - 1) / kPiece;
  Tensor partial = ctx.empty(DType::kF64, {pieces});
  auto* const sums = static_cast<double*>(partial.raw_mutable());
  Many<Squares> some;
  const auto flush = [&] {
    if (some.blocks > 0) gpu::launch(squares_kernel, some.blocks, kThreads, 0, ctx.stream(), some, sums + done);
    done += some.blocks;
    some = {};
  };
  for (const AdamTensor& t : tensors) {
    const Tensor& g = t.gradient;
    if (g.numel() == 0) continue;
    some.add({static_cast<const float*>(g.raw()), g.numel(), aligned({g.raw()})}, (g.numel() + kPiece - 1) / kPiece);
    if (some.count == kMany) flush();
  }
  flush();
  gpu::launch(sum_kernel, 1, kThreads, 0, ctx.stream(), sums, pieces, static_cast<double*>(sum.raw_mutable()));
}

void clip_scale(Context& ctx, const Tensor& square, double clip, Tensor& scale) {
  gpu::launch(clip_kernel, 1, 1, 0, ctx.stream(), static_cast<const double*>(square.raw()), clip, ctx.fault_word(),
              static_cast<double*>(scale.raw_mutable()));
}

}  // namespace dsmoe::ops::cuda
