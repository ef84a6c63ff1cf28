// Rows of experts on their way between ranks: gathered for the journey, and added up at home in the order and with the
// arithmetic of combine.cu.
#include "ops/cuda/launch.h"
#include "ops/cuda/numbers.cuh"
#include "ops/cuda/ptx.cuh"
#include "ops/expert_rows.h"

namespace dsmoe::ops::cuda {

namespace gpu = dsmoe::cuda;

namespace {

constexpr int kThreads = 256;

unsigned blocks_for(Index threads) { return static_cast<unsigned>((threads + kThreads - 1) / kThreads); }

template <class Word>
__global__ void __launch_bounds__(kThreads)
    gather_kernel(const Word* from, const std::int32_t* index, Word* to, Index rows, Index words) {
  gpu::ptx::wait_for_previous_kernel();
  gpu::ptx::let_next_kernel_start();
  const Index i = static_cast<Index>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < rows * words) to[i] = from[index[i / words] * words + i % words];
}

struct AddRows {
  const std::int32_t* row;  // [T, each]; null: rows of the tokens one after another, `each` times
  const float* weight;      // null: ones
  const void* rows;
  float* sums;
  int tokens, each, width;
};

template <class T, int kVector>
__global__ void __launch_bounds__(kThreads) add_rows_kernel(const __grid_constant__ AddRows a) {
  gpu::ptx::wait_for_previous_kernel();
  gpu::ptx::let_next_kernel_start();
  const int packs = a.width / kVector;
  const Index i = static_cast<Index>(blockIdx.x) * kThreads + threadIdx.x, token = i / packs, column = i % packs * kVector;
  if (token >= a.tokens) return;
  auto sum = gpu::load<kVector>(a.sums + token * a.width + column);
  for (int j = 0; j < a.each; ++j) {
    const Index row = a.row ? a.row[token * a.each + j] : static_cast<Index>(j) * a.tokens + token;
    if (row < 0) continue;
    const float weight = a.weight ? a.weight[token * a.each + j] : 1.0f;
    const auto in = gpu::load<kVector>(static_cast<const T*>(a.rows) + row * a.width + column);
#pragma unroll
    for (int v = 0; v < kVector; ++v) sum.v[v] = fmaf(weight, gpu::to_float(in.v[v]), sum.v[v]);
  }
  gpu::store(sum, a.sums + token * a.width + column);
}

void add(Context& ctx, DType dtype, const AddRows& a) {
  if (a.tokens == 0 || a.each == 0) return;
  gpu::with_type(dtype, [&]<class T>(T) {
    const bool wide = a.width % 4 == 0;
    gpu::launch(wide ? add_rows_kernel<T, 4> : add_rows_kernel<T, 1>,
                blocks_for(static_cast<Index>(a.tokens) * (a.width / (wide ? 4 : 1))), kThreads, 0, ctx.stream(), a);
  });
}

}  // namespace

Tensor gathered_rows(Context& ctx, const Tensor& from, const Tensor& index) {
  const Index rows = index.numel();
  Tensor to = ctx.empty(from.dtype(), {rows, from.dim(1)});
  if (to.bytes() == 0) return to;
  const auto go = [&]<class Word>(Word) {
    const auto words = static_cast<Index>(row_bytes(from.dtype(), from.dim(1)) / sizeof(Word));
    gpu::launch(gather_kernel<Word>, blocks_for(rows * words), kThreads, 0, ctx.stream(),
                static_cast<const Word*>(from.raw()), static_cast<const std::int32_t*>(index.raw()),
                static_cast<Word*>(to.raw_mutable()), rows, words);
  };
  const std::size_t bytes = row_bytes(from.dtype(), from.dim(1));
  bytes % sizeof(uint4) == 0 ? go(uint4{}) : bytes % 4 == 0 ? go(std::uint32_t{}) : go(std::uint16_t{});
  return to;
}

void add_rows(Context& ctx, const Tensor& row, const Tensor& weight, const Tensor& rows, Tensor& sums) {
  add(ctx, rows.dtype(),
      {static_cast<const std::int32_t*>(row.raw()), static_cast<const float*>(weight.raw()), rows.raw(),
       static_cast<float*>(sums.raw_mutable()), static_cast<int>(row.dim(0)), static_cast<int>(row.dim(1)),
       static_cast<int>(sums.dim(1))});
}

void add_rows_in_turn(Context& ctx, int each, const Tensor& rows, Tensor& sums) {
  add(ctx, rows.dtype(),
      {nullptr, nullptr, rows.raw(), static_cast<float*>(sums.raw_mutable()), static_cast<int>(sums.dim(0)), each,
       static_cast<int>(sums.dim(1))});
}

}  // namespace dsmoe::ops::cuda
