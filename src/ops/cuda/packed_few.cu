// The products of few rows with packed matrices (packed_few.cuh): y = x · Wᵀ, q, k and v with their turn, and the experts'.
// A warp has 8 columns of y, a block some warps and one copy of its rows of x. All of it is one kernel, because the next
// one of a token then finds its instructions where the last one left them.
#include "ops/cuda/heuristics.h"
#include "ops/cuda/packed_few.cuh"
#include "ops/cuda/turn.cuh"

namespace dsmoe::cuda::packed {

namespace {

constexpr int kWarps = 2;                // of a block, but for kDownOne
constexpr int kMostChains = 16;          // of kDownOne
constexpr int kMostThreads = 704;        // leaves 80 registers: gate and up of a 16B token, 11 blocks, fit a multiprocessor
constexpr int kMostRowBytes = 64 << 10;  // of one token's h in shared memory

enum class Job { kLinear, kProject, kGateUp, kDown, kDownOne };

struct LinearArgs {
  Product products[kMostProjections];
  int first_block[kMostProjections];  // of unused ones: past the last block
  int first_row, rows, inner;
  hopper::TurnAndStore turn;
};

// Blocks of the shared experts come first: they need no plan, and of several tokens' gate/up they need not wait for it.
struct ExpertArgs {
  ExpertMatrices w[2];  // gate and up, or down
  const TokenTile* tiles;
  const std::int32_t *tile_count, *row_token, *slot_row;
  const float* weight;  // of kDownOne: [K]
  bf16* out;
  int tokens, shared, chosen, width, expert_width;
  int at_once;                       // rows of x
  int shared_tiles;                  // of tokens
  int shared_blocks, routed_blocks;  // of columns, for each of them
  bool shared_waits;                 // the shared experts: no gate ahead that has waited for x before it let this start
};

struct Args {
  Job job;
  const bf16* x;
  LinearArgs linear;
  ExpertArgs experts;
};

// What a warp does: rows of x, in shared memory from x_at on, times a tile of w.
struct Task {
  Matrix w;
  int tile;
  int rows, x_at = 0;
  int row = 0;                  // the first row, of y or h
  int matrix = 0, unit = 0;     // of linear products: which, and which columns
  bool shared = false;          // of experts
  int expert = 0, columns = 0;  // among its kind; which of its columns
  __device__ bool none() const { return rows <= 0; }
};

__device__ __forceinline__ int warp_of_block() { return static_cast<int>(threadIdx.x) / 32; }

// ---- linear products

// By comparison, not by index: the compiler then knows that what it reads is global memory.
__device__ __forceinline__ Product product_of(const LinearArgs& args, int matrix) {
  static_assert(kMostProjections == 3);
  return matrix == 0 ? args.products[0] : matrix == 1 ? args.products[1] : args.products[2];
}
__device__ __forceinline__ Matrix matrix_of(const ExpertMatrices& w, bool shared) { return shared ? w.shared : w.routed; }

__device__ __forceinline__ Task linear_task(const LinearArgs& args, Job job) {
  Task t{};
#pragma unroll
  for (int i = 1; i < kMostProjections; ++i) t.matrix += static_cast<int>(blockIdx.x) >= args.first_block[i];
  t.w = product_of(args, t.matrix).w;
  t.unit = static_cast<int>(blockIdx.x) - (t.matrix == 0 ? 0 : args.first_block[t.matrix]);
  t.tile = t.unit * kWarps + warp_of_block();
  if (job == Job::kProject) {  // the first warp has 8 neighbours of the first half of a head, the second their partners
    const int half = args.turn.half / kTileRows;
    t.tile = t.unit / half * 2 * half + t.unit % half + warp_of_block() * half;
  }
  t.rows = args.rows, t.row = args.first_row;
  return t;
}

template <int kEights>
__device__ __forceinline__ void store_linear(const LinearArgs& args, const Task& t, const Sums<kEights>& acc) {
  const Product p = product_of(args, t.matrix);
  each_sum(acc, [&](int row, int c, float sum) {
    const int column = t.tile * kTileRows + c;
    if (row >= t.rows || column >= p.w.rows) return;
    const std::size_t at = static_cast<std::size_t>(t.row + row) * p.w.rows + column;
    p.f32 ? from_float(sum, static_cast<float*>(p.y)[at]) : from_float(sum, static_cast<bf16*>(p.y)[at]);
  });
}

// ---- experts

// The tiles of shared experts: up to at_once tokens of one (gate/up), or of all of them (down). Of a longer tile of a
// routed expert, each of the blocks in y has at_once rows. None where there is nothing to do.
__device__ __forceinline__ Task expert_task(const ExpertArgs& args) {
  Task t{};
  const int id = static_cast<int>(blockIdx.x), first_routed = args.shared_tiles * args.shared_blocks;
  t.shared = id < first_routed;
  const int blocks = t.shared ? args.shared_blocks : args.routed_blocks, at = t.shared ? id : id - first_routed;
  const int tile = at / blocks;
  t.columns = at - tile * blocks;
  if (t.shared) {
    const int groups = (args.tokens + args.at_once - 1) / args.at_once, first = tile % groups * args.at_once;
    t.expert = tile / groups, t.row = t.expert * args.tokens + first;
    t.rows = blockIdx.y == 0 ? min(args.at_once, args.tokens - first) : 0;
  } else if (tile < *args.tile_count) {
    const int4 found = *reinterpret_cast<const int4*>(args.tiles + tile);
    const int first = static_cast<int>(blockIdx.y) * args.at_once;
    t.expert = found.x - args.shared, t.row = found.y + first, t.rows = min(args.at_once, found.z - first);
  }
  return t;
}

__device__ __forceinline__ Task gate_up_task(const ExpertArgs& args) {
  const bool shared = static_cast<int>(blockIdx.x) < args.shared_tiles * args.shared_blocks;
  if (!shared) {
    ptx::wait_for_previous_kernel();
    ptx::let_next_kernel_start();
  }
  Task t = expert_task(args);
  t.w = warp_of_block() == 0 ? matrix_of(args.w[0], shared) : matrix_of(args.w[1], shared);
  t.tile = t.expert * (args.expert_width / kTileRows) + t.columns;
  return t;
}

// The plan is there: the kernel ahead waited for it before it let this one start.
__device__ __forceinline__ Task down_task(const ExpertArgs& args) {
  Task t = expert_task(args);
  t.w = matrix_of(args.w[0], t.shared);
  t.tile = t.expert * (args.width / kTileRows) + t.columns * kWarps + warp_of_block();
  return t;
}

// One token: a block has 8 columns, and a warp for each expert, the first one for all shared ones, whose products are one
// sum.
__device__ __forceinline__ Task down_one_task(const ExpertArgs& args) {
  Task t{};
  const int sums = min(args.shared, 1), chosen = warp_of_block() - sums;
  t.shared = chosen < 0;
  t.w = matrix_of(args.w[0], t.shared);
  t.expert = t.shared ? 0 : args.tiles[chosen].expert - args.shared;
  t.tile = t.expert * (args.width / kTileRows) + static_cast<int>(blockIdx.x);
  t.x_at = t.shared ? 0 : (args.shared + chosen) * args.expert_width * 2;
  t.rows = 1;
  return t;
}

template <int kEights>
__device__ __forceinline__ void store_gate_up(const ExpertArgs& args, const Task& t, const Sums<kEights>& acc) {
#pragma unroll
  for (int e = 0; e < kEights; ++e)
#pragma unroll
    for (int v = 0; v < 2; ++v) {
      const int lane = threadIdx.x % 32, row = e * 8 + lane % 4 * 2 + v;
      if (row < t.rows)
        from_float(silu(acc.v[e][v]) * acc.v[e][v + 2],
                   args.out[static_cast<std::size_t>(t.row + row) * args.expert_width + t.columns * kTileRows + lane / 4]);
    }
}

template <int kEights>
__device__ __forceinline__ void store_down(const ExpertArgs& args, const Task& t, const Sums<kEights>& acc) {
  const int first = t.shared ? t.row : t.row - max(args.shared - 1, 0) * args.tokens;
  each_sum(acc, [&](int row, int c, float sum) {
    const int column = (t.columns * kWarps + warp_of_block()) * kTileRows + c;
    if (row < t.rows && column < args.width)
      from_float(sum, args.out[static_cast<std::size_t>(first + row) * args.width + column]);
  });
}

__device__ __forceinline__ void store_down_one(const ExpertArgs& args, float sum_of_chain) {
  __shared__ float sums[kMostChains][kTileRows];
  const int lane = threadIdx.x % 32, summed = min(args.shared, 1);
  if (lane % 4 == 0) sums[warp_of_block()][lane / 4] = to_float(__float2bfloat16_rn(sum_of_chain));
  __syncthreads();
  if (threadIdx.x >= kTileRows) return;
  float sum = 0;  // as in combine.cu
  if (summed) sum = fmaf(1.0f, sums[0][lane], sum);
  for (int k = 0; k < args.chosen; ++k)
    sum = fmaf(args.weight[k], sums[summed + args.slot_row[k] - args.shared][lane], sum);
  args.out[static_cast<int>(blockIdx.x) * kTileRows + lane] = __float2bfloat16_rn(sum);
}

// ---- the kernel

// The task's rows of x into shared memory: tokens', or of h, where those of the shared experts are one behind the other.
__device__ __forceinline__ void put_rows(const Args& args, const Task& t, std::uint8_t* x) {
  const ExpertArgs& e = args.experts;
  if (args.job == Job::kDownOne) {
    put_row(x, args.x, (e.shared + e.chosen) * e.expert_width);
  } else {
    const int part = args.job == Job::kDown ? e.expert_width : t.w.columns;
    for (int row = 0; row < t.rows; ++row)
      for (int first = 0, from = t.row + row; first < t.w.columns; first += part, from += e.tokens) {
        int token = args.job == Job::kDown ? from : row;
        if (args.job == Job::kGateUp) token = t.shared ? from - t.expert * e.tokens : e.row_token[from];
        put_row(x + row * row_pitch(t.w.columns) + first * 2, args.x + static_cast<std::size_t>(token) * part, part);
      }
  }
  __syncthreads();
}

template <int kEights>
__global__ void __launch_bounds__(kMostThreads, 1) few_kernel(const __grid_constant__ Args args) {
  extern __shared__ __align__(128) std::uint8_t x[];
  __shared__ float second[kEights][32][2];
  const Job job = args.job;
  const bool linear = job == Job::kLinear || job == Job::kProject;
  const Task t = linear                 ? linear_task(args.linear, job)
                 : job == Job::kGateUp  ? gate_up_task(args.experts)
                 : job == Job::kDownOne ? down_one_task(args.experts)
                                        : down_task(args.experts);
  if (t.none()) return;
  const TileBytes tile(t.w, t.tile);
  tile.prefetch();
  if (job != Job::kGateUp || (t.shared && args.experts.shared_waits)) {
    ptx::wait_for_previous_kernel();
    ptx::let_next_kernel_start();
  }
  put_rows(args, t, x);
  Sums<kEights> acc = multiply(t.w, tile, LaneRows<kEights>(x + t.x_at, t.rows, t.w.columns));
  if (job == Job::kLinear) return store_linear(args.linear, t, acc);
  if (job == Job::kDown) return store_down(args.experts, t, acc);
  if (job == Job::kDownOne) return store_down_one(args.experts, acc.v[0][0]);
  join(acc, second);
  if (threadIdx.x >= 32) return;
  if (job == Job::kGateUp) return store_gate_up(args.experts, t, acc);
  const Product p = product_of(args.linear, t.matrix);
  Turn(args.linear.turn, t.rows, t.matrix, t.unit).store(acc.v, p.y, p.w.rows);
}

void start(const Args& args, int rows, dim3 grid, int threads, int bytes, cudaStream_t stream) {
  launch(rows <= 8 ? few_kernel<1> : few_kernel<2>, grid, static_cast<unsigned>(threads), bytes, stream, args);
}

void run_linear(Job job, const LinearSizes& s, int at_once, const bf16* x, std::span<const Product> products,
                const hopper::TurnAndStore& turn, cudaStream_t stream) {
  for (int first = 0; first < s.rows; first += at_once) {
    Args args{};
    args.job = job, args.x = x + static_cast<std::size_t>(first) * s.inner;
    LinearArgs& l = args.linear;
    l.turn = turn, l.first_row = first, l.rows = std::min(at_once, s.rows - first), l.inner = s.inner;
    int blocks = 0;
    for (std::size_t i = 0; i < kMostProjections; ++i) {
      l.first_block[i] = blocks;
      if (i >= products.size()) continue;
      l.products[i] = products[i];
      blocks += (products[i].w.rows + kWarps * kTileRows - 1) / (kWarps * kTileRows);
    }
    start(args, l.rows, static_cast<unsigned>(blocks), kWarps * 32, l.rows * row_pitch(s.inner), stream);
  }
}

Args expert_args(Job job, const Sizes& s, const PlanView& plan, const bf16* in, bf16* out) {
  Args args{};
  args.job = job, args.x = in;
  ExpertArgs& e = args.experts;
  e.tiles = plan.tiles, e.tile_count = plan.tile_count, e.row_token = plan.token, e.slot_row = plan.slot_row;
  e.out = out;
  e.tokens = s.tokens, e.shared = s.shared, e.chosen = s.chosen, e.width = s.width, e.expert_width = s.expert_width;
  e.shared_waits = s.routed() == 0 || s.tokens == 1;  // hopper_route_one.cu makes x itself
  return args;
}

int parts(int columns, int of) { return (columns + of - 1) / of; }

// One block per part of the columns and tile of tokens that there may be.
void run_experts(const Sizes& s, const Args& args, int inner, cudaStream_t stream) {
  const ExpertArgs& e = args.experts;
  const int most = std::min(s.tokens * s.chosen, s.tokens * s.chosen / s.token_tile + s.routed());
  const int blocks = e.shared_tiles * e.shared_blocks + most * e.routed_blocks;
  const int rounds = parts(std::min(s.tokens, s.token_tile), e.at_once);
  start(args, e.at_once, dim3(static_cast<unsigned>(blocks), static_cast<unsigned>(rounds)), kWarps * 32,
        e.at_once * row_pitch(inner), stream);
}

}  // namespace

void linear_few(const LinearSizes& s, const bf16* x, std::span<const Product> products, cudaStream_t stream) {
  run_linear(Job::kLinear, s, rows_at_once(s.rows, s.inner), x, products, {}, stream);
}

bool project_few(const LinearSizes& s, const bf16* x, std::span<const Product, 3> qkv, const hopper::TurnAndStore& turn,
                 cudaStream_t stream) {
  if (turn.half % kTileRows != 0 || rows_at_once(s.rows, s.inner) < s.rows) return false;
  run_linear(Job::kProject, s, s.rows, x, qkv, turn, stream);
  return true;
}

void gate_up_few(const Sizes& s, const PlanView& plan, const bf16* x, const ExpertMatrices& gate, const ExpertMatrices& up,
                 bf16* h, cudaStream_t stream) {
  Args args = expert_args(Job::kGateUp, s, plan, x, h);
  ExpertArgs& e = args.experts;
  e.w[0] = gate, e.w[1] = up;
  e.at_once = rows_at_once(s.tokens, s.width);
  e.shared_tiles = s.shared * parts(s.tokens, e.at_once);
  e.shared_blocks = e.routed_blocks = s.expert_width / kTileRows;
  run_experts(s, args, s.width, stream);
}

void down_few(const Sizes& s, const PlanView& plan, const bf16* h, const ExpertMatrices& down, bf16* out,
              cudaStream_t stream) {
  Args args = expert_args(Job::kDown, s, plan, h, out);
  ExpertArgs& e = args.experts;
  e.w[0] = down;
  const int inner = std::max(down.shared.columns, down.routed.columns);
  e.at_once = rows_at_once(s.tokens, inner);
  e.shared_tiles = s.shared > 0 ? parts(s.tokens, e.at_once) : 0;
  e.shared_blocks = e.routed_blocks = parts(s.width, kWarps * kTileRows);
  run_experts(s, args, inner, stream);
}

bool is_one_token(const Sizes& s) {
  return s.tokens == 1 && std::min(s.shared, 1) + s.chosen <= kMostChains && s.width % kTileRows == 0 &&
         s.expert_width % 32 == 0 && row_pitch((s.shared + s.chosen) * s.expert_width) <= kMostRowBytes;
}

void down_one(const Sizes& s, const PlanView& plan, const bf16* h, const ExpertMatrices& down, const float* weight, bf16* y,
              cudaStream_t stream) {
  Args args = expert_args(Job::kDownOne, s, plan, h, y);
  args.experts.w[0] = down, args.experts.weight = weight;
  const int chains = std::min(s.shared, 1) + s.chosen;
  start(args, 1, static_cast<unsigned>(s.width / kTileRows), chains * 32, row_pitch((s.shared + s.chosen) * s.expert_width),
        stream);
}

}  // namespace dsmoe::cuda::packed
