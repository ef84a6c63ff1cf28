// dk and dv of 128 keys, and dS for dq (hopper_attention_grad.cuh). A warpgroup has 64 keys. For 64 queries at a time:
//   Sᵀ = k qᵀ, Pᵀ = 2^(Sᵀ to_log2 - lse log2(e)), dPᵀ = v doutᵀ, dSᵀ = Pᵀ (dPᵀ - delta), dv += Pᵀ dout, dk += dSᵀ q
// Scores are transposed so that Pᵀ and dSᵀ are in the registers in which wgmma takes its first operand, rounded to bf16.
// The products of a step are started in that order, those of the next step before dv and dk have ended; so the tensor cores
// have work while the exponentials are computed, besides that of the other warpgroup.
#include "ops/cuda/hopper_attention_grad.cuh"

namespace dsmoe::cuda::attention_grad {

namespace {

constexpr int kStages = 3;

template <int kDim>
struct Memory {
  static constexpr int kKeysBytes = 2 * kRowsBytes<kDim>;          // of both warpgroups; as many for the values
  static constexpr int kStageBytes = 2 * kRowsBytes<kDim> + 1024;  // queries, dout, stats; a multiple of 1024
  using Map = Layout<kStages, 2 * kKeysBytes + kStages * kStageBytes>;

  std::uint32_t base;
  __device__ __forceinline__ std::uint32_t keys(int group) const { return base + group * kRowsBytes<kDim>; }
  __device__ __forceinline__ std::uint32_t values(int group) const { return keys(group) + kKeysBytes; }
  __device__ __forceinline__ std::uint32_t queries(int stage) const { return base + 2 * kKeysBytes + stage * kStageBytes; }
  __device__ __forceinline__ std::uint32_t dout(int stage) const { return queries(stage) + kRowsBytes<kDim>; }
  __device__ __forceinline__ std::uint32_t stats(int stage) const { return dout(stage) + kRowsBytes<kDim>; }
};

template <int kDim>
__device__ __forceinline__ void produce(const Args& args, const Memory<kDim>& m) {
  using Map = typename Memory<kDim>::Map;
  const int group = args.to.heads / args.to.kv_heads;
  Stages<kStages> ring = Map::stages(m.base);
  Pieces pieces(args);
  for (std::uint32_t phase = 0;; phase ^= 1) {
    const Item item = pieces.next();
    const std::uint32_t full = m.base + Map::kItemFull;
    ptx::barrier_wait(m.base + Map::kItemEmpty, phase ^ 1);
    Map::put(m.base, item);
    if (item.head < 0) return ptx::barrier_arrive(full);
    ptx::barrier_arrive_expect(full, 2 * Memory<kDim>::kKeysBytes);
#pragma unroll 1
    for (int i = 0; i < 2; ++i) {
      const int row = item.first_row + item.index * kGradKeys + i * kGradRows, head = args.first_kv_head + item.head;
      load_rows<kDim>(m.keys(i), &args.k, full, head, row);
      load_rows<kDim>(m.values(i), &args.v, full, head, row);
    }
    const int blocks = blocks_of(item.rows);
#pragma unroll 1
    for (int h = 0; h < group; ++h)
#pragma unroll 1
      for (int block = 2 * item.index; block < blocks; ++block, ring.advance()) {
        const int head = args.first_head + item.head * group + h, row = item.first_row + block * kGradRows;
        ring.wait_empty();
        ptx::barrier_arrive_expect(ring.full_barrier(), 2 * kRowsBytes<kDim> + kStatBytes);
        load_rows<kDim>(m.queries(ring.stage), &args.q, ring.full_barrier(), head, row);
        load_rows<kDim>(m.dout(ring.stage), &args.dout, ring.full_barrier(), head, row);
        const std::size_t at = static_cast<std::size_t>(head) * args.to.work.counts.blocks + item.block + block;
        ptx::bulk_load(m.stats(ring.stage), args.stats + at * 2 * kGradRows, kStatBytes, ring.full_barrier());
      }
  }
}

__device__ __forceinline__ float2 load_pair(std::uint32_t address) {
  float2 v;
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(v.x), "=f"(v.y) : "r"(address) : "memory");
  return v;
}

// 64 keys and 64 queries, transposed: a lane has rows (keys) g and g + 8 of its warp's 16, and of every 8 queries two.
using Scores = float[kGradRows / 2];
using Operand = std::uint32_t[kGradRows / 16][4];  // the same in bf16, as first operand of a product over the queries

// Where queries and keys are at the same positions.
__device__ __forceinline__ void mask_later_keys(Scores& s) {
  const int key = threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 4, query = threadIdx.x % 4 * 2;
#pragma unroll
  for (int i = 0; i < kGradRows / 2; ++i)
    if (key + i / 2 % 2 * 8 > query + i / 4 * 8 + i % 2) s[i] = -INFINITY;
}

__device__ __forceinline__ void round_scores(const Scores& s, Operand& to) {
#pragma unroll
  for (int i = 0; i < kGradRows / 2; i += 2) to[i / 8][i / 2 % 4] = ptx::pack(s[i], s[i + 1]);
#pragma unroll
  for (std::uint32_t(&a)[4] : to) ptx::pin(a);
}

// s = 2^(s to_log2 - lse log2(e)).
__device__ __forceinline__ void weights(Scores& s, std::uint32_t stats, float to_log2) {
#pragma unroll
  for (int n = 0; n < kGradRows / 8; ++n) {
    const float2 l = load_pair(stats + n * 32 + threadIdx.x % 4 * 8);
#pragma unroll
    for (int i = 0; i < 4; ++i) s[4 * n + i] = ptx::exp2(__fmaf_rn(s[4 * n + i], to_log2, i % 2 ? l.y : l.x));
  }
}

// s = p (s - delta).
__device__ __forceinline__ void slopes(Scores& s, const Scores& p, std::uint32_t stats) {
#pragma unroll
  for (int n = 0; n < kGradRows / 8; ++n) {
    const float2 d = load_pair(stats + kGradRows * 4 + n * 32 + threadIdx.x % 4 * 8);
#pragma unroll
    for (int i = 0; i < 4; ++i) s[4 * n + i] = __fmul_rn(p[4 * n + i], __fsub_rn(s[4 * n + i], i % 2 ? d.y : d.x));
  }
}

// [64 keys][64 queries] with the swizzle of a tile in shared memory. Queries are permuted so that what a lane has are
// chunks of 16 bytes: query 8 (4 m + n) + 2 c + b is at 32 m + 8 c + 2 n + b. hopper_attention_queries.cu puts them back.
__device__ __forceinline__ void store_slopes(const Operand& ds, unsigned char* to) {
  const int warp = threadIdx.x / 32 % 4, g = threadIdx.x % 32 / 4, c = threadIdx.x % 4;
#pragma unroll
  for (int half = 0; half < 2; ++half)
#pragma unroll
    for (int m = 0; m < 2; ++m)
      *reinterpret_cast<uint4*>(to + (warp * 16 + half * 8 + g) * 128 + (((m * 4 + c) ^ g) << 4)) = {
          ds[2 * m][half], ds[2 * m][2 + half], ds[2 * m + 1][half], ds[2 * m + 1][2 + half]};
}

// The products of 64 keys or values with 64 queries or rows of dout.
template <int kDim>
__device__ __forceinline__ void start_scores(Scores& s, std::uint32_t keys, std::uint32_t queries) {
#pragma unroll
  for (int k = 0; k < kDim / 16; ++k)
    ptx::Wgmma<kGradRows, 0, 0>::run(s, over_columns(keys, k), over_columns(queries, k), k);
  ptx::wgmma_commit();
}

template <int kDim>
__device__ __forceinline__ void start_sum(float (&sum)[kDim / 2], const Operand& weights, std::uint32_t rows) {
#pragma unroll
  for (int k = 0; k < kGradRows / 16; ++k) ptx::WgmmaRegisters<kDim, 1>::run(sum, weights[k], over_rows(rows, k), 1);
  ptx::wgmma_commit();
}

// One warpgroup's work on one piece.
template <int kDim>
struct Piece {
  const Args& args;
  const Memory<kDim>& m;
  Stages<kStages>& ring;
  const Item& item;
  int group, key;  // key: the warpgroup's block of keys
  float dk[kDim / 2] = {}, dv[kDim / 2] = {};

  // The products of one block of queries.
  template <bool kMasked>
  __device__ __forceinline__ void step(int head, int block) {
    Scores s, slope;
    Operand p, ds;
    const std::uint32_t stats = m.stats(ring.stage);
    ring.wait_full();
    ptx::wgmma_fence();
    start_scores<kDim>(s, m.keys(group), m.queries(ring.stage));
    start_scores<kDim>(slope, m.values(group), m.dout(ring.stage));
    ptx::wgmma_wait<1>();
    ptx::pin(s);
    if (kMasked) mask_later_keys(s);
    weights(s, stats, args.to_log2);
    round_scores(s, p);
    ptx::wgmma_wait<0>();
    ptx::pin(slope);
    ptx::wgmma_fence();
    start_sum<kDim>(dv, p, m.dout(ring.stage));
    slopes(slope, s, stats);
    round_scores(slope, ds);
    ptx::wgmma_fence();
    start_sum<kDim>(dk, ds, m.queries(ring.stage));
    store_slopes(ds, ds_of(args, item, head, block, key));
    ptx::wgmma_wait<0>();
    ptx::pin(dk);
    ptx::pin(dv);
    release(ring.empty_barrier());
    ring.advance();
  }

  __device__ __forceinline__ void store(void* to, const float (&sum)[kDim / 2], float scale, bool turned) const {
    const GradOutput out{to,          args.to.rounded,  turned ? args.to.cos : nullptr,
                         args.to.sin, args.to.kv_heads, args.first_kv_head + item.head};
    store_rows<kDim>(sum, scale, out, [&](int i) {
      const int row = key * kGradRows + i;
      return row < item.rows ? item.first_row + row : -1;
    });
  }
};

template <int kDim>
__device__ __forceinline__ void consume(const Args& args, const Memory<kDim>& m, int group) {
  using Map = typename Memory<kDim>::Map;
  const int heads = args.to.heads / args.to.kv_heads;
  Stages<kStages> ring = Map::stages(m.base);
  for (std::uint32_t phase = 0;; phase ^= 1) {
    ptx::barrier_wait(m.base + Map::kItemFull, phase);
    const Item item = Map::get(m.base);
    if (item.head < 0) return;
    const int end = blocks_of(item.rows);
    Piece<kDim> piece{args, m, ring, item, group, 2 * item.index + group};
    for (int h = 0; h < heads; ++h) {
      if (group > 0) {  // the first block of queries comes before these keys
        ring.wait_full();
        release(ring.empty_barrier());
        ring.advance();
      }
      const int head = item.head * heads + h;
      if (piece.key < end) piece.template step<true>(head, piece.key);
      for (int block = piece.key + 1; block < end; ++block) piece.template step<false>(head, block);
    }
    release(m.base + Map::kItemEmpty);
    if (piece.key >= end) continue;
    piece.store(args.to.dk, piece.dk, args.to.scale, /*turned=*/true);
    piece.store(args.to.dv, piece.dv, 1.0f, /*turned=*/false);
  }
}

template <int kDim>
__global__ void __launch_bounds__(kThreads, 1) keys_kernel(const __grid_constant__ Args args) {
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

void run_keys(const Args& args, cudaStream_t stream) {
  const auto run = [&]<int kDim>(std::integral_constant<int, kDim>) {
    launch(keys_kernel<kDim>, static_cast<unsigned>(multiprocessors()), kThreads, Memory<kDim>::Map::kBytes, stream, args);
  };
  args.to.head_dim == 64 ? run(std::integral_constant<int, 64>{}) : run(std::integral_constant<int, 128>{});
}

}  // namespace dsmoe::cuda::attention_grad
