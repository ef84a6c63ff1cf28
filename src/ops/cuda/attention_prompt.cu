// Attention for slices of many rows: a block takes 128 queries of one head through their keys, 16 queries a warp.
#include "ops/cuda/attention_kernels.h"
#include "ops/cuda/attention_tile.cuh"
#include "ops/cuda/heuristics.h"
#include "ops/cuda/launch.h"

namespace dsmoe::cuda {

namespace {

using namespace attention;

constexpr int kThreads = kPromptRows / 16 * 32;
constexpr int kHalf = 64;  // columns of o_t that a warp holds at a time

template <int kDim>
constexpr int kTileBytes = kTile* kDim * 2;

// Tiles of a cache of bf16 arrive where they are used, kStages of them in turn.
template <int kDim, int kStages, class C>
struct Tiles {
  static constexpr int kBytes = 2 * kStages * kTileBytes<kDim>;
  static constexpr bool kLoadsAhead = kStages > 1;  // the next tile while this one is used

  std::uint32_t memory;

  __device__ __forceinline__ void load(const AttentionArgs& args, int tile, std::size_t row, int head, int rows) const {
    const std::size_t stride = static_cast<std::size_t>(args.kv_heads) * kDim;
    const std::size_t offset = row * stride + static_cast<std::size_t>(head) * kDim;
    load_tile<kDim, kThreads>(keys(tile), static_cast<const bf16*>(args.k) + offset, stride, rows);
    load_tile<kDim, kThreads>(values(tile), static_cast<const bf16*>(args.v) + offset, stride, rows);
  }
  __device__ __forceinline__ void unpack() const {}
  __device__ __forceinline__ std::uint32_t keys(int tile) const { return memory + tile % kStages * 2 * kTileBytes<kDim>; }
  __device__ __forceinline__ std::uint32_t values(int tile) const { return keys(tile) + kTileBytes<kDim>; }
};

// Those of q8_0 arrive beside the one in use, and are unpacked when that is done with.
template <int kDim, int kStages>
struct Tiles<kDim, kStages, BlockQ8_0> {
  static constexpr int kBlocks = kTile * kQ8Bytes<kDim>;
  static constexpr int kBytes = 2 * (kTileBytes<kDim> + kBlocks);
  static constexpr bool kLoadsAhead = true;

  std::uint32_t memory;

  __device__ __forceinline__ void load(const AttentionArgs& args, int, std::size_t row, int head, int rows) const {
    const std::size_t stride = static_cast<std::size_t>(args.kv_heads) * kQ8Bytes<kDim>;
    const std::size_t offset = row * stride + static_cast<std::size_t>(head) * kQ8Bytes<kDim>;
    const std::uint32_t to = memory + 2 * kTileBytes<kDim>;
    load_blocks<kDim, kThreads>(to, static_cast<const unsigned char*>(args.k) + offset, stride, rows, 0, kTile);
    load_blocks<kDim, kThreads>(to + kBlocks, static_cast<const unsigned char*>(args.v) + offset, stride, rows, 0, kTile);
  }
  // All threads, when the blocks are there and the tile before is done with.
  __device__ __forceinline__ void unpack() const {
    auto* const numbers = static_cast<unsigned char*>(__cvta_shared_to_generic(memory));
    const unsigned char* const blocks = numbers + 2 * kTileBytes<kDim>;
    unpack_tile<kDim, kThreads>(reinterpret_cast<bf16*>(numbers), blocks);
    unpack_tile<kDim, kThreads>(reinterpret_cast<bf16*>(numbers + kTileBytes<kDim>), blocks + kBlocks);
    __syncthreads();
  }
  __device__ __forceinline__ std::uint32_t keys(int) const { return memory; }
  __device__ __forceinline__ std::uint32_t values(int) const { return memory + kTileBytes<kDim>; }
};

// 16 queries and their results so far.
template <int kDim>
struct Queries {
  std::uint32_t q[kDim / 16][4];
  float o[kDim / 8][4] = {};
  State state[2];

  // `first`: the position of the tile's first key; `masked`: whether some of its keys come after some query.
  __device__ __forceinline__ void add_tile(std::uint32_t keys, std::uint32_t values, int first, const int (&position)[2],
                                           bool masked, float to_log2) {
    std::uint32_t p[kSteps][4];
    float m[2], l[2];
    {
      float s[kTile / 8][4];
      scores<kDim>(s, q, keys);
      if (masked) mask(s, first, position);
      largest(s, m);
      weights(s, m, to_log2, p);
    }
    sums(p, l);
    const Factors f[2] = {merge(state[0], m[0], l[0], to_log2), merge(state[1], m[1], l[1], to_log2)};
#pragma unroll
    for (int half = 0; half < kDim / kHalf; ++half) {
      float o_t[kHalf / 8][4];
      mix_values<kDim>(o_t, p, values, half * kHalf / 8);
#pragma unroll
      for (int n = 0; n < kHalf / 8; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) o[half * kHalf / 8 + n][i] = merged(o[half * kHalf / 8 + n][i], o_t[n][i], f[i / 2]);
    }
  }

  // The result of one of the lane's two rows.
  __device__ __forceinline__ void store(int half, bf16* out) const {
    const float sum = state[half].sum;
#pragma unroll
    for (int n = 0; n < kDim / 8; ++n)
      *reinterpret_cast<std::uint32_t*>(out + n * 8 + threadIdx.x % 4 * 2) =
          ptx::pack(__fdiv_rn(o[n][2 * half], sum), __fdiv_rn(o[n][2 * half + 1], sum));
  }
};

template <int kDim, int kStages, class C>
__global__ void __launch_bounds__(kThreads, 1) prompt_kernel(const __grid_constant__ AttentionArgs args) {
  extern __shared__ __align__(128) unsigned char memory[];
  ptx::wait_for_previous_kernel();
  ptx::let_next_kernel_start();
  const ops::cuda::AttentionWork& work = args.work;
  const int item = blockIdx.x / args.heads, head = blockIdx.x % args.heads;
  if (item >= work.counts->prompt_blocks) return;
  const auto block = work.prompt_blocks[item];
  const ops::cuda::SliceEntry slice = work.entries[block.slice];
  const int kv_head = head / (args.heads / args.kv_heads), length = slice.first_position + slice.rows;

  // Rows of the slice: of this warp, and of this lane.
  const int first = block.first_row + static_cast<int>(threadIdx.x) / 32 * 16, g = threadIdx.x % 32 / 4;
  const int position[2] = {slice.first_position + first + g, slice.first_position + first + g + 8};
  const auto at = [&](int i) {  // of row i of the warp in q and out
    return (static_cast<std::size_t>(slice.first_row + first + i) * args.heads + head) * kDim;
  };
  const auto tiles_of = [&](int end) { return (slice.first_position + min(end, slice.rows) + kTile - 1) / kTile; };
  const int tiles = tiles_of(block.first_row + kPromptRows), own_tiles = first < slice.rows ? tiles_of(first + 16) : 0;

  const std::int32_t* const pages = work.tiles + slice.first_tile;
  const Tiles<kDim, kStages, C> stored{ptx::smem_address(memory)};
  const auto load = [&](int tile, std::size_t from) {
    stored.load(args, tile, from, kv_head, length - tile * kTile);
    ptx::cp_async_commit();
  };
  load(0, cache_row(pages, 0));
  std::size_t next = tiles > 1 ? cache_row(pages, 1) : 0;  // looked up early
  Queries<kDim> queries;
  load_queries<kDim>(queries.q,
                     [&](int i) { return first + i < slice.rows ? static_cast<const bf16*>(args.q) + at(i) : nullptr; });
  for (int tile = 0; tile < tiles; ++tile) {
    ptx::cp_async_wait<0>();
    __syncthreads();  // the tile is there, and with two stages nobody reads the one before it any more
    stored.unpack();
    const auto load_next = [&] {
      if (tile + 1 >= tiles) return;
      load(tile + 1, next);
      if (tile + 2 < tiles) next = cache_row(pages, tile + 2);
    };
    if (stored.kLoadsAhead) load_next();
    if (tile < own_tiles)
      queries.add_tile(stored.keys(tile), stored.values(tile), tile * kTile, position,
                       (tile + 1) * kTile > slice.first_position + first + 1, args.to_log2);
    if (!stored.kLoadsAhead) {
      __syncthreads();
      load_next();
    }
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int i = g + half * 8;
    if (first + i >= slice.rows) continue;
    queries.store(half, static_cast<bf16*>(args.out) + at(i));
    if (args.lse && threadIdx.x % 4 == 0)
      args.lse[static_cast<std::size_t>(head) * args.rows + slice.first_row + first + i] =
          log_sum(queries.state[half], args.scale);
  }
}

template <int kDim, int kStages, class C = bf16>
void run(const AttentionArgs& args, int blocks, cudaStream_t stream) {
  launch(prompt_kernel<kDim, kStages, C>, static_cast<unsigned>(blocks) * static_cast<unsigned>(args.heads), kThreads,
         Tiles<kDim, kStages, C>::kBytes, stream, args);
}

}  // namespace

void attention_prompt(const AttentionArgs& args, int blocks, int stages, cudaStream_t stream) {
  if (args.stored == DType::kQ8_0)
    return args.head_dim == 64 ? run<64, 1, BlockQ8_0>(args, blocks, stream) : run<128, 1, BlockQ8_0>(args, blocks, stream);
  if (args.head_dim == 64) return stages == 1 ? run<64, 1>(args, blocks, stream) : run<64, 2>(args, blocks, stream);
  return stages == 1 ? run<128, 1>(args, blocks, stream) : run<128, 2>(args, blocks, stream);
}

}  // namespace dsmoe::cuda
