// y = x · Wᵀ on the machine of hopper_gemm.cuh: the weights are one expert that every token has. And dx = dy · W, which is
// the same product with the weights read the other way: wgmma takes them with either dimension contiguous.
#include "ops/cuda/hopper_float_rows.cuh"
#include "ops/cuda/hopper_gemm.cuh"
#include "ops/cuda/launch.h"
#include "ops/cuda/linear.h"
#include "ops/cuda/tensor_map.h"

namespace dsmoe::cuda::hopper {

namespace {

constexpr int kMost = kMostProjections;

// Several matrices that the same rows are multiplied with: their blocks are numbered one after another. Or, with weights
// read the other way, a sum of products of several rows and matrices: their k blocks are.
struct Args {
  CUtensorMap weights[kMost];
  CUtensorMap rows[kMost], narrow_rows[kMost];
  TileSource tiles;
  void* y[kMost];
  int columns[kMost], first_block[kMost];  // of unused ones: past the last block
  int first_k[kMost];                      // likewise, of k blocks
  int k_blocks;                            // of all
  bool accumulate;                         // add to y, which is f32

  __device__ __forceinline__ int matrix_of(int m_block) const {
    int i = 0;
#pragma unroll
    for (int j = 1; j < kMost; ++j) i += m_block >= first_block[j];
    return i;
  }
  __device__ __forceinline__ int product_of(int kb) const {
    int i = 0;
#pragma unroll
    for (int j = 1; j < kMost; ++j) i += kb >= first_k[j];
    return i;
  }
};

// acc (64 columns of y for this warpgroup x kN tokens) as f32. Lane l of warp w holds columns 16 w + l / 4 and that + 8 of
// tokens 8 j + 2 (l % 4) and the next; sums of a head are read once, so a plain store will do.
template <int kN>
__device__ __forceinline__ void store_floats(const float (&acc)[kN / 2], float* out, std::size_t ld, int rows, int columns,
                                             bool accumulate) {
  const int warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
  const int column = warp * 16 + lane / 4, row0 = lane % 4 * 2;
#pragma unroll
  for (int j = 0; j < kN / 8; ++j)
#pragma unroll
    for (int v = 0; v < 4; ++v) {
      const int row = j * 8 + row0 + v % 2, c = column + v / 2 * 8;
      if (row >= rows || c >= columns) continue;
      float* const to = out + row * ld + c;
      *to = accumulate ? *to + acc[4 * j + v] : acc[4 * j + v];
    }
}

template <class C, class Y, bool kTransposedWeights>
struct Consumer {
  const Args& args;
  const Tile& tile;
  Shared<C>& shared;
  int group;

  template <int kN>
  __device__ __forceinline__ void run() const {
    float acc[C::kBlocks][kN / 2] = {};
    multiply<kN, kTransposedWeights, 0, false>(acc, shared.ring, args.k_blocks, group);
    const int matrix = args.matrix_of(tile.m_block);
#pragma unroll
    for (int i = 0; i < C::kBlocks; ++i) {
      const int column = ((tile.m_block - args.first_block[matrix]) * C::kBlocks + i) * C::kTileM + group * 64;
      const int columns = args.columns[matrix];
      Y* const out = static_cast<Y*>(args.y[matrix]) + static_cast<std::size_t>(tile.row) * columns + column;
      const std::uint32_t staging = shared.staging + group * C::kStagingBytes;
      if constexpr (sizeof(Y) == 4) {
        if (C::kTokens == kWideTile && columns % 4 == 0 && reinterpret_cast<std::uintptr_t>(args.y[matrix]) % 16 == 0)
          store_float_rows<kN>(acc[i], staging, group, out, columns, tile.rows, columns - column, args.accumulate);
        else
          store_floats<kN>(acc[i], out, columns, tile.rows, columns - column, args.accumulate);
      } else {
        store_transposed<kN>(acc[i], staging, group, out, columns, tile.rows, columns - column);
      }
    }
  }
};

template <class C, bool kTransposedWeights>
__device__ __forceinline__ void load_weights(const Args& args, int m_block, const Ring<C>& ring, int kb) {
  const int matrix = kTransposedWeights ? 0 : args.matrix_of(m_block);
  for (int i = 0; i < C::kBlocks; ++i) {
    const int m = ((m_block - args.first_block[matrix]) * C::kBlocks + i) * C::kTileM;
    const std::uint32_t to = ring.a() + i * C::kBlockBytesA;
    if constexpr (kTransposedWeights) {
      const int product = args.product_of(kb), k = (kb - args.first_k[product]) * kTileK;
      ptx::tma_load(to, &args.weights[product], ring.full_barrier(), m, k);
      ptx::tma_load(to + 8192, &args.weights[product], ring.full_barrier(), m + 64, k);
    } else {
      ptx::tma_load(to, &args.weights[matrix], ring.full_barrier(), kb * kTileK, m);
    }
  }
}

// Where the rows of a tile are, for each of several products.
template <class C>
struct ProductRows {
  const Args& args;
  const Tile& tile;

  __device__ __forceinline__ RowBoxes<C> of(int product) const {
    return {&args.rows[product], &args.narrow_rows[product], tile.row, tile.rows};
  }
  __device__ __forceinline__ std::uint32_t bytes() const { return of(0).bytes(); }
  template <bool kTransposedWeights>
  __device__ __forceinline__ void load(const Ring<C>& ring, int kb) const {
    const int product = kTransposedWeights ? args.product_of(kb) : 0;
    of(product).load(ring, kTransposedWeights ? kb - args.first_k[product] : kb);
  }
};

// The weights do not depend on the kernel ahead: the first stages of them are requested before it has ended.
template <class C, bool kTransposedWeights>
__device__ __forceinline__ void produce(const Args& args, Ring<C>& ring) {
  TileLoop<C> loop(args.tiles);
  Tile tile;
  loop.assume_plan();
  bool early = true;
  while (loop.next(tile)) {
    const ProductRows<C> boxes{args, tile};
    int kb = 0;
    if (early) {
      Ring<C> ahead = ring;
      for (; kb < min(C::kStages, args.k_blocks); ++kb, ahead.advance()) {
        ptx::barrier_arrive_expect(ahead.full_barrier(), C::kBytesA + boxes.bytes());
        load_weights<C, kTransposedWeights>(args, tile.m_block, ahead, kb);
      }
      ptx::wait_for_previous_kernel();
      early = false;
      for (int i = 0; i < kb; ++i, ring.advance()) boxes.template load<kTransposedWeights>(ring, i);
    }
    for (; kb < args.k_blocks; ++kb, ring.advance()) {
      ring.wait_empty();
      ptx::barrier_arrive_expect(ring.full_barrier(), C::kBytesA + boxes.bytes());
      load_weights<C, kTransposedWeights>(args, tile.m_block, ring, kb);
      boxes.template load<kTransposedWeights>(ring, kb);
    }
  }
}

template <class C, class Y, bool kTransposedWeights>
__global__ void __launch_bounds__(C::kThreads, 1) linear_kernel(const __grid_constant__ Args args) {
  extern __shared__ char raw[];
  Shared<C> shared = set_up<C>(raw, 1);
  if (threadIdx.x < 128) {
    producer_registers<C, 56>();
    if (threadIdx.x == 0) {
      ptx::prefetch_map(&args.weights[0]);
      produce<C, kTransposedWeights>(args, shared.ring);
    }
  } else {
    consumer_registers<C, 224>();
    const int group = threadIdx.x / 128 - 1;
    TileLoop<C> loop(args.tiles);
    Tile tile;
    loop.wait();
    while (loop.next(tile)) with_width<C>(tile.rows, Consumer<C, Y, kTransposedWeights>{args, tile, shared, group});
  }
  tear_down<C>();
}

template <class C, class Y>
void run(Args& args, const LinearSizes& s, std::span<const LinearMatrix> matrices, cudaStream_t stream) {
  constexpr int kColumns = C::kTileM * C::kBlocks;  // of one block
  const auto k = static_cast<std::uint64_t>(s.inner);
  int blocks = 0;
  for (std::size_t i = 0; i < kMost; ++i) {
    args.first_block[i] = blocks;
    if (i >= matrices.size()) continue;
    const LinearMatrix& m = matrices[i];
    args.weights[i] = tensor_map(m.w, {k, static_cast<std::uint64_t>(m.columns)}, {k}, {kTileK, C::kTileM});
    args.y[i] = m.y;
    args.columns[i] = m.columns;
    blocks += (m.columns + kColumns - 1) / kColumns;
  }
  args.tiles = {nullptr, nullptr, blocks * C::kBlocks, 1, s.rows, C::kTokens};
  launch_tiles<C>(linear_kernel<C, Y, false>, args, stream);
}

// Whether neighbouring blocks of columns share the rows that they load, which pays where there are tiles for all of the
// device several times.
bool in_pairs(const LinearSizes& s, std::span<const LinearMatrix> matrices) {
  int blocks = 0;
  for (const LinearMatrix& m : matrices) blocks += (m.columns + Wide::kTileM - 1) / Wide::kTileM;
  return blocks % 2 == 0 && s.rows >= 8 * kWideTile;
}

template <class Y>
void run(Args& args, const LinearSizes& s, std::span<const LinearMatrix> matrices, cudaStream_t stream) {
  switch (linear_tile(s.rows)) {
    case kNarrowTile: return run<Narrow, Y>(args, s, matrices, stream);
    case kMiddleTile: return run<Middle, Y>(args, s, matrices, stream);
    default:
      return in_pairs(s, matrices) ? run<WidePair, Y>(args, s, matrices, stream) : run<Wide, Y>(args, s, matrices, stream);
  }
}

}  // namespace

void linear(const LinearSizes& s, const bf16* x, std::span<const LinearMatrix> matrices, DType y_dtype,
            cudaStream_t stream) {
  const auto k = static_cast<std::uint64_t>(s.inner), t = static_cast<std::uint64_t>(s.rows);
  Args args{};
  args.rows[0] = tensor_map(x, {k, t}, {k}, {kTileK, kBoxRows});
  args.narrow_rows[0] = tensor_map(x, {k, t}, {k}, {kTileK, 8});
  args.k_blocks = (s.inner + kTileK - 1) / kTileK;
  y_dtype == DType::kF32 ? run<float>(args, s, matrices, stream) : run<bf16>(args, s, matrices, stream);
}

// The "columns" of this product are W's K, and its depth the Ns, each rounded up to whole blocks: past its end a product
// has zeros.
void linear_backward_input(const LinearSizes& s, std::span<const LinearInputGrad> products, void* dx, DType dx_dtype,
                           bool accumulate, cudaStream_t stream) {
  using C = WidePair;
  const auto k = static_cast<std::uint64_t>(s.inner), t = static_cast<std::uint64_t>(s.rows);
  Args args{};
  for (std::size_t i = 0; i < kMost; ++i) {
    args.first_k[i] = args.k_blocks;
    if (i >= products.size()) continue;
    const auto n = static_cast<std::uint64_t>(products[i].columns);
    args.rows[i] = tensor_map(products[i].dy, {n, t}, {n}, {kTileK, kBoxRows});
    args.narrow_rows[i] = tensor_map(products[i].dy, {n, t}, {n}, {kTileK, 8});
    args.weights[i] = tensor_map(products[i].w, {k, n}, {k}, {64, kTileK});
    args.k_blocks += (products[i].columns + kTileK - 1) / kTileK;
  }
  args.accumulate = accumulate;
  args.y[0] = dx;
  args.columns[0] = s.inner;
  const int blocks = (s.inner + C::kTileM - 1) / C::kTileM;
  // Blocks past the end of the only matrix, which a pair may have, are its own too, and write nothing.
  for (int i = 1; i < kMost; ++i) args.first_block[i] = blocks + 1;
  args.tiles = {nullptr, nullptr, blocks, 1, s.rows, C::kTokens};
  launch_tiles<C>(dx_dtype == DType::kF32 ? linear_kernel<C, float, true> : linear_kernel<C, bf16, true>, args, stream);
}

}  // namespace dsmoe::cuda::hopper
