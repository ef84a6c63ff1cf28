// Attention over latents for few rows: a block takes 16 rows of q through a run of tiles, with mma.sync. A warp of
// its own asks the copy engine for keys, 32 at a time; of the others each has 16 keys of a tile's scores and 64 columns of
// its values. As in attention_decode.cu the block of the first run merges its tiles as they come, and the tiles of other
// runs are added by the block that ends last. The same kernel takes blocks of a prompt through all of their tiles.
#include "ops/cuda/heuristics.h"
#include "ops/cuda/latent_few.cuh"
#include "ops/cuda/launch.h"
#include "ops/cuda/tensor_map.h"

namespace dsmoe::cuda {

namespace {

using namespace latent;
using namespace latent::few;

struct Rows {
  const AttentionArgs& args;
  const Job& job;
  std::uint32_t memory;
  float o[kBlocks][4] = {};
  State state[2];

  static __device__ __forceinline__ int warp() { return threadIdx.x / 32; }
  static __device__ __forceinline__ int lane() { return threadIdx.x % 32; }
  static __device__ __forceinline__ int row(int half) { return half * 8 + lane() / 4; }
  static __device__ __forceinline__ int column() { return warp() * kGroup + lane() % 4 * 2; }

  // The largest scores m, the sums l and o_t of a tile; `part`: its first stage, of `parts` in all.
  __device__ __forceinline__ void take_tile(const Ring& ring, int tile, int part, int parts, float (&m)[2], float (&l)[2],
                                            float (&o_t)[kBlocks][4]) const {
    const int own = part + warp() * 16 / kPart, rows = min(kTile, job.q.length() - tile * kTile);
    float s[2][4];
    if (own < parts) {
      ring.wait_full(own);
      scores_of(s, memory + Memory::kQueries, ring.stage(own), warp() * 16 % kPart);
    } else {
#pragma unroll
      for (int i = 0; i < 8; ++i) s[i / 4][i % 4] = -INFINITY;
    }
    const int position[2] = {job.q.position(row(0)), job.q.position(row(1))};
    mask(s, tile * kTile + warp() * 16, position);
    largest(s, m);
    if (lane() % 4 == 0)
#pragma unroll
      for (int half = 0; half < 2; ++half)
        store_number(memory + Memory::kLargest + (warp() * kRows + row(half)) * 4, m[half]);
    together();
#pragma unroll
    for (int w = 0; w < kWarps; ++w)
#pragma unroll
      for (int half = 0; half < 2; ++half)
        m[half] = fmaxf(m[half], load_number(memory + Memory::kLargest + (w * kRows + row(half)) * 4));
    std::uint32_t p[1][4];
    weights(s, m, args.to_log2, p);
    store_words(memory + Memory::kWeights + (warp() * 32 + lane()) * 16, make_uint4(p[0][0], p[0][1], p[0][2], p[0][3]));
    for (int i = part; i < min(part + kParts, parts); ++i) ring.wait_full(i);
    if (rows % 16 != 0) clear_after(ring, part, rows);
    together();
    mix(o_t, l, memory + Memory::kWeights, ring, part, rows);
    __syncwarp();
    if (lane() == 0)
      for (int i = part; i < min(part + kParts, parts); ++i) ptx::barrier_arrive(ring.empty + i % kStages * 8);
  }

  __device__ __forceinline__ void add(const float (&m)[2], const float (&l)[2], const float (&o_t)[kBlocks][4]) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const Factors f = merge(state[half], m[half], l[half], args.to_log2);
#pragma unroll
      for (int n = 0; n < kBlocks; ++n)
#pragma unroll
        for (int c = 2 * half; c < 2 * half + 2; ++c) o[n][c] = merged(o[n][c], o_t[n][c], f);
    }
  }

  // The numbers after the values are zeros.
  __device__ __forceinline__ void store() const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int q = row(half);
      if (!job.q.there(q)) continue;
      const State& of = state[half];
      bf16* const out = static_cast<bf16*>(args.out) + job.q.row(q) * kDim;
#pragma unroll
      for (int n = 0; n < kBlocks; ++n)
        *reinterpret_cast<std::uint32_t*>(out + column() + n * 8) =
            ptx::pack(__fdiv_rn(o[n][2 * half], of.sum), __fdiv_rn(o[n][2 * half + 1], of.sum));
      *reinterpret_cast<std::uint32_t*>(out + kValues + warp() * 8 + lane() % 4 * 2) = 0;
      if (args.lse && warp() == 0 && lane() % 4 == 0) job.q.store_lse(args, q, of);
    }
  }

  // Partial result `index` of the slice, for those who merge: of the first run, or of a tile of the others. Those of one
  // query lie slice.rows tokens apart.
  __device__ __forceinline__ void hand_over(const AttentionPartial& to, int first, int index, const float2 (&weight)[2],
                                            const float (&sum)[kBlocks][4]) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int q = row(half);
      if (!job.q.there(q)) continue;
      const std::size_t at =
          (static_cast<std::size_t>(first) + static_cast<std::size_t>(index) * job.q.slice.rows) * args.heads +
          job.q.first + q;
      if (warp() == 0 && lane() % 4 == 0) to.weight[at] = weight[half];
#pragma unroll
      for (int n = 0; n < kBlocks; ++n)
        *reinterpret_cast<float2*>(to.out + at * kValues + column() + n * 8) =
            make_float2(sum[n][2 * half], sum[n][2 * half + 1]);
    }
  }
};

// A warp adds to what the first run of one query has come to its other tiles, `partials` in all, `stride` rows apart.
__device__ __forceinline__ void merge_query(const AttentionArgs& args, const AttentionPartial& from, std::size_t first,
                                            std::size_t stride, int partials, const Queries& q, int i) {
  constexpr int kAhead = 4, kPacks = kValues / 128;
  const int lane = threadIdx.x % 32;
  const auto load = [&](int tile, float4(&to)[kPacks]) {
#pragma unroll
    for (int c = 0; c < kPacks; ++c)
      to[c] = __ldcg(reinterpret_cast<const float4*>(from.out + (first + tile * stride) * kValues) + c * 32 + lane);
  };
  const float2 begun = __ldcg(from.weight + first);
  State state{begun.x, begun.y};
  float4 o[kPacks];
  load(0, o);
  for (int tile = 1; tile < partials; tile += kAhead) {
    float2 weight[kAhead];
    float4 o_t[kAhead][kPacks];
#pragma unroll
    for (int a = 0; a < kAhead; ++a) {
      if (tile + a >= partials) break;
      weight[a] = __ldcg(from.weight + first + (tile + a) * stride);
      load(tile + a, o_t[a]);
    }
#pragma unroll
    for (int a = 0; a < kAhead; ++a) {
      if (tile + a >= partials) break;
      const Factors f = merge(state, weight[a].x, weight[a].y, args.to_log2);
#pragma unroll
      for (int c = 0; c < kPacks; ++c)
        o[c] = {merged(o[c].x, o_t[a][c].x, f), merged(o[c].y, o_t[a][c].y, f), merged(o[c].z, o_t[a][c].z, f),
                merged(o[c].w, o_t[a][c].w, f)};
    }
  }
  bf16* const out = static_cast<bf16*>(args.out) + q.row(i) * kDim;
#pragma unroll
  for (int c = 0; c < kPacks; ++c)
    *reinterpret_cast<uint2*>(out + c * 128 + lane * 4) =
        make_uint2(ptx::pack(__fdiv_rn(o[c].x, state.sum), __fdiv_rn(o[c].y, state.sum)),
                   ptx::pack(__fdiv_rn(o[c].z, state.sum), __fdiv_rn(o[c].w, state.sum)));
  *reinterpret_cast<std::uint32_t*>(out + kValues + lane * 2) = 0;
  if (args.lse && lane == 0) q.store_lse(args, i, state);
}

// Whether this block is the last of the `blocks` that work on the same queries; the others' results can be read then.
__device__ __forceinline__ bool comes_last(std::uint32_t* done, std::uint32_t blocks, std::uint32_t flag) {
  __threadfence();
  together();
  if (threadIdx.x == 0)
    store_number(flag, atomicInc(done, blocks - 1) == blocks - 1 ? 1.0f : 0.0f);  // which sets it to 0 for the next layer
  together();
  __threadfence();
  return load_number(flag) != 0;
}

__device__ __forceinline__ void consume(const AttentionArgs& args, const AttentionPartial& partial, const Job& job,
                                        const Ring& ring, std::uint32_t memory,
                                        const ops::cuda::AttentionWork::DecodeItem* item) {
  ptx::wait_for_previous_kernel();
  load_queries(memory + Memory::kQueries, args, job.q);
  together();
  const int parts = parts_of(job), run = item ? args.work.counts->run : 0;
  Rows rows{args, job, memory};
  for (int tile = job.begin; tile < job.end; ++tile) {
    float m[2], l[2], o_t[kBlocks][4];
    rows.take_tile(ring, tile, (tile - job.begin) * kParts, parts, m, l, o_t);
    if (job.begin == 0) {
      rows.add(m, l, o_t);
      continue;
    }
    const float2 weight[2] = {make_float2(m[0], l[0]), make_float2(m[1], l[1])};
    rows.hand_over(partial, item->partial, 1 + tile - run, weight, o_t);
  }
  const int tiles = (job.q.length() + kTile - 1) / kTile;
  if (item == nullptr || tiles <= run) return rows.store();
  if (job.begin == 0) {
    const State(&s)[2] = rows.state;
    const float2 weight[2] = {make_float2(s[0].max, s[0].sum), make_float2(s[1].max, s[1].sum)};
    rows.hand_over(partial, item->partial, 0, weight, rows.o);
  }
  std::uint32_t* const done = args.work.done + item->slice * ops::cuda::kDoneCounters + job.part;
  if (!comes_last(done, static_cast<std::uint32_t>((tiles + run - 1) / run), memory + Memory::kLast)) return;
  for (int i = threadIdx.x / 32; i < kRows && job.q.there(i); i += kWarps) {
    const std::size_t first = static_cast<std::size_t>(item->partial) * args.heads + job.q.first + i,
                      stride = static_cast<std::size_t>(job.q.slice.rows) * args.heads;
    const int partials = max(1, 1 + (job.q.position(i) + kTile) / kTile - run);
    merge_query(args, partial, first, stride, partials, job.q, i);
  }
}

// Runs of tiles of slices of few rows; or, kPrompt, blocks of kPromptRows tokens through all of their tiles. An item's rows
// are cut into `parts`, whose blocks lie side by side: they read the same keys.
template <bool kPrompt>
__global__ void __launch_bounds__(kThreads, 1)
    few_kernel(const __grid_constant__ Keys keys, const __grid_constant__ AttentionArgs args,
               const AttentionPartial partial, const int parts) {
  extern __shared__ char raw[];
  const std::uint32_t memory = (ptx::smem_address(raw) + 1023u) & ~1023u;
  const Ring ring{memory, memory + Memory::kFull, memory + Memory::kEmpty};
  ptx::let_next_kernel_start();
  // Tables were there before the pass.
  const ops::cuda::AttentionWork& work = args.work;
  const ops::cuda::AttentionWork::DecodeItem* item = nullptr;
  const int index = static_cast<int>(blockIdx.x) / parts;
  Job job{};
  job.part = static_cast<int>(blockIdx.x) % parts;
  job.q.heads = args.heads;
  job.q.first = job.part * kRows;
  if constexpr (kPrompt) {
    if (index >= work.counts->prompt_blocks) return;
    const auto block = work.prompt_blocks[index];
    job.q.slice = work.entries[block.slice];
    job.q.first += block.first_row * args.heads;
    job.end = job.q.tiles(kRows);
    job.cache_row = cache_row(work.tiles + job.q.slice.first_tile, 0);
  } else {
    if (index >= work.counts->decode_items) return;
    item = work.decode_items + index;
    job.q.slice = item->entry;
    job.begin = item->tile, job.end = item->tile + item->tiles;
    job.cache_row = static_cast<std::size_t>(item->cache_row);
  }
  if (!job.q.there(0)) return;
  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; ++i) {
      ptx::barrier_init(ring.full + 8 * i, 1);
      ptx::barrier_init(ring.empty + 8 * i, kWarps);
    }
    ptx::barrier_init_fence();
  }
  __syncthreads();
  if (threadIdx.x / 32 == kWarps) {
    if (threadIdx.x % 32 == 0) produce(keys, args, job, ring);
    return;
  }
  consume(args, partial, job, ring, memory, item);
}

template <bool kPrompt>
void run(const AttentionArgs& args, Index cache, int items, int queries, const AttentionPartial& partial,
         cudaStream_t stream) {
  const auto rows = static_cast<std::uint64_t>(cache);
  Keys keys{};
  keys.one_box = try_tensor_map(&keys.map, args.k, {kGroup, rows, kGroups}, {kDim, kGroup}, {kGroup, kPart, kGroups});
  if (!keys.one_box) keys.map = tensor_map(args.k, {kDim, rows}, {kDim}, {kGroup, kPart});
  const int parts = (queries + kRows - 1) / kRows;
  launch(few_kernel<kPrompt>, static_cast<unsigned>(items) * static_cast<unsigned>(parts), kThreads, Memory::kBytes, stream,
         keys, args, partial, parts);
}

}  // namespace

void latent_decode(const AttentionArgs& args, Index keys, int items, int rows, const AttentionPartial& partial,
                   cudaStream_t stream) {
  run<false>(args, keys, items, rows * args.heads, partial, stream);
}

void latent_prompt_mma(const AttentionArgs& args, Index keys, int blocks, cudaStream_t stream) {
  run<true>(args, keys, blocks, kPromptRows * args.heads, {}, stream);
}

}  // namespace dsmoe::cuda
