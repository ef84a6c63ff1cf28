// y = x · Wᵀ for up to 16 rows and packed matrices (packed_few.cuh): a block has several tiles of 8 columns of y and one
// copy of x. It asks for the first part of W before the kernel ahead has ended.
#include "ops/cuda/packed_few.cuh"

namespace dsmoe::cuda::packed {

namespace {

// How a block's warps share its columns: each has kTiles tiles, or (kTogether) all have the same two.
template <int kWarpCount, int kTileCount, bool kShared, int kBytes>
struct Shape {
  static constexpr int kWarps = kWarpCount, kTiles = kTileCount, kStreamBytes = kBytes;
  static constexpr bool kTogether = kShared;
  static constexpr int kColumns = kTiles * kTileRows * (kTogether ? 1 : kWarps);
};
using Together = Shape<4, 2, true, 10 * 1024>;
using Narrow = Shape<2, 1, false, 10 * 1024>;
using Wide = Shape<2, 2, false, 16 * 1024>;

struct Args {
  Product products[kMostProjections];
  int first_block[kMostProjections];  // of unused ones: past the last block
  const bf16* x;
  int first_row, rows, inner;
};

template <class Y, int kTiles, int kEights>
__device__ __forceinline__ void store(const Args& args, const Product& p, int column, const float (&acc)[kEights][4]) {
  each_sum<kTiles>(acc, [&](int row, int c, float sum) {
    if (row < args.rows && column + c < p.w.rows)
      from_float(sum, static_cast<Y*>(p.y)[static_cast<std::size_t>(args.first_row + row) * p.w.rows + column + c]);
  });
}

template <class S, int kEights>
__global__ void __launch_bounds__(S::kWarps * 32) few_kernel(const __grid_constant__ Args args) {
  extern __shared__ __align__(128) std::uint8_t shared[];
  int matrix = 0;
#pragma unroll
  for (int i = 1; i < kMostProjections; ++i) matrix += static_cast<int>(blockIdx.x) >= args.first_block[i];
  const Product& p = args.products[matrix];
  const int warp = threadIdx.x / 32, block = static_cast<int>(blockIdx.x) - args.first_block[matrix];
  const int tile = (S::kTogether ? block : block * S::kWarps + warp) * S::kTiles;
  Stream<S::kTiles> stream(p.w, tile, shared + warp * S::kStreamBytes, S::kStreamBytes);
  if (S::kTogether) stream.first = warp, stream.every = S::kWarps;
  stream.start();
  ptx::wait_for_previous_kernel();
  ptx::let_next_kernel_start();
  std::uint8_t* const x = shared + S::kWarps * S::kStreamBytes;
  RowsInShared::fill(x, args.rows, args.inner,
                     [&](int row, int k) { return args.x + static_cast<std::size_t>(row) * args.inner + k; });
  float acc[kEights][4] = {};
  if constexpr (S::kTogether) {
    __shared__ float handed[kEights][32][4];
    bool last = false;
    with_block(p.w.dtype, [&]<DType kType>() {
      if constexpr (Block<kType>::kNumbers == 32)  // packed_together()
        last = multiply_together<kType, S::kWarps>(acc, stream, x, handed, args.rows, args.inner);
    });
    if (!last) return;
  } else {
    multiply(acc, p.w.dtype, stream, x, args.rows, args.inner);
  }
  p.f32 ? store<float, S::kTiles>(args, p, tile * kTileRows, acc) : store<bf16, S::kTiles>(args, p, tile * kTileRows, acc);
}

template <class S>
void run(const LinearSizes& s, const bf16* x, std::span<const Product> products, cudaStream_t stream) {
  const int step = rows_at_once(s.rows, s.inner, S::kWarps * S::kStreamBytes);
  for (int first = 0; first < s.rows; first += step) {
    Args args{};
    args.x = x + static_cast<std::size_t>(first) * s.inner;
    args.first_row = first, args.rows = std::min(step, s.rows - first), args.inner = s.inner;
    int blocks = 0;
    for (std::size_t i = 0; i < kMostProjections; ++i) {
      args.first_block[i] = blocks;
      if (i >= products.size()) continue;
      args.products[i] = products[i];
      blocks += (products[i].w.rows + S::kColumns - 1) / S::kColumns;
    }
    const int bytes = S::kWarps * S::kStreamBytes + args.rows * row_pitch(args.inner);
    launch(args.rows <= 8 ? few_kernel<S, 1> : few_kernel<S, 2>, static_cast<unsigned>(blocks), S::kWarps * 32, bytes,
           stream, args);
  }
}

}  // namespace

void linear_few(const LinearSizes& s, const bf16* x, std::span<const Product> products, cudaStream_t stream) {
  int columns = 0;
  bool small_blocks = true;
  for (const Product& p : products) columns += p.w.rows, small_blocks = small_blocks && block_of(p.w.dtype).numbers == 32;
  if (packed_together(device_info(), columns, small_blocks)) return run<Together>(s, x, products, stream);
  packed_tiles(device_info(), columns) == 1 ? run<Narrow>(s, x, products, stream) : run<Wide>(s, x, products, stream);
}

}  // namespace dsmoe::cuda::packed
