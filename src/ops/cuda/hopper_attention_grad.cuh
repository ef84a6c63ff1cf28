// What the Hopper kernels of attention's backward share. They are three, and each piece of work belongs to one block, so no
// sum depends on who comes first:
//   stats    -lse * log2(e) and delta = <dout, out> of every row, in blocks of 64 rows of one sequence
//   keys     a block owns 128 keys of one head and goes through the queries that see them: P and dS once, and with them dv
//            and dk in registers; dS also goes to memory, in the form in which wgmma reads it
//   queries  a block owns 256 queries of one head: dq = dS k over the keys in ascending order
// dS goes through memory (2 bytes per pair of a query and a key, twice) because to make it again would be two more
// products.
//
// Both large kernels are persistent: the producer draws the next piece from a counter. A piece's result does not depend on
// which block draws it.
#pragma once

#include <cuda_bf16.h>

#include "ops/cuda/attention_kernels.h"
#include "ops/cuda/launch.h"
#include "ops/cuda/ptx.cuh"
#include "wgmma_registers.h"
#include "wgmma_shapes.h"

namespace dsmoe::cuda::attention_grad {

using ops::cuda::GradWork;
using ops::cuda::kGradKeys;
using ops::cuda::kGradQueries;
using ops::cuda::kGradRows;

inline constexpr int kThreads = 384;  // a producer and two consumer warpgroups
inline constexpr int kConsumerWarps = 8;
inline constexpr int kBlockBytes = kGradRows * 128;  // 64 rows of 64 columns; also dS of two blocks of 64 rows
inline constexpr int kStatBytes = 2 * kGradRows * sizeof(float);

template <int kDim>
inline constexpr int kRowsBytes = kGradRows* kDim * 2;  // 64 rows of a head: kDim / 64 blocks

// The pieces of one launch: those of some heads after those of others, so that what they read stays in the cache.
struct Order {
  const GradWork::Piece* pieces;
  int count, heads, band;  // pieces of a head; heads; heads that are worked on together

  __device__ __forceinline__ int total() const { return count * heads; }
};

struct Args {
  CUtensorMap q, dout, k, v;
  AttentionGradArgs to;
  Order order;
  int first_head;  // of q, and of k and v, of this launch
  int first_kv_head;
  float* stats;       // [H, blocks][2][64]
  unsigned char* ds;  // [heads of this launch, pairs][64 keys][64 queries]
  int* next;          // the piece to draw
  float to_log2;      // scale * log2(e)
};

// A piece as consumers see it.
struct alignas(16) Item {
  int first_row, rows;  // of the slice
  int index, head;      // of the piece in the slice; among the heads of this launch, or under 0: no more work
  int block, pair;      // GradWork::Start
};

// Draws pieces ahead of their use; called by one thread.
class Pieces {
 public:
  __device__ __forceinline__ explicit Pieces(const Args& args) : args_(args) { draw(); }
  __device__ __forceinline__ Item next() {
    const Item item = next_;
    if (item.head >= 0) draw();
    return item;
  }

 private:
  __device__ __forceinline__ void draw() {
    const Order& o = args_.order;
    const int id = atomicAdd(args_.next, 1);
    next_.head = -1;
    if (id >= o.total()) return;
    const int band = id / (o.count * o.band), first = band * o.band, width = min(o.band, o.heads - first);
    const int at = id - band * o.count * o.band;
    const GradWork::Piece piece = o.pieces[at / width];
    const ops::cuda::SliceEntry slice = args_.to.work.entries[piece.slice];
    const GradWork::Start start = args_.to.work.starts[piece.slice];
    next_ = {slice.first_row, slice.rows, piece.index, first + at % width, start.block, start.pair};
  }
  const Args& args_;
  Item next_;
};

__device__ __forceinline__ int blocks_of(int rows) { return (rows + kGradRows - 1) / kGradRows; }

// A block's dS of query block `query` and key block `key`.
__device__ __forceinline__ unsigned char* ds_of(const Args& args, const Item& item, int head, int query, int key) {
  const std::size_t pair = static_cast<std::size_t>(head) * args.to.work.counts.pairs + item.pair +
                           static_cast<std::size_t>(query) * (query + 1) / 2 + key;
  return args.ds + pair * kBlockBytes;
}

// The ring of stages as one role sees it.
template <int kStages>
struct Stages {
  std::uint32_t full, empty;  // barriers
  int stage = 0;
  std::uint32_t phase = 0;

  __device__ __forceinline__ std::uint32_t full_barrier() const { return full + stage * 8; }
  __device__ __forceinline__ std::uint32_t empty_barrier() const { return empty + stage * 8; }
  __device__ __forceinline__ void wait_full() const { ptx::barrier_wait(full_barrier(), phase); }
  __device__ __forceinline__ void wait_empty() const { ptx::barrier_wait(empty_barrier(), phase ^ 1); }
  __device__ __forceinline__ void advance() {
    if (++stage == kStages) {
      stage = 0;
      phase ^= 1;
    }
  }
};

// A consumer warp is done with what a barrier guards.
__device__ __forceinline__ void release(std::uint32_t empty_barrier) {
  __syncwarp();
  if (threadIdx.x % 32 == 0) ptx::barrier_arrive(empty_barrier);
}

// The same value in all lanes, which the compiler then knows: it keeps uniform registers for what follows from it.
__device__ __forceinline__ int uniform(int v) { return __shfl_sync(~0u, v, 0); }

// Shared memory: `kData` bytes, then the item, then the barriers of the stages and of the item.
template <int kStages, int kData>
struct Layout {
  static constexpr int kItem = kData, kFull = kItem + sizeof(Item), kEmpty = kFull + 8 * kStages;
  static constexpr int kItemFull = kEmpty + 8 * kStages, kItemEmpty = kItemFull + 8, kEnd = kItemEmpty + 8;
  static constexpr int kBytes = kEnd + 1024;  // to align

  // Returns the address of the data.
  __device__ __forceinline__ static std::uint32_t set_up(char* raw) {
    const std::uint32_t base = (ptx::smem_address(raw) + 1023u) & ~1023u;
    if (threadIdx.x == 0) {
      for (int i = 0; i < kStages; ++i) {
        ptx::barrier_init(base + kFull + 8 * i, 1);
        ptx::barrier_init(base + kEmpty + 8 * i, kConsumerWarps);
      }
      ptx::barrier_init(base + kItemFull, 1);
      ptx::barrier_init(base + kItemEmpty, kConsumerWarps);
      ptx::barrier_init_fence();
    }
    __syncthreads();
    return base;
  }
  __device__ __forceinline__ static Stages<kStages> stages(std::uint32_t base) { return {base + kFull, base + kEmpty}; }
  __device__ __forceinline__ static void put(std::uint32_t base, const Item& i) {
    asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};\nst.shared.v2.b32 [%0 + 16], {%5, %6};" ::"r"(base + kItem),
                 "r"(i.first_row), "r"(i.rows), "r"(i.index), "r"(i.head), "r"(i.block), "r"(i.pair)
                 : "memory");
  }
  __device__ __forceinline__ static Item get(std::uint32_t base) {
    Item i;
    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%6];\nld.shared.v2.b32 {%4, %5}, [%6 + 16];"
                 : "=r"(i.first_row), "=r"(i.rows), "=r"(i.index), "=r"(i.head), "=r"(i.block), "=r"(i.pair)
                 : "r"(base + kItem)
                 : "memory");
    for (int* v : {&i.first_row, &i.rows, &i.index, &i.head, &i.block, &i.pair}) *v = uniform(*v);
    return i;
  }
};

// Starts copying 64 rows of a head.
template <int kDim>
__device__ __forceinline__ void load_rows(std::uint32_t to, const CUtensorMap* map, std::uint32_t bar, int head, int row) {
#pragma unroll
  for (int i = 0; i < kDim / 64; ++i) ptx::tma_load(to + i * kBlockBytes, map, bar, head * kDim + i * 64, row);
}

// Descriptors of 64 rows of a head, whose 64 x 64 blocks lie one after another, for the k-th step of a product: over the
// columns, or over the rows. Only the lower half depends on the address, which saves registers.
__device__ __forceinline__ std::uint64_t descriptor(std::uint32_t address) {
  constexpr std::uint64_t kLayout = 1024 >> 4 | 1u << 30;  // of tile_descriptor()
  return kLayout << 32 | (address >> 4 | (kBlockBytes >> 4) << 16);
}
__device__ __forceinline__ std::uint64_t over_columns(std::uint32_t address, int k) {
  return descriptor(address + k / 4 * kBlockBytes + k % 4 * 32);
}
__device__ __forceinline__ std::uint64_t over_rows(std::uint32_t address, int k) { return descriptor(address + k * 2048); }

// Where a gradient of some heads goes.
struct GradOutput {
  void* to;  // [T, heads, kDim]
  bool rounded;
  const float *cos, *sin;  // as in AttentionGradArgs
  int heads, head;
};

// Of four blocks of eight numbers a lane has word c of each; afterwards it has all four words of block c, c = lane % 4.
__device__ __forceinline__ void exchange_words(std::uint32_t (&w)[4]) {
#pragma unroll
  for (int bit = 1; bit <= 2; bit *= 2) {
    const bool high = threadIdx.x & bit;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (i & bit) continue;
      const std::uint32_t got = __shfl_xor_sync(~0u, high ? w[i] : w[i + bit], bit);
      if (high)
        w[i] = got;
      else
        w[i + bit] = got;
    }
  }
}

// 64 rows of a gradient from a warpgroup's accumulators: row(i) is the batch's row that is row i, or under 0. What turned
// together, column n and n + kDim / 2, is in one thread. Angles are read past the compiler's doubt that a store might
// change them, four blocks of eight columns at a time.
template <int kDim, class Row>
__device__ __forceinline__ void store_rows(const float (&acc)[kDim / 2], float scale, const GradOutput& out, Row&& row) {
  constexpr int kHalf = kDim / 2, kTogether = 4;
  const int warp = threadIdx.x / 32 % 4, g = threadIdx.x % 32 / 4, c = threadIdx.x % 4 * 2;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int at = row(warp * 16 + half * 8 + g);
    const std::size_t place = static_cast<std::size_t>(max(at, 0));
    const std::size_t to = (place * out.heads + out.head) * kDim;
#pragma unroll
    for (int n0 = 0; n0 < kHalf / 8; n0 += kTogether) {
      float2 first[kTogether], second[kTogether];
#pragma unroll
      for (int n = 0; n < kTogether; ++n) {
        const int i = 4 * (n0 + n) + 2 * half, j = i + kHalf / 2;
        first[n] = {acc[i] * scale, acc[i + 1] * scale}, second[n] = {acc[j] * scale, acc[j + 1] * scale};
      }
      if (out.cos) {
        float2 cos[kTogether], sin[kTogether];
#pragma unroll
        for (int n = 0; n < kTogether; ++n) {
          const std::size_t angle = place * kHalf + (n0 + n) * 8 + c;
          cos[n] = __ldg(reinterpret_cast<const float2*>(out.cos + angle));
          sin[n] = __ldg(reinterpret_cast<const float2*>(out.sin + angle));
        }
#pragma unroll
        for (int n = 0; n < kTogether; ++n) {
          const float2 a = first[n], b = second[n];
          first[n] = {__fmaf_rn(a.x, cos[n].x, __fmul_rn(b.x, sin[n].x)),
                      __fmaf_rn(a.y, cos[n].y, __fmul_rn(b.y, sin[n].y))};
          second[n] = {__fmaf_rn(b.x, cos[n].x, -__fmul_rn(a.x, sin[n].x)),
                       __fmaf_rn(b.y, cos[n].y, -__fmul_rn(a.y, sin[n].y))};
        }
      }
      if (out.rounded) {
        std::uint32_t low[kTogether], high[kTogether];
#pragma unroll
        for (int n = 0; n < kTogether; ++n)
          low[n] = ptx::pack(first[n].x, first[n].y), high[n] = ptx::pack(second[n].x, second[n].y);
        exchange_words(low);
        exchange_words(high);
        auto* const words = static_cast<__nv_bfloat16*>(out.to) + to + n0 * 8 + c * 4;
        if (at >= 0) {
          *reinterpret_cast<uint4*>(words) = {low[0], low[1], low[2], low[3]};
          *reinterpret_cast<uint4*>(words + kHalf) = {high[0], high[1], high[2], high[3]};
        }
      } else if (at >= 0) {
        auto* const numbers = static_cast<float*>(out.to) + to + n0 * 8 + c;
#pragma unroll
        for (int n = 0; n < kTogether; ++n) {
          *reinterpret_cast<float2*>(numbers + n * 8) = first[n];
          *reinterpret_cast<float2*>(numbers + kHalf + n * 8) = second[n];
        }
      }
    }
  }
}

// hopper_attention_keys.cu, hopper_attention_queries.cu
void run_keys(const Args& args, cudaStream_t stream);
void run_queries(const Args& args, cudaStream_t stream);

}  // namespace dsmoe::cuda::attention_grad
