// gate/up: gathers the tokens of each expert in its loads and applies SwiGLU in its epilogue.
//
// A tile holds 64 gate rows and the same 64 up rows of the weights, interleaved in groups of 8 by the copy engine:
// then one thread's accumulators hold a gate and its up value side by side.
#include "ops/cuda/hopper.h"
#include "ops/cuda/hopper_gemm.cuh"
#include "ops/cuda/launch.h"
#include "ops/cuda/numbers.cuh"
#include "ops/cuda/tensor_map.h"

namespace dsmoe::cuda::hopper {

namespace {

struct Args {
  CUtensorMap weights;
  CUtensorMap x, x_narrow;            // [T, D], for shared experts
  CUtensorMap sorted, sorted_narrow;  // the routed experts' rows; unused when this kernel gathers
  bool one_box;  // one copy loads a whole block of the weights; false if the driver refuses such a tensor map
  TileSource tiles;
  const std::int32_t* row_token;
  const bf16* rows;  // x, when this kernel gathers
  bf16* h;
  bf16* gate_up;  // null in inference
  int width, expert_width;
};

// One consumer warpgroup's part of one tile.
template <class C, bool kGather>
struct Consumer {
  const Args& args;
  const Tile& tile;
  Shared<C>& shared;
  int group;

  // Each warp owns 8 of the warpgroup's 32 columns; v holds one 8x8 matrix per 8 tokens.
  template <int kN, bool kStream>
  __device__ __forceinline__ void store(const std::uint32_t (&v)[kN / 8], bf16* out, std::size_t ld, int block) const {
    using Area = Staging<32>;
    const std::uint32_t staging = shared.staging + group * C::kStagingBytes;
    const int warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
    if constexpr (kN == 8) {
      ptx::stmatrix_trans(staging + Area::offset(lane % 8, warp), v[0]);
    } else {
#pragma unroll
      for (int j = 0; j < kN / 8; j += 2)
        ptx::stmatrix_trans(staging + Area::offset(j * 8 + lane % 16, warp), v[j], v[j + 1]);
    }
    ptx::named_barrier_sync(1 + group, 128);
    const int column = (block * C::kGroups + group) * 32;
    Area::copy_out<kN, kStream>(staging, out + tile.row * ld + column, ld, tile.rows, args.expert_width - column);
    ptx::named_barrier_sync(1 + group, 128);
  }

  template <int kN>
  __device__ __forceinline__ void finish(const float (&acc)[kN / 2], int block) const {
    std::uint32_t v[kN / 8];
    if (args.gate_up) {
      const std::size_t ld = 2 * static_cast<std::size_t>(args.expert_width);
#pragma unroll
      for (int j = 0; j < kN / 8; ++j) v[j] = ptx::pack(acc[4 * j], acc[4 * j + 1]);
      store<kN, true>(v, args.gate_up, ld, block);
#pragma unroll
      for (int j = 0; j < kN / 8; ++j) v[j] = ptx::pack(acc[4 * j + 2], acc[4 * j + 3]);
      store<kN, true>(v, args.gate_up + args.expert_width, ld, block);
    }
#pragma unroll
    for (int j = 0; j < kN / 8; ++j)
      v[j] = ptx::pack(silu(acc[4 * j]) * acc[4 * j + 2], silu(acc[4 * j + 1]) * acc[4 * j + 3]);
    store<kN, false>(v, args.h, args.expert_width, block);
  }

  template <int kN>
  __device__ __forceinline__ void run() const {
    float acc[C::kBlocks][kN / 2] = {};
    multiply<kN, 0, 0, kGather>(acc, shared.ring, (args.width + kTileK - 1) / kTileK, group);
#pragma unroll
    for (int i = 0; i < C::kBlocks; ++i) finish<kN>(acc[i], tile.m_block * C::kBlocks + i);
  }
};

template <class C>
__device__ __forceinline__ void load_weights(const Args& args, const Tile& tile, const Ring<C>& ring, int kb) {
  for (int i = 0; i < C::kBlocks; ++i) {
    constexpr int kEights = 4 * C::kGroups;  // groups of 8 gate rows and 8 up rows in a block
    const int f = (tile.m_block * C::kBlocks + i) * kEights;
    const std::uint32_t dst = ring.a() + i * C::kBlockBytesA;
    if (args.one_box) {
      ptx::tma_load(dst, &args.weights, ring.full_barrier(), kb * kTileK, 0, 0, f, tile.expert);
    } else {
      for (int j = 0; j < kEights; ++j)
        ptx::tma_load(dst + j * 2048, &args.weights, ring.full_barrier(), kb * kTileK, 0, f + j, 0, tile.expert);
    }
  }
}

template <class C>
__device__ __forceinline__ void produce_gathered(const Args& args, Ring<C>& ring, int k_blocks) {
  TileLoop<C> loop(args.tiles);
  Tile tile;
  while (loop.next(tile)) {
    RowGather<C> gather;
    gather.start(tile, args.row_token);
    for (int kb = 0; kb < k_blocks; ++kb, ring.advance()) {
      ring.wait_empty();
      if (threadIdx.x == 0) {
        ptx::barrier_arrive_expect(ring.full_barrier(), C::kBytesA);
        load_weights(args, tile, ring, kb);
      }
      gather.copy(ring.b(), args.rows, args.width, kb);
      ptx::barrier_arrive_after_cp_async(ring.full_barrier());
    }
  }
}

template <class C>
__device__ __forceinline__ void produce_sorted(const Args& args, Ring<C>& ring, int k_blocks) {
  TileLoop<C> loop(args.tiles);
  Tile tile;
  while (loop.next(tile)) {
    const RowBoxes<C> boxes(tile.shared ? &args.x : &args.sorted, tile.shared ? &args.x_narrow : &args.sorted_narrow,
                            tile.source_row, tile.rows);
    for (int kb = 0; kb < k_blocks; ++kb, ring.advance()) {
      ring.wait_empty();
      ptx::barrier_arrive_expect(ring.full_barrier(), C::kBytesA + boxes.bytes());
      load_weights(args, tile, ring, kb);
      boxes.load(ring, kb);
    }
  }
}

template <class C, bool kGather>
__global__ void __launch_bounds__(C::kThreads, 1) gate_up_kernel(const __grid_constant__ Args args) {
  extern __shared__ char raw[];
  Shared<C> shared = set_up<C>(raw, kGather ? 1 + 128 : 1);
  const int k_blocks = (args.width + kTileK - 1) / kTileK;
  if (threadIdx.x == 0) ptx::prefetch_map(&args.weights);
  if (threadIdx.x < 128) {
    producer_registers<C, 56>();
    if constexpr (kGather) {
      produce_gathered<C>(args, shared.ring, k_blocks);
    } else {
      if (threadIdx.x == 0) produce_sorted<C>(args, shared.ring, k_blocks);
    }
  } else {
    consumer_registers<C, 224>();
    const int group = threadIdx.x / 128 - 1;
    TileLoop<C> loop(args.tiles);
    Tile tile;
    while (loop.next(tile)) with_width<C>(tile.rows, Consumer<C, kGather>{args, tile, shared, group});
  }
  tear_down<C>();
}

// The tensor map that interleaves 8 gate rows and 8 up rows.
void set_weights(Args& args, const Sizes& s, const bf16* weights, std::uint32_t groups) {
  const std::uint64_t d = s.width, f = s.expert_width, experts = s.experts;
  args.one_box = try_tensor_map(&args.weights, weights, {d, 8, 2, f / 8, experts}, {d, f * d, 8 * d, 2 * f * d},
                                {kTileK, 8, 2, 4 * groups, 1});
  if (!args.one_box)
    args.weights = tensor_map(weights, {d, 8, f / 8, 2, experts}, {d, 8 * d, f * d, 2 * f * d}, {kTileK, 8, 1, 2, 1});
}

template <class C, bool kGather>
void run(Args& args, const Sizes& s, const PlanView& plan, const bf16* weights, cudaStream_t stream) {
  set_weights(args, s, weights, C::kGroups);
  args.tiles = tile_source(s, plan, (s.expert_width + C::kTileM / 2 - 1) / (C::kTileM / 2));
  launch_tiles<C>(gate_up_kernel<C, kGather>, args, stream);
}

}  // namespace

void gate_up(const Sizes& s, const PlanView& plan, const bf16* x, const bf16* sorted, const bf16* weights, bf16* h,
             bf16* gate_up, cudaStream_t stream) {
  Args args{};
  args.row_token = plan.token;
  args.rows = x;
  args.h = h;
  args.gate_up = gate_up;
  args.width = s.width;
  args.expert_width = s.expert_width;
  if (s.token_tile == kTinyTile) return run<Tiny, true>(args, s, plan, weights, stream);
  if (s.token_tile == kNarrowTile) return run<Narrow, true>(args, s, plan, weights, stream);
  if (s.token_tile == kMiddleTile) return run<Middle, true>(args, s, plan, weights, stream);
  const std::uint64_t d = s.width, t = s.tokens, n = sorted ? s.sorted_rows : t;  // none sorted: no routed experts
  if (!sorted) sorted = x;
  args.x = tensor_map(x, {d, t}, {d}, {kTileK, kBoxRows});
  args.x_narrow = tensor_map(x, {d, t}, {d}, {kTileK, 8});
  args.sorted = tensor_map(sorted, {d, n}, {d}, {kTileK, kBoxRows});
  args.sorted_narrow = tensor_map(sorted, {d, n}, {d}, {kTileK, 8});
  run<WidePair, false>(args, s, plan, weights, stream);
}

}  // namespace dsmoe::cuda::hopper
