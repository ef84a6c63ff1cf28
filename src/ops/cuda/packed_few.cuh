// Few rows times packed matrices, where reading the matrices and unpacking them is all that takes time. A warp owns a tile
// of 8 rows of W (columns of y). It loads them into registers some pieces ahead, unpacks them there and multiplies by
// mma.sync. A sum is one chain of k16 steps in ascending k, as in hopper_linear.cu and hopper_linear_few.cu, so the bits
// are those of the bf16 kernels.
//
// The kernels of a token are so short that fetching their instructions takes as long as running them: loops are short, and
// what is not expected to run is out of their way.
#pragma once

#include <algorithm>

#include "ops/cuda/launch.h"
#include "ops/cuda/numbers.cuh"
#include "ops/cuda/packed.h"
#include "ops/cuda/packed_blocks.h"
#include "ops/cuda/ptx.cuh"

namespace dsmoe::cuda::packed {

// Rows of x in shared memory, in the order of operand B: for 32 numbers and quad c the pairs at 2c, 2c + 8, 2c + 16 and
// 2c + 24 are neighbours. Rows lie so that lanes of two rows do not share banks.

// `count` numbers, a multiple of 32, at `from`, by all threads of the block.
__device__ __forceinline__ void put_row(std::uint8_t* shared, const bf16* from, int count) {
  constexpr int kAtOnce = 4;  // loads on their way
  const int pieces = count / 8, threads = static_cast<int>(blockDim.x);
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x); i < pieces; i += kAtOnce * threads) {
    uint4 v[kAtOnce];
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j)
      if (i + j * threads < pieces) v[j] = *reinterpret_cast<const uint4*>(from + (i + j * threads) * 8);
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      const int piece = i + j * threads;
      if (piece >= pieces) break;
      std::uint8_t* const to = shared + piece / 4 * 64 + piece % 4 * 4;
      save(to, v[j].x), save(to + 16, v[j].y), save(to + 32, v[j].z), save(to + 48, v[j].w);
    }
  }
}

// A lane's parts of kEights x 8 rows.
template <int kEights>
struct LaneRows {
  const std::uint8_t* at[kEights];

  // Rows that are not there are the last one.
  __device__ __forceinline__ LaneRows(const std::uint8_t* x, int rows, int columns) {
#pragma unroll
    for (int e = 0; e < kEights; ++e)
      at[e] = x + min(e * 8 + static_cast<int>(threadIdx.x) % 32 / 4, rows - 1) * row_pitch(columns) + threadIdx.x % 4 * 16;
  }
};

template <int kEights>
struct Sums {
  float v[kEights][4];
};

// acc += one GGUF block of a tile times x.
template <DType kType, bool kNear, int kEights>
__device__ __forceinline__ void multiply_block(Sums<kEights>& acc, const typename Block<kType>::Lane& lane,
                                               const LaneRows<kEights>& x, int offset) {
  using B = Block<kType>;
  const int quad = threadIdx.x % 4;
#pragma unroll
  for (int g = 0; g < B::kNumbers / 32; ++g) {
    Words4 in[kEights];
#pragma unroll
    for (int e = 0; e < kEights; ++e) in[e] = load<Words4>(x.at[e] + offset + g * 64);
#pragma unroll
    for (int s = 0; s < 2; ++s) {
      std::uint32_t w[2], other[2];
      if constexpr (kNear)
        B::template step<true>(lane, g * 2 + s, quad, w);
      else
        B::step(lane, g * 2 + s, quad, w);
      // The operand has room for another tile. Its rows are whatever the registers hold, and nobody looks at their sums:
      // zeros would have to be put there for every product.
      asm volatile("" : "=r"(other[0]), "=r"(other[1]));
#pragma unroll
      for (int e = 0; e < kEights; ++e)
        ptx::mma_16816(acc.v[e], w[0], other[0], w[1], other[1], in[e].v[2 * s], in[e].v[2 * s + 1]);
    }
  }
}

// The same for blocks that are not near(), which are rare: out of the way, and loaded again.
template <DType kType, int kEights>
__device__ __noinline__ Sums<kEights> multiply_far(Sums<kEights> acc, const std::uint8_t* tile, LaneRows<kEights> x,
                                                   int offset) {
  multiply_block<kType, false>(acc, load_lane<kType>(tile, threadIdx.x % 32 / 4, threadIdx.x % 4), x, offset);
  return acc;
}

// acc += a tile at `from` times rows of x: W is operand A, x operand B. A lane's acc.v[e][v], v < 2, is row
// 8 e + 2 (lane % 4) + v of x and row lane / 4 of the tile. Of the tile, pieces of kBlocks GGUF blocks are in registers one
// ahead of where they are used.
template <DType kType, int kBlocks, int kEights>
__device__ __forceinline__ void multiply_pieces(Sums<kEights>& acc, const std::uint8_t* from, int pieces,
                                                const LaneRows<kEights>& x) {
  using B = Block<kType>;
  constexpr int kAhead = 2, kPieceBytes = kBlocks * kTileBytes<kType>, kXBytes = kBlocks * B::kNumbers * 2;
  const int row = threadIdx.x % 32 / 4, quad = threadIdx.x % 4;
  typename B::Raw raw[kAhead][kBlocks];
  const auto load_piece = [&](typename B::Raw(&to)[kBlocks], int ahead) {
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) to[b] = B::load_raw(from + ahead * kPieceBytes + b * kTileBytes<kType>, row, quad);
  };
  const auto multiply_piece = [&](const typename B::Raw(&now)[kBlocks], int piece) {
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
      const typename B::Lane lane = B::lane(now[b]);
      const int offset = piece * kXBytes + b * B::kNumbers * 2;
      if constexpr (B::kTwoWays) {
        if (__builtin_expect(!__all_sync(0xffffffffu, lane.near()), 0)) {
          acc = multiply_far<kType>(acc, from, x, offset);
          continue;
        }
      }
      multiply_block<kType, B::kTwoWays>(acc, lane, x, offset);
    }
  };
  load_piece(raw[0], 0);
  load_piece(raw[1], min(1, pieces - 1));
  if constexpr (B::kNumbers == 256) {  // long enough once: moving registers costs less than fetching the same again
#pragma unroll 1
    for (int piece = 0; piece < pieces; ++piece, from += kPieceBytes) {
      multiply_piece(raw[0], piece);
      raw[0][0] = raw[1][0];
      if (piece + kAhead < pieces) load_piece(raw[1], kAhead);
    }
  } else {
#pragma unroll 1
    for (int first = 0; first < pieces; first += kAhead) {
#pragma unroll
      for (int i = 0; i < kAhead; ++i, from += kPieceBytes) {
        if (first + i >= pieces) break;
        multiply_piece(raw[i], first + i);
        if (first + i + kAhead < pieces) load_piece(raw[i], kAhead);
      }
    }
  }
}

// Where a tile begins, and how long it is. A tile past the last one is the last one again.
struct TileBytes {
  const std::uint8_t* from;
  int bytes;

  __device__ __forceinline__ TileBytes(const Matrix& w, int tile) {
    with_block(w.dtype, [&]<DType kType>() { bytes = w.columns / Block<kType>::kNumbers * kTileBytes<kType>; });
    from = static_cast<const std::uint8_t*>(w.data) + static_cast<std::size_t>(min(tile, (w.rows - 1) / kTileRows)) * bytes;
    __builtin_assume(__isGlobal(from));
  }
  // Into the cache, before x is there.
  __device__ __forceinline__ void prefetch() const {
#if __CUDA_ARCH__ >= 900
    if (threadIdx.x % 32 == 0)
      asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes) : "memory");
#else
    for (int i = static_cast<int>(threadIdx.x) % 32 * 128; i < bytes; i += 32 * 128) ptx::prefetch(from + i);
#endif
  }
};

template <int kEights>
__device__ __forceinline__ Sums<kEights> multiply(const Matrix& w, const TileBytes& tile, const LaneRows<kEights>& x) {
  Sums<kEights> acc{};
  with_block(w.dtype, [&]<DType kType>() {
    using B = Block<kType>;
    constexpr int kBlocks = B::kNumbers == 32 ? 4 : 1;
    const int blocks = w.columns / B::kNumbers;
    if (kBlocks == 1 || blocks % kBlocks != 0)
      multiply_pieces<kType, 1>(acc, tile.from, blocks, x);
    else
      multiply_pieces<kType, kBlocks>(acc, tile.from, blocks / kBlocks, x);
  });
  return acc;
}

// fn(row of x, row of the tile, sum) for a lane's sums.
template <int kEights, class Fn>
__device__ __forceinline__ void each_sum(const Sums<kEights>& acc, Fn&& fn) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int e = 0; e < kEights; ++e)
#pragma unroll
    for (int v = 0; v < 2; ++v) fn(e * 8 + lane % 4 * 2 + v, lane / 4, acc.v[e][v]);
}

// Two warps with a tile each and the same rows of x: the first then has the second's sums in acc[e][2] and [3].
template <int kEights>
__device__ __forceinline__ void join(Sums<kEights>& acc, float (*shared)[32][2]) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int e = 0; e < kEights; ++e)
    if (threadIdx.x >= 32) shared[e][lane][0] = acc.v[e][0], shared[e][lane][1] = acc.v[e][1];
  __syncthreads();
#pragma unroll
  for (int e = 0; e < kEights; ++e)
    if (threadIdx.x < 32) acc.v[e][2] = shared[e][lane][0], acc.v[e][3] = shared[e][lane][1];
}

}  // namespace dsmoe::cuda::packed
