// The machine behind the Hopper grouped products: persistent blocks of one producer warpgroup and two consumer
// warpgroups around a ring of shared-memory stages.
//
// Weights are always the M operand (128 rows per tile) and tokens the N operand (8 to 256 per tile). So one kernel
// serves one token and 16384: a tile with few tokens reads each weight once and runs a narrow wgmma. Every output
// is one chain of k16 steps in ascending k whatever the tile's width, so a token's bits do not depend on its batch.
#pragma once

#include "ops/cuda/hopper.h"
#include "ops/cuda/launch.h"
#include "ops/cuda/plan.h"
#include "ops/cuda/ptx.cuh"
#include "wgmma_shapes.h"

namespace dsmoe::cuda::hopper {

inline constexpr int kTileK = 64;
inline constexpr int kGroupBytesA = 64 * kTileK * 2;  // 64 weight rows, what one warpgroup multiplies at a time

// kGroups: consumer warpgroups; a block of weights has 64 rows for each. kBlocks: such blocks in a tile. kCluster: thread
// blocks that work together on neighbouring weight tiles of one token tile; each loads its part of the tokens and
// multicasts it to all, which saves cache traffic and power.
template <int kTokens_, int kStages_, int kGroups_, int kBlocks_, int kCluster_>
struct Config {
  static constexpr int kTokens = kTokens_, kStages = kStages_, kGroups = kGroups_, kBlocks = kBlocks_;
  static constexpr int kCluster = kCluster_;
  // Where there are few stages and memory is the limit, a stage is released as soon as its product is done instead of when
  // the next product has begun: that keeps one more load in flight.
  static constexpr bool kDrains = kBlocks > 1;
  static constexpr int kTileM = 64 * kGroups;  // rows of one block of weights
  static constexpr int kThreads = 128 * (1 + kGroups);
  static constexpr int kBlockBytesA = kGroups * kGroupBytesA;
  static constexpr int kBytesA = kBlocks * kBlockBytesA;
  static constexpr int kBytesB = kTokens * kTileK * 2;
  static constexpr int kStageBytes = kBytesA + kBytesB;
  static constexpr int kStagingBytes = kTokens < 128 ? kTokens * 128 : 16384;  // per consumer warpgroup
  static constexpr int kSmemBytes = kStages * (kStageBytes + 16) + kGroups * kStagingBytes + 1024;  // barriers; to align
};
using Wide = Config<kWideTile, 4, 2, 1, 1>;
using WidePair = Config<kWideTile, 4, 2, 1, 2>;
using Middle = Config<kMiddleTile, 4, 2, 2, 1>;
using Narrow = Config<kNarrowTile, 8, 2, 1, 1>;
using Tiny = Config<kTinyTile, 18, 1, 1, 1>;  // small tiles that spread a few experts evenly over the device

template <class C>
__device__ __forceinline__ int rank() {  // of this block in its cluster
  return C::kCluster > 1 ? blockIdx.x % C::kCluster : 0;
}

// With two consumer warpgroups the producer gives them some of its registers; with one there are enough.
template <class C, int kRegisters>
__device__ __forceinline__ void producer_registers() {
  if constexpr (C::kGroups > 1) ptx::registers_shrink<kRegisters>();
}
template <class C, int kRegisters>
__device__ __forceinline__ void consumer_registers() {
  if constexpr (C::kGroups > 1) ptx::registers_grow<kRegisters>();
}

struct Tile {
  int expert, m_block;
  int row, rows;   // in the plan's order
  int source_row;  // of the first row in x (shared experts) or in gathered rows
  bool shared;
};

// The tiles that one block (or cluster) works on, in order. Shared-expert tiles come first and are dealt round-robin. One
// of them takes as long as `rounds` routed tiles, so a block that drew one more of them skips its first `rounds` turns at
// the routed tiles.
class Turns {
 public:
  __device__ __forceinline__ Turns(int block, int blocks, int first, int rounds)
      : block_(block), blocks_(blocks), first_(first), late_(first % blocks), at_(block) {
    rounds_ = late_ > 0 ? rounds : 0;
    round_ = block < late_ ? rounds_ : 0;
  }
  __device__ __forceinline__ bool among_first() const { return at_ < first_; }
  __device__ __forceinline__ int next() {
    if (at_ < first_) {
      const int id = at_;
      at_ += blocks_;
      return id;
    }
    const int early = blocks_ - late_, round = round_++;
    if (round < rounds_) return first_ + round * early + block_ - late_;
    return first_ + rounds_ * early + (round - rounds_) * blocks_ + block_;
  }

 private:
  int block_, blocks_, first_, late_, at_, rounds_, round_;
};

// Where the tiles are. Those of the shared experts follow from the sizes alone.
struct TileSource {
  const TokenTile* list;
  const std::int32_t* count;  // of the list; null: only shared experts
  int m_blocks;
  int shared, tokens, token_tile;
  // Of one expert alone there is no gate ahead that has waited for x, so even the first tile must wait.
  bool wait_first = false;
  int rounds = 1;  // how many routed tiles take as long as one shared-expert tile
};

// The tiles of one block. Shared-expert tiles need no plan, so a kernel may work on them while the plan is still being
// made; before its first routed tile it waits for the previous kernel.
template <class C>
class TileLoop {
 public:
  __device__ explicit TileLoop(const TileSource& source)
      : s_(source),
        groups_(source.m_blocks / C::kCluster),
        per_expert_((source.tokens + source.token_tile - 1) / source.token_tile),
        shared_tiles_(source.shared * per_expert_),
        total_(shared_tiles_ * groups_),
        turns_(blockIdx.x / C::kCluster, gridDim.x / C::kCluster, total_, source.rounds) {}
  __device__ __forceinline__ bool next(Tile& tile) {
    do {
      if (s_.wait_first || !turns_.among_first()) wait();
      const int id = turns_.next();
      if (id >= total_) return false;
      find(id, tile);
    } while (tile.rows <= 0);
    return true;
  }
  __device__ __forceinline__ void wait() {
    if (waited_) return;
    ptx::wait_for_previous_kernel();
    ptx::let_next_kernel_start();
    assume_plan();
  }
  // For a caller that knows that the plan is there.
  __device__ __forceinline__ void assume_plan() {
    if (s_.count) total_ = (shared_tiles_ + *s_.count) * groups_;
    waited_ = true;
  }

 private:
  __device__ __forceinline__ void find(int id, Tile& tile) const {
    const int token_tile = id / groups_;
    tile.m_block = (id - token_tile * groups_) * C::kCluster + rank<C>();
    tile.shared = token_tile < shared_tiles_;
    if (tile.shared) {
      const int size = (s_.tokens + per_expert_ - 1) / per_expert_;
      tile.expert = token_tile / per_expert_;
      tile.source_row = token_tile % per_expert_ * size;
      tile.row = tile.expert * s_.tokens + tile.source_row;
      tile.rows = min(size, s_.tokens - tile.source_row);
    } else {
      const int4 t = *reinterpret_cast<const int4*>(s_.list + token_tile - shared_tiles_);
      tile.expert = t.x;
      tile.row = t.y;
      tile.rows = t.z;
      tile.source_row = t.w;
    }
  }

  const TileSource& s_;
  int groups_, per_expert_, shared_tiles_, total_;
  Turns turns_;
  bool waited_ = false;
};

// The ring of stages as one role sees it.
template <class C>
struct Ring {
  std::uint32_t data, full, empty;  // addresses in shared memory
  int stage = 0;
  std::uint32_t phase = 0;

  __device__ __forceinline__ std::uint32_t a() const { return data + stage * C::kStageBytes; }
  __device__ __forceinline__ std::uint32_t b() const { return a() + C::kBytesA; }
  __device__ __forceinline__ std::uint32_t full_barrier() const { return full + stage * 8; }
  __device__ __forceinline__ std::uint32_t empty_barrier() const { return empty + stage * 8; }
  __device__ __forceinline__ void advance() {
    if (++stage == C::kStages) {
      stage = 0;
      phase ^= 1;
    }
  }
  __device__ __forceinline__ void wait_empty() const { ptx::barrier_wait(empty_barrier(), phase ^ 1); }
};

template <class C>
struct Shared {
  Ring<C> ring;
  std::uint32_t staging;  // C::kStagingBytes for each consumer warpgroup
};

// Lays out shared memory and sets up the barriers. `producers` arrive on a full barrier, all consumer warps on an
// empty one.
template <class C>
__device__ __forceinline__ Shared<C> set_up(char* raw, int producers) {
  const std::uint32_t base = (ptx::smem_address(raw) + 1023u) & ~1023u;
  Shared<C> s;
  s.ring.data = base;
  s.staging = base + C::kStages * C::kStageBytes;
  s.ring.full = s.staging + C::kGroups * C::kStagingBytes;
  s.ring.empty = s.ring.full + C::kStages * 8;
  if (threadIdx.x == 0) {
    for (int i = 0; i < C::kStages; ++i) {
      ptx::barrier_init(s.ring.full + i * 8, producers);
      ptx::barrier_init(s.ring.empty + i * 8, 4 * C::kGroups * C::kCluster);
    }
    ptx::barrier_init_fence();
  }
  if constexpr (C::kCluster > 1)
    ptx::cluster_sync();
  else
    __syncthreads();
  return s;
}

// A block of a cluster stays until its peers have stopped writing to it.
template <class C>
__device__ __forceinline__ void tear_down() {
  if constexpr (C::kCluster > 1) {
    __syncwarp();
    ptx::cluster_sync();
  }
}

// A consumer warp is done with a stage; called by one lane.
template <class C>
__device__ __forceinline__ void release(std::uint32_t empty_barrier) {
  if constexpr (C::kCluster > 1) {
#pragma unroll
    for (int i = 0; i < C::kCluster; ++i) ptx::barrier_arrive_remote(empty_barrier, i);
  } else {
    ptx::barrier_arrive(empty_barrier);
  }
}

// The B operand from token rows that are already contiguous in memory: TMA boxes of 32 rows, or of 8 for narrow tiles. In a
// cluster each block loads its share of the boxes and multicasts them to all.
inline constexpr int kBoxRows = 32;
template <class C>
struct RowBoxes {
  const CUtensorMap *wide, *narrow;
  int row, count, step;

  __device__ __forceinline__ RowBoxes(const CUtensorMap* wide_map, const CUtensorMap* narrow_map, int row0, int rows)
      : wide(wide_map), narrow(narrow_map), row(row0), step(rows <= 16 ? 8 : kBoxRows) {
    count = (rows + step - 1) / step;
  }
  __device__ __forceinline__ std::uint32_t bytes() const { return count * step * kTileK * 2; }
  __device__ __forceinline__ void load(const Ring<C>& ring, int kb) const {
    const CUtensorMap* map = step == 8 ? narrow : wide;
    if constexpr (C::kCluster > 1) {
      for (int i = rank<C>(); i < count; i += C::kCluster)
        ptx::tma_load_all<C::kCluster>(ring.b() + i * step * kTileK * 2, map, ring.full_barrier(), kb * kTileK,
                                       row + i * step);
    } else {
      for (int i = 0; i < count; ++i)
        ptx::tma_load(ring.b() + i * step * kTileK * 2, map, ring.full_barrier(), kb * kTileK, row + i * step);
    }
  }
};

// acc[i] += A * B of weight block i over `k_blocks` stages. kGathered: B was written by cp.async, which wgmma sees only
// after a fence. before_last() is called when the last stage has arrived.
template <int kN, int kTransA, int kTransB, bool kGathered, class C, class BeforeLast>
__device__ __forceinline__ void multiply(float (&acc)[C::kBlocks][kN / 2], Ring<C>& ring, int k_blocks, int group,
                                         BeforeLast&& before_last) {
  constexpr int kStepA = kTransA ? 2048 >> 4 : 32 >> 4;
  constexpr int kStepB = kTransB ? 2048 >> 4 : 32 >> 4;
  const bool signals = threadIdx.x % 32 == 0;
  std::uint32_t previous = 0;
  for (int kb = 0; kb < k_blocks; ++kb) {
    ptx::barrier_wait(ring.full_barrier(), ring.phase);
    if constexpr (kGathered) ptx::fence_proxy_async();
    if (kb == k_blocks - 1) before_last();
    const std::uint64_t a = ptx::tile_descriptor(ring.a() + group * kGroupBytesA, 8192);
    const std::uint64_t b = ptx::tile_descriptor(ring.b(), 8192);
    ptx::wgmma_fence();
#pragma unroll
    for (int j = 0; j < kTileK / 16; ++j)
#pragma unroll
      for (int i = 0; i < C::kBlocks; ++i)
        ptx::Wgmma<kN, kTransA, kTransB>::run(acc[i], a + i * (C::kBlockBytesA >> 4) + j * kStepA, b + j * kStepB, kb + j);
    ptx::wgmma_commit();
    if constexpr (C::kDrains) {
      ptx::wgmma_wait<0>();
      if (signals) release<C>(ring.empty_barrier());
    } else {
      ptx::wgmma_wait<1>();
      if (kb > 0 && signals) release<C>(previous);
      previous = ring.empty_barrier();
    }
    ring.advance();
  }
  ptx::wgmma_wait<0>();
#pragma unroll
  for (int i = 0; i < C::kBlocks; ++i) ptx::pin(acc[i]);
  if (!C::kDrains && k_blocks > 0 && signals) release<C>(previous);
}

template <int kN, int kTransA, int kTransB, bool kGathered, class C>
__device__ __forceinline__ void multiply(float (&acc)[C::kBlocks][kN / 2], Ring<C>& ring, int k_blocks, int group) {
  multiply<kN, kTransA, kTransB, kGathered>(acc, ring, k_blocks, group, [] {});
}

template <class C, int kFirst, int kStep, int kLast, class Body>
__device__ __forceinline__ bool try_widths(int rows, Body&& body) {
  if constexpr (kFirst <= kLast && kFirst <= C::kTokens) {
    if (rows > kFirst) return try_widths<C, kFirst + kStep, kStep, kLast>(rows, body);
    body.template run<kFirst>();
    return true;
  } else {
    return false;
  }
}

// Calls body.template run<N>() with the narrowest product that holds `rows` tokens: N is 8, 16, 32, 48, 64 or a larger
// multiple of 16.
template <class C, class Body>
__device__ __forceinline__ void with_width(int rows, Body&& body) {
  if (rows <= 8) return body.template run<8>();
  if (rows <= 64) {
    try_widths<C, 16, 16, 64>(rows, body);
    return;
  }
  if constexpr (C::kTokens > 64) {
    if (rows <= 128) {
      try_widths<C, 80, 16, 128>(rows, body);
      return;
    }
  }
  if constexpr (C::kTokens > 128) try_widths<C, 144, 16, 256>(rows, body);
}

// The rows of B gathered by 128 producer threads: thread t copies 16-byte chunk t % 8 of rows t / 8 + 16 i.
template <class C>
struct RowGather {
  static constexpr int kRows = C::kTokens / 16;
  std::int32_t token[kRows];  // -1: no such row in the tile

  // The rows of a shared expert are the tokens themselves; the plan may not be there yet.
  __device__ __forceinline__ void start(const Tile& tile, const std::int32_t* row_token) {
    const int first = threadIdx.x / 8;
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const int row = first + 16 * i;
      token[i] = row >= tile.rows ? -1 : tile.shared ? tile.source_row + row : row_token[tile.row + row];
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
  static constexpr int kMaxRows = 16384 / kRowBytes;

  __device__ static std::uint32_t offset(int row, int chunk) {
    const int swizzle = kChunks == 8 ? row & 7 : (row >> 1) & 3;
    return row * kRowBytes + ((chunk ^ swizzle) << 4);
  }
  // Copies `rows` rows, kMost at most, to out[row * ld], skipping columns at or past `columns`. kStream: the data is not
  // read again soon. Pointers are advanced by a constant step and conditions are predicates: with a 64-bit multiplication
  // and a branch per row, computing an address took 17 instructions.
  template <int kMost, bool kStream>
  __device__ __forceinline__ static void copy_out(std::uint32_t staging, __nv_bfloat16* out, std::size_t ld, int rows,
                                                  int columns) {
    constexpr int kStep = 128 / kChunks;
    constexpr int kBatch = kMost < kStep ? 1 : kMost / kStep < 4 ? kMost / kStep : 4;  // loads in flight
    const int thread = threadIdx.x % 128, chunk = thread % kChunks;
    if (chunk * 8 >= columns) return;
    const std::size_t step = kStep * ld;
    int row = thread / kChunks;
    out += row * ld + chunk * 8;
#pragma unroll 1
    for (; row < rows; row += kBatch * kStep, out += kBatch * step) {
      std::uint32_t v[kBatch][4];
#pragma unroll
      for (int i = 0; i < kBatch; ++i) ptx::load_shared(v[i], staging + offset(row + i * kStep, chunk));
#pragma unroll
      for (int i = 0; i < kBatch; ++i) ptx::store_if<kStream>(row + i * kStep < rows, out + i * step, v[i]);
    }
  }
};

// acc (64 output columns of this warpgroup x kN tokens) as bf16 rows in the staging area, as many as fit at a time:
// copy_out(first, rows) takes them from there.
template <int kN, class CopyOut>
__device__ __forceinline__ void stage_transposed(const float (&acc)[kN / 2], std::uint32_t staging, int group, int rows,
                                                 CopyOut&& copy_out) {
  using Area = Staging<64>;
  constexpr int kStep = kN < Area::kMaxRows ? kN : Area::kMaxRows;
  const int warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
#pragma unroll
  for (int n0 = 0; n0 < kN; n0 += kStep) {
    if (n0 > 0) ptx::named_barrier_sync(1 + group, 128);
#pragma unroll
    for (int n = n0; n < n0 + kStep && n < kN; n += 8) {
      const int j = n / 2;
      ptx::stmatrix_trans(staging + Area::offset(n - n0 + lane % 8, warp * 2 + lane / 8 % 2), ptx::pack(acc[j], acc[j + 1]),
                          ptx::pack(acc[j + 2], acc[j + 3]));
    }
    ptx::named_barrier_sync(1 + group, 128);
    copy_out(n0, min(kStep, rows - n0));
  }
  ptx::named_barrier_sync(1 + group, 128);
}

// Stores acc (64 output columns of this warpgroup x kN tokens) as bf16 rows of `out`.
template <int kN>
__device__ __forceinline__ void store_transposed(const float (&acc)[kN / 2], std::uint32_t staging, int group,
                                                 __nv_bfloat16* out, std::size_t ld, int rows, int columns) {
  using Area = Staging<64>;
  constexpr int kStep = kN < Area::kMaxRows ? kN : Area::kMaxRows;
  stage_transposed<kN>(acc, staging, group, rows, [&](int first, int count) {
    Area::copy_out<kStep, false>(staging, out + first * ld, ld, count, columns);
  });
}

// ---- host side

inline TileSource tile_source(const Sizes& s, const PlanView& plan, int m_blocks) {
  return {plan.tiles, plan.tile_count, m_blocks, s.shared, s.tokens, s.token_tile, s.routed() == 0};
}

// One thread block per multiprocessor, in clusters if the configuration has them.
template <class C, class Args>
void launch_tiles(void (*kernel)(Args), Args& args, cudaStream_t stream) {
  const auto round_up = [](int n, int unit) { return (n + unit - 1) / unit * unit; };
  // Weight blocks past the end write nothing.
  args.tiles.m_blocks = round_up(round_up(args.tiles.m_blocks, C::kBlocks) / C::kBlocks, C::kCluster);
  launch_clusters(C::kCluster, kernel, multiprocessors() / C::kCluster * C::kCluster, C::kThreads, C::kSmemBytes, stream,
                  args);
}

}  // namespace dsmoe::cuda::hopper
