// Sums over the rows of a matrix, for gradients of vectors that all tokens share. The rows are cut into pieces of a fixed
// number, a piece is added up in the order of its rows, and the pieces as a tree that their number alone decides.
#include "ops/cuda/kernels.h"
#include "ops/cuda/launch.h"
#include "ops/cuda/numbers.cuh"
#include "ops/cuda/ptx.cuh"
#include "ops/elementwise.h"

namespace dsmoe::cuda {

namespace {

constexpr int kColumns = 32, kLanes = 32;  // of a block; lane l of a column adds up pieces l, l + kLanes, ...
constexpr int kPieceRows = 32, kThreads = 128;

__global__ void __launch_bounds__(kColumns* kLanes)
    add_pieces_kernel(const float* partial, int pieces, int columns, float* sum) {
  __shared__ float lanes[kLanes][kColumns + 1];
  ptx::wait_for_previous_kernel();
  ptx::let_next_kernel_start();
  const int c = blockIdx.x * kColumns + threadIdx.x, lane = threadIdx.y;
  float own = 0;
  if (c < columns) {
#pragma unroll 4
    for (int p = lane; p < pieces; p += kLanes) own += partial[static_cast<std::size_t>(p) * columns + c];
  }
  lanes[lane][threadIdx.x] = own;
  for (int half = kLanes / 2; half > 0; half /= 2) {
    __syncthreads();
    if (lane < half) lanes[lane][threadIdx.x] += lanes[lane + half][threadIdx.x];
  }
  if (lane == 0 && c < columns) sum[c] += lanes[0][threadIdx.x];
}

template <class T>
__global__ void __launch_bounds__(kThreads) sum_piece_kernel(const T* rows, int count, int columns, float* partial) {
  ptx::wait_for_previous_kernel();
  ptx::let_next_kernel_start();
  const int c = blockIdx.x * kThreads + threadIdx.x, first = blockIdx.y * kPieceRows;
  if (c >= columns) return;
  float sum = 0;
#pragma unroll 4
  for (int r = first; r < min(first + kPieceRows, count); ++r)
    sum += to_float(rows[static_cast<std::size_t>(r) * columns + c]);
  partial[static_cast<std::size_t>(blockIdx.y) * columns + c] = sum;
}

}  // namespace

void add_pieces(const float* partial, int pieces, int columns, float* sum, cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>((columns + kColumns - 1) / kColumns);
  launch(add_pieces_kernel, blocks, dim3(kColumns, kLanes), 0, stream, partial, pieces, columns, sum);
}

}  // namespace dsmoe::cuda

namespace dsmoe::ops::cuda {

namespace gpu = dsmoe::cuda;

void add_bias_backward(Context& ctx, const Tensor& dy, Tensor& dbias) {
  if (dy.numel() == 0) return;
  const auto rows = static_cast<int>(dy.dim(0)), columns = static_cast<int>(dy.dim(1));
  const int pieces = (rows + gpu::kPieceRows - 1) / gpu::kPieceRows;
  Tensor partial = ctx.empty(DType::kF32, {pieces, columns});
  auto* const sums = static_cast<float*>(partial.raw_mutable());
  const dim3 grid(static_cast<unsigned>((columns + gpu::kThreads - 1) / gpu::kThreads), static_cast<unsigned>(pieces));
  gpu::with_type(dy.dtype(), [&]<class T>(T) {
    gpu::launch(gpu::sum_piece_kernel<T>, grid, gpu::kThreads, 0, ctx.stream(), static_cast<const T*>(dy.raw()), rows,
                columns, sums);
  });
  gpu::add_pieces(sums, pieces, columns, static_cast<float*>(dbias.raw_mutable()), ctx.stream());
}

}  // namespace dsmoe::ops::cuda
