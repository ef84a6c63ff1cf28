// The rule that fixes the bits of attention on tensor cores. Every kernel is made of these functions, so a query's result
// is the same in all of them.
//
// Keys are taken in tiles of 128 at absolute positions. For one query and one tile:
//   s   = q.k, one chain of m16n8k16 products over the head in ascending k; -infinity for keys after the query
//   m   = the largest s
//   p   = bf16(2^((s - m) * scale * log2(e)))
//   l   = the sum of p, and
//   o_t = the sum of p v: one chain each over the tile's keys, in steps of 16 in ascending order
// Tiles are merged in ascending order into (M, L, O) from (-infinity, 0, 0):
//   M' = max(M, m), a = 2^((M - M') ...), b = 2^((m - M') ...), L = fma(L, a, l b), O = fma(O, a, o_t b)
// and the result is bf16(O / L). A step of a chain is one matrix instruction; what it gives for one query and one key, or
// one query and one column, does not depend on which rows and columns it works on besides. Keys after a query have p = 0,
// and a tile that has only such keys leaves (M, L, O) as they are. A key or value that the cache has as q8_0 is the number
// that its block stands for, rounded to bf16.
#pragma once

#include <cuda_bf16.h>

#include <cmath>
#include <cstdint>

#include "ops/cuda/ptx.cuh"
#include "ops/cuda/q8_0.cuh"
#include "ops/cuda/slices.h"

namespace dsmoe::cuda::attention {

using bf16 = __nv_bfloat16;
inline constexpr int kTile = ops::cuda::kKeyTile, kSteps = kTile / 16;

// ---- one query

// The largest score and the sum of the weights of the keys so far.
struct State {
  float max = -INFINITY, sum = 0;
};
// By which what is there and what a tile adds are multiplied.
struct Factors {
  float before, tile;
};

__device__ __forceinline__ float weight(float s, float m, float to_log2) {
  return ptx::exp2(__fmul_rn(__fsub_rn(s, m), to_log2));
}
// What scores are taken relative to: anything will do where there is no key, and -infinity - -infinity is no number.
__device__ __forceinline__ float reference(float m) { return m == -INFINITY ? 0.0f : m; }

// The tile's factor is -0 where the query sees none of its keys: x + 0 * -0 is x, for x = -0 too.
__device__ __forceinline__ Factors merge(State& state, float m, float l, float to_log2) {
  const float largest = fmaxf(state.max, m), r = reference(largest);
  const Factors f{weight(state.max, r, to_log2), m == -INFINITY ? -0.0f : weight(m, r, to_log2)};
  state.max = largest;
  state.sum = __fmaf_rn(state.sum, f.before, __fmul_rn(l, f.tile));
  return f;
}
__device__ __forceinline__ float merged(float o, float o_t, const Factors& f) {
  return __fmaf_rn(o, f.before, __fmul_rn(o_t, f.tile));
}
__device__ __forceinline__ float log_sum(const State& state, float scale) {
  return __fmaf_rn(state.max, scale, logf(state.sum));
}

// ---- tiles in shared memory: [rows][kDim] bf16, 16-byte chunks swizzled so that eight rows' chunks lie in different banks

template <int kDim>
__device__ __forceinline__ std::uint32_t offset_of(int row, int chunk) {
  return static_cast<std::uint32_t>(row * kDim * 2 + ((chunk ^ (row & 7)) << 4));
}

// Starts copying rows [first, last) of a tile of keys or values whose row 0 is at `from`; rows from `rows` on are zeros,
// whatever the cache has there: it may be NaN, which a weight of 0 would not hide.
template <int kDim, int kThreads>
__device__ __forceinline__ void load_rows(std::uint32_t to, const bf16* from, std::size_t stride, int rows, int first,
                                          int last) {
  constexpr int kChunks = kDim / 8;
  static_assert(kThreads % kChunks == 0);
  const int begin = threadIdx.x / kChunks, chunk = threadIdx.x % kChunks;
#pragma unroll
  for (int i = 0; i < kTile * kChunks / kThreads; ++i) {
    const int row = begin + i * (kThreads / kChunks);
    if (row < first || row >= last) continue;
    const bool there = row < rows;
    ptx::cp_async_16(to + offset_of<kDim>(row, chunk), from + (there ? row : 0) * stride + chunk * 8, there ? 16 : 0);
  }
}
template <int kDim, int kThreads>
__device__ __forceinline__ void load_tile(std::uint32_t to, const bf16* from, std::size_t stride, int rows) {
  load_rows<kDim, kThreads>(to, from, stride, rows, 0, kTile);
}

// ---- a cache of q8_0: tiles are copied as they are, then unpacked

// Bytes of a row, and of the pieces that rows in memory can be copied in: rows begin at multiples of a piece.
template <int kDim>
constexpr int kQ8Bytes = kDim / 32 * static_cast<int>(sizeof(BlockQ8_0));
template <int kDim>
constexpr int kQ8Piece = kDim == 128 ? 8 : 4;

template <int kBytes>
__device__ __forceinline__ void cp_async_piece(std::uint32_t dst, const void* src, std::uint32_t bytes) {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(dst), "l"(src), "n"(kBytes), "r"(bytes) : "memory");
#else
  __trap();  // as cp_async_16()
#endif
}

// As load_rows() of bf16, to rows of kQ8Bytes; `stride` in bytes.
template <int kDim, int kThreads>
__device__ __forceinline__ void load_blocks(std::uint32_t to, const unsigned char* from, std::size_t stride, int rows,
                                            int first, int last) {
  constexpr int kPiece = kQ8Piece<kDim>, kPieces = kQ8Bytes<kDim> / kPiece;
  static_assert(kPieces * kPiece == kQ8Bytes<kDim>);
#pragma unroll 4
  for (int i = max(first, 0) * kPieces + static_cast<int>(threadIdx.x); i < min(last, kTile) * kPieces; i += kThreads) {
    const int row = i / kPieces, piece = i % kPieces;
    const bool there = row < rows;
    cp_async_piece<kPiece>(to + static_cast<std::uint32_t>(i * kPiece), from + (there ? row : 0) * stride + piece * kPiece,
                           there ? kPiece : 0);
  }
}

// Four numbers of a block as bf16. prmt makes 32768 + 128 + q of each, and the multiply-add takes both off again: all of it
// is exact, as is the product of a half and eight bits.
__device__ __forceinline__ uint2 unpack_four(std::uint32_t q, float scale) {
  constexpr std::uint32_t kExponent = 0x47000000;  // of 32768
  const float less = -32896.0f * scale;
  const std::uint32_t u = q ^ 0x80808080;
  const auto number = [&](std::uint32_t selector) {
    return __fmaf_rn(__uint_as_float(__byte_perm(u, kExponent, selector)), scale, less);
  };
  return make_uint2(ptx::pack(number(0x7404), number(0x7414)), ptx::pack(number(0x7424), number(0x7434)));
}

// A tile of blocks in shared memory to one of bf16.
template <int kDim, int kThreads>
__device__ __forceinline__ void unpack_tile(bf16* to, const unsigned char* from) {
  constexpr int kChunks = kDim / 8;
  static_assert(kThreads % kChunks == 0);
  const int begin = threadIdx.x / kChunks, chunk = threadIdx.x % kChunks;
  const int block = chunk / 4 * static_cast<int>(sizeof(BlockQ8_0)), at = block + 2 + chunk % 4 * 8;
  const bool between = at % 4 != 0;  // two bytes away from a word
#pragma unroll 4
  for (int i = 0; i < kTile * kChunks / kThreads; ++i) {
    const int row = begin + i * (kThreads / kChunks);
    const unsigned char* const own = from + row * kQ8Bytes<kDim>;
    const float scale = __half2float(*reinterpret_cast<const __half*>(own + block));
    const auto* const words = reinterpret_cast<const std::uint32_t*>(own + (at & ~3));
    const std::uint32_t shift = between ? 16 : 0, middle = words[1], last = between ? words[2] : 0;
    const uint2 low = unpack_four(__funnelshift_r(words[0], middle, shift), scale);
    const uint2 high = unpack_four(__funnelshift_r(middle, last, shift), scale);
    *reinterpret_cast<uint4*>(reinterpret_cast<unsigned char*>(to) + offset_of<kDim>(row, chunk)) =
        make_uint4(low.x, low.y, high.x, high.y);
  }
}

// Where key tile `tile` of a slice begins in the cache.
__device__ __forceinline__ std::size_t cache_row(const std::int32_t* tiles, int tile) {
  constexpr int kParts = ops::kAttentionTile / kTile;
  return static_cast<std::size_t>(tiles[tile / kParts]) + tile % kParts * kTile;
}

// ---- 16 queries of a warp. A lane has rows lane / 4 and lane / 4 + 8; of every 8 columns of a product it has
// lane % 4 * 2 and the next: [n][0, 1] of the first row, [n][2, 3] of the second.

// Operand A: 16 queries. `row(i)`: where query i is, or null for none.
template <int kDim, class Row>
__device__ __forceinline__ void load_queries(std::uint32_t (&q)[kDim / 16][4], Row&& row) {
  const int g = threadIdx.x % 32 / 4, c = threadIdx.x % 4 * 2;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const bf16* const from = row(g + half * 8);
#pragma unroll
    for (int k = 0; k < kDim / 16; ++k)
#pragma unroll
      for (int part = 0; part < 2; ++part)
        q[k][half + 2 * part] = from ? *reinterpret_cast<const std::uint32_t*>(from + k * 16 + part * 8 + c) : 0;
  }
}

// Scores of 8 * kCount keys whose rows begin at address `keys` (a multiple of 8 rows into a tile).
template <int kDim, int kCount>
__device__ __forceinline__ void scores(float (&s)[kCount][4], const std::uint32_t (&q)[kDim / 16][4], std::uint32_t keys) {
  const int lane = threadIdx.x % 32, row = lane / 16 * 8 + lane % 8, chunk = lane / 8 % 2;
#pragma unroll
  for (int n = 0; n < kCount; ++n) s[n][0] = s[n][1] = s[n][2] = s[n][3] = 0;
#pragma unroll
  for (int k = 0; k < kDim / 16; ++k)
#pragma unroll
    for (int n = 0; n < kCount; n += 2) {
      std::uint32_t b[4];
      ptx::ldmatrix(b, keys + n * 8 * kDim * 2 + offset_of<kDim>(row, 2 * k + chunk));
      ptx::mma_16816(s[n], q[k][0], q[k][1], q[k][2], q[k][3], b[0], b[1]);
      ptx::mma_16816(s[n + 1], q[k][0], q[k][1], q[k][2], q[k][3], b[2], b[3]);
    }
}

// Keys after their query; key 0 of s is at position `first`.
template <int kCount>
__device__ __forceinline__ void mask(float (&s)[kCount][4], int first, const int (&position)[2]) {
  const int c = first + threadIdx.x % 4 * 2;
#pragma unroll
  for (int n = 0; n < kCount; ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i)
      if (c + n * 8 + i % 2 > position[i / 2]) s[n][i] = -INFINITY;
}

template <int kCount>
__device__ __forceinline__ void largest(const float (&s)[kCount][4], float (&m)[2]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float v = -INFINITY;
#pragma unroll
    for (int n = 0; n < kCount; ++n) v = fmaxf(v, fmaxf(s[n][2 * half], s[n][2 * half + 1]));
    v = fmaxf(v, __shfl_xor_sync(~0u, v, 1));
    m[half] = fmaxf(v, __shfl_xor_sync(~0u, v, 2));
  }
}

// Scores to weights, as operand A of the product with the values: p[j] has keys 16 j to 16 j + 15.
template <int kCount>
__device__ __forceinline__ void weights(const float (&s)[kCount][4], const float (&m)[2], float to_log2,
                                        std::uint32_t (&p)[kCount / 2][4]) {
  const float r[2] = {reference(m[0]), reference(m[1])};
#pragma unroll
  for (int n = 0; n < kCount; ++n)
#pragma unroll
    for (int half = 0; half < 2; ++half)
      p[n / 2][n % 2 * 2 + half] =
          ptx::pack(weight(s[n][2 * half], r[half], to_log2), weight(s[n][2 * half + 1], r[half], to_log2));
}

__device__ __forceinline__ void sums(const std::uint32_t (&p)[kSteps][4], float (&l)[2]) {
  constexpr std::uint32_t kOnes = 0x3f803f80;
  float sum[4] = {};
#pragma unroll
  for (int j = 0; j < kSteps; ++j) ptx::mma_16816(sum, p[j][0], p[j][1], p[j][2], p[j][3], kOnes, kOnes);
  l[0] = sum[0], l[1] = sum[2];
}

// o_t for 8 * kCount columns of the values from chunk `first` on.
template <int kDim, int kCount>
__device__ __forceinline__ void mix_values(float (&o)[kCount][4], const std::uint32_t (&p)[kSteps][4], std::uint32_t values,
                                           int first) {
  const int lane = threadIdx.x % 32, row = lane % 16, chunk = first + lane / 16;
#pragma unroll
  for (int n = 0; n < kCount; ++n) o[n][0] = o[n][1] = o[n][2] = o[n][3] = 0;
#pragma unroll
  for (int j = 0; j < kSteps; ++j)
#pragma unroll
    for (int n = 0; n < kCount; n += 2) {
      std::uint32_t b[4];
      ptx::ldmatrix_trans(b, values + j * 16 * kDim * 2 + offset_of<kDim>(row, chunk + n));
      ptx::mma_16816(o[n], p[j][0], p[j][1], p[j][2], p[j][3], b[0], b[1]);
      ptx::mma_16816(o[n + 1], p[j][0], p[j][1], p[j][2], p[j][3], b[2], b[3]);
    }
}

}  // namespace dsmoe::cuda::attention
