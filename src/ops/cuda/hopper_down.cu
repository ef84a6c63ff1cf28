// down, and the gradient of the experts' inputs: rows that already lie sorted, times a weight matrix.
#include "ops/cuda/hopper.h"
#include "ops/cuda/hopper_gemm.cuh"
#include "ops/cuda/launch.h"
#include "ops/cuda/tensor_map.h"

namespace dsmoe::cuda::hopper {

namespace {

inline constexpr int kBoxRows = 32;

struct Args {
  CUtensorMap weights;
  CUtensorMap rows;        // boxes of kBoxRows rows
  CUtensorMap eight_rows;  // boxes of 8, for narrow tiles
  TileSource tiles;
  bf16* out;
  int k_blocks;
  int first, columns;  // of the output
};

template <bool kTransposedWeights>
struct Consumer {
  const Args& args;
  const Tile& tile;
  Shared& shared;
  int group;

  template <int kN>
  __device__ __forceinline__ void run() const {
    float acc[kN / 2] = {};
    multiply<kN, kTransposedWeights, 0, false>(acc, shared.ring, args.k_blocks, group);
    const int column = tile.m_block * kTileM + group * 64;
    store_transposed<kN>(acc, shared.staging + group * kStagingBytes, group,
                         args.out + static_cast<std::size_t>(tile.row0) * args.columns + column, args.columns,
                         tile.rows, args.columns - column);
  }
};

template <bool kTransposedWeights>
__global__ void __launch_bounds__(kThreads, 1) down_kernel(const __grid_constant__ Args args) {
  extern __shared__ char raw[];
  Shared shared = set_up(raw, 1);
  ptx::wait_for_previous_kernel();
  ptx::let_next_kernel_start();
  const int total = args.tiles.total();
  int expert = 0;
  if (threadIdx.x < 128) {
    ptx::registers_shrink<40>();
    if (threadIdx.x != 0) return;
    Ring& ring = shared.ring;
    for (int id = blockIdx.x; id < total; id += gridDim.x) {
      const Tile tile = args.tiles.find(id, expert);
      if (tile.rows <= 0) continue;
      const bool narrow = tile.rows <= 16;
      const int step = narrow ? 8 : kBoxRows;
      const int boxes = (tile.rows + step - 1) / step;
      for (int kb = 0; kb < args.k_blocks; ++kb) {
        ptx::barrier_wait(ring.empty_barrier(), ring.phase ^ 1);
        const std::uint32_t bar = ring.full_barrier();
        ptx::barrier_arrive_expect(bar, kBytesA + boxes * step * kTileK * 2);
        const int m = args.first + tile.m_block * kTileM;
        if constexpr (kTransposedWeights) {
          ptx::tma_load(ring.a(), &args.weights, bar, m, kb * kTileK, tile.expert);
          ptx::tma_load(ring.a() + 8192, &args.weights, bar, m + 64, kb * kTileK, tile.expert);
        } else {
          ptx::tma_load(ring.a(), &args.weights, bar, kb * kTileK, m, tile.expert);
        }
        for (int i = 0; i < boxes; ++i)
          ptx::tma_load(ring.b() + i * step * kTileK * 2, narrow ? &args.eight_rows : &args.rows, bar, kb * kTileK,
                        tile.row0 + i * step);
        ring.advance();
      }
    }
  } else {
    ptx::registers_grow<232>();
    const int group = threadIdx.x / 128 - 1;
    for (int id = blockIdx.x; id < total; id += gridDim.x) {
      const Tile tile = args.tiles.find(id, expert);
      if (tile.rows > 0) with_width(tile.rows, Consumer<kTransposedWeights>{args, tile, shared, group});
    }
  }
}

Args common_args(const Sizes& s, const Plan& plan, const bf16* rows, std::uint64_t k, bf16* out, int first, int columns) {
  Args args{};
  const auto r = static_cast<std::uint64_t>(s.rows);
  args.rows = tensor_map(rows, {k, r}, {k}, {kTileK, kBoxRows});
  args.eight_rows = tensor_map(rows, {k, r}, {k}, {kTileK, 8});
  args.tiles = {plan.row_offset, plan.tile_offset, s.experts, (columns + kTileM - 1) / kTileM};
  args.out = out;
  args.k_blocks = static_cast<int>((k + kTileK - 1) / kTileK);
  args.first = first;
  args.columns = columns;
  return args;
}

}  // namespace

void down(const Sizes& s, const Plan& plan, const bf16* h, const bf16* weights, bf16* out, int first, int columns,
          cudaStream_t stream) {
  const std::uint64_t d = s.width, f = s.expert_width, e = s.experts;
  Args args = common_args(s, plan, h, f, out, first, columns);
  args.weights = tensor_map(weights, {f, d, e}, {f, d * f}, {kTileK, kTileM, 1});
  launch(down_kernel<false>, multiprocessors(), kThreads, kSmemBytes, stream, args);
}

void input_backward(const Sizes& s, const Plan& plan, const bf16* dgate_up, const bf16* weights, bf16* out, int first,
                    int columns, cudaStream_t stream) {
  const std::uint64_t d = s.width, f = s.expert_width, e = s.experts;
  Args args = common_args(s, plan, dgate_up, 2 * f, out, first, columns);
  args.weights = tensor_map(weights, {d, 2 * f, e}, {d, 2 * f * d}, {64, kTileK, 1});
  launch(down_kernel<true>, multiprocessors(), kThreads, kSmemBytes, stream, args);
}

}  // namespace dsmoe::cuda::hopper
