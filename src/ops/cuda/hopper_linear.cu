// y = x · Wᵀ on the machine of hopper_gemm.cuh: the weights are one expert that every token has.
#include "ops/cuda/hopper_gemm.cuh"
#include "ops/cuda/launch.h"
#include "ops/cuda/linear.h"
#include "ops/cuda/tensor_map.h"

namespace dsmoe::cuda::hopper {

namespace {

struct Args {
  CUtensorMap weights;
  CUtensorMap rows, narrow_rows;
  TileSource tiles;
  void* y;
  int k_blocks, columns;
};

// acc (64 columns of y for this warpgroup x kN tokens) as f32. Lane l of warp w holds columns 16 w + l / 4 and that + 8 of
// tokens 8 j + 2 (l % 4) and the next; sums of a head are read once, so a plain store will do.
template <int kN>
__device__ __forceinline__ void store_floats(const float (&acc)[kN / 2], float* out, std::size_t ld, int rows,
                                             int columns) {
  const int warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
  const int column = warp * 16 + lane / 4, row0 = lane % 4 * 2;
#pragma unroll
  for (int j = 0; j < kN / 8; ++j)
#pragma unroll
    for (int v = 0; v < 4; ++v) {
      const int row = j * 8 + row0 + v % 2, c = column + v / 2 * 8;
      if (row < rows && c < columns) out[row * ld + c] = acc[4 * j + v];
    }
}

template <class C, class Y>
struct Consumer {
  const Args& args;
  const Tile& tile;
  Shared<C>& shared;
  int group;

  template <int kN>
  __device__ __forceinline__ void run() const {
    float acc[C::kBlocks][kN / 2] = {};
    multiply<kN, 0, 0, false>(acc, shared.ring, args.k_blocks, group);
#pragma unroll
    for (int i = 0; i < C::kBlocks; ++i) {
      const int column = (tile.m_block * C::kBlocks + i) * C::kTileM + group * 64;
      Y* const out = static_cast<Y*>(args.y) + static_cast<std::size_t>(tile.row) * args.columns + column;
      if constexpr (sizeof(Y) == 4)
        store_floats<kN>(acc[i], out, args.columns, tile.rows, args.columns - column);
      else
        store_transposed<kN>(acc[i], shared.staging + group * C::kStagingBytes, group, out, args.columns, tile.rows,
                             args.columns - column);
    }
  }
};

template <class C>
__device__ __forceinline__ void load_weights(const Args& args, int m_block, const Ring<C>& ring, int kb) {
  for (int i = 0; i < C::kBlocks; ++i)
    ptx::tma_load(ring.a() + i * C::kBlockBytesA, &args.weights, ring.full_barrier(), kb * kTileK,
                  (m_block * C::kBlocks + i) * C::kTileM);
}

// The weights do not depend on the kernel ahead: the first stages of them are requested before it has ended.
template <class C>
__device__ __forceinline__ void produce(const Args& args, Ring<C>& ring) {
  TileLoop<C> loop(args.tiles);
  Tile tile;
  loop.assume_plan();
  bool early = true;
  while (loop.next(tile)) {
    const RowBoxes<C> boxes(&args.rows, &args.narrow_rows, tile.row, tile.rows);
    int kb = 0;
    if (early) {
      Ring<C> ahead = ring;
      for (; kb < min(C::kStages, args.k_blocks); ++kb, ahead.advance()) {
        ptx::barrier_arrive_expect(ahead.full_barrier(), C::kBytesA + boxes.bytes());
        load_weights<C>(args, tile.m_block, ahead, kb);
      }
      ptx::wait_for_previous_kernel();
      early = false;
      for (int i = 0; i < kb; ++i, ring.advance()) boxes.load(ring, i);
    }
    for (; kb < args.k_blocks; ++kb, ring.advance()) {
      ring.wait_empty();
      ptx::barrier_arrive_expect(ring.full_barrier(), C::kBytesA + boxes.bytes());
      load_weights<C>(args, tile.m_block, ring, kb);
      boxes.load(ring, kb);
    }
  }
}

template <class C, class Y>
__global__ void __launch_bounds__(C::kThreads, 1) linear_kernel(const __grid_constant__ Args args) {
  extern __shared__ char raw[];
  Shared<C> shared = set_up<C>(raw, 1);
  if (threadIdx.x < 128) {
    producer_registers<C, 56>();
    if (threadIdx.x == 0) {
      ptx::prefetch_map(&args.weights);
      produce<C>(args, shared.ring);
    }
  } else {
    consumer_registers<C, 224>();
    const int group = threadIdx.x / 128 - 1;
    TileLoop<C> loop(args.tiles);
    Tile tile;
    loop.wait();
    while (loop.next(tile)) with_width<C>(tile.rows, Consumer<C, Y>{args, tile, shared, group});
  }
  tear_down<C>();
}

template <class C, class Y>
void run(Args& args, const LinearSizes& s, const bf16* w, cudaStream_t stream) {
  const auto k = static_cast<std::uint64_t>(s.inner), n = static_cast<std::uint64_t>(s.columns);
  args.weights = tensor_map(w, {k, n}, {k}, {kTileK, C::kTileM});
  args.tiles = {nullptr, nullptr, (s.columns + C::kTileM - 1) / C::kTileM, 1, s.rows, C::kTokens};
  launch_tiles<C>(linear_kernel<C, Y>, args, stream);
}

template <class Y>
void run(Args& args, const LinearSizes& s, const bf16* w, cudaStream_t stream) {
  switch (linear_tile(s.rows)) {
    case kTinyTile: return run<Tiny, Y>(args, s, w, stream);
    case kNarrowTile: return run<Narrow, Y>(args, s, w, stream);
    case kMiddleTile: return run<Middle, Y>(args, s, w, stream);
    default: return run<Wide, Y>(args, s, w, stream);
  }
}

}  // namespace

void linear(const LinearSizes& s, const bf16* x, const bf16* w, DType y_dtype, void* y, cudaStream_t stream) {
  const auto k = static_cast<std::uint64_t>(s.inner), t = static_cast<std::uint64_t>(s.rows);
  Args args{};
  args.rows = tensor_map(x, {k, t}, {k}, {kTileK, kBoxRows});
  args.narrow_rows = tensor_map(x, {k, t}, {k}, {kTileK, 8});
  args.y = y;
  args.k_blocks = (s.inner + kTileK - 1) / kTileK;
  args.columns = s.columns;
  y_dtype == DType::kF32 ? run<float>(args, s, w, stream) : run<bf16>(args, s, w, stream);
}

}  // namespace dsmoe::cuda::hopper
