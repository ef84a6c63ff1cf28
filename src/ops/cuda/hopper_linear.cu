// y = x · Wᵀ on the machine of hopper_gemm.cuh: the weights are one expert that every token has. And dx = dy · W, which is
// the same product with the weights read the other way: wgmma takes them with either dimension contiguous.
#include "ops/cuda/hopper_float_rows.cuh"
#include "ops/cuda/hopper_gemm.cuh"
#include "ops/cuda/launch.h"
#include "ops/cuda/linear.h"
#include "ops/cuda/numbers.cuh"
#include "ops/cuda/tensor_map.h"

namespace dsmoe::cuda::hopper {

namespace {

constexpr int kMost = kMostProjections;

// Several matrices that the same rows are multiplied with: their blocks are numbered one after another. Or, with weights
// read the other way, a sum of products of several rows and matrices: their k blocks are.
struct Args {
  CUtensorMap weights[kMost];
  CUtensorMap rows[kMost];
  int box_rows;  // of a tile, that one block loads: in one box, because asking for one takes the producer over 100 clocks
  TileSource tiles;
  void* y[kMost];
  int columns[kMost], first_block[kMost];  // of unused ones: past the last block
  int first_k[kMost];                      // likewise, of k blocks
  int k_blocks;                            // of all
  bool accumulate;                         // add to y, which is f32
  TurnAndStore turn;                       // of q, k and v; or `half` is 0

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

// Where q, k and v are turned and stored, the 64 columns of a warpgroup are 32 of the first half of a head and their
// partners in the second half: then both are side by side in the staging area.
struct HeadPart {
  __device__ __forceinline__ HeadPart(int half, int index) : place(index % (half / 32) * 32) {
    column = index / (half / 32) * 2 * half + place;
  }
  int place;   // in the half
  int column;  // of the matrix
};

// Rows of a staging area [tokens][64] to their places, turned if they are of q or k. Numbers are rounded as where they go
// through memory (rope.cu).
struct TurnedRows {
  const TurnAndStore& turn;
  HeadPart part;
  int matrix;  // 0 to 2 for q, k and v
  bf16* y;
  int columns;  // of a row of y

  __device__ __forceinline__ void copy_out(std::uint32_t staging, int token, int rows) const {
    constexpr int kStep = 32;  // four threads per row
    const int thread = threadIdx.x % 128, chunk = thread % 4;
#pragma unroll 2
    for (int row = thread / 4; row < rows; row += kStep) {
      const int t = token + row;
      const int to = matrix == 0 ? t : turn.cache_row[t];
      std::uint32_t first[4], second[4];
      ptx::load_shared(first, staging + Staging<64>::offset(row, chunk));
      ptx::load_shared(second, staging + Staging<64>::offset(row, chunk + 4));
      if (matrix < 2) rotate(t * turn.half + part.place + chunk * 8, first, second);
      bf16* const out = y + static_cast<std::size_t>(to) * columns + part.column + chunk * 8;
      *reinterpret_cast<uint4*>(out) = make_uint4(first[0], first[1], first[2], first[3]);
      *reinterpret_cast<uint4*>(out + turn.half) = make_uint4(second[0], second[1], second[2], second[3]);
    }
  }

 private:
  __device__ __forceinline__ void rotate(int at, std::uint32_t (&first)[4], std::uint32_t (&second)[4]) const {
    float cos[8], sin[8];
#pragma unroll
    for (int i = 0; i < 8; i += 4) {
      *reinterpret_cast<float4*>(cos + i) = __ldg(reinterpret_cast<const float4*>(turn.cos + at + i));
      *reinterpret_cast<float4*>(sin + i) = __ldg(reinterpret_cast<const float4*>(turn.sin + at + i));
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 a = ptx::unpack(first[i]), b = ptx::unpack(second[i]);
      const float c0 = cos[2 * i], c1 = cos[2 * i + 1], s0 = sin[2 * i], s1 = sin[2 * i + 1];
      first[i] = ptx::pack(fmaf(a.x, c0, -__fmul_rn(b.x, s0)), fmaf(a.y, c1, -__fmul_rn(b.y, s1)));
      second[i] = ptx::pack(fmaf(b.x, c0, __fmul_rn(a.x, s0)), fmaf(b.y, c1, __fmul_rn(a.y, s1)));
    }
  }
};

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
      Y* const y = static_cast<Y*>(args.y[matrix]);
      Y* const out = y + static_cast<std::size_t>(tile.row) * columns + column;
      const std::uint32_t staging = shared.staging + group * C::kStagingBytes;
      if constexpr (sizeof(Y) == 4) {
        if (C::kTokens == kWideTile && columns % 4 == 0 && reinterpret_cast<std::uintptr_t>(y) % 16 == 0)
          store_float_rows<kN>(acc[i], staging, group, out, columns, tile.rows, columns - column, args.accumulate);
        else
          store_floats<kN>(acc[i], out, columns, tile.rows, columns - column, args.accumulate);
      } else {
        if (args.turn.half == 0)
          store_transposed<kN>(acc[i], staging, group, out, columns, tile.rows, columns - column);
        else if (column < columns)
          store_turned<kN>(acc[i], staging, {args.turn, {args.turn.half, column / 64}, matrix, y, columns});
      }
    }
  }
  template <int kN>
  __device__ __forceinline__ void store_turned(const float (&acc)[kN / 2], std::uint32_t staging,
                                               const TurnedRows& to) const {
    stage_transposed<kN>(acc, staging, group, tile.rows,
                         [&](int first, int rows) { to.copy_out(staging, tile.row + first, rows); });
  }
};

// The weights of a tile.
template <class C, bool kTransposedWeights>
struct WeightBoxes {
  const Args& args;
  int matrix, first;           // block of the matrix
  int place[C::kGroups] = {};  // where q, k and v are turned and stored: which 32 of a half
  int head[C::kGroups] = {};

  __device__ __forceinline__ WeightBoxes(const Args& a, int m_block) : args(a) {
    matrix = kTransposedWeights ? 0 : args.matrix_of(m_block);
    first = (m_block - args.first_block[matrix]) * C::kBlocks * C::kTileM;
    if (args.turn.half == 0) return;
#pragma unroll
    for (int j = 0; j < C::kGroups; ++j) {
      const int parts = args.turn.half / 32, index = first / 64 + j;
      place[j] = index % parts, head[j] = index / parts;
    }
  }
  __device__ __forceinline__ void load(const Ring<C>& ring, int kb) const {
    static_assert(C::kBlocks == 1);
    const std::uint32_t to = ring.a();
    if constexpr (kTransposedWeights) {
      const int product = args.product_of(kb), k = (kb - args.first_k[product]) * kTileK;
      ptx::tma_load(to, &args.weights[product], ring.full_barrier(), first, k);
      ptx::tma_load(to + 8192, &args.weights[product], ring.full_barrier(), first + 64, k);
    } else if (args.turn.half == 0) {
      ptx::tma_load(to, &args.weights[matrix], ring.full_barrier(), kb * kTileK, first);
    } else {
#pragma unroll
      for (int j = 0; j < C::kGroups; ++j)
        ptx::tma_load(to + j * kGroupBytesA, &args.weights[matrix], ring.full_barrier(), kb * kTileK, 0, place[j], 0,
                      head[j]);
    }
  }
};

// The rows of a tile, for each of several products. Past the last row there are zeros.
template <class C, bool kTransposedWeights>
struct TileRows {
  const Args& args;
  int row;

  __device__ __forceinline__ std::uint32_t bytes() const { return C::kCluster * args.box_rows * kTileK * 2; }
  __device__ __forceinline__ void load(const Ring<C>& ring, int kb) const {
    const int product = kTransposedWeights ? args.product_of(kb) : 0, own = rank<C>() * args.box_rows;
    const int k = (kTransposedWeights ? kb - args.first_k[product] : kb) * kTileK;
    const std::uint32_t to = ring.b() + own * kTileK * 2;
    if constexpr (C::kCluster > 1)
      ptx::tma_load_all<C::kCluster>(to, &args.rows[product], ring.full_barrier(), k, row + own);
    else
      ptx::tma_load(to, &args.rows[product], ring.full_barrier(), k, row + own);
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
    const WeightBoxes<C, kTransposedWeights> weights(args, tile.m_block);
    const TileRows<C, kTransposedWeights> rows{args, tile.row};
    const std::uint32_t bytes = C::kBytesA + rows.bytes();
    int kb = 0;
    if (early) {
      Ring<C> ahead = ring;
      for (; kb < min(C::kStages, args.k_blocks); ++kb, ahead.advance()) {
        ptx::barrier_arrive_expect(ahead.full_barrier(), bytes);
        weights.load(ahead, kb);
      }
      ptx::wait_for_previous_kernel();
      early = false;
      for (int i = 0; i < kb; ++i, ring.advance()) rows.load(ring, i);
    }
    for (; kb < args.k_blocks; ++kb, ring.advance()) {
      ring.wait_empty();
      ptx::barrier_arrive_expect(ring.full_barrier(), bytes);
      weights.load(ring, kb);
      rows.load(ring, kb);
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

// Small tiles for small matrices or few rows. Blocks go in pairs that share the rows: the cache is a limit of all of them.
using Small = Config<kNarrowTile, 12, 1, 1, 2>;
using Slim = Config<kMiddleTile, 8, 1, 1, 2>;
using Square = Config<kMiddleTile, 6, 2, 1, 2>;

int up(int n, int unit) { return (n + unit - 1) / unit; }

// Rows [rows, k] in tiles of equal size.
template <class C>
CUtensorMap rows_map(Args& args, const bf16* x, int k, int rows) {
  args.box_rows = up(up(up(rows, up(rows, C::kTokens)), C::kCluster), 8) * 8;
  const auto inner = static_cast<std::uint64_t>(k);
  return tensor_map(x, {inner, static_cast<std::uint64_t>(rows)}, {inner},
                    {kTileK, static_cast<std::uint32_t>(args.box_rows)});
}

// For each warpgroup the rows of a part of a head and of their partners, see HeadPart.
CUtensorMap head_map(const LinearMatrix& m, std::uint64_t k, int half) {
  const auto h = static_cast<std::uint64_t>(half), heads = static_cast<std::uint64_t>(m.columns) / (2 * h);
  return tensor_map(m.w, {k, 32, h / 32, 2, heads}, {k, 32 * k, h * k, 2 * h * k}, {kTileK, 32, 1, 2, 1});
}

template <class C, class Y>
void run(Args& args, const LinearSizes& s, const bf16* x, std::span<const LinearMatrix> matrices, cudaStream_t stream) {
  const auto k = static_cast<std::uint64_t>(s.inner);
  args.k_blocks = up(s.inner, kTileK);
  args.rows[0] = rows_map<C>(args, x, s.inner, s.rows);
  int blocks = 0;
  for (std::size_t i = 0; i < kMost; ++i) {
    // A pair's block past the end of the last matrix is that one's too, and writes nothing.
    args.first_block[i] = i < matrices.size() ? blocks : blocks + 1;
    if (i >= matrices.size()) continue;
    const LinearMatrix& m = matrices[i];
    args.weights[i] = args.turn.half > 0
                          ? head_map(m, k, args.turn.half)
                          : tensor_map(m.w, {k, static_cast<std::uint64_t>(m.columns)}, {k}, {kTileK, C::kTileM});
    args.y[i] = m.y;
    args.columns[i] = m.columns;
    blocks += up(m.columns, C::kTileM);
  }
  args.tiles = {nullptr, nullptr, blocks, 1, s.rows, C::kTokens};
  launch_tiles<C>(linear_kernel<C, Y, false>, args, stream);
}

template <class Y>
void run(Args& args, const LinearSizes& s, const bf16* x, std::span<const LinearMatrix> matrices, cudaStream_t stream) {
  Index columns = 0;
  for (const LinearMatrix& m : matrices) columns += m.columns;
  switch (linear_tile(s.rows, columns)) {
    case LinearTile::kSmall: return run<Small, Y>(args, s, x, matrices, stream);
    case LinearTile::kSlim: return run<Slim, Y>(args, s, x, matrices, stream);
    case LinearTile::kSquare: return run<Square, Y>(args, s, x, matrices, stream);
    case LinearTile::kWide: return run<WidePair, Y>(args, s, x, matrices, stream);
  }
}

}  // namespace

void linear(const LinearSizes& s, const bf16* x, std::span<const LinearMatrix> matrices, DType y_dtype,
            cudaStream_t stream) {
  Args args{};
  y_dtype == DType::kF32 ? run<float>(args, s, x, matrices, stream) : run<bf16>(args, s, x, matrices, stream);
}

void project(const LinearSizes& s, const bf16* x, std::span<const LinearMatrix> qkv, const TurnAndStore& turn,
             cudaStream_t stream) {
  Args args{};
  args.turn = turn;
  run<bf16>(args, s, x, qkv, stream);
}

// The "columns" of this product are W's K, and its depth the Ns, each rounded up to whole blocks: past its end a product
// has zeros.
void linear_backward_input(const LinearSizes& s, std::span<const LinearInputGrad> products, void* dx, DType dx_dtype,
                           bool accumulate, cudaStream_t stream) {
  using C = WidePair;
  const auto k = static_cast<std::uint64_t>(s.inner);
  Args args{};
  for (std::size_t i = 0; i < kMost; ++i) {
    args.first_k[i] = args.k_blocks;
    if (i >= products.size()) continue;
    const auto n = static_cast<std::uint64_t>(products[i].columns);
    args.rows[i] = rows_map<C>(args, products[i].dy, products[i].columns, s.rows);
    args.weights[i] = tensor_map(products[i].w, {k, n}, {k}, {64, kTileK});
    args.k_blocks += up(products[i].columns, kTileK);
  }
  args.accumulate = accumulate;
  args.y[0] = dx;
  args.columns[0] = s.inner;
  const int blocks = up(s.inner, C::kTileM);
  // Blocks past the end of the only matrix, which a pair may have, are its own too, and write nothing.
  for (int i = 1; i < kMost; ++i) args.first_block[i] = blocks + 1;
  args.tiles = {nullptr, nullptr, blocks, 1, s.rows, C::kTokens};
  launch_tiles<C>(dx_dtype == DType::kF32 ? linear_kernel<C, float, true> : linear_kernel<C, bf16, true>, args, stream);
}

}  // namespace dsmoe::cuda::hopper
