// down, and the gradient of the experts' inputs: rows that already lie sorted, times a weight matrix.
#include "ops/cuda/hopper.h"
#include "ops/cuda/hopper_gemm.cuh"
#include "ops/cuda/launch.h"
#include "ops/cuda/tensor_map.h"

namespace dsmoe::cuda::hopper {

namespace {

struct Args {
  CUtensorMap weights;
  CUtensorMap rows, narrow_rows;
  TileSource tiles;
  bf16* out;
  int k_blocks;
  int shared_experts;  // their products with a token are added up in one tile
  int k_wrap;          // transposed weights have this many rows; k blocks past them start again at row 0
  int first, columns;  // of the output
};

// A tile of the shared experts runs over the k blocks of all of them.
__device__ __forceinline__ int parts_of(const Args& args, const Tile& tile) {
  return tile.shared ? args.shared_experts : 1;
}

// Rows of the output: one per token for all shared experts, then the routed rows.
__device__ __forceinline__ std::size_t output_row(const Args& args, const Tile& tile) {
  return tile.shared ? tile.row : tile.row - max(args.shared_experts - 1, 0) * args.tiles.tokens;
}

template <class C, bool kTransposedWeights>
struct Consumer {
  const Args& args;
  const Tile& tile;
  Shared<C>& shared;
  int group;

  template <int kN>
  __device__ __forceinline__ void run() const {
    float acc[C::kBlocks][kN / 2] = {};
    multiply<kN, kTransposedWeights, 0, false>(acc, shared.ring, args.k_blocks * parts_of(args, tile), group);
#pragma unroll
    for (int i = 0; i < C::kBlocks; ++i) {
      const int column = (tile.m_block * C::kBlocks + i) * C::kTileM + group * 64;
      store_transposed<kN>(acc[i], shared.staging + group * C::kStagingBytes, group,
                           args.out + output_row(args, tile) * args.columns + column, args.columns, tile.rows,
                           args.columns - column);
    }
  }
};

template <class C, bool kTransposedWeights>
__device__ __forceinline__ void load_weights(const Args& args, int expert, int m_block, const Ring<C>& ring, int kb) {
  for (int i = 0; i < C::kBlocks; ++i) {
    const int m = args.first + (m_block * C::kBlocks + i) * C::kTileM;
    const std::uint32_t dst = ring.a() + i * C::kBlockBytesA;
    if constexpr (kTransposedWeights) {
      const int k = kb * kTileK % args.k_wrap;
      ptx::tma_load(dst, &args.weights, ring.full_barrier(), m, k, expert);
      ptx::tma_load(dst + 8192, &args.weights, ring.full_barrier(), m + 64, k, expert);
    } else {
      ptx::tma_load(dst, &args.weights, ring.full_barrier(), kb * kTileK, m, expert);
    }
  }
}

// kEarly: with few tokens loading the weights takes most of the time, so their first stages are requested before the rows
// are there. The plan is there: the kernel before this one waited for it before it let this one start.
template <class C, bool kTransposedWeights, bool kEarly>
__device__ __forceinline__ void produce(const Args& args, Ring<C>& ring) {
  TileLoop<C> loop(args.tiles);
  Tile tile;
  if constexpr (kEarly)
    loop.assume_plan();
  else
    loop.wait();
  bool early = kEarly;
  while (loop.next(tile)) {
    for (int part = 0; part < parts_of(args, tile); ++part) {
      const int expert = tile.expert + part;
      const RowBoxes<C> boxes(&args.rows, &args.narrow_rows, tile.row + part * args.tiles.tokens, tile.rows);
      int kb = 0;
      if (early) {
        Ring<C> ahead = ring;
        for (; kb < min(C::kStages, args.k_blocks); ++kb, ahead.advance()) {
          ptx::barrier_arrive_expect(ahead.full_barrier(), C::kBytesA + boxes.bytes());
          load_weights<C, kTransposedWeights>(args, expert, tile.m_block, ahead, kb);
        }
        ptx::wait_for_previous_kernel();
        early = false;
        for (int i = 0; i < kb; ++i, ring.advance()) boxes.load(ring, i);
      }
      for (; kb < args.k_blocks; ++kb, ring.advance()) {
        ring.wait_empty();
        ptx::barrier_arrive_expect(ring.full_barrier(), C::kBytesA + boxes.bytes());
        load_weights<C, kTransposedWeights>(args, expert, tile.m_block, ring, kb);
        boxes.load(ring, kb);
      }
    }
  }
}

template <class C, bool kTransposedWeights>
__global__ void __launch_bounds__(C::kThreads, 1) down_kernel(const __grid_constant__ Args args) {
  extern __shared__ char raw[];
  Shared<C> shared = set_up<C>(raw, 1);
  if (threadIdx.x < 128) {
    producer_registers<C, 56>();
    if (threadIdx.x == 0) {
      ptx::prefetch_map(&args.weights);
      produce<C, kTransposedWeights, C::kTokens != kWideTile>(args, shared.ring);
    }
  } else {
    consumer_registers<C, 224>();
    const int group = threadIdx.x / 128 - 1;
    TileLoop<C> loop(args.tiles);
    Tile tile;
    loop.wait();
    while (loop.next(tile)) with_width<C>(tile.rows, Consumer<C, kTransposedWeights>{args, tile, shared, group});
  }
  tear_down<C>();
}

Args common_args(TileSource tiles, const bf16* rows, std::uint64_t k, std::uint64_t n, bf16* out, int first, int columns) {
  Args args{};
  args.rows = tensor_map(rows, {k, n}, {k}, {kTileK, kBoxRows});
  args.narrow_rows = tensor_map(rows, {k, n}, {k}, {kTileK, 8});
  args.shared_experts = tiles.rounds = tiles.shared;
  tiles.shared = tiles.shared > 0;
  args.tiles = tiles;
  args.out = out;
  args.k_blocks = static_cast<int>((k + kTileK - 1) / kTileK);
  args.k_wrap = args.k_blocks * kTileK;
  args.first = first;
  args.columns = columns;
  return args;
}

template <class C, bool kTransposedWeights>
void run(Args& args, cudaStream_t stream) {
  args.tiles.m_blocks = (args.columns + C::kTileM - 1) / C::kTileM;
  launch_tiles<C>(down_kernel<C, kTransposedWeights>, args, stream);
}

template <class C>
void run_down(Args& args, const Sizes& s, const bf16* weights, cudaStream_t stream) {
  const std::uint64_t d = s.width, f = s.expert_width, e = s.experts;
  args.weights = tensor_map(weights, {f, d, e}, {f, d * f}, {kTileK, C::kTileM, 1});
  run<C, false>(args, stream);
}

}  // namespace

void down(const Sizes& s, const PlanView& plan, const bf16* h, const bf16* weights, bf16* out, int first, int columns,
          cudaStream_t stream) {
  Args args = common_args(tile_source(s, plan, 0), h, s.expert_width, s.rows, out, first, columns);
  if (s.token_tile == kTinyTile) return run_down<Tiny>(args, s, weights, stream);
  if (s.token_tile == kNarrowTile) return run_down<Narrow>(args, s, weights, stream);
  if (s.token_tile == kMiddleTile) return run_down<Middle>(args, s, weights, stream);
  run_down<WidePair>(args, s, weights, stream);
}

void input_backward(const Sizes& s, const PlanView& plan, const bf16* dgate_up, const bf16* weights, bf16* out, int first,
                    int columns, cudaStream_t stream) {
  const std::uint64_t d = s.width, f = s.expert_width, e = s.experts;
  Args args = common_args(tile_source(s, plan, 0), dgate_up, 2 * f, s.rows, out, first, columns);
  args.weights = tensor_map(weights, {d, 2 * f, e}, {d, 2 * f * d}, {64, kTileK, 1});
  run<WidePair, true>(args, stream);
}

void gate_input_backward(const Sizes& s, int experts, int split, const bf16* dlogits, const bf16* gate, bf16* dx,
                         cudaStream_t stream) {
  // One "shared expert": all tokens times [gate; gate].
  const std::uint64_t d = s.width;
  const TileSource all{nullptr, nullptr, 0, 1, s.tokens, kWideTile};
  Args args = common_args(all, dlogits, 2 * static_cast<std::uint64_t>(split), s.tokens, dx, 0, s.width);
  args.k_wrap = split;
  args.weights = tensor_map(gate, {d, static_cast<std::uint64_t>(experts), 1}, {d, d * experts}, {64, kTileK, 1});
  run<WidePair, true>(args, stream);
}

}  // namespace dsmoe::cuda::hopper
