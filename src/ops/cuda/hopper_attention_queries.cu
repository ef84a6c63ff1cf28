// dq of 256 queries: dS k over the key blocks in ascending order (hopper_attention_grad.cuh). A warpgroup has two blocks of
// 64 queries. Both operands are read with their contiguous dimension as M and N.
#include "ops/cuda/hopper_attention_grad.cuh"

namespace dsmoe::cuda::attention_grad {

namespace {

constexpr int kStages = 4, kBlocks = kGradQueries / kGradRows;

template <int kDim>
struct Memory {
  static constexpr int kStageBytes = kBlocks * kBlockBytes + kRowsBytes<kDim>;
  using Map = Layout<kStages, kStages * kStageBytes>;

  std::uint32_t base;
  __device__ __forceinline__ std::uint32_t slopes(int stage, int block) const {
    return base + stage * kStageBytes + block * kBlockBytes;
  }
  __device__ __forceinline__ std::uint32_t keys(int stage) const { return slopes(stage, kBlocks); }
};

template <int kDim>
__device__ __forceinline__ void produce(const Args& args, const Memory<kDim>& m) {
  using Map = typename Memory<kDim>::Map;
  const int group = args.to.heads / args.to.kv_heads;
  Stages<kStages> ring = Map::stages(m.base);
  Pieces pieces(args);
  for (std::uint32_t phase = 0;; phase ^= 1) {
    const Item item = pieces.next();
    ptx::barrier_wait(m.base + Map::kItemEmpty, phase ^ 1);
    Map::put(m.base, item);
    ptx::barrier_arrive(m.base + Map::kItemFull);
    if (item.head < 0) return;
    const int first = item.index * kBlocks, end = min(blocks_of(item.rows), first + kBlocks);
#pragma unroll 1
    for (int key = 0; key < end; ++key, ring.advance()) {
      const int begin = max(first, key), bar = ring.full_barrier();
      ring.wait_empty();
      ptx::barrier_arrive_expect(bar, (end - begin) * kBlockBytes + kRowsBytes<kDim>);
#pragma unroll 1
      for (int block = begin; block < end; ++block)
        ptx::bulk_load(m.slopes(ring.stage, block - first), ds_of(args, item, item.head, block, key), kBlockBytes, bar);
      load_rows<kDim>(m.keys(ring.stage), &args.k, bar, (args.first_head + item.head) / group,
                      item.first_row + key * kGradRows);
    }
  }
}

template <int kDim>
__device__ __forceinline__ void start_sum(float (&sum)[kDim / 2], std::uint32_t slopes, std::uint32_t keys) {
#pragma unroll
  for (int k = 0; k < kGradRows / 16; ++k) ptx::Wgmma<kDim, 1, 1>::run(sum, over_rows(slopes, k), over_rows(keys, k), 1);
}

template <int kDim>
__device__ __forceinline__ void consume(const Args& args, const Memory<kDim>& m, int group) {
  using Map = typename Memory<kDim>::Map;
  Stages<kStages> ring = Map::stages(m.base);
  for (std::uint32_t phase = 0;; phase ^= 1) {
    ptx::barrier_wait(m.base + Map::kItemFull, phase);
    const Item item = Map::get(m.base);
    release(m.base + Map::kItemEmpty);
    if (item.head < 0) return;
    const int first = item.index * kBlocks, own = 2 * group, end = min(blocks_of(item.rows), first + kBlocks);
    float dq[2][kDim / 2] = {};
    // Keys that all queries see. Where the sequence has no such block of queries, the sums are of no meaning.
    for (int key = 0; key < first; ++key) {
      ring.wait_full();
      ptx::wgmma_fence();
      start_sum<kDim>(dq[0], m.slopes(ring.stage, own), m.keys(ring.stage));
      start_sum<kDim>(dq[1], m.slopes(ring.stage, own + 1), m.keys(ring.stage));
      ptx::wgmma_commit();
      ptx::wgmma_wait<0>();
      ptx::pin(dq[0]);
      ptx::pin(dq[1]);
      release(ring.empty_barrier());
      ring.advance();
    }
    for (int key = first; key < end; ++key) {
      ring.wait_full();
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        if (first + own + i < key || first + own + i >= end) continue;
        ptx::wgmma_fence();
        start_sum<kDim>(dq[i], m.slopes(ring.stage, own + i), m.keys(ring.stage));
        ptx::wgmma_commit();
        ptx::wgmma_wait<0>();
        ptx::pin(dq[i]);
      }
      release(ring.empty_barrier());
      ring.advance();
    }
    const GradOutput out{args.to.dq, args.to.rounded, args.to.cos, args.to.sin, args.to.heads, args.first_head + item.head};
#pragma unroll
    for (int i = 0; i < 2; ++i)
      store_rows<kDim>(dq[i], args.to.scale, out, [&](int at) {
        // The order in which hopper_attention_keys.cu stores queries.
        const int query = at / 32 * 32 + at / 2 % 4 * 8 + at / 8 % 4 * 2 + at % 2;
        const int row = (first + own + i) * kGradRows + query;
        return row < item.rows ? item.first_row + row : -1;
      });
  }
}

template <int kDim>
__global__ void __launch_bounds__(kThreads, 1) queries_kernel(const __grid_constant__ Args args) {
  extern __shared__ char memory[];
  const Memory<kDim> m{Memory<kDim>::Map::set_up(memory)};
  ptx::wait_for_previous_kernel();
  ptx::let_next_kernel_start();
  const int group = uniform(static_cast<int>(threadIdx.x) / 128);
  if (group == 0) {
    ptx::registers_shrink<56>();
    if (threadIdx.x == 0) produce<kDim>(args, m);
  } else {
    ptx::registers_grow<224>();
    consume<kDim>(args, m, group - 1);
  }
}

}  // namespace

void run_queries(const Args& args, cudaStream_t stream) {
  const auto run = [&]<int kDim>(std::integral_constant<int, kDim>) {
    launch(queries_kernel<kDim>, static_cast<unsigned>(multiprocessors()), kThreads, Memory<kDim>::Map::kBytes, stream,
           args);
  };
  args.to.head_dim == 64 ? run(std::integral_constant<int, 64>{}) : run(std::integral_constant<int, 128>{});
}

}  // namespace dsmoe::cuda::attention_grad
