// Attention over whole sequences on Hopper, for training: the bits of attention_prompt.cu, whose rule (attention_tile.cuh)
// it follows with wgmma instead of mma. A step of either is one chain link over 16 numbers, and both leave a row's numbers
// in the same lanes.
//
// A block owns 128 queries of one head at a time, a warpgroup 64 of them. The scores of the next tile of keys are started
// before the softmax of this one, so the tensor cores have work meanwhile, besides that of the other warpgroup. Keys after
// the end of a sequence are the next one's: they weigh nothing, as long as all values of the batch are finite.
#include "ops/cuda/attention_tile.cuh"
#include "ops/cuda/heuristics.h"
#include "ops/cuda/hopper_attention_grad.cuh"
#include "ops/cuda/tensor_map.h"

namespace dsmoe::cuda {

namespace {

using namespace attention;
using attention_grad::Layout;
using attention_grad::release;
using attention_grad::Stages;
using attention_grad::uniform;

constexpr int kSlots = 4;  // tiles of keys or values in shared memory
constexpr int kForwardThreads = attention_grad::kThreads;
constexpr int kHalf = 64;                     // columns of o_t that a warpgroup holds at a time
constexpr int kColumnBlock = kTile * 64 * 2;  // bytes of 64 columns of a tile
static_assert(kPromptRows == kTile);

template <int kDim>
struct Memory {
  static constexpr int kTileBytes = kTile * kDim * 2;
  using Map = Layout<kSlots, (1 + kSlots) * kTileBytes>;

  std::uint32_t base;
  __device__ __forceinline__ std::uint32_t queries(int group) const { return base + group * kColumnBlock / 2; }
  __device__ __forceinline__ std::uint32_t slot(int i) const { return base + (1 + i) * kTileBytes; }
};

struct Forward {
  CUtensorMap q, k, v;
  AttentionArgs to;
  int blocks;  // of queries, of one head
};

// The pieces of one block: every other round goes through the blocks from the end, so that each has long and short ones.
struct Turn {
  ops::cuda::SliceEntry slice;
  int first, head, tiles;  // row of the slice; of q; of keys

  __device__ __forceinline__ static bool find(const Forward& args, int round, Turn& turn) {
    const int grid = gridDim.x, block = blockIdx.x;
    const int id = round * grid + (round % 2 ? grid - 1 - block : block);
    if (id >= args.blocks * args.to.heads) return false;
    const auto piece = args.to.work.prompt_blocks[id / args.to.heads];
    turn.slice = args.to.work.entries[piece.slice];
    turn.first = piece.first_row;
    turn.head = id % args.to.heads;
    turn.tiles = (min(piece.first_row + kPromptRows, turn.slice.rows) + kTile - 1) / kTile;
    return true;
  }
};

template <int kDim>
__device__ __forceinline__ void load_whole(std::uint32_t to, const CUtensorMap* map, std::uint32_t bar, int head, int row) {
#pragma unroll
  for (int i = 0; i < kDim / 64; ++i) ptx::tma_load(to + i * kColumnBlock, map, bar, head * kDim + i * 64, row);
}

// Keys 0, then keys t + 1 and values t: the order in which they are used.
template <int kDim>
__device__ __forceinline__ void produce(const Forward& args, const Memory<kDim>& m) {
  using Map = typename Memory<kDim>::Map;
  const int shared = args.to.heads / args.to.kv_heads;
  Stages<kSlots> ring = Map::stages(m.base);
  std::uint32_t phase = 0;
  Turn turn;
  for (int round = 0; Turn::find(args, round, turn); ++round, phase ^= 1) {
    const std::uint32_t full = m.base + Map::kItemFull;
    ptx::barrier_wait(m.base + Map::kItemEmpty, phase ^ 1);
    ptx::barrier_arrive_expect(full, Memory<kDim>::kTileBytes);
    load_whole<kDim>(m.queries(0), &args.q, full, turn.head, turn.slice.first_row + turn.first);
    const auto load = [&](const CUtensorMap* map, int tile) {
      ring.wait_empty();
      ptx::barrier_arrive_expect(ring.full_barrier(), Memory<kDim>::kTileBytes);
      load_whole<kDim>(m.slot(ring.stage), map, ring.full_barrier(), turn.head / shared,
                       turn.slice.first_row + tile * kTile);
      ring.advance();
    };
    load(&args.k, 0);
#pragma unroll 1
    for (int tile = 0; tile < turn.tiles; ++tile) {
      if (tile + 1 < turn.tiles) load(&args.k, tile + 1);
      load(&args.v, tile);
    }
  }
}

using Scores = float[kTile / 8][4];
__device__ __forceinline__ float (&flat(Scores& s))[kTile / 2] { return reinterpret_cast<float(&)[kTile / 2]>(s); }

// 64 queries of a warpgroup and their results so far.
template <int kDim>
struct Rows {
  const Forward& args;
  const Memory<kDim>& m;
  Stages<kSlots>& ring;
  const Turn& turn;
  int group;
  float o[kDim / 8][4] = {};
  State state[2];

  // The row of the slice that is the lane's first; its second is 8 on.
  __device__ __forceinline__ int row() const {
    return turn.first + group * 64 + static_cast<int>(threadIdx.x) / 32 % 4 * 16 + static_cast<int>(threadIdx.x) % 32 / 4;
  }

  __device__ __forceinline__ void start_scores(Scores& s) const {
    ring.wait_full();
    ptx::wgmma_fence();
#pragma unroll
    for (int k = 0; k < kDim / 16; ++k) {
      const int at = k / 4 * kColumnBlock + k % 4 * 32;
      ptx::Wgmma<kTile, 0, 0>::run(flat(s), ptx::tile_descriptor(m.queries(group) + at, kColumnBlock),
                                   ptx::tile_descriptor(m.slot(ring.stage) + at, kColumnBlock), k);
    }
    ptx::wgmma_commit();
  }

  // s: the scores of this tile, which are there; next: where those of the one after it go, if there are more.
  template <bool kMore>
  __device__ __forceinline__ void add_tile(int tile, Scores& s, Scores& next) {
    const int keys = ring.stage;
    if constexpr (kMore) {
      start_scores(next);
      ring.advance();
    }
    std::uint32_t p[kSteps][4];
    float largest_score[2], l[2];
    const int position[2] = {row(), row() + 8};
    if (!kMore) mask(s, tile * kTile, position);  // only the last tile has keys after a query
    largest(s, largest_score);
    weights(s, largest_score, args.to.to_log2, p);
    sums(p, l);
    const Factors f[2] = {merge(state[0], largest_score[0], l[0], args.to.to_log2),
                          merge(state[1], largest_score[1], l[1], args.to.to_log2)};
#pragma unroll
    for (std::uint32_t(&a)[4] : p) ptx::pin(a);
    if constexpr (kMore) {
      ptx::wgmma_wait<0>();  // done long since
      ptx::pin(flat(next));
      release(ring.empty + keys * 8);
    }
    ring.wait_full();
#pragma unroll
    for (int half = 0; half < kDim / kHalf; ++half) {
      float o_t[kHalf / 8][4];
      auto& sum = reinterpret_cast<float(&)[kHalf / 2]>(o_t);
      ptx::wgmma_fence();
#pragma unroll
      for (int j = 0; j < kSteps; ++j)
        ptx::WgmmaRegisters<kHalf, 1>::run(
            sum, p[j], ptx::tile_descriptor(m.slot(ring.stage) + half * kColumnBlock + j * 2048, kColumnBlock), j);
      ptx::wgmma_commit();
      ptx::wgmma_wait<0>();
      ptx::pin(sum);
#pragma unroll
      for (int n = 0; n < kHalf / 8; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) o[half * kHalf / 8 + n][i] = merged(o[half * kHalf / 8 + n][i], o_t[n][i], f[i / 2]);
    }
    release(ring.empty_barrier());
    ring.advance();
  }

  __device__ __forceinline__ void store() const {
    const int lane = threadIdx.x % 4;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int i = row() + half * 8;
      const bool there = i < turn.slice.rows;
      const auto at = static_cast<std::size_t>(turn.slice.first_row + (there ? i : 0));
      bf16* const out = static_cast<bf16*>(args.to.out) + (at * args.to.heads + turn.head) * kDim;
#pragma unroll
      for (int n = 0; n < kDim / 8; n += 4) {
        std::uint32_t words[4];
#pragma unroll
        for (int j = 0; j < 4; ++j)
          words[j] =
              ptx::pack(__fdiv_rn(o[n + j][2 * half], state[half].sum), __fdiv_rn(o[n + j][2 * half + 1], state[half].sum));
        attention_grad::exchange_words(words);
        if (there) *reinterpret_cast<uint4*>(out + (n + lane) * 8) = {words[0], words[1], words[2], words[3]};
      }
      if (there && lane == 0)
        args.to.lse[static_cast<std::size_t>(turn.head) * args.to.rows + at] = log_sum(state[half], args.to.scale);
    }
  }
};

template <int kDim>
__device__ __forceinline__ void consume(const Forward& args, const Memory<kDim>& m, int group) {
  using Map = typename Memory<kDim>::Map;
  Stages<kSlots> ring = Map::stages(m.base);
  std::uint32_t phase = 0;
  Turn turn;
  for (int round = 0; Turn::find(args, round, turn); ++round, phase ^= 1) {
    turn.tiles = uniform(turn.tiles);
    ptx::barrier_wait(m.base + Map::kItemFull, phase);
    Rows<kDim> rows{args, m, ring, turn, group};
    Scores even, odd;
    rows.start_scores(even);
    ptx::wgmma_wait<0>();
    ptx::pin(flat(even));
    release(ring.empty_barrier());
    ring.advance();
    int tile = 0;
#pragma unroll 1
    for (; tile + 2 < turn.tiles; tile += 2) {
      rows.template add_tile<true>(tile, even, odd);
      rows.template add_tile<true>(tile + 1, odd, even);
    }
    if (tile + 1 < turn.tiles) {
      rows.template add_tile<true>(tile, even, odd);
      rows.template add_tile<false>(tile + 1, odd, even);
    } else {
      rows.template add_tile<false>(tile, even, odd);
    }
    release(m.base + Map::kItemEmpty);
    rows.store();
  }
}

template <int kDim>
__global__ void __launch_bounds__(kForwardThreads, 1) forward_kernel(const __grid_constant__ Forward args) {
  extern __shared__ char memory[];
  const Memory<kDim> m{Memory<kDim>::Map::set_up(memory)};
  ptx::wait_for_previous_kernel();
  ptx::let_next_kernel_start();
  const int group = uniform(static_cast<int>(threadIdx.x) / 128);
  if (group == 0) {
    ptx::registers_shrink<24>();
    if (threadIdx.x == 0) produce<kDim>(args, m);
  } else {
    ptx::registers_grow<240>();
    consume<kDim>(args, m, group - 1);
  }
}

}  // namespace

void attention_forward_hopper(const AttentionArgs& args, int blocks, cudaStream_t stream) {
  const auto map = [&](const void* rows, int heads) {
    const auto width = static_cast<std::uint64_t>(heads) * static_cast<std::uint64_t>(args.head_dim);
    return tensor_map(rows, {width, static_cast<std::uint64_t>(args.rows)}, {width}, {64, kTile});
  };
  const Forward f{map(args.q, args.heads), map(args.k, args.kv_heads), map(args.v, args.kv_heads), args, blocks};
  const auto run = [&]<int kDim>(std::integral_constant<int, kDim>) {
    launch(forward_kernel<kDim>, static_cast<unsigned>(multiprocessors()), kForwardThreads, Memory<kDim>::Map::kBytes,
           stream, f);
  };
  args.head_dim == 64 ? run(std::integral_constant<int, 64>{}) : run(std::integral_constant<int, 128>{});
}

}  // namespace dsmoe::cuda
