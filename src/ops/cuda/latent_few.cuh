// What attention over latents for few rows is made of (hopper_latent_few.cu): its shared memory, the ring of keys and the
// two products of a tile, for blocks of 16 rows.
#pragma once

#include "ops/cuda/latent_tile.cuh"

namespace dsmoe::cuda::latent::few {

inline constexpr int kWarps = 8, kConsumers = kWarps * 32, kThreads = kConsumers + 32;
inline constexpr int kPart = 32, kParts = kTile / kPart;  // keys of a stage, stages of a tile
inline constexpr int kStages = 5, kStageBytes = kPart * kDim * 2, kGroupBytes = kPart * 128;
inline constexpr int kBlocks = kValues / kWarps / 8;  // of eight columns, of a warp
static_assert(kValues / kWarps == kGroup && kTile / kWarps == 16);

// Shared memory.
inline constexpr int kRows = 16;
struct Memory {
  static constexpr int kQueries = kStages * kStageBytes;
  static constexpr int kWeights = kQueries + kRows * kDim * 2;  // operand A of the product with the values, by lanes
  static constexpr int kLargest = kWeights + kSteps * 32 * 16;  // f32 [kWarps][kRows]
  static constexpr int kFull = kLargest + kWarps * kRows * 4, kEmpty = kFull + 8 * kStages, kLast = kEmpty + 8 * kStages;
  static constexpr int kBytes = kLast + 8 + 1024;  // to align
};

// What a block does: tiles [begin, end) for some rows.
struct Job {
  Queries q;
  int begin, end;
  std::size_t cache_row;  // of the first
  int part;               // of the rows of an item
};

// The rows of the cache, 32 of them in one box, or in one box for each group of columns.
struct Keys {
  CUtensorMap map;
  bool one_box;

  __device__ __forceinline__ void load(std::uint32_t to, std::uint32_t bar, int row) const {
    if (one_box) return ptx::tma_load(to, &map, bar, 0, row, 0);
    for (int i = 0; i < kGroups; ++i) ptx::tma_load(to + i * kGroupBytes, &map, bar, i * kGroup, row);
  }
};

// Keys in stages, in the order of their positions. Those past the end of the sequence have no stage.
struct Ring {
  std::uint32_t base, full, empty;

  __device__ __forceinline__ std::uint32_t stage(int part) const { return base + part % kStages * kStageBytes; }
  __device__ __forceinline__ void wait_full(int part) const {
    ptx::barrier_wait(full + part % kStages * 8, part / kStages & 1);
  }
  __device__ __forceinline__ void wait_empty(int part) const {
    ptx::barrier_wait(empty + part % kStages * 8, (part / kStages & 1) ^ 1);
  }
};

__device__ __forceinline__ int parts_of(const Job& job) {
  return (min(job.q.length(), job.end * kTile) - job.begin * kTile + kPart - 1) / kPart;
}

// Keys of earlier passes are asked for before the kernel ahead has ended.
__device__ __forceinline__ void produce(const Keys& keys, const AttentionArgs& args, const Job& job, const Ring& ring) {
  const std::int32_t* const pages = args.work.tiles + job.q.slice.first_tile;
  const int parts = parts_of(job);
  std::size_t row = job.cache_row;
  bool waited = false;
  for (int part = 0; part < parts; ++part) {
    const int tile = job.begin + part / kParts;
    if (part > 0 && part % kParts == 0) row = cache_row(pages, tile);
    if (!waited && tile * kTile + (part % kParts + 1) * kPart > job.q.slice.first_position) {
      ptx::wait_for_previous_kernel();
      waited = true;
    }
    ring.wait_empty(part);
    const std::uint32_t full = ring.full + part % kStages * 8;
    ptx::barrier_arrive_expect(full, kStageBytes);
    keys.load(ring.stage(part), full, static_cast<int>(row) + part % kParts * kPart);
  }
}

__device__ __forceinline__ void load_queries(std::uint32_t to, const AttentionArgs& args, const Queries& q) {
  constexpr int kChunks = kDim / 8;
  const auto* const from = static_cast<const bf16*>(args.q);
  for (int i = threadIdx.x; i < kRows * kChunks; i += kConsumers) {
    const int row = i / kChunks, chunk = i % kChunks;
    const uint4 v = q.there(row) ? *reinterpret_cast<const uint4*>(from + q.row(row) * kDim + chunk * 8) : uint4{};
    store_words(to + chunk / 8 * (kRows * 128) + place_of(row, chunk % 8), v);
  }
}

// Scores of a warp's 16 keys.
__device__ __forceinline__ void scores_of(float (&s)[2][4], std::uint32_t queries, std::uint32_t keys, int first) {
  const int lane = threadIdx.x % 32, key = first + lane / 16 * 8 + lane % 8;
#pragma unroll
  for (int i = 0; i < 8; ++i) s[i / 4][i % 4] = 0;
#pragma unroll
  for (int k = 0; k < kDim / 16; ++k) {
    std::uint32_t a[4], b[4];
    ptx::ldmatrix(a, queries + k / 4 * (kRows * 128) + place_of(lane % 16, k % 4 * 2 + lane / 16));
    ptx::ldmatrix(b, keys + k / 4 * kGroupBytes + place_of(key, k % 4 * 2 + lane / 8 % 2));
    ptx::mma_16816(s[0], a[0], a[1], a[2], a[3], b[0], b[1]);
    ptx::mma_16816(s[1], a[0], a[1], a[2], a[3], b[2], b[3]);
  }
}

// Of a tile whose first `rows` keys are there: o_t of a warp's 64 columns, and l. Sixteen keys after the last one that is
// there have weights of 0, and add nothing.
__device__ __forceinline__ void mix(float (&o)[kBlocks][4], float (&l)[2], std::uint32_t weights, const Ring& ring,
                                    int part, int rows) {
  constexpr std::uint32_t kOnes = 0x3f803f80;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  float sum[4] = {};
#pragma unroll
  for (int i = 0; i < 4 * kBlocks; ++i) o[i / 4][i % 4] = 0;
#pragma unroll 2
  for (int j = 0; j < min(kSteps, (rows + 15) / 16); ++j) {
    std::uint32_t p[4];
    ptx::load_shared(p, weights + (j * 32 + lane) * 16);
    ptx::mma_16816(sum, p[0], p[1], p[2], p[3], kOnes, kOnes);
    const std::uint32_t values = ring.stage(part + j / 2) + warp * kGroupBytes;
#pragma unroll
    for (int n = 0; n < kBlocks; n += 2) {
      std::uint32_t b[4];
      ptx::ldmatrix_trans(b, values + place_of(j % 2 * 16 + lane % 16, n + lane / 16));
      ptx::mma_16816(o[n], p[0], p[1], p[2], p[3], b[0], b[1]);
      ptx::mma_16816(o[n + 1], p[0], p[1], p[2], p[3], b[2], b[3]);
    }
  }
  l[0] = sum[0], l[1] = sum[2];
}

// The other rows of the last 16 keys become zeros: what the cache has there may be NaN.
__device__ __forceinline__ void clear_after(const Ring& ring, int part, int rows) {
  const int begin = rows % kPart, count = (rows + 15) / 16 * 16 - rows;
  const std::uint32_t stage = ring.stage(part + rows / kPart);
  for (int i = threadIdx.x; i < count * (kValues / 8); i += kConsumers) {
    const int row = begin + i / (kValues / 8), chunk = i % (kValues / 8);
    store_words(stage + chunk / 8 * kGroupBytes + place_of(row, chunk % 8), uint4{});
  }
}

__device__ __forceinline__ void together() { ptx::named_barrier_sync(1, kConsumers); }

}  // namespace dsmoe::cuda::latent::few
