// Attention for slices of few rows, one token of a sequence as a rule: a block takes a run of tiles of keys for all of the
// slice's queries that share a head of keys and values (up to 16). Runs are one tile in batches of few slices, and longer
// where there are enough blocks without that. The block of the first run merges its tiles as they come; where there are
// more runs, their tiles are added by the block that ends last.
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

// Who merges the runs of a query: the block that ends last; or, for one query per head and one tile per run in a cluster,
// the block of tile 0, to which the others write.
enum class Merge { kLast, kCluster };
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

// The partial results of a query in global memory lie `stride` rows apart: what its first run has come to, then its other
// tiles in order.
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

// A warp adds to what the first run of one query and head has come to its other tiles, `partials` in all.
template <int kDim, class Partials>
__device__ __forceinline__ void merge_query(const AttentionArgs& args, const Partials& from, int partials, int row,
                                            int head) {
  constexpr int kAhead = 8, kColumns = kDim / 32;  // tiles that are loaded at once; columns of a lane
  const int lane = threadIdx.x % 32;
  const float2 begun = from.weight(0);
  State state{begun.x, begun.y};
  alignas(16) float o[kColumns];
  from.load(0, lane * kColumns, o);
  for (int first = 1; first < partials; first += kAhead) {
    float2 weight[kAhead];
    alignas(16) float o_t[kAhead][kColumns];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      if (first + i >= partials) break;
      weight[i] = from.weight(first + i);
      from.load(first + i, lane * kColumns, o_t[i]);
    }
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      if (first + i >= partials) break;
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

// What a block does: a run of tiles of one slice, for up to 16 of its queries that share a head.
struct Job {
  const ops::cuda::AttentionWork::DecodeItem item;
  const ops::cuda::SliceEntry slice;
  int kv_head, group, first, queries;  // of the queries: the first, and how many the slice has

  // Query i of the 16 is row / group of the slice and head i % group of the group.
  __device__ __forceinline__ bool there(int i) const { return first + i < queries; }
  __device__ __forceinline__ int row(int i) const { return (first + i) / group; }
  __device__ __forceinline__ int head(int i) const { return kv_head * group + (first + i) % group; }
  __device__ __forceinline__ int position(int i) const { return there(i) ? slice.first_position + row(i) : -1; }
  __device__ __forceinline__ int tiles() const { return (slice.first_position + slice.rows + kTile - 1) / kTile; }
};

// The results of a block that has all of its queries' tiles. A lane has of each part of 8 columns two neighbours.
template <int kDim>
__device__ __forceinline__ void store_queries(const AttentionArgs& args, const Job& job, const State (&state)[2],
                                              const float (&o)[kDim / kWarps / 8][4]) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int i = lane / 4 + half * 8;
    if (!job.there(i)) continue;
    const auto row = static_cast<std::size_t>(job.slice.first_row + job.row(i));
    auto* const out = reinterpret_cast<std::uint32_t*>(
        static_cast<bf16*>(args.out) + (row * args.heads + job.head(i)) * kDim + warp * (kDim / kWarps) + lane % 4 * 2);
#pragma unroll
    for (int n = 0; n < kDim / kWarps / 8; ++n)
      out[4 * n] = ptx::pack(__fdiv_rn(o[n][2 * half], state[half].sum), __fdiv_rn(o[n][2 * half + 1], state[half].sum));
    if (args.lse && warp == 0 && lane % 4 == 0)
      args.lse[static_cast<std::size_t>(job.head(i)) * args.rows + row] = log_sum(state[half], args.scale);
  }
}

// The product of one tile of keys with the queries, and of their weights with the values: the largest scores m, the sums of
// weights l, and o_t, of which a warp has a part of the columns. Copies of the tile's keys and values are the two newest
// groups; once nobody reads the keys any more load_next() may start others in their place, which are a group of their own.
template <int kDim, class C, class LoadNext>
__device__ __forceinline__ void take_tile(Shared<kDim, C>& shared, const std::uint32_t (&q)[kDim / 16][4], int tile,
                                          const int (&position)[2], float to_log2, float (&m)[2], float (&l)[2],
                                          float (&o)[kDim / kWarps / 8][4], LoadNext&& load_next) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4;
  ptx::cp_async_wait<1>();
  const std::uint32_t keys = shared.tiles.ready(true);
  {
    float s[kWarpKeys / 8][4];
    scores<kDim>(s, q, keys + warp * kWarpKeys * kDim * 2);
    mask(s, tile * kTile + warp * kWarpKeys, position);
    largest(s, m);
    if (lane % 4 == 0) shared.largest[warp][g] = m[0], shared.largest[warp][g + 8] = m[1];
    __syncthreads();
    load_next();
#pragma unroll
    for (int w = 0; w < kWarps; ++w) m[0] = fmaxf(m[0], shared.largest[w][g]), m[1] = fmaxf(m[1], shared.largest[w][g + 8]);
    std::uint32_t own[kWarpKeys / 16][4];
    weights(s, m, to_log2, own);
#pragma unroll
    for (int j = 0; j < kWarpKeys / 16; ++j)
      shared.weights[warp * kWarpKeys / 16 + j][lane] = make_uint4(own[j][0], own[j][1], own[j][2], own[j][3]);
  }
  ptx::cp_async_wait<1>();
  const std::uint32_t values = shared.tiles.ready(false);
  std::uint32_t p[kSteps][4];
#pragma unroll
  for (int j = 0; j < kSteps; ++j) {
    const uint4 v = shared.weights[j][lane];
    p[j][0] = v.x, p[j][1] = v.y, p[j][2] = v.z, p[j][3] = v.w;
  }
  sums(p, l);
  mix_values<kDim>(o, p, values, warp * (kDim / kWarps) / 8);
}

template <int kDim, class C, Merge kMerge>
__global__ void __launch_bounds__(kThreads, 3)
    decode_kernel(const __grid_constant__ AttentionArgs args, const AttentionPartial partial) {
  extern __shared__ __align__(128) unsigned char memory[];
  auto& shared = *reinterpret_cast<Shared<kDim, C>*>(memory);
  constexpr bool kCluster = kMerge == Merge::kCluster;
  constexpr int kParts = kDim / kWarps / 8;  // groups of 8 columns of a warp
  ptx::let_next_kernel_start();
  // Before the kernel ahead has ended: the tables, which were there before the pass, and the keys and values of earlier
  // passes. Those of this pass' tokens it may still be writing.
  const ops::cuda::AttentionWork& work = args.work;
  const int index = kCluster ? blockIdx.x : blockIdx.x / args.kv_heads;
  const ops::cuda::AttentionWork::Counts counts = *work.counts;
  const ops::cuda::AttentionWork::DecodeItem item = work.decode_items[index];
  if (index >= counts.decode_items) {
    if constexpr (kCluster) ptx::cluster_sync(), ptx::cluster_sync();
    return;
  }
  const int group = args.heads / args.kv_heads;
  const Job job{item,
                item.entry,
                static_cast<int>(kCluster ? blockIdx.y : blockIdx.x % args.kv_heads),
                group,
                static_cast<int>(blockIdx.z * 16),
                item.entry.rows * group};
  if (job.first >= job.queries) return;

  const int length = job.slice.first_position + job.slice.rows;
  const auto load = [&](bool keys, std::size_t from, int tile, int begin, int end) {
    shared.tiles.load(args, keys, from, job.kv_head, length - tile * kTile, begin, end);
  };
  {
    const int before = job.slice.first_position - item.tile * kTile;
    const auto from = static_cast<std::size_t>(item.cache_row);
    load(true, from, item.tile, 0, before);
    load(false, from, item.tile, 0, before);
    if constexpr (kCluster) ptx::cluster_sync();  // all blocks are there, and can be written to
    ptx::wait_for_previous_kernel();
    load(true, from, item.tile, max(before, 0), kTile);
    ptx::cp_async_commit();
    load(false, from, item.tile, max(before, 0), kTile);
    ptx::cp_async_commit();
  }
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, c = warp * (kDim / kWarps) + lane % 4 * 2;
  std::uint32_t q[kDim / 16][4];
  load_queries<kDim>(q, [&](int i) -> const bf16* {
    if (!job.there(i)) return nullptr;
    const std::size_t row = static_cast<std::size_t>(job.slice.first_row + job.row(i)) * args.heads + job.head(i);
    return static_cast<const bf16*>(args.q) + row * kDim;
  });
  const int position[2] = {job.position(g), job.position(g + 8)};

  // Partial result i of the slice, for those who merge: of the first run, or of a tile of the others.
  const auto hand_over = [&](int i, const float2(&weight)[2], const float(&o)[kParts][4]) {
    if constexpr (kCluster) {
      if (g > 0) return;
      auto& to = *ptx::in_block(reinterpret_cast<NearPartials<kDim>*>(memory + sizeof(Shared<kDim, C>)), 0);
      if (warp == 0 && lane == 0) to.weights[i] = weight[0];
#pragma unroll
      for (int n = 0; n < kParts; ++n) *reinterpret_cast<float2*>(to.out[i] + c + n * 8) = make_float2(o[n][0], o[n][1]);
    } else {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int query = g + half * 8;
        if (!job.there(query)) continue;
        const auto row = static_cast<std::size_t>(item.partial + i * job.slice.rows + job.row(query));
        const std::size_t at = row * args.heads + job.head(query);
        if (warp == 0 && lane % 4 == 0) partial.weight[at] = weight[half];
#pragma unroll
        for (int n = 0; n < kParts; ++n)
          *reinterpret_cast<float2*>(partial.out + at * kDim + c + n * 8) = make_float2(o[n][2 * half], o[n][2 * half + 1]);
      }
    }
  };

  State state[2];
  float o[kParts][4] = {};
  const int last = kCluster ? item.tile : item.tile + item.tiles - 1;
  for (int tile = item.tile; tile <= last; ++tile) {
    float m[2], l[2], o_t[kParts][4];
    // Looked up now, so that it is there when it is needed.
    const std::size_t next = tile < last ? cache_row(work.tiles + job.slice.first_tile, tile + 1) : 0;
    take_tile<kDim>(shared, q, tile, position, args.to_log2, m, l, o_t, [&] {
      if (tile < last) load(true, next, tile + 1, 0, kTile);
      ptx::cp_async_commit();
    });
    if (tile < last) {
      __syncthreads();  // nobody reads the values any more
      load(false, next, tile + 1, 0, kTile);
    }
    ptx::cp_async_commit();
    if (item.tile > 0) {
      const float2 weight[2] = {make_float2(m[0], l[0]), make_float2(m[1], l[1])};
      hand_over(1 + tile - counts.run, weight, o_t);
      continue;
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const Factors f = merge(state[half], m[half], l[half], args.to_log2);
#pragma unroll
      for (int n = 0; n < kParts; ++n)
#pragma unroll
        for (int i = 2 * half; i < 2 * half + 2; ++i) o[n][i] = merged(o[n][i], o_t[n][i], f);
    }
  }
  const bool alone = job.tiles() <= counts.run;
  if (alone) {
    store_queries<kDim>(args, job, state, o);
  } else if (item.tile == 0) {
    const float2 weight[2] = {make_float2(state[0].max, state[0].sum), make_float2(state[1].max, state[1].sum)};
    hand_over(0, weight, o);
  }
  if constexpr (kCluster) {
    ptx::cluster_sync();
    const auto& near = *reinterpret_cast<NearPartials<kDim>*>(memory + sizeof(Shared<kDim, C>));
    if (!alone && item.tile == 0 && warp == 0)
      merge_query<kDim>(args, near, 1 + job.tiles() - counts.run, job.slice.first_row, job.kv_head);
  } else if (!alone) {
    const int counter = item.slice * ops::cuda::kDoneCounters + job.kv_head * gridDim.z + blockIdx.z;
    if (!comes_last(work.done + counter, static_cast<std::uint32_t>((job.tiles() + counts.run - 1) / counts.run))) return;
    for (int i = warp; i < 16 && job.there(i); i += kWarps) {
      const auto first = static_cast<std::size_t>(item.partial + job.row(i)),
                 stride = static_cast<std::size_t>(job.slice.rows);
      const int partials = max(1, 1 + (job.position(i) + kTile) / kTile - counts.run);
      merge_query<kDim>(args, FarPartials<kDim>{partial, first, stride, args.heads, job.head(i)}, partials,
                        job.slice.first_row + job.row(i), job.head(i));
    }
  }
}

}  // namespace

void attention_decode(const AttentionArgs& args, int slices, int items, int rows, const AttentionPartial& partial,
                      cudaStream_t stream) {
  const int queries = rows * (args.heads / args.kv_heads);
  const bool cluster = device_info().major == 9 && slices == 1 && queries == 1 && items <= kClusterTiles;
  const auto all = static_cast<unsigned>(items), heads = static_cast<unsigned>(args.kv_heads);
  // Heads of one tile lie side by side in memory, and are read at about the same time.
  const dim3 grid = cluster ? dim3(all, heads) : dim3(all * heads, 1, static_cast<unsigned>((queries + 15) / 16));
  const auto run = [&]<int kDim, class C>(std::integral_constant<int, kDim>, C) {
    if (cluster)
      return launch_clusters(items, decode_kernel<kDim, C, Merge::kCluster>, grid, kThreads,
                             shared_bytes<kDim, C, Merge::kCluster>(), stream, args, partial);
    launch(decode_kernel<kDim, C, Merge::kLast>, grid, kThreads, shared_bytes<kDim, C, Merge::kLast>(), stream, args,
           partial);
  };
  const auto run_dim = [&](auto stored) {
    args.head_dim == 64 ? run(std::integral_constant<int, 64>{}, stored) : run(std::integral_constant<int, 128>{}, stored);
  };
  args.stored == DType::kQ8_0 ? run_dim(BlockQ8_0{}) : run_dim(bf16{});
}

}  // namespace dsmoe::cuda
