// y = x · Wᵀ for few rows of x, where reading W is all that takes time: a block owns 16 columns of y. One warp asks for the
// block's part of W, or a ring of it, before the kernel ahead has ended; another multiplies as the pieces arrive
// (hopper_few.cuh).
#include <climits>

#include "ops/cuda/hopper.h"
#include "ops/cuda/hopper_few.cuh"
#include "ops/cuda/launch.h"
#include "ops/cuda/linear.h"
#include "ops/cuda/norm_row.cuh"
#include "ops/cuda/numbers.cuh"
#include "ops/cuda/ptx_streamed.cuh"
#include "ops/cuda/tensor_map.h"
#include "ops/cuda/turn.cuh"

namespace dsmoe::cuda::hopper {

namespace {

constexpr int kBoxes = 4, kStageBytes = kBoxes * kFewBytes, kMost = kMostProjections;

struct Args {
  CUtensorMap weights[kMost];
  void* y[kMost];
  int columns[kMost], first_block[kMost];  // of unused ones: past the last block
  bool wide[kMost];                        // y is f32
  const bf16* x;
  int rows, inner;
  int under_way;  // stages asked for at once
  std::uint64_t policy;
  TurnAndStore turn;
  AddNormRow<bf16> norm;  // where x is its result
};

__host__ __device__ constexpr int boxes_of(int inner) { return (inner + kBoxK - 1) / kBoxK; }

// ---- x, the other operand

// Up to 8 rows in shared memory: the 128 bytes of box b of row r at (b * rows + r) * 128.
struct SharedRows {
  static constexpr int kTiles = 1, kThreads = 32;
  const Args& args;
  std::uint32_t at;

  static int bytes(const LinearSizes& s) { return boxes_of(s.inner) * s.rows * 128; }
  __device__ __forceinline__ void load() const {
    const int chunks = boxes_of(args.inner) * 8;
    for (int r = 0; r < args.rows; ++r)
      for (int i = threadIdx.x % 32; i < chunks; i += 32) {
        const bool there = i * 8 < args.inner;
        const bf16* const from = args.x + static_cast<std::size_t>(r) * args.inner + (there ? i * 8 : 0);
        ptx::cp_async_16(at + i / 8 * args.rows * 128 + swizzled(r, i % 8), from, there ? 16 : 0);
      }
    ptx::cp_async_commit();
  }
  template <class Ring, class Release>
  __device__ __forceinline__ void multiply(float (&acc)[1][4], const Ring& ring, Release&& release) const {
    ptx::cp_async_wait<0>();
    __syncwarp();
    const int step = args.rows * 128, boxes = boxes_of(args.inner);
    LanePlaces places;
    places.set(min(static_cast<int>(threadIdx.x % 8), args.rows - 1));
    multiply_boxes<kBoxes>(
        acc[0], places, boxes, step,
        [&](int i) {
          ring.wait(i);
          return ring.stage(i);
        },
        [&](int i) { return at + i * kBoxes * step; },
        [&](int i) {
          __syncwarp();
          release(i + 1);
        });
  }
};

// One row in shared memory that is the norm of a sum: every block makes it for itself, and the first one keeps the sum.
struct NormedRow {
  static constexpr int kTiles = 1, kThreads = 128, kScratchBytes = 32;
  const SharedRows rows;
  NormRow<kThreads, bf16> normer;

  __device__ __forceinline__ NormedRow(const Args& args, std::uint32_t at) : rows{args, at + kScratchBytes} {
    normer.load_weight(args.norm);
  }
  static int bytes(const LinearSizes& s) { return SharedRows::bytes(s) + kScratchBytes; }
  __device__ __forceinline__ void load() const {
    const Args& args = rows.args;
    const auto together = [] { ptx::named_barrier_sync(1, kThreads); };
    auto* const scratch = static_cast<float*>(__cvta_shared_to_generic(rows.at - kScratchBytes));
    auto* const row = static_cast<bf16*>(__cvta_shared_to_generic(rows.at));  // one row is not swizzled
    normer.norm(args.norm, scratch, together, [&](int column, const Pack<float, 4>& sum, const Pack<bf16, 4>& normed) {
      store(normed, row + column);
      if (blockIdx.x == 0) store(sum, args.norm.sum + column);
    });
    together();
  }
  template <class Ring, class Release>
  __device__ __forceinline__ void multiply(float (&acc)[1][4], const Ring& ring, Release&& release) const {
    rows.multiply(acc, ring, release);
  }
};

// Up to 16 rows, of which shared memory would hold too few: those of a stage in registers, one stage ahead. A lane has rows
// lane / 4 and that + 8 and, of every 16 numbers, two pairs.
struct RegisterRows {
  static constexpr int kTiles = 2, kThreads = 32, kSteps = kBoxes * kBoxK / 16;
  const Args& args;
  std::uint32_t at;
  std::uint32_t now[kTiles][kSteps][2], next[kTiles][kSteps][2];

  static int bytes(const LinearSizes&) { return 0; }
  __device__ __forceinline__ void load() { load(now, 0); }
  __device__ __forceinline__ void load(std::uint32_t (&to)[kTiles][kSteps][2], int index) const {
    const int row = threadIdx.x % 32 / 4, k = index * kBoxes * kBoxK + threadIdx.x % 4 * 2;
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
      const bool there = t * 8 + row < args.rows;
      const bf16* const from = args.x + static_cast<std::size_t>(there ? t * 8 + row : 0) * args.inner + k;
#pragma unroll
      for (int s = 0; s < kSteps; ++s)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int offset = s * 16 + half * 8;
          to[t][s][half] = there && k + offset < args.inner ? *reinterpret_cast<const std::uint32_t*>(from + offset) : 0;
        }
    }
  }
  template <class Ring, class Release>
  __device__ __forceinline__ void multiply(float (&acc)[kTiles][4], const Ring& ring, Release&& release) {
    const int boxes = boxes_of(args.inner);
    LanePlaces places;
    places.set(0);
    for (int i = 0; i * kBoxes < boxes; ++i) {
      load(next, i + 1);
      ring.wait(i);
      std::uint32_t a[2][4];  // a step ahead, as in hopper_few.cuh
      ptx::ldmatrix(a[0], ring.stage(i) + places.a[0]);
#pragma unroll
      for (int s = 0; s < kSteps; ++s) {
        if (i * kBoxes + s / 4 >= boxes) break;
        if (s + 1 < kSteps) ptx::ldmatrix(a[(s + 1) % 2], ring.stage(i) + (s + 1) / 4 * kFewBytes + places.a[(s + 1) % 4]);
        __syncwarp();
#pragma unroll
        for (int t = 0; t < kTiles; ++t)
          ptx::mma_16816(acc[t], a[s % 2][0], a[s % 2][1], a[s % 2][2], a[s % 2][3], now[t][s][0], now[t][s][1]);
      }
      __syncwarp();
      release(i + 1);
#pragma unroll
      for (int t = 0; t < kTiles; ++t)
#pragma unroll
        for (int s = 0; s < kSteps; ++s) now[t][s][0] = next[t][s][0], now[t][s][1] = next[t][s][1];
    }
  }
};

// ---- y. A lane has columns g = lane / 4 and g + 8 of the block's 16, of rows 2 (lane % 4) and the next of every 8.

// As it is; the block's columns are neighbours.
struct Store {
  __device__ __forceinline__ Store(const Args&, int, int) {}
  static __device__ __forceinline__ void load(const Args& args, int matrix, int unit, int k, std::uint32_t to,
                                              std::uint32_t barrier) {
    ptx::tma_load(to, &args.weights[matrix], barrier, args.policy, k, unit * kFewRows);
  }
  template <int kTiles>
  __device__ __forceinline__ void store(const Args& args, int matrix, int unit, const float (&acc)[kTiles][4]) const {
    const int g = threadIdx.x % 32 / 4, c = threadIdx.x % 4 * 2, columns = args.columns[matrix];
#pragma unroll
    for (int t = 0; t < kTiles; ++t)
#pragma unroll
      for (int v = 0; v < 4; ++v) {
        const int row = t * 8 + c + v % 2, at = unit * kFewRows + g + v / 2 * 8;
        if (row >= args.rows || at >= columns) continue;
        const std::size_t place = static_cast<std::size_t>(row) * columns + at;
        if (args.wide[matrix])
          static_cast<float*>(args.y[matrix])[place] = acc[t][v];
        else
          from_float(acc[t][v], static_cast<bf16*>(args.y[matrix])[place]);
      }
  }
};

// q, k and v of new tokens (hopper_turn.cuh): a block has 8 neighbours of the first half of a head and their partners.
struct TurnAndKeep {
  __device__ __forceinline__ TurnAndKeep(const Args& args, int matrix, int unit)
      : turn(args.turn, args.rows, matrix, unit) {}
  static __device__ __forceinline__ void load(const Args& args, int matrix, int unit, int k, std::uint32_t to,
                                              std::uint32_t barrier) {
    const int per_head = args.turn.half / 8;
    ptx::tma_load(to, &args.weights[matrix], barrier, args.policy, k, 0, 0, unit % per_head, unit / per_head);
  }
  template <int kTiles>
  __device__ __forceinline__ void store(const Args& args, int matrix, int, const float (&acc)[kTiles][4]) const {
    turn.store(acc, args.y[matrix], args.columns[matrix]);
  }
  Turn turn;
};

template <int kStages, class X, class Out>
__global__ void __launch_bounds__(32 + X::kThreads) few_kernel(const __grid_constant__ Args args) {
  extern __shared__ char raw[];
  const std::uint32_t data = (ptx::smem_address(raw) + 1023u) & ~1023u;
  const WarpRing<kStages, kStageBytes> ring{data, data + kStages * kStageBytes};
  int matrix = 0;
#pragma unroll
  for (int i = 1; i < kMost; ++i) matrix += static_cast<int>(blockIdx.x) >= args.first_block[i];
  const int unit = static_cast<int>(blockIdx.x) - args.first_block[matrix];
  const int boxes = boxes_of(args.inner), stages = (boxes + kBoxes - 1) / kBoxes;
  const auto ask_for = [&](int stage) {
    const int from = stage * kBoxes, count = min(kBoxes, boxes - from);
    ptx::barrier_arrive_expect(ring.barrier(stage), count * kFewBytes);
    for (int i = 0; i < count; ++i)
      Out::load(args, matrix, unit, (from + i) * kBoxK, ring.stage(stage) + i * kFewBytes, ring.barrier(stage));
  };
  ptx::let_next_kernel_start();
  if (threadIdx.x == 0) ring.set_up();
  __syncthreads();
  // A warp that asks for more than the copy engine has room for is held up, so it is not the one that multiplies.
  if (threadIdx.x < 32) {
    if (threadIdx.x == 0)
      for (int i = 0; i < min(stages, kStages); ++i) {
        if (i >= args.under_way) ring.wait_a_little(i - args.under_way);
        ask_for(i);
      }
    return;
  }
  X x{args, (ring.barriers + kStages * 8 + 127) & ~127u};
  ptx::wait_for_previous_kernel();
  x.load();
  if (threadIdx.x >= 64) return;
  const Out out(args, matrix, unit);
  float acc[X::kTiles][4] = {};
  x.multiply(acc, ring, [&](int done) {
    if (threadIdx.x % 32 == 0 && done + kStages - 1 < stages) ask_for(done + kStages - 1);
  });
  out.store(args, matrix, unit, acc);
}

template <int kStages, class X, class Out>
void run(const LinearSizes& s, const Args& args, int blocks, cudaStream_t stream) {
  launch(few_kernel<kStages, X, Out>, static_cast<unsigned>(blocks), 32 + X::kThreads,
         kStages * (kStageBytes + 8) + X::bytes(s) + 128 + 1024, stream, args);
}

// Three blocks fit a multiprocessor, where rows are not much longer than 2048, and beside those of one or two tokens a
// block of attention, which follows.
template <class Out>
void run(const LinearSizes& s, const Args& args, int blocks, cudaStream_t stream) {
  constexpr int kMostBytes = 64 << 10;
  const bool fits = s.rows <= 8 && SharedRows::bytes(s) <= kMostBytes;
  const bool one_each = blocks <= multiprocessors();
  if (fits && s.rows <= 2 && one_each) return run<8, SharedRows, Out>(s, args, blocks, stream);
  if (fits) return run<5, SharedRows, Out>(s, args, blocks, stream);
  run<8, RegisterRows, Out>(s, args, blocks, stream);
}

// The blocks of all matrices, numbered one after another; map(m) is the tensor map of one.
template <class Map>
int set_matrices(Args& args, const LinearSizes& s, const bf16* x, std::span<const LinearMatrix> matrices, Map&& map) {
  int blocks = 0;
  for (std::size_t i = 0; i < kMost; ++i) {
    args.first_block[i] = blocks;
    if (i >= matrices.size()) continue;
    args.weights[i] = map(matrices[i]);
    args.y[i] = matrices[i].y;
    args.columns[i] = matrices[i].columns;
    args.wide[i] = matrices[i].y_dtype == DType::kF32;
    blocks += (matrices[i].columns + kFewRows - 1) / kFewRows;
  }
  args.x = x;
  // One token's q, k and v, and the output projection, are asked for while the kernel ahead waits for a few kilobytes,
  // which would come behind all that is asked for at once.
  args.under_way = s.rows > 1 ? INT_MAX : matrices.size() == kMost ? 2 : 3;
  // One token's weights are read once, and there are more of them than the cache holds: they are in the way of the rest.
  args.policy = s.rows > 1 ? ptx::kUsual : ptx::kStreamed;
  args.rows = s.rows, args.inner = s.inner;
  return blocks;
}

}  // namespace

namespace {

int set_linear(Args& args, const LinearSizes& s, const bf16* x, std::span<const LinearMatrix> matrices) {
  const auto k = static_cast<std::uint64_t>(s.inner);
  return set_matrices(args, s, x, matrices, [&](const LinearMatrix& m) {
    return tensor_map(m.w, {k, static_cast<std::uint64_t>(m.columns)}, {k}, {kBoxK, kFewRows});
  });
}

}  // namespace

void linear_few(const LinearSizes& s, const bf16* x, std::span<const LinearMatrix> matrices, cudaStream_t stream) {
  Args args{};
  const int blocks = set_linear(args, s, x, matrices);
  run<Store>(s, args, blocks, stream);
}

void linear_few(const LinearSizes& s, const AddNormRow<bf16>& norm, std::span<const LinearMatrix> matrices,
                cudaStream_t stream) {
  Args args{};
  const int blocks = set_linear(args, s, nullptr, matrices);
  args.norm = norm;
  args.under_way = 2;
  run<5, NormedRow, Store>(s, args, blocks, stream);
}

namespace {

int set_projections(Args& args, const LinearSizes& s, const bf16* x, std::span<const LinearMatrix> qkv,
                    const TurnAndStore& turn) {
  const auto k = static_cast<std::uint64_t>(s.inner), half = static_cast<std::uint64_t>(turn.half);
  args.turn = turn;
  return set_matrices(args, s, x, qkv, [&](const LinearMatrix& m) {
    return tensor_map(m.w, {k, 8, 2, half / 8, static_cast<std::uint64_t>(m.columns) / (2 * half)},
                      {k, half * k, 8 * k, 2 * half * k}, {kBoxK, 8, 2, 1, 1});
  });
}

}  // namespace

void project_few(const LinearSizes& s, const bf16* x, std::span<const LinearMatrix> qkv, const TurnAndStore& turn,
                 cudaStream_t stream) {
  Args args{};
  const int blocks = set_projections(args, s, x, qkv, turn);
  run<TurnAndKeep>(s, args, blocks, stream);
}

void project_few(const LinearSizes& s, const AddNormRow<bf16>& norm, std::span<const LinearMatrix> qkv,
                 const TurnAndStore& turn, cudaStream_t stream) {
  Args args{};
  const int blocks = set_projections(args, s, nullptr, qkv, turn);
  args.norm = norm;
  run<5, NormedRow, TurnAndKeep>(s, args, blocks, stream);
}

}  // namespace dsmoe::cuda::hopper
