// The experts' products for few tokens and packed matrices (packed_few.cuh). A block has one tile of tokens of one expert
// and some columns. Blocks of the shared experts come first: they need no plan, and of gate/up they need not wait for it.
#include <algorithm>

#include "ops/cuda/numbers.cuh"
#include "ops/cuda/packed_few.cuh"

namespace dsmoe::cuda::packed {

namespace {

constexpr int kWarps = 2, kStreamBytes = 16 * 1024;  // of a warp; all warps of one token fit the device at once
// What a block works on: rows [row, row + rows) of h.
struct Work {
  bool shared;
  int expert;  // among its kind
  int row, rows;
};

struct Args {
  const TokenTile* tiles;
  const std::int32_t* tile_count;
  const std::int32_t* row_token;
  const bf16* in;
  bf16* out;
  ExpertMatrices w[2];  // gate and up, or down
  int tokens, shared, width, expert_width;
  int at_once;                       // rows of x
  int shared_tiles;                  // of tokens
  int shared_blocks, routed_blocks;  // of columns, for each of them
  bool wait_first;                   // no gate ahead that has waited for x
};

// The tiles of shared experts: up to at_once tokens of one (gate/up), or of all of them (down).
__device__ __forceinline__ Work shared_work(const Args& args, int id) {
  const int groups = (args.tokens + args.at_once - 1) / args.at_once, first = id % groups * args.at_once;
  return {true, id / groups, id / groups * args.tokens + first, min(args.at_once, args.tokens - first)};
}
__device__ __forceinline__ Work routed_work(const Args& args, int id) {
  const int4 t = *reinterpret_cast<const int4*>(args.tiles + id);
  return {false, t.x - args.shared, t.y, t.z};
}

// Which tile of tokens, and which part of the columns.
struct Place {
  bool shared;
  int tile, columns;
};
__device__ __forceinline__ Place place_of(const Args& args) {
  const int id = static_cast<int>(blockIdx.x), first = args.shared_tiles * args.shared_blocks;
  if (id < first) return {true, id / args.shared_blocks, id % args.shared_blocks};
  return {false, (id - first) / args.routed_blocks, (id - first) % args.routed_blocks};
}

// The first warp has two tiles of gate, the second the same rows of up.
template <int kEights>
__global__ void __launch_bounds__(kWarps * 32) gate_up_kernel(const __grid_constant__ Args args) {
  extern __shared__ __align__(128) std::uint8_t shared[];
  __shared__ float up[kEights][32][4];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const Place at = place_of(args);
  if (!at.shared || args.wait_first) {
    ptx::wait_for_previous_kernel();
    ptx::let_next_kernel_start();
    if (!at.shared && at.tile >= *args.tile_count) return;
  }
  const Work work = at.shared ? shared_work(args, at.tile) : routed_work(args, at.tile);
  const Matrix& w = at.shared ? args.w[warp].shared : args.w[warp].routed;
  const int column = at.columns * 2 * kTileRows;
  std::uint8_t* const x = shared + kWarps * kStreamBytes;
  for (int first = 0; first < work.rows; first += args.at_once) {
    const int rows = min(args.at_once, work.rows - first);
    const Stream<2> stream(w, (work.expert * args.expert_width + column) / kTileRows, shared + warp * kStreamBytes,
                           kStreamBytes);
    stream.start(first > 0);
    if (first > 0) __syncthreads();
    RowsInShared::fill(x, rows, args.width, [&](int row, int k) {
      const int r = work.row + first + row, token = at.shared ? r - work.expert * args.tokens : args.row_token[r];
      return args.in + static_cast<std::size_t>(token) * args.width + k;
    });
    float acc[kEights][4] = {};
    multiply(acc, w.dtype, stream, x, rows, args.width);
    if (warp == 1) {
      for (int e = 0; e < kEights; ++e)
        for (int v = 0; v < 4; ++v) up[e][lane][v] = acc[e][v];
    }
    __syncthreads();
    if (warp == 1) continue;
    for (int e = 0; e < kEights; ++e)
      for (int v = 0; v < 4; ++v) acc[e][v] = silu(acc[e][v]) * up[e][lane][v];
    each_sum<2>(acc, [&](int row, int c, float value) {
      if (row < rows && column + c < args.expert_width)
        from_float(value, args.out[static_cast<std::size_t>(work.row + first + row) * args.expert_width + column + c]);
    });
  }
}

// The plan is there: the kernel ahead waited for it before it let this one start.
template <int kTiles, int kEights>
__device__ __forceinline__ void down(const Args& args, const Place& at, const Work& work, const Matrix& w,
                                     std::uint8_t* shared) {
  const int warp = threadIdx.x / 32, column = (at.columns * kWarps + warp) * kTiles * kTileRows;
  const int out_row = at.shared ? work.row : work.row - max(args.shared - 1, 0) * args.tokens;
  std::uint8_t* const x = shared + kWarps * kStreamBytes;
  for (int first = 0; first < work.rows; first += args.at_once) {
    const int rows = min(args.at_once, work.rows - first);
    const Stream<kTiles> stream(w, (work.expert * args.width + column) / kTileRows, shared + warp * kStreamBytes,
                                kStreamBytes);
    stream.start(first > 0);
    if (first > 0) {
      __syncthreads();
    } else {
      ptx::wait_for_previous_kernel();
      ptx::let_next_kernel_start();
    }
    // The rows of the shared experts, one behind the other.
    RowsInShared::fill(x, rows, w.columns, [&](int row, int k) {
      const int part = k / args.expert_width;
      return args.in + static_cast<std::size_t>(work.row + first + row + part * args.tokens) * args.expert_width +
             (k - part * args.expert_width);
    });
    float acc[kEights][4] = {};
    multiply(acc, w.dtype, stream, x, rows, w.columns);
    each_sum<kTiles>(acc, [&](int row, int c, float value) {
      if (row < rows && column + c < args.width)
        from_float(value, args.out[static_cast<std::size_t>(out_row + first + row) * args.width + column + c]);
    });
  }
}

// Sums of the shared experts are S times as long, so a warp has one tile of theirs.
template <int kEights>
__global__ void __launch_bounds__(kWarps * 32) down_kernel(const __grid_constant__ Args args) {
  extern __shared__ __align__(128) std::uint8_t shared[];
  const Place at = place_of(args);
  if (at.shared) return down<1, kEights>(args, at, shared_work(args, at.tile), args.w[0].shared, shared);
  if (at.tile >= *args.tile_count) return;
  down<2, kEights>(args, at, routed_work(args, at.tile), args.w[0].routed, shared);
}

Args common_args(const Sizes& s, const PlanView& plan, const bf16* in, bf16* out) {
  Args args{};
  args.tiles = plan.tiles, args.tile_count = plan.tile_count, args.row_token = plan.token;
  args.in = in, args.out = out;
  args.tokens = s.tokens, args.shared = s.shared, args.width = s.width, args.expert_width = s.expert_width;
  args.wait_first = s.routed() == 0;
  return args;
}

int parts(int columns, int of) { return (columns + of - 1) / of; }

// One block per part of the columns and tile of tokens that there may be.
void run(void (*few)(Args), void (*more)(Args), const Sizes& s, const Args& args, int inner, cudaStream_t stream) {
  const int most = std::min(s.tokens * s.chosen, s.tokens * s.chosen / s.token_tile + s.routed());
  const int blocks = args.shared_tiles * args.shared_blocks + most * args.routed_blocks;
  const int bytes = kWarps * kStreamBytes + args.at_once * row_pitch(inner);
  launch(args.at_once <= 8 ? few : more, static_cast<unsigned>(blocks), kWarps * 32, bytes, stream, args);
}

}  // namespace

void gate_up_few(const Sizes& s, const PlanView& plan, const bf16* x, const ExpertMatrices& gate, const ExpertMatrices& up,
                 bf16* h, cudaStream_t stream) {
  Args args = common_args(s, plan, x, h);
  args.w[0] = gate, args.w[1] = up;
  args.at_once = rows_at_once(s.tokens, s.width, kWarps * kStreamBytes);
  args.shared_tiles = s.shared * parts(s.tokens, args.at_once);
  args.shared_blocks = args.routed_blocks = parts(s.expert_width, 2 * kTileRows);
  run(gate_up_kernel<1>, gate_up_kernel<2>, s, args, s.width, stream);
}

void down_few(const Sizes& s, const PlanView& plan, const bf16* h, const ExpertMatrices& down, bf16* out,
              cudaStream_t stream) {
  Args args = common_args(s, plan, h, out);
  args.w[0] = down;
  const int inner = std::max(down.shared.columns, down.routed.columns);
  args.at_once = rows_at_once(s.tokens, inner, kWarps * kStreamBytes);
  args.shared_tiles = s.shared > 0 ? parts(s.tokens, args.at_once) : 0;
  args.shared_blocks = parts(s.width, kWarps * kTileRows);
  args.routed_blocks = parts(s.width, kWarps * 2 * kTileRows);
  run(down_kernel<1>, down_kernel<2>, s, args, inner, stream);
}

}  // namespace dsmoe::cuda::packed
