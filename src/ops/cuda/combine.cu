// combine: each token gathers the rows of its experts and sums them in a fixed order, shared experts first.
#include "ops/cuda/kernels.h"
#include "ops/cuda/launch.h"
#include "ops/cuda/numbers.cuh"
#include "ops/cuda/ptx.cuh"

namespace dsmoe::cuda {

namespace {

struct Args {
  Combine c;
  const std::int32_t* slot_row;
  int tokens, width, chosen;
  int row_shift;  // by which routed rows lie earlier than in the plan
};

// kEarly: how many of its rows a token looks up before the rows themselves are there (combines_early()).
template <class T, int kVector, int kEarly>
__global__ void __launch_bounds__(256) combine_kernel(const __grid_constant__ Args args) {
  const int per_token = args.c.columns / kVector;
  const std::size_t i = static_cast<std::size_t>(blockIdx.x) * 256 + threadIdx.x;
  const int token = static_cast<int>(i / per_token), column = static_cast<int>(i % per_token) * kVector;
  if (token >= args.tokens) return;
  // Which rows, and the weight of each: the kernel ahead of this one waited for them before it let this one start.
  const std::size_t first = static_cast<std::size_t>(token) * args.chosen;
  const auto row_of = [&](int k) { return args.slot_row[first + k] - args.row_shift; };
  const auto weight_of = [&](int k) { return args.c.weights ? args.c.weights[first + k] : 1.0f; };
  int row[kEarly + 1];
  float weight[kEarly + 1];
#pragma unroll
  for (int k = 0; k < kEarly; ++k)
    if (k < args.chosen) row[k] = row_of(k), weight[k] = weight_of(k);
  ptx::let_next_kernel_start();
  ptx::wait_for_previous_kernel();
  const std::size_t at = static_cast<std::size_t>(token) * args.width + args.c.first + column;
  const T* rows = static_cast<const T*>(args.c.rows) + column;
  float sum[kVector] = {};
  if (args.c.start) {
#pragma unroll
    for (int v = 0; v < kVector; ++v) sum[v] = to_float(static_cast<const T*>(args.c.start)[at + v]);
  }
  using Vector = Pack<T, kVector>;
  const auto load = [&](std::size_t r) {
    const T* from = rows + r * args.c.columns;
    if constexpr (sizeof(Vector) == 16) {
      const uint4 raw = __ldcs(reinterpret_cast<const uint4*>(from));
      return *reinterpret_cast<const Vector*>(&raw);
    } else {
      return *reinterpret_cast<const Vector*>(from);
    }
  };
  const auto add = [&](const Vector& in, float w) {
#pragma unroll
    for (int v = 0; v < kVector; ++v) sum[v] = fmaf(w, to_float(in.v[v]), sum[v]);
  };
  // All loads first.
  Vector in[kEarly + 1];
#pragma unroll
  for (int k = 0; k < kEarly; ++k)
    if (k < args.chosen) in[k] = load(row[k]);
  for (int s = 0; s < args.c.shared_rows; ++s) add(load(static_cast<std::size_t>(s) * args.tokens + token), 1.0f);
#pragma unroll
  for (int k = 0; k < kEarly; ++k)
    if (k < args.chosen) add(in[k], weight[k]);
#pragma unroll 4
  for (int k = kEarly; k < args.chosen; ++k) add(load(row_of(k)), weight_of(k));
  Vector out;
#pragma unroll
  for (int v = 0; v < kVector; ++v) from_float(sum[v], out.v[v]);
  *reinterpret_cast<Vector*>(static_cast<T*>(args.c.out) + at) = out;
}

template <class T, int kVector>
void run(const Args& args, cudaStream_t stream) {
  const std::size_t threads = static_cast<std::size_t>(args.tokens) * (args.c.columns / kVector);
  const auto blocks = static_cast<unsigned>((threads + 255) / 256);
  launch(combines_early(device_info(), blocks) ? combine_kernel<T, kVector, 8> : combine_kernel<T, kVector, 0>, blocks, 256,
         0, stream, args);
}

}  // namespace

void combine(const Sizes& s, const std::int32_t* slot_row, DType dtype, const Combine& c, cudaStream_t stream) {
  const Args args{c, slot_row, s.tokens, s.width, s.chosen, (s.shared - c.shared_rows) * s.tokens};
  const bool wide = s.width % 8 == 0 && c.first % 8 == 0 && c.columns % 8 == 0;
  if (dtype == DType::kF32) return wide ? run<float, 4>(args, stream) : run<float, 1>(args, stream);
  return wide ? run<bf16, 8>(args, stream) : run<bf16, 1>(args, stream);
}

}  // namespace dsmoe::cuda
