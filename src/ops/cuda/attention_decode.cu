// Attention for slices of few rows, one token of a sequence as a rule: a block takes one tile of keys for all of the
// slice's queries that share a head of keys and values (up to 16). The last block of a slice and head to end merges the
// tiles of each query, or, in batches of many slices, a second kernel.
#include <type_traits>

#include "ops/cuda/attention_kernels.h"
#include "ops/cuda/attention_tile.cuh"
#include "ops/cuda/heuristics.h"
#include "ops/cuda/launch.h"

namespace dsmoe::cuda {

namespace {

using namespace attention;

constexpr int kWarps = 4, kThreads = kWarps * 32;
constexpr int kWarpKeys = kTile / kWarps;  // of the scores; a warp has as many parts of the values' columns

// Who merges the tiles of a query: a kernel of its own; the block that ends last; or, for one query per head in a cluster,
// the block of tile 0, to which the others write.
enum class Merge { kLater, kLast, kCluster };
constexpr int kClusterTiles = 8;

// A tile of keys and one of values. Those of a cache of q8_0 arrive as they are and are unpacked one after the other into
// the same memory, so that as many blocks fit a multiprocessor as with bf16.
template <int kDim, class C>
struct alignas(128) Tiles {
  bf16 keys[kTile * kDim], values[kTile * kDim];

  __device__ __forceinline__ void load(const AttentionArgs& args, bool of_keys, std::size_t row, int head, int rows,
                                       int begin, int end) {
    const std::size_t stride = static_cast<std::size_t>(args.kv_heads) * kDim;
    load_rows<kDim, kThreads>(ptx::smem_address(of_keys ? keys : values),
                              static_cast<const bf16*>(of_keys ? args.k : args.v) + row * stride + head * kDim, stride,
                              rows, begin, end);
  }
  // All threads, when their copies have arrived.
  __device__ __forceinline__ std::uint32_t ready(bool of_keys) {
    __syncthreads();
    return ptx::smem_address(of_keys ? keys : values);
  }
};

template <int kDim>
struct alignas(128) Tiles<kDim, BlockQ8_0> {
  bf16 numbers[kTile * kDim];
  alignas(16) unsigned char keys[kTile * kQ8Bytes<kDim>], values[kTile * kQ8Bytes<kDim>];

  __device__ __forceinline__ void load(const AttentionArgs& args, bool of_keys, std::size_t row, int head, int rows,
                                       int begin, int end) {
    const std::size_t stride = static_cast<std::size_t>(args.kv_heads) * kQ8Bytes<kDim>;
    load_blocks<kDim, kThreads>(
        ptx::smem_address(of_keys ? keys : values),
        static_cast<const unsigned char*>(of_keys ? args.k : args.v) + row * stride + head * kQ8Bytes<kDim>, stride, rows,
        begin, end);
  }
  __device__ __forceinline__ std::uint32_t ready(bool of_keys) {
    __syncthreads();  // the blocks are there, and nobody reads the tile before
    unpack_tile<kDim, kThreads>(numbers, of_keys ? keys : values);
    __syncthreads();
    return ptx::smem_address(numbers);
  }
};

template <int kDim, class C>
struct alignas(128) Shared {
  Tiles<kDim, C> tiles;
  uint4 weights[kSteps][32];  // operand A of the product with the values, by lanes
  float largest[kWarps][16];
};

// The partial results of a query in global memory: those of its tiles, in order, lie `stride` rows apart.
template <int kDim>
struct FarPartials {
  const AttentionPartial& partial;
  std::size_t first, stride;
  int heads, head;

  __device__ __forceinline__ std::size_t row(int tile) const { return (first + tile * stride) * heads + head; }
  __device__ __forceinline__ float2 weight(int tile) const { return __ldcg(partial.weight + row(tile)); }
  __device__ __forceinline__ void load(int tile, int column, float (&to)[kDim / 32]) const {
    const float* const from = partial.out + row(tile) * kDim + column;
    if constexpr (kDim == 128)
      *reinterpret_cast<float4*>(to) = __ldcg(reinterpret_cast<const float4*>(from));
    else
      *reinterpret_cast<float2*>(to) = __ldcg(reinterpret_cast<const float2*>(from));
  }
};

// Those of one query in the shared memory of the block that merges them.
template <int kDim>
struct NearPartials {
  float out[kClusterTiles][kDim];
  float2 weights[kClusterTiles];

  __device__ __forceinline__ float2 weight(int tile) const { return weights[tile]; }
  __device__ __forceinline__ void load(int tile, int column, float (&to)[kDim / 32]) const {
#pragma unroll
    for (int c = 0; c < kDim / 32; ++c) to[c] = out[tile][column + c];
  }
};

// A warp merges the tiles of one query and head.
template <int kDim, class Partials>
__device__ __forceinline__ void merge_query(const AttentionArgs& args, const Partials& from, int tiles, int row, int head) {
  constexpr int kAhead = 8, kColumns = kDim / 32;  // tiles that are loaded at once; columns of a lane
  const int lane = threadIdx.x % 32;
  State state;
  float o[kColumns] = {};
  for (int first = 0; first < tiles; first += kAhead) {
    float2 weight[kAhead];
    alignas(16) float o_t[kAhead][kColumns];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      if (first + i >= tiles) break;
      weight[i] = from.weight(first + i);
      from.load(first + i, lane * kColumns, o_t[i]);
    }
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      if (first + i >= tiles) break;
      const Factors f = merge(state, weight[i].x, weight[i].y, args.to_log2);
#pragma unroll
      for (int c = 0; c < kColumns; ++c) o[c] = merged(o[c], o_t[i][c], f);
    }
  }
  auto* const out = reinterpret_cast<std::uint32_t*>(
      static_cast<bf16*>(args.out) + (static_cast<std::size_t>(row) * args.heads + head) * kDim + lane * kColumns);
#pragma unroll
  for (int c = 0; c < kColumns; c += 2) out[c / 2] = ptx::pack(__fdiv_rn(o[c], state.sum), __fdiv_rn(o[c + 1], state.sum));
  if (args.lse && lane == 0) args.lse[static_cast<std::size_t>(head) * args.rows + row] = log_sum(state, args.scale);
}

// Whether this block is the last of the `blocks` that work on the same queries; the others' results can be read then.
__device__ __forceinline__ bool comes_last(std::uint32_t* done, std::uint32_t blocks) {
  __shared__ bool last;
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) last = atomicInc(done, blocks - 1) == blocks - 1;  // which sets it to 0 for the next layer
  __syncthreads();
  __threadfence();
  return last;
}

template <int kDim, class C, Merge kMerge>
constexpr int shared_bytes() {
  return sizeof(Shared<kDim, C>) + (kMerge == Merge::kCluster ? sizeof(NearPartials<kDim>) : 0);
}

template <int kDim, class C, Merge kMerge>
__global__ void __launch_bounds__(kThreads, 3)
    decode_kernel(const __grid_constant__ AttentionArgs args, const AttentionPartial partial) {
  extern __shared__ __align__(128) unsigned char memory[];
  auto& shared = *reinterpret_cast<Shared<kDim, C>*>(memory);
  ptx::let_next_kernel_start();
  // Before the kernel ahead has ended: the tables, which were there before the pass, and the keys and values of earlier
  // passes. Those of this pass' tokens it may still be writing.
  const ops::cuda::AttentionWork& work = args.work;
  if (static_cast<int>(blockIdx.x) >= work.counts->decode_items) {
    if constexpr (kMerge == Merge::kCluster) ptx::cluster_sync(), ptx::cluster_sync();
    return;
  }
  const auto item = work.decode_items[blockIdx.x];
  const ops::cuda::SliceEntry slice = work.entries[item.slice];
  const int group = args.heads / args.kv_heads, kv_head = blockIdx.y, first = blockIdx.z * 16;
  const int queries = slice.rows * group;  // query i: row i / group of the slice, head i % group of the group
  if (first >= queries) return;

  {
    const std::size_t from = cache_row(work.tiles + slice.first_tile, item.tile);
    const int before = slice.first_position - item.tile * kTile, rows = before + slice.rows;
    const auto load = [&](bool keys, int begin, int end) {
      shared.tiles.load(args, keys, from, kv_head, rows, begin, end);
    };
    load(true, 0, before);
    load(false, 0, before);
    if constexpr (kMerge == Merge::kCluster) ptx::cluster_sync();  // all blocks are there, and can be written to
    ptx::wait_for_previous_kernel();
    load(true, max(before, 0), kTile);
    ptx::cp_async_commit();
    load(false, max(before, 0), kTile);
    ptx::cp_async_commit();
  }
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4;
  const auto row_of = [&](int i) { return (first + i) / group; };
  const auto head_of = [&](int i) { return kv_head * group + (first + i) % group; };
  const auto there = [&](int i) { return first + i < queries; };
  std::uint32_t q[kDim / 16][4];
  load_queries<kDim>(q, [&](int i) -> const bf16* {
    if (!there(i)) return nullptr;
    const std::size_t row = static_cast<std::size_t>(slice.first_row + row_of(i)) * args.heads + head_of(i);
    return static_cast<const bf16*>(args.q) + row * kDim;
  });
  const int position[2] = {there(g) ? slice.first_position + row_of(g) : -1,
                           there(g + 8) ? slice.first_position + row_of(g + 8) : -1};

  ptx::cp_async_wait<1>();
  const std::uint32_t keys = shared.tiles.ready(true);
  float m[2];
  {
    float s[kWarpKeys / 8][4];
    scores<kDim>(s, q, keys + warp * kWarpKeys * kDim * 2);
    mask(s, item.tile * kTile + warp * kWarpKeys, position);
    largest(s, m);
    if (lane % 4 == 0) shared.largest[warp][g] = m[0], shared.largest[warp][g + 8] = m[1];
    __syncthreads();
#pragma unroll
    for (int w = 0; w < kWarps; ++w) m[0] = fmaxf(m[0], shared.largest[w][g]), m[1] = fmaxf(m[1], shared.largest[w][g + 8]);
    std::uint32_t own[kWarpKeys / 16][4];
    weights(s, m, args.to_log2, own);
#pragma unroll
    for (int j = 0; j < kWarpKeys / 16; ++j)
      shared.weights[warp * kWarpKeys / 16 + j][lane] = make_uint4(own[j][0], own[j][1], own[j][2], own[j][3]);
  }
  ptx::cp_async_wait<0>();
  const std::uint32_t values = shared.tiles.ready(false);
  std::uint32_t p[kSteps][4];
#pragma unroll
  for (int j = 0; j < kSteps; ++j) {
    const uint4 v = shared.weights[j][lane];
    p[j][0] = v.x, p[j][1] = v.y, p[j][2] = v.z, p[j][3] = v.w;
  }
  float l[2], o[kDim / kWarps / 8][4];
  sums(p, l);
  const int column = warp * (kDim / kWarps);
  mix_values<kDim>(o, p, values, column / 8);
  if constexpr (kMerge == Merge::kCluster) {
    auto& own = *reinterpret_cast<NearPartials<kDim>*>(memory + sizeof(Shared<kDim, C>));
    auto& to = *ptx::in_block(&own, 0);
    if (g == 0) {
#pragma unroll
      for (int n = 0; n < kDim / kWarps / 8; ++n)
        *reinterpret_cast<float2*>(to.out[item.tile] + column + n * 8 + lane * 2) = make_float2(o[n][0], o[n][1]);
      if (warp == 0 && lane == 0) to.weights[item.tile] = make_float2(m[0], l[0]);
    }
    ptx::cluster_sync();
    const int tiles = (slice.first_position + kTile) / kTile;
    if (item.tile == 0 && warp == 0) merge_query<kDim>(args, own, tiles, slice.first_row, kv_head);
  } else {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int i = g + half * 8;
      if (!there(i)) continue;
      const std::size_t at = static_cast<std::size_t>(item.partial + row_of(i)) * args.heads + head_of(i);
      if (warp == 0 && lane % 4 == 0) partial.weight[at] = make_float2(m[half], l[half]);
#pragma unroll
      for (int n = 0; n < kDim / kWarps / 8; ++n)
        *reinterpret_cast<float2*>(partial.out + at * kDim + column + n * 8 + lane % 4 * 2) =
            make_float2(o[n][2 * half], o[n][2 * half + 1]);
    }
    if constexpr (kMerge == Merge::kLast) {
      const int length = slice.first_position + slice.rows;
      const int counter = (item.slice * gridDim.y + kv_head) * gridDim.z + blockIdx.z;
      if (!comes_last(work.done + counter, static_cast<std::uint32_t>((length + kTile - 1) / kTile))) return;
      for (int i = warp; i < 16 && there(i); i += kWarps) {
        const int row = row_of(i), tiles = (slice.first_position + row + kTile) / kTile;
        const auto stride = static_cast<std::size_t>(slice.rows);
        const FarPartials<kDim> from{partial, item.partial - item.tile * stride + row, stride, args.heads, head_of(i)};
        merge_query<kDim>(args, from, tiles, slice.first_row + row, head_of(i));
      }
    }
  }
}

// A warp per query and head.
template <int kDim>
__global__ void __launch_bounds__(kThreads)
    merge_kernel(const __grid_constant__ AttentionArgs args, const AttentionPartial partial) {
  ptx::let_next_kernel_start();
  ptx::wait_for_previous_kernel();
  const int query = blockIdx.x * kWarps + threadIdx.x / 32, index = query / args.heads;
  if (index >= args.work.counts->merge_rows) return;
  const auto row = args.work.merge_rows[index];
  const int head = query % args.heads;
  const FarPartials<kDim> from{partial, static_cast<std::size_t>(row.partial), static_cast<std::size_t>(row.stride),
                               args.heads, head};
  merge_query<kDim>(args, from, row.tiles, row.row, head);
}

}  // namespace

void attention_decode(const AttentionArgs& args, int slices, int items, int rows, int merge_rows,
                      const AttentionPartial& partial, cudaStream_t stream) {
  const int queries = rows * (args.heads / args.kv_heads);
  const dim3 grid(static_cast<unsigned>(items), static_cast<unsigned>(args.kv_heads),
                  static_cast<unsigned>((queries + 15) / 16));
  const bool counts = args.work.done && static_cast<int>(grid.y * grid.z) <= ops::cuda::kDoneCounters;
  const bool cluster = device_info().major == 9 && slices == 1 && queries == 1 && items <= kClusterTiles;
  const auto run = [&]<int kDim, class C>(std::integral_constant<int, kDim>, C) {
    if (cluster)
      return launch_clusters(items, decode_kernel<kDim, C, Merge::kCluster>, grid, kThreads,
                             shared_bytes<kDim, C, Merge::kCluster>(), stream, args, partial);
    if (counts)
      return launch(decode_kernel<kDim, C, Merge::kLast>, grid, kThreads, shared_bytes<kDim, C, Merge::kLast>(), stream,
                    args, partial);
    launch(decode_kernel<kDim, C, Merge::kLater>, grid, kThreads, shared_bytes<kDim, C, Merge::kLater>(), stream, args,
           partial);
    const unsigned all = static_cast<unsigned>(merge_rows) * static_cast<unsigned>(args.heads);
    launch(merge_kernel<kDim>, (all + kWarps - 1) / kWarps, kThreads, 0, stream, args, partial);
  };
  const auto run_dim = [&](auto stored) {
    args.head_dim == 64 ? run(std::integral_constant<int, 64>{}, stored) : run(std::integral_constant<int, 128>{}, stored);
  };
  args.stored == DType::kQ8_0 ? run_dim(BlockQ8_0{}) : run_dim(bf16{});
}

}  // namespace dsmoe::cuda
