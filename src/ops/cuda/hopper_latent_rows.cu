// Attention over latents for prompts: a block takes 64 rows of q through their tiles with wgmma, and has the bits of
// hopper_latent_few.cu.
//
// Shared memory has room for one tile of keys beside the queries. It lies there in nine groups of 64 columns, and each has
// barriers of its own: as the product with the values goes through the columns, the next tile's arrive in their place, in
// the order in which its scores will want them. Each of two warpgroups has the scores of half of the keys; they exchange
// the largest, then the weights, through the group that is no value. Of the values each has half of the columns.
#include "ops/cuda/heuristics.h"
#include "ops/cuda/latent_tile.cuh"
#include "ops/cuda/launch.h"
#include "ops/cuda/tensor_map.h"
#include "wgmma_registers.h"
#include "wgmma_shapes.h"

namespace dsmoe::cuda {

namespace {

using namespace latent;

constexpr int kRows = 64, kThreads = 384, kConsumers = 256;
constexpr int kHalfKeys = kTile / 2;
constexpr int kQueryBytes = kRows * 128, kKeyBytes = kTile * 128;  // of a group
constexpr int kOwnGroups = kValues / kGroup / 2;                   // of values, of a warpgroup
constexpr int kRope = kGroups - 1;                                 // the group that is no value
static_assert(kValues / kGroup == 2 * kOwnGroups && kRope == 2 * kOwnGroups);

// Shared memory.
constexpr int kKeys = kGroups * kQueryBytes, kLargest = kKeys + kGroups * kKeyBytes;  // f32 [2][kRows]
constexpr int kFull = kLargest + 2 * kRows * 4, kEmpty = kFull + 8 * kGroups, kQueriesFull = kEmpty + 8 * kGroups;
constexpr int kBytes = kQueriesFull + 8 + 1024;  // to align

struct Args {
  CUtensorMap q, keys;  // [T * H, kDim] and the cache, in boxes of a group's columns
  AttentionArgs to;
  int parts;  // blocks of kPromptRows tokens
};

// The groups as they come free, and as they are asked for: 0, 4, 1, 5, 2, 6, 3, 7. The one without values comes first.
__device__ __forceinline__ int in_turn(int i) { return i == 0 ? kRope : (i - 1) / 2 + (i - 1) % 2 * kOwnGroups; }

__device__ __forceinline__ void produce(const Args& args, const Queries& q, std::uint32_t memory, int tiles) {
  const std::int32_t* const pages = args.to.work.tiles + q.slice.first_tile;
  std::size_t row = cache_row(pages, 0);
  ptx::wait_for_previous_kernel();
  ptx::barrier_arrive_expect(memory + kQueriesFull, kGroups * kQueryBytes);
  for (int g = 0; g < kGroups; ++g)
    ptx::tma_load(memory + g * kQueryBytes, &args.q, memory + kQueriesFull, g * kGroup, static_cast<int>(q.row(0)));
  for (int tile = 0; tile < tiles; ++tile) {
    const std::size_t next = tile + 1 < tiles ? cache_row(pages, tile + 1) : 0;  // looked up early
    for (int i = 0; i < kGroups; ++i) {
      const int g = tile == 0 ? i : in_turn(i);
      const std::uint32_t full = memory + kFull + 8 * g;
      ptx::barrier_wait(memory + kEmpty + 8 * g, (tile & 1) ^ 1);
      ptx::barrier_arrive_expect(full, kKeyBytes);
      ptx::tma_load(memory + kKeys + g * kKeyBytes, &args.keys, full, g * kGroup, static_cast<int>(row));
    }
    row = next;
  }
}

__device__ __forceinline__ void together() { ptx::named_barrier_sync(1, kConsumers); }

// The 64 rows as one of the warpgroups has them: all of their weights, and half of the columns of their values.
struct Rows {
  const Args& args;
  const Queries& q;
  std::uint32_t memory;
  int half;
  float o[kOwnGroups][kGroup / 8][4] = {};
  State state[2];

  // The lane's first row; its second is 8 on.
  static __device__ __forceinline__ int row() { return threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 4; }
  __device__ __forceinline__ std::uint32_t keys(int group) const { return memory + kKeys + group * kKeyBytes; }
  // A warp is done with a group. What it wrote there comes before what the copy engine will.
  __device__ __forceinline__ void release(int group) const {
    __syncwarp();
    if (threadIdx.x % 32 == 0) ptx::barrier_arrive(memory + kEmpty + 8 * group);
  }

  // Scores of half of a tile's keys.
  __device__ __forceinline__ void scores_of(float (&s)[kHalfKeys / 8][4], std::uint32_t phase) const {
    auto& sum = reinterpret_cast<float(&)[kHalfKeys / 2]>(s);
    ptx::wgmma_fence();
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      ptx::barrier_wait(memory + kFull + 8 * g, phase);
#pragma unroll
      for (int k = 0; k < kGroup / 16; ++k)
        ptx::Wgmma<kHalfKeys, 0, 0>::run(sum, ptx::tile_descriptor(memory + g * kQueryBytes + k * 32, kQueryBytes),
                                         ptx::tile_descriptor(keys(g) + half * (kHalfKeys * 128) + k * 32, kKeyBytes),
                                         g + k);
    }
    ptx::wgmma_commit();
    ptx::wgmma_wait<0>();
    ptx::pin(sum);
  }

  // Rows of the tile that have no token: what the cache has there may be NaN.
  __device__ __forceinline__ void clear_after(int rows) const {
    for (int i = threadIdx.x - (kThreads - kConsumers); i < (kTile - rows) * (kValues / 8); i += kConsumers) {
      const int at = rows + i / (kValues / 8), chunk = i % (kValues / 8);
      store_words(keys(chunk / 8) + place_of(at, chunk % 8), uint4{});
    }
  }

  // The weights of all keys of the tile, as operand A: each warpgroup makes those of its own keys, and takes the other's
  // from where the group without values was.
  __device__ __forceinline__ void weights_of(int tile, std::uint32_t (&p)[kSteps][4], float (&m)[2]) const {
    constexpr int kOwn = kSteps / 2;
    const int lane = threadIdx.x % 32, rows = q.length() - tile * kTile;
    std::uint32_t own[kOwn][4];
    {
      float s[kHalfKeys / 8][4];
      scores_of(s, tile & 1);
      const int position[2] = {q.position(row()), q.position(row() + 8)};
      if ((tile + 1) * kTile > q.slice.first_position + q.first / q.heads + 1)
        mask(s, tile * kTile + half * kHalfKeys, position);
      largest(s, m);
      const std::uint32_t at = memory + kLargest + row() * 4;
      if (lane % 4 == 0) {
        store_number(at + half * kRows * 4, m[0]);
        store_number(at + half * kRows * 4 + 32, m[1]);
      }
      together();  // nobody reads the group without values any more
      m[0] = fmaxf(m[0], load_number(at + (1 - half) * kRows * 4));
      m[1] = fmaxf(m[1], load_number(at + (1 - half) * kRows * 4 + 32));
      weights(s, m, args.to.to_log2, own);
    }
    const std::uint32_t exchange = keys(kRope) + (threadIdx.x / 32 % 4 * kSteps * 32 + lane) * 16;
#pragma unroll
    for (int j = 0; j < kOwn; ++j)
      store_words(exchange + (half * kOwn + j) * 512, make_uint4(own[j][0], own[j][1], own[j][2], own[j][3]));
    if (rows < kTile) clear_after(rows);
    ptx::fence_proxy_async();
    together();
#pragma unroll
    for (int j = 0; j < kSteps; ++j) ptx::load_shared(p[j], exchange + j * 512);
    release(kRope);
  }

  __device__ __forceinline__ void add_tile(int tile) {
    std::uint32_t p[kSteps][4];
    float m[2], l[2];
    weights_of(tile, p, m);
    sums(p, l);
    const Factors f[2] = {merge(state[0], m[0], l[0], args.to.to_log2), merge(state[1], m[1], l[1], args.to.to_log2)};
#pragma unroll
    for (std::uint32_t(&a)[4] : p) ptx::pin(a);
#pragma unroll
    for (int g = 0; g < kOwnGroups; ++g) {
      const int group = half * kOwnGroups + g;
      float o_t[kGroup / 8][4];
      auto& sum = reinterpret_cast<float(&)[kGroup / 2]>(o_t);
      ptx::wgmma_fence();
#pragma unroll
      for (int j = 0; j < kSteps; ++j)
        ptx::WgmmaRegisters<kGroup, 1>::run(sum, p[j], ptx::tile_descriptor(keys(group) + j * 2048, kKeyBytes), j);
      ptx::wgmma_commit();
      ptx::wgmma_wait<0>();
      ptx::pin(sum);
      release(group);
#pragma unroll
      for (int n = 0; n < kGroup / 8; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) o[g][n][i] = merged(o[g][n][i], o_t[n][i], f[i / 2]);
    }
  }

  // The numbers after the values are zeros.
  __device__ __forceinline__ void store() const {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (!q.there(row() + 8 * i)) continue;
      bf16* const out = static_cast<bf16*>(args.to.out) + q.row(row() + 8 * i) * kDim + threadIdx.x % 4 * 2;
#pragma unroll
      for (int g = 0; g < kOwnGroups; ++g)
#pragma unroll
        for (int n = 0; n < kGroup / 8; ++n)
          *reinterpret_cast<std::uint32_t*>(out + (half * kOwnGroups + g) * kGroup + n * 8) =
              ptx::pack(__fdiv_rn(o[g][n][2 * i], state[i].sum), __fdiv_rn(o[g][n][2 * i + 1], state[i].sum));
#pragma unroll
      for (int n = 0; n < 4; ++n) *reinterpret_cast<std::uint32_t*>(out + kValues + half * 32 + n * 8) = 0;
      if (args.to.lse && half == 0 && threadIdx.x % 4 == 0) q.store_lse(args.to, row() + 8 * i, state[i]);
    }
  }
};

__global__ void __launch_bounds__(kThreads, 1) rows_kernel(const __grid_constant__ Args args) {
  extern __shared__ char raw[];
  const std::uint32_t memory = (ptx::smem_address(raw) + 1023u) & ~1023u;
  ptx::let_next_kernel_start();
  // Tables were there before the pass.
  const ops::cuda::AttentionWork& work = args.to.work;
  const int index = static_cast<int>(blockIdx.x) / args.parts;
  if (index >= work.counts->prompt_blocks) return;
  const auto block = work.prompt_blocks[index];
  const Queries q{work.entries[block.slice], args.to.heads,
                  block.first_row * args.to.heads + static_cast<int>(blockIdx.x) % args.parts * kRows};
  if (!q.there(0)) return;
  if (threadIdx.x == 0) {
    for (int g = 0; g < kGroups; ++g) {
      ptx::barrier_init(memory + kFull + 8 * g, 1);
      ptx::barrier_init(memory + kEmpty + 8 * g, g == kRope ? 8 : 4);
    }
    ptx::barrier_init(memory + kQueriesFull, 1);
    ptx::barrier_init_fence();
  }
  __syncthreads();
  const int tiles = __shfl_sync(~0u, q.tiles(kRows), 0);
  const int group = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 128, 0);
  if (group == 0) {
    ptx::registers_shrink<24>();
    if (threadIdx.x == 0) produce(args, q, memory, tiles);
  } else {
    ptx::registers_grow<240>();
    ptx::wait_for_previous_kernel();
    Rows rows{args, q, memory, group - 1};
    ptx::barrier_wait(memory + kQueriesFull, 0);
#pragma unroll 1
    for (int tile = 0; tile < tiles; ++tile) rows.add_tile(tile);
    rows.store();
  }
}

}  // namespace

void latent_prompt(const AttentionArgs& args, Index keys, int blocks, cudaStream_t stream) {
  const auto map = [](const void* rows, Index count, std::uint32_t box) {
    return tensor_map(rows, {kDim, static_cast<std::uint64_t>(count)}, {kDim}, {kGroup, box});
  };
  const Args a{map(args.q, static_cast<Index>(args.rows) * args.heads, kRows), map(args.k, keys, kTile), args,
               (kPromptRows * args.heads + kRows - 1) / kRows};
  launch(rows_kernel, static_cast<unsigned>(blocks) * static_cast<unsigned>(a.parts), kThreads, kBytes, stream, a);
}

}  // namespace dsmoe::cuda
