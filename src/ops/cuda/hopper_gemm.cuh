// The machine behind the Hopper grouped products: persistent blocks of one producer warpgroup and two consumer
// warpgroups around a ring of shared-memory stages.
//
// Weights are always the M operand (128 rows per tile) and tokens the N operand (8 to 256 per tile). So one kernel
// serves one token and 16384: a tile with few tokens reads each weight once and runs a narrow wgmma. Every output
// is one chain of k16 steps in ascending k whatever the tile's width, so a token's bits do not depend on its batch.
#pragma once

#include "ops/cuda/plan.h"
#include "ops/cuda/ptx.cuh"
#include "wgmma_shapes.h"

namespace dsmoe::cuda::hopper {

inline constexpr int kTileM = 128;
inline constexpr int kTileK = 64;
inline constexpr int kStages = 4;
inline constexpr int kBytesA = kTileM * kTileK * 2;
inline constexpr int kBytesB = kTokenTile * kTileK * 2;
inline constexpr int kStageBytes = kBytesA + kBytesB;
inline constexpr int kStagingBytes = 16384;  // per consumer warpgroup, for outputs on their way to memory
inline constexpr int kThreads = 384;
inline constexpr int kSmemBytes = kStages * kStageBytes + 2 * kStagingBytes + 1024 + 128;  // 1024 to align, 128 barriers
inline constexpr int kProducerRegisters = 56;
inline constexpr int kConsumerRegisters = 224;

struct Tile {
  int expert, m_block, row0, rows;
};

// What every token-tiled product needs to find its tiles.
struct TileSource {
  const std::int32_t* row_offset;
  const std::int32_t* tile_offset;
  int experts;
  int m_blocks;

  __device__ int total() const { return tile_offset[experts] * m_blocks; }
  // Tile `id`; `expert` only moves forward between calls with ascending ids.
  __device__ Tile find(int id, int& expert) const {
    while (id >= tile_offset[expert + 1] * m_blocks) ++expert;
    const int first = tile_offset[expert];
    const int local = id - first * m_blocks;
    const int tiles = tile_offset[expert + 1] - first;
    const int begin = row_offset[expert];
    const int count = row_offset[expert + 1] - begin;
    const int size = (count + tiles - 1) / tiles;  // an even split wastes less than full tiles and a rest
    const int token_tile = local / m_blocks;
    const int row = token_tile * size;
    return {expert, local - token_tile * m_blocks, begin + row, min(size, count - row)};
  }
};

// The ring of stages as one role sees it.
struct Ring {
  std::uint32_t data, full, empty;  // addresses in shared memory
  int stage = 0;
  std::uint32_t phase = 0;

  __device__ std::uint32_t a() const { return data + stage * kStageBytes; }
  __device__ std::uint32_t b() const { return a() + kBytesA; }
  __device__ std::uint32_t full_barrier() const { return full + stage * 8; }
  __device__ std::uint32_t empty_barrier() const { return empty + stage * 8; }
  __device__ __forceinline__ void advance() {
    if (++stage == kStages) {
      stage = 0;
      phase ^= 1;
    }
  }
};

struct Shared {
  Ring ring;
  std::uint32_t staging;  // two areas of kStagingBytes
};

// Lays out shared memory and sets up the barriers. `producers` arrive on a full barrier, 8 consumer warps on an
// empty one.
__device__ __forceinline__ Shared set_up(char* raw, int producers) {
  const std::uint32_t base = (ptx::smem_address(raw) + 1023u) & ~1023u;
  Shared s;
  s.ring.data = base;
  s.staging = base + kStages * kStageBytes;
  s.ring.full = s.staging + 2 * kStagingBytes;
  s.ring.empty = s.ring.full + kStages * 8;
  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; ++i) {
      ptx::barrier_init(s.ring.full + i * 8, producers);
      ptx::barrier_init(s.ring.empty + i * 8, 8);
    }
    ptx::barrier_init_fence();
  }
  __syncthreads();
  return s;
}

// acc += A * B over `k_blocks` stages. kGathered: B was written by cp.async, which wgmma sees only after a fence.
template <int kN, int kTransA, int kTransB, bool kGathered>
__device__ __forceinline__ void multiply(float (&acc)[kN / 2], Ring& ring, int k_blocks, int group) {
  constexpr int kStepA = kTransA ? 2048 >> 4 : 32 >> 4;
  constexpr int kStepB = kTransB ? 2048 >> 4 : 32 >> 4;
  const bool signals = threadIdx.x % 32 == 0;
  std::uint32_t previous = 0;
  for (int kb = 0; kb < k_blocks; ++kb) {
    ptx::barrier_wait(ring.full_barrier(), ring.phase);
    if constexpr (kGathered) ptx::fence_proxy_async();
    const std::uint64_t a = ptx::tile_descriptor(ring.a() + group * 8192, 8192);
    const std::uint64_t b = ptx::tile_descriptor(ring.b(), 8192);
    ptx::wgmma_fence();
#pragma unroll
    for (int j = 0; j < kTileK / 16; ++j)
      ptx::Wgmma<kN, kTransA, kTransB>::run(acc, a + j * kStepA, b + j * kStepB, kb + j);
    ptx::wgmma_commit();
    ptx::wgmma_wait<1>();
    if (kb > 0 && signals) ptx::barrier_arrive(previous);
    previous = ring.empty_barrier();
    ring.advance();
  }
  ptx::wgmma_wait<0>();
  ptx::pin(acc);
  if (k_blocks > 0 && signals) ptx::barrier_arrive(previous);
}

// Calls body.template run<N>() with the narrowest product that holds `rows` tokens.
template <class Body>
__device__ __forceinline__ void with_width(int rows, Body&& body) {
  if (rows > 128) {
    if (rows > 192) {
      if (rows > 224) return body.template run<256>();
      return body.template run<224>();
    }
    if (rows > 160) return body.template run<192>();
    return body.template run<160>();
  }
  if (rows > 48) {
    if (rows > 96) return body.template run<128>();
    if (rows > 64) return body.template run<96>();
    return body.template run<64>();
  }
  if (rows > 32) return body.template run<48>();
  if (rows > 16) return body.template run<32>();
  if (rows > 8) return body.template run<16>();
  return body.template run<8>();
}

// The rows of B gathered by 128 producer threads: thread t copies 16-byte chunk t % 8 of rows t / 8 + 16 i.
struct RowGather {
  static constexpr int kRows = kTokenTile / 16;
  std::int32_t token[kRows];  // -1: no such row in the tile

  __device__ __forceinline__ void start(const Tile& tile, const std::int32_t* row_token) {
    const int first = threadIdx.x / 8;
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const int row = first + 16 * i;
      token[i] = row < tile.rows ? row_token[tile.row0 + row] : -1;
    }
  }
  __device__ __forceinline__ void copy(std::uint32_t b, const __nv_bfloat16* x, int width, int kb) const {
    const int first = threadIdx.x / 8, chunk = threadIdx.x % 8;
    const int k = kb * kTileK + chunk * 8;
    const std::uint32_t dst = b + first * 128 + ((chunk ^ (first & 7)) << 4);
    const __nv_bfloat16* src = x + k;
    const std::uint32_t bytes = k < width ? 16 : 0;
    if (bytes == 0) src = x;
#pragma unroll
    for (int i = 0; i < kRows; ++i)
      if (token[i] >= 0) ptx::cp_async_16(dst + i * 2048, src + static_cast<std::size_t>(token[i]) * width, bytes);
  }
};

// ---- outputs: registers -> staging -> memory in rows of 16-byte chunks

// One warpgroup's [tokens][kColumns] block of bf16 in its staging area, swizzled against bank conflicts.
template <int kColumns>
struct Staging {
  static constexpr int kRowBytes = kColumns * 2;
  static constexpr int kChunks = kRowBytes / 16;
  static constexpr int kMaxRows = kStagingBytes / kRowBytes;

  __device__ static std::uint32_t offset(int row, int chunk) {
    const int swizzle = kChunks == 8 ? row & 7 : (row >> 1) & 3;
    return row * kRowBytes + ((chunk ^ swizzle) << 4);
  }
  // Copies `rows` rows to out[row * ld], leaving out columns at or past `columns`.
  __device__ __forceinline__ static void copy_out(std::uint32_t staging, __nv_bfloat16* out, std::size_t ld, int rows, int columns) {
    const int thread = threadIdx.x % 128;
    const int chunk = thread % kChunks;
    if (chunk * 8 >= columns) return;
    for (int row = thread / kChunks; row < rows; row += 128 / kChunks) {
      uint4 v;
      asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                   : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                   : "r"(staging + offset(row, chunk))
                   : "memory");
      *reinterpret_cast<uint4*>(out + row * ld + chunk * 8) = v;
    }
  }
};

// Stores acc (64 output columns of this warpgroup x kN tokens) as bf16 rows of `out`.
template <int kN>
__device__ __forceinline__ void store_transposed(const float (&acc)[kN / 2], std::uint32_t staging, int group, __nv_bfloat16* out,
                                        std::size_t ld, int rows, int columns) {
  using Area = Staging<64>;
  constexpr int kStep = kN < Area::kMaxRows ? kN : Area::kMaxRows;
  const int warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
#pragma unroll
  for (int n0 = 0; n0 < kN; n0 += kStep) {
    if (n0 > 0) ptx::named_barrier_sync(1 + group, 128);
#pragma unroll
    for (int n = n0; n < n0 + kStep && n < kN; n += 8) {
      const int j = n / 2;
      ptx::stmatrix_trans(staging + Area::offset(n - n0 + lane % 8, warp * 2 + lane / 8 % 2),
                          ptx::pack(acc[j], acc[j + 1]), ptx::pack(acc[j + 2], acc[j + 3]));
    }
    ptx::named_barrier_sync(1 + group, 128);
    Area::copy_out(staging, out + n0 * ld, ld, min(kStep, rows - n0), columns);
  }
  ptx::named_barrier_sync(1 + group, 128);
}

}  // namespace dsmoe::cuda::hopper
