// Weight gradients: for each expert, the product of two tall matrices over its rows. Both operands are read with
// their contiguous dimension as M and N, which wgmma takes from shared memory as it is.
#include "ops/cuda/hopper.h"
#include "ops/cuda/hopper_gemm.cuh"
#include "ops/cuda/linear.h"
#include "ops/cuda/tensor_map.h"

namespace dsmoe::cuda::hopper {

namespace {

inline constexpr int kTileN = 256, kTileM = Wide::kTileM;

struct Args {
  CUtensorMap a;          // [R, m]
  CUtensorMap b, sorted;  // [T, D] for shared experts; the routed experts' rows
  const std::int32_t* row_offset;
  const std::int32_t* sorted_offset;
  int slice;  // > 0: the products are over slices of this many tokens instead of over experts
  // A shared expert has all tokens: a tile of it would be worked on when all others are done. So its tokens are cut into
  // `parts` of `part_rows`, a multiple of kTileK, whose sums go to partial [parts, shared, grad of an expert]; 1: not cut.
  int parts = 1, part_rows = 0;
  float* partial = nullptr;
  void* grad;
  int experts, shared, tokens, m_blocks, n_blocks, m, width;
  bool transposed, f32, accumulate;
  // Neighbours in time share a block of m instead of one of n: all of B is read for each block of A.
  bool n_first;
  int cluster, rounds;  // Turns

  __device__ __forceinline__ int per_expert() const { return m_blocks * n_blocks / cluster; }
  __device__ __forceinline__ int total() const { return (experts + shared * (parts - 1)) * per_expert(); }
};

template <class C>
__device__ __forceinline__ Turns grad_turns(const Args& args) {
  const int blocks = gridDim.x / C::kCluster;
  return {static_cast<int>(blockIdx.x / C::kCluster), blocks, args.shared * args.parts * args.per_expert(), args.rounds};
}

// Output tile of one expert, and the rows of A and B that make it.
struct GradTile {
  int expert, m0, n0, a_row, b_row, rows;
  bool sorted;
  float* partial;  // of a part of a shared expert: where its sums go

  // f32 gradients of this tile's expert.
  __device__ __forceinline__ float* gradient(const Args& args) const {
    return partial ? partial : static_cast<float*>(args.grad) + static_cast<std::size_t>(expert) * args.m * args.width;
  }
  __device__ __forceinline__ bool adds(const Args& args) const { return args.accumulate && !partial; }
};

template <class C, bool kAlongN>
__device__ __forceinline__ GradTile find(const Args& args, int id) {
  constexpr int kWidth = C::kCluster;
  const int groups = kAlongN ? args.m_blocks : args.m_blocks / kWidth;
  const int place = id / args.per_expert(), local = id % args.per_expert(), n_groups = args.per_expert() / groups;
  const bool part_of_shared = args.parts > 1 && place < args.shared * args.parts;
  const int e = part_of_shared ? place / args.parts : place - args.shared * (args.parts - 1);
  const int m_group = args.n_first ? local / n_groups : local % groups;
  const int n_group = args.n_first ? local % n_groups : local / groups;
  GradTile tile;
  tile.expert = e;
  tile.m0 = (m_group * (kAlongN ? 1 : kWidth) + (kAlongN ? 0 : rank<C>())) * kTileM;
  tile.n0 = (n_group * (kAlongN ? kWidth : 1) + (kAlongN ? rank<C>() : 0)) * kTileN;
  tile.sorted = false;
  tile.partial = nullptr;
  if (args.slice > 0) {
    tile.a_row = tile.b_row = e * args.slice;
    tile.rows = min(args.slice, args.tokens - e * args.slice);
  } else if (part_of_shared) {
    const int part = place % args.parts;
    tile.b_row = part * args.part_rows;
    tile.a_row = e * args.tokens + tile.b_row;
    tile.rows = min(args.part_rows, args.tokens - tile.b_row);
    tile.partial = args.partial + static_cast<std::size_t>(part * args.shared + e) * args.m * args.width;
  } else if (e < args.shared) {
    tile.a_row = e * args.tokens;
    tile.b_row = 0;
    tile.rows = args.tokens;
  } else {
    tile.a_row = args.row_offset[e];
    tile.b_row = args.sorted_offset[e - args.shared];
    tile.rows = args.row_offset[e + 1] - tile.a_row;
    tile.sorted = true;
  }
  return tile;
}

// Neighbouring bytes into the second-level cache: a multiple of 16, from an address that is one too.
__device__ __forceinline__ void bulk_prefetch(const void* address, std::uint32_t bytes) {
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(address), "r"(bytes) : "memory");
}

// What the epilogue will add to is fetched into the cache meanwhile: some rows of the tile with every step.
__device__ __forceinline__ void prefetch_gradient(const Args& args, const GradTile& tile, int step) {
  constexpr int kRows = 16;  // of a step
  const int rows = args.transposed ? min(kTileN, args.width - tile.n0) : min(kTileM, args.m - tile.m0);
  const int columns = args.transposed ? min(kTileM, args.m - tile.m0) : min(kTileN, args.width - tile.n0);
  if (columns <= 0) return;
  const std::size_t stride = args.transposed ? args.m : args.width;
  const float* const first =
      tile.gradient(args) + (args.transposed ? tile.n0 * stride + tile.m0 : tile.m0 * stride + tile.n0);
  for (int row = step * kRows; row < min(rows, (step + 1) * kRows); ++row)
    bulk_prefetch(first + row * stride, columns * sizeof(float));
}

template <class C, bool kAlongN>
__device__ __forceinline__ void produce(const Args& args, Ring<C>& ring) {
  constexpr int kWidth = C::kCluster;
  Turns turns = grad_turns<C>(args);
  for (int id; (id = turns.next()) < args.total();) {
    const GradTile tile = find<C, kAlongN>(args, id);
    const CUtensorMap* map = tile.sorted ? &args.sorted : &args.b;
    const bool fetches = args.f32 && tile.adds(args);
    for (int k = 0; k < tile.rows; k += kTileK, ring.advance()) {
      ring.wait_empty();
      const std::uint32_t bar = ring.full_barrier();
      ptx::barrier_arrive_expect(bar, C::kStageBytes);
      if constexpr (kAlongN) {
        ptx::tma_load_all<kWidth>(ring.a() + rank<C>() * 8192, &args.a, bar, tile.m0 + rank<C>() * 64, tile.a_row + k);
      } else {
        ptx::tma_load(ring.a(), &args.a, bar, tile.m0, tile.a_row + k);
        ptx::tma_load(ring.a() + 8192, &args.a, bar, tile.m0 + 64, tile.a_row + k);
      }
      for (int i = kAlongN ? 0 : rank<C>(); i < 4; i += kAlongN ? 1 : kWidth) {
        if constexpr (kWidth > 1 && !kAlongN)
          ptx::tma_load_all<kWidth>(ring.b() + i * 8192, map, bar, tile.n0 + i * 64, tile.b_row + k);
        else
          ptx::tma_load(ring.b() + i * 8192, map, bar, tile.n0 + i * 64, tile.b_row + k);
      }
      if (fetches) prefetch_gradient(args, tile, k / kTileK);
    }
  }
}

// kCount numbers (float or float2) of a row that are `stride` apart, those that are `there`: all loads come before the
// first store, which may be to the same memory for all that the compiler knows.
template <int kCount, class V, class Value, class There>
__device__ __forceinline__ void put_f32(V* out, std::size_t stride, bool add, Value&& value, There&& there) {
  V old[kCount];
  if (add) {
#pragma unroll
    for (int i = 0; i < kCount; ++i)
      if (there(i)) old[i] = out[i * stride];
  }
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    V v = value(i);
    if constexpr (sizeof(V) == 8) {
      if (add) v.x += old[i].x, v.y += old[i].y;
    } else {
      if (add) v += old[i];
    }
    if (there(i)) out[i * stride] = v;
  }
}

// f32 gradients go straight to memory: eight lanes (transposed) or four lanes of pairs fill a 32-byte sector at once, which
// is what memory takes.
__device__ __forceinline__ void store_f32(const Args& args, const GradTile& tile, const float (&acc)[kTileN / 2],
                                          int group) {
  constexpr int kTogether = 16, kAll = kTileN / 8;
  const int warp = threadIdx.x / 32 % 4, g = threadIdx.x % 32 / 4, c = threadIdx.x % 4 * 2;
  float* const grad = tile.gradient(args);
  const bool add = tile.adds(args);
  const int first = tile.m0 + group * 64 + warp * 16 + g;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int m = first + half * 8;
    if (m >= args.m) continue;
#pragma unroll
    for (int j0 = 0; j0 < kAll; j0 += kTogether) {
      const int n = tile.n0 + j0 * 8 + c;  // the width is even
      if (!args.transposed) {
        float* const to = grad + static_cast<std::size_t>(m) * args.width + n;
        put_f32<kTogether>(
            reinterpret_cast<float2*>(to), 4, add,
            [&](int j) {
              return float2{acc[4 * (j0 + j) + 2 * half], acc[4 * (j0 + j) + 2 * half + 1]};
            },
            [&](int j) { return n + j * 8 < args.width; });
        continue;
      }
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        float* const to = grad + static_cast<std::size_t>(n + i) * args.m + m;
        put_f32<kTogether>(
            to, static_cast<std::size_t>(8) * args.m, add, [&](int j) { return acc[4 * (j0 + j) + 2 * half + i]; },
            [&](int j) { return n + i + j * 8 < args.width; });
      }
    }
  }
}

// bf16 gradients that are summed over calls: read, add, round.
__device__ __forceinline__ void add_bf16(const Args& args, const GradTile& tile, float (&acc)[kTileN / 2], int group) {
  const int warp = threadIdx.x / 32 % 4, g = threadIdx.x % 32 / 4, c = threadIdx.x % 4 * 2;
  const bf16* grad = static_cast<const bf16*>(args.grad) + static_cast<std::size_t>(tile.expert) * args.m * args.width;
  const std::size_t step_m = args.transposed ? 1 : args.width, step_n = args.transposed ? args.m : 1;
#pragma unroll
  for (int j = 0; j < kTileN / 8; ++j)
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int m = tile.m0 + group * 64 + warp * 16 + g + i / 2 * 8, n = tile.n0 + j * 8 + c + i % 2;
      if (m < args.m && n < args.width) acc[4 * j + i] += __bfloat162float(grad[m * step_m + n * step_n]);
    }
}

// [m][n] output as bf16: 64 columns of n at a time through the staging area.
__device__ __forceinline__ void store_direct(const Args& args, const GradTile& tile, const float (&acc)[kTileN / 2],
                                             std::uint32_t staging, int group) {
  const int warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32, g = lane / 4, c = lane % 4;
  const int m = tile.m0 + group * 64;
  bf16* grad = static_cast<bf16*>(args.grad) + (static_cast<std::size_t>(tile.expert) * args.m + m) * args.width + tile.n0;
#pragma unroll
  for (int n = 0; n < kTileN; n += 64) {
    const std::uint32_t area = staging + n / 64 % 2 * 8192;  // two areas: one barrier per round
#pragma unroll
    for (int j = 0; j < 8; ++j)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = warp * 16 + half * 8 + g, at = (n / 8 + j) * 4 + half * 2;
        asm volatile("st.shared.b32 [%0], %1;" ::"r"(area + Staging<64>::offset(row, j) + c * 4),
                     "r"(ptx::pack(acc[at], acc[at + 1]))
                     : "memory");
      }
    ptx::named_barrier_sync(1 + group, 128);
    Staging<64>::copy_out<64, false>(area, grad + n, args.width, min(64, args.m - m), args.width - tile.n0 - n);
  }
  ptx::named_barrier_sync(1 + group, 128);
}

template <class C>
__device__ __forceinline__ void store(const Args& args, const GradTile& tile, float (&acc)[kTileN / 2],
                                      const Shared<C>& shared, int group) {
  if (args.f32 || tile.partial) return store_f32(args, tile, acc, group);
  if (args.accumulate) add_bf16(args, tile, acc, group);
  const std::uint32_t staging = shared.staging + group * C::kStagingBytes;
  if (!args.transposed) return store_direct(args, tile, acc, staging, group);
  const int m = tile.m0 + group * 64;
  bf16* grad = static_cast<bf16*>(args.grad) + (static_cast<std::size_t>(tile.expert) * args.width + tile.n0) * args.m + m;
  store_transposed<kTileN>(acc, staging, group, grad, args.m, min(kTileN, args.width - tile.n0), args.m - m);
}

// After the expert's last row B has zeros, but A has rows of the next expert, whose NaNs times zero would be NaN.
template <class C>
__device__ __forceinline__ void clear_after_last_row(const Ring<C>& ring, int rows, int group) {
  const int last = (rows - 1) % kTileK + 1;
  if (last == kTileK) return;
  const std::uint32_t block = ring.a() + group * kGroupBytesA;
  for (int at = last * 128 + threadIdx.x % 128 * 16; at < kTileK * 128; at += 128 * 16)
    asm volatile("st.shared.v4.b32 [%0], {%1, %1, %1, %1};" ::"r"(block + at), "r"(0) : "memory");
  ptx::fence_proxy_async();
  ptx::named_barrier_sync(1 + group, 128);
}

template <class C, bool kAlongN>
__global__ void __launch_bounds__(C::kThreads, 1) weight_backward_kernel(const __grid_constant__ Args args) {
  extern __shared__ char raw[];
  Shared<C> shared = set_up<C>(raw, 1);
  ptx::wait_for_previous_kernel();
  ptx::let_next_kernel_start();
  if (threadIdx.x < 128) {
    ptx::registers_shrink<40>();
    if (threadIdx.x == 0) produce<C, kAlongN>(args, shared.ring);
  } else {
    ptx::registers_grow<232>();
    const int group = threadIdx.x / 128 - 1;
    Turns turns = grad_turns<C>(args);
    for (int id; (id = turns.next()) < args.total();) {
      const GradTile tile = find<C, kAlongN>(args, id);
      if (tile.rows == 0 && args.accumulate) continue;
      float acc[1][kTileN / 2] = {};
      multiply<kTileN, 1, 1, false>(acc, shared.ring, (tile.rows + kTileK - 1) / kTileK, group,
                                    [&] { clear_after_last_row(shared.ring, tile.rows, group); });
      store(args, tile, acc[0], shared, group);
    }
  }
  tear_down<C>();
}

void run(Args& args, cudaStream_t stream) {
  args.m_blocks = (args.m + kTileM - 1) / kTileM;
  args.n_blocks = (args.width + kTileN - 1) / kTileN;
  // Pairs of blocks share one operand: along m, which shares the larger one, if the number of blocks there is even.
  const bool along_m = args.m_blocks % 2 == 0, along_n = !along_m && args.n_blocks % 2 == 0;
  args.cluster = along_m || along_n ? 2 : 1;
  const auto kernel = along_m   ? weight_backward_kernel<WidePair, false>
                      : along_n ? weight_backward_kernel<WidePair, true>
                                : weight_backward_kernel<Wide, false>;
  launch_clusters(args.cluster, kernel, multiprocessors() / args.cluster * args.cluster, Wide::kThreads,
                  WidePair::kSmemBytes, stream, args);
}

}  // namespace

void weight_backward(const Sizes& s, const PlanView& plan, const WeightGrad& g, cudaStream_t stream) {
  const std::uint64_t m = g.m, r = s.rows, d = s.width, t = s.tokens, n = s.sorted_rows;
  Args args{};
  args.a = tensor_map(g.a, {m, r}, {m}, {64, kTileK});
  args.b = tensor_map(g.b, {d, t}, {d}, {64, kTileK});
  args.sorted = s.routed() > 0 ? tensor_map(g.sorted_b, {d, n}, {d}, {64, kTileK}) : args.b;
  args.row_offset = plan.offset;
  args.sorted_offset = plan.sorted_offset;
  args.grad = g.grad;
  args.experts = s.experts;
  args.shared = s.shared;
  args.tokens = s.tokens;
  args.m = g.m;
  args.width = s.width;
  args.transposed = g.transposed;
  // A shared expert, or a part of it, has this many times the rows of an average routed expert.
  const std::int64_t routed = s.rows - static_cast<std::int64_t>(s.shared) * s.tokens;
  const int part_rows = g.parts > 1 ? g.part_rows : s.tokens;
  args.rounds = static_cast<int>(
      routed > 0 ? (static_cast<std::int64_t>(part_rows) * (s.experts - s.shared) + routed / 2) / routed : 0);
  args.parts = g.parts;
  args.part_rows = g.part_rows;
  args.partial = g.partial;
  args.f32 = g.f32;
  args.accumulate = g.accumulate;
  run(args, stream);
}

void gate_weight_backward(const Sizes& s, int split, int slice, const bf16* dlogits, const bf16* x, float* partial,
                          cudaStream_t stream) {
  const std::uint64_t m = 2 * static_cast<std::uint64_t>(split), d = s.width, t = s.tokens;
  Args args{};
  args.a = tensor_map(dlogits, {m, t}, {m}, {64, kTileK});
  args.b = args.sorted = tensor_map(x, {d, t}, {d}, {64, kTileK});
  args.slice = slice;
  args.grad = partial;
  args.experts = (s.tokens + slice - 1) / slice;
  args.tokens = s.tokens;
  args.m = 2 * split;
  args.width = s.width;
  args.f32 = true;
  run(args, stream);
}

void linear_backward_weight(const LinearGradSizes& s, int slice, const bf16* dy, const bf16* x, float* grad,
                            bool accumulate, cudaStream_t stream) {
  const std::uint64_t m = s.columns, d = s.inner, t = s.rows;
  Args args{};
  args.a = tensor_map(dy, {m, t}, {m}, {64, kTileK});
  args.b = args.sorted = tensor_map(x, {d, t}, {d}, {64, kTileK});
  args.slice = slice;
  args.grad = grad;
  args.experts = (s.rows + slice - 1) / slice;
  args.tokens = s.rows;
  args.m = s.columns;
  args.width = s.inner;
  args.f32 = true;
  args.accumulate = accumulate;
  args.n_first = s.columns > s.inner;
  run(args, stream);
}

}  // namespace dsmoe::cuda::hopper
