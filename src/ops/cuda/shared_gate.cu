// One number per token, and what follows from it: every sum has one order, whatever else is in the batch.
#include "ops/cuda/launch.h"
#include "ops/cuda/numbers.cuh"
#include "ops/cuda/ptx.cuh"
#include "ops/cuda/routing.cuh"
#include "ops/cuda/shared_gate.h"

namespace dsmoe::cuda {

namespace {

inline constexpr int kThreads = 256, kTokens = kThreads / 32;  // tokens of a block that has a warp for each

template <class T>
// The next kernel starts when this one has ended: what it writes is read by the one after that, and a gate/up product of
// shared experts alone waits for nothing.
__global__ void __launch_bounds__(kThreads) weigh_kernel(const __grid_constant__ SharedGate gate) {
  ptx::wait_for_previous_kernel();
  const int token = blockIdx.x * kTokens + threadIdx.x / 32, lane = threadIdx.x % 32;
  if (token >= gate.tokens) return;
  const T* const x = static_cast<const T*>(gate.x) + static_cast<std::size_t>(token) * gate.width;
  const T* const w = static_cast<const T*>(gate.w);
  float sum = 0;
#pragma unroll 8
  for (int i = lane; i < gate.width; i += 32) sum = fmaf(to_float(x[i]), to_float(w[i]), sum);
  const float weight = 1.0f / (1.0f + expf(-warp_sum(sum)));
  for (int s = lane; s < gate.shared; s += 32) gate.weight[static_cast<std::size_t>(s) * gate.tokens + token] = weight;
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    rows_kernel(const T* h, std::size_t numbers, std::size_t weighed, std::size_t columns, const float* weight, T* out) {
  ptx::wait_for_previous_kernel();
  ptx::let_next_kernel_start();
  const std::size_t i = static_cast<std::size_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= numbers) return;
  if (i < weighed)
    from_float(weight[i / columns] * to_float(h[i]), out[i]);
  else
    out[i] = h[i];
}

__global__ void __launch_bounds__(kThreads)
    logits_backward_kernel(const __grid_constant__ SharedGate gate, const float* row_grads, int parts, float* dlogits) {
  ptx::wait_for_previous_kernel();
  ptx::let_next_kernel_start();
  const int token = blockIdx.x * kThreads + threadIdx.x;
  if (token >= gate.tokens) return;
  float sum = 0;
  for (int s = 0; s < gate.shared; ++s) {
    const float* const row = row_grads + (static_cast<std::size_t>(s) * gate.tokens + token) * parts;
    for (int p = 0; p < parts; ++p) sum += row[p];
  }
  const float weight = gate.weight[token];
  dlogits[token] = sum * weight * (1 - weight);
}

// A block has a slice of the tokens and kThreads columns.
template <class T>
__global__ void __launch_bounds__(kThreads)
    backward_kernel(const __grid_constant__ SharedGate gate, const __grid_constant__ SharedGateGrads grads, int slice) {
  ptx::wait_for_previous_kernel();
  ptx::let_next_kernel_start();
  const int column = blockIdx.x * kThreads + threadIdx.x;
  if (column >= gate.width) return;
  const float w = to_float(static_cast<const T*>(gate.w)[column]);
  const int first = blockIdx.y * slice, last = min(first + slice, gate.tokens);
  float sum = 0;
#pragma unroll 4
  for (int t = first; t < last; ++t) {
    const std::size_t at = static_cast<std::size_t>(t) * gate.width + column;
    T* const dx = static_cast<T*>(grads.dx) + at;
    sum = fmaf(grads.dlogits[t], to_float(static_cast<const T*>(gate.x)[at]), sum);
    from_float(fmaf(grads.dlogits[t], w, to_float(*dx)), *dx);
  }
  grads.partial[static_cast<std::size_t>(blockIdx.y) * gate.width + column] = sum;
}

unsigned blocks_of(std::size_t work, int each) {
  const auto per_block = static_cast<std::size_t>(each);
  return static_cast<unsigned>((work + per_block - 1) / per_block);
}

}  // namespace

void weigh_shared(const SharedGate& gate, cudaStream_t stream) {
  with_type(gate.dtype, [&]<class T>(T) {
    launch(weigh_kernel<T>, blocks_of(static_cast<std::size_t>(gate.tokens), kTokens), kThreads, 0, stream, gate);
  });
}

void weigh_rows(const void* h, DType dtype, Index rows, Index weighed, Index columns, const float* weight, void* out,
                cudaStream_t stream) {
  const auto numbers = static_cast<std::size_t>(rows * columns), some = static_cast<std::size_t>(weighed * columns);
  with_type(dtype, [&]<class T>(T) {
    launch(rows_kernel<T>, blocks_of(numbers, kThreads), kThreads, 0, stream, static_cast<const T*>(h), numbers, some,
           static_cast<std::size_t>(columns), weight, static_cast<T*>(out));
  });
}

void weigh_shared_backward(const SharedGate& gate, const float* row_grads, int parts, int slice,
                           const SharedGateGrads& grads, cudaStream_t stream) {
  launch(logits_backward_kernel, blocks_of(static_cast<std::size_t>(gate.tokens), kThreads), kThreads, 0, stream, gate,
         row_grads, parts, grads.dlogits);
  const dim3 grid(blocks_of(static_cast<std::size_t>(gate.width), kThreads),
                  blocks_of(static_cast<std::size_t>(gate.tokens), slice));
  with_type(gate.dtype, [&]<class T>(T) { launch(backward_kernel<T>, grid, kThreads, 0, stream, gate, grads, slice); });
}

}  // namespace dsmoe::cuda
