// Few rows times packed matrices, where reading the matrices and unpacking them is all that takes time. A warp owns one or
// two tiles of 8 rows of W (columns of y), streams them through shared memory of its own, unpacks them in registers and
// multiplies by mma.sync. A sum is one chain of k16 steps in ascending k, as in hopper_linear.cu and hopper_linear_few.cu,
// so the bits are those of the bf16 kernels. Two tiles take the fewest instructions; one gives twice as many warps.
#pragma once

#include <algorithm>

#include "ops/cuda/launch.h"
#include "ops/cuda/numbers.cuh"
#include "ops/cuda/packed.h"
#include "ops/cuda/packed_blocks.h"
#include "ops/cuda/ptx.cuh"

namespace dsmoe::cuda::packed {

inline constexpr int kStageNumbers = 256;  // of each row
inline constexpr int kMostSlots = 8;

// kTiles tiles of one warp on their way through shared memory, kStageNumbers columns at a time. From sm_90 on one thread
// asks the copy engine for a piece; before, all threads copy.
template <int kTiles>
struct Stream {
  std::uint8_t* data;  // kMostSlots barriers, then the slots
  const std::uint8_t* from;
  int second;              // from the first tile to the second, in bytes
  int bytes, piece_bytes;  // of a tile; of kStageNumbers columns of it
  int slots;
  int first = 0, every = 1;  // the pieces that this warp takes: all, or where several share a tile, every so many

  __device__ __forceinline__ Stream(const Matrix& w, int tile, std::uint8_t* shared, int shared_bytes) : data(shared) {
    with_block(w.dtype, [&]<DType kType>() {
      bytes = w.columns / Block<kType>::kNumbers * kTileBytes<kType>;
      piece_bytes = kStageNumbers / Block<kType>::kNumbers * kTileBytes<kType>;
    });
    const int last = (w.rows - 1) / kTileRows;  // a tile past the last one is the last one again
    from = static_cast<const std::uint8_t*>(w.data) + static_cast<std::size_t>(min(tile, last)) * bytes;
    second = tile < last ? bytes : 0;
    slots = min(kMostSlots, (shared_bytes - kMostSlots * 8) / (kTiles * piece_bytes));
#if __CUDA_ARCH__ < 900
    slots = kOldSlots;
#endif
  }

  __device__ __forceinline__ int stages() const { return (bytes + piece_bytes - 1) / piece_bytes; }
  __device__ __forceinline__ std::uint32_t barrier(int slot) const { return ptx::smem_address(data) + slot * 8; }
  __device__ __forceinline__ std::uint8_t* place_of(int slot) const {
    return data + kMostSlots * 8 + slot * kTiles * piece_bytes;
  }
  __device__ __forceinline__ void ask_for(int stage, int slot) const {
    const int begin = (first + stage * every) * piece_bytes, size = min(piece_bytes, bytes - begin);
#if __CUDA_ARCH__ >= 900
    if (threadIdx.x % 32 != 0 || size <= 0) return;
    ptx::barrier_arrive_expect(barrier(slot), static_cast<std::uint32_t>(kTiles * size));
    for (int t = 0; t < kTiles; ++t)
      asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                       ptx::smem_address(place_of(slot) + t * piece_bytes)),
                   "l"(from + t * second + begin), "r"(size), "r"(barrier(slot))
                   : "memory");
#else
    for (int t = 0; t < kTiles; ++t)
      for (int i = threadIdx.x % 32 * 16; i < size; i += 512)
        ptx::cp_async_16(ptx::smem_address(place_of(slot) + t * piece_bytes + i), from + t * second + begin + i, 16);
    ptx::cp_async_commit();
#endif
  }
  // Asks for the first pieces. `again`: the barriers have served an earlier stream.
  __device__ __forceinline__ void start(bool again = false) const {
#if __CUDA_ARCH__ >= 900
    if (threadIdx.x % 32 == 0) {
      for (int i = 0; i < kMostSlots; ++i) {
        if (again) asm volatile("mbarrier.inval.shared::cta.b64 [%0];" ::"r"(barrier(i)) : "memory");
        ptx::barrier_init(barrier(i), 1);
      }
      ptx::barrier_init_fence();
    }
#endif
    for (int i = 0; i < slots; ++i) ask_for(i, i);
    __syncwarp();
  }
  __device__ __forceinline__ const std::uint8_t* wait_for(int slot, int phase) const {
#if __CUDA_ARCH__ >= 900
    ptx::barrier_wait(barrier(slot), static_cast<std::uint32_t>(phase));
#else
    ptx::cp_async_wait<kOldSlots - 1>();
    __syncwarp();
#endif
    return place_of(slot);
  }

  static constexpr int kOldSlots = 2;
};

// Rows of x in shared memory, in the order of operand A: for 32 numbers and quad c the pairs at 2c, 2c + 8, 2c + 16 and
// 2c + 24 are neighbours. Rows lie so that lanes of two rows do not share banks.
struct RowsInShared {
  static __device__ __forceinline__ int pitch(int columns) { return row_pitch(columns); }

  // from(row, k): the address of 8 numbers. All threads of the block take part, and meet afterwards.
  template <class From>
  static __device__ __forceinline__ void fill(std::uint8_t* shared, int rows, int columns, From&& from) {
    const int per_row = columns / 8, all = rows * per_row;
    constexpr int kAtOnce = 4;  // loads on their way
    for (int i = static_cast<int>(threadIdx.x); i < all; i += kAtOnce * static_cast<int>(blockDim.x)) {
      uint4 v[kAtOnce];
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) {
        const int at = i + j * static_cast<int>(blockDim.x), row = at / per_row;
        if (at < all) v[j] = *reinterpret_cast<const uint4*>(from(row, (at - row * per_row) * 8));
      }
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) {
        const int at = i + j * static_cast<int>(blockDim.x), row = at / per_row, piece = at - row * per_row;
        if (at >= all) break;
        std::uint8_t* const to = shared + row * pitch(columns) + piece / 4 * 64 + piece % 4 * 4;
        save(to, v[j].x), save(to + 16, v[j].y), save(to + 32, v[j].z), save(to + 48, v[j].w);
      }
    }
    __syncthreads();
  }
};

// Whether all of a warp's lanes may be computed in fewer operations.
template <DType kType, int kTiles>
__device__ __forceinline__ bool all_near(const typename Block<kType>::Lane (&lane)[kTiles]) {
  if constexpr (Block<kType>::kTwoWays) {
    bool near = true;
#pragma unroll
    for (int t = 0; t < kTiles; ++t) near = near && lane[t].near();
    return __all_sync(0xffffffffu, near);
  }
  return false;
}

template <DType kType, bool kNear>
__device__ __forceinline__ void unpack_step(const typename Block<kType>::Lane& lane, int k16, std::uint32_t (&pairs)[2]) {
  if constexpr (kNear)
    Block<kType>::template step<true>(lane, k16, threadIdx.x % 4, pairs);
  else
    Block<kType>::step(lane, k16, threadIdx.x % 4, pairs);
}

// acc += one GGUF block of every row of the warp's tiles times x; `at` is the lane's part of x.
template <DType kType, bool kNear, int kTiles, int kEights>
__device__ __forceinline__ void multiply_block(float (&acc)[kEights][4], const typename Block<kType>::Lane (&lane)[kTiles],
                                               const std::uint8_t* at, int rows, int pitch) {
  using B = Block<kType>;
  const int row = threadIdx.x % 32 / 4;
#pragma unroll
  for (int g = 0; g < B::kNumbers / 32; ++g) {
    Words4 in[kEights] = {};
#pragma unroll
    for (int e = 0; e < kEights; ++e)
      if (e * 8 + row < rows) in[e] = load<Words4>(at + e * 8 * pitch + g * 64);
#pragma unroll
    for (int s = 0; s < 2; ++s) {
      std::uint32_t w[2][2] = {};
#pragma unroll
      for (int t = 0; t < kTiles; ++t) unpack_step<kType, kNear>(lane[t], g * 2 + s, w[t]);
#pragma unroll
      for (int e = 0; e < kEights; ++e)
        ptx::mma_16816(acc[e], w[0][0], w[1][0], w[0][1], w[1][1], in[e].v[2 * s], in[e].v[2 * s + 1]);
    }
  }
}

// acc += the warp's tiles times up to 8 kEights rows of x: W is operand A, x operand B. A lane's acc[t][v] is row
// 8 t + 2 (lane % 4) + v % 2 of x and row lane / 4 of tile v / 2.
template <DType kType, int kTiles, int kEights>
__device__ __forceinline__ void multiply(float (&acc)[kEights][4], const Stream<kTiles>& stream, const std::uint8_t* x,
                                         int rows, int columns) {
  using B = Block<kType>;
  const int row = threadIdx.x % 32 / 4, quad = threadIdx.x % 4;
  constexpr int kPerStage = kStageNumbers / B::kNumbers;
  const int stages = stream.stages(), blocks = columns / B::kNumbers;
  const std::uint8_t* at = x + row * RowsInShared::pitch(columns) + quad * 16;
  int slot = 0, phase = 0;
  for (int stage = 0; stage < stages; ++stage) {
    const std::uint8_t* const tiles = stream.wait_for(slot, phase);
    const int count = min(kPerStage, blocks - stage * kPerStage);
#pragma unroll 2
    for (int b = 0; b < count; ++b) {
      typename B::Lane lane[kTiles];
#pragma unroll
      for (int t = 0; t < kTiles; ++t)
        lane[t] = B::load_lane(tiles + t * stream.piece_bytes + b * kTileBytes<kType>, row, quad);
      if (all_near<kType>(lane))
        multiply_block<kType, B::kTwoWays>(acc, lane, at, rows, RowsInShared::pitch(columns));
      else
        multiply_block<kType, false>(acc, lane, at, rows, RowsInShared::pitch(columns));
      at += B::kNumbers * 2;
    }
    __syncwarp();  // all lanes have read the piece: another may take its place
    stream.ask_for(stage + stream.slots, slot);
    if (++slot == stream.slots) slot = 0, phase ^= 1;
  }
}

template <int kTiles, int kEights>
__device__ __forceinline__ void multiply(float (&acc)[kEights][4], DType dtype, const Stream<kTiles>& stream,
                                         const std::uint8_t* x, int rows, int columns) {
  with_block(dtype, [&]<DType kType>() { multiply<kType, kTiles, kEights>(acc, stream, x, rows, columns); });
}

// The same with kTogether warps for two tiles: each unpacks every so many pieces into registers, and multiplies when the
// warp before has handed it the sums so far. The order of a sum is the same. True for the warp that has the sums at the
// end.
template <DType kType, int kTogether, int kEights>
__device__ __forceinline__ bool multiply_together(float (&acc)[kEights][4], const Stream<2>& stream, const std::uint8_t* x,
                                                  float (*handed)[32][4], int rows, int columns) {
  using B = Block<kType>;
  const int lane_id = threadIdx.x % 32, row = lane_id / 4, quad = lane_id % 4, warp = threadIdx.x / 32;
  constexpr int kPerStage = kStageNumbers / B::kNumbers, kSteps = B::kNumbers / 16;
  const int stages = stream.stages(), blocks = columns / B::kNumbers, pitch = RowsInShared::pitch(columns);
  int slot = 0, phase = 0, local = 0;
  for (int stage = warp; stage < stages; stage += kTogether, ++local) {
    const std::uint8_t* const tiles = stream.wait_for(slot, phase);
    const int count = min(kPerStage, blocks - stage * kPerStage);
    std::uint32_t w[kStageNumbers / 16][2][2];
#pragma unroll
    for (int b = 0; b < kPerStage; ++b) {
      if (b >= count) break;
      typename B::Lane lane[2];
#pragma unroll
      for (int t = 0; t < 2; ++t) lane[t] = B::load_lane(tiles + t * stream.piece_bytes + b * kTileBytes<kType>, row, quad);
      const auto unpack = [&]<bool kNear>() {
#pragma unroll
        for (int s = 0; s < kSteps; ++s)
#pragma unroll
          for (int t = 0; t < 2; ++t) unpack_step<kType, kNear>(lane[t], s, w[b * kSteps + s][t]);
      };
      if (all_near<kType>(lane))
        unpack.template operator()<B::kTwoWays>();
      else
        unpack.template operator()<false>();
    }
    __syncwarp();
    stream.ask_for(local + stream.slots, slot);
    if (++slot == stream.slots) slot = 0, phase ^= 1;
    // x too is there before the turn comes: nothing but the products is left then.
    const std::uint8_t* const at = x + row * pitch + quad * 16 + stage * kStageNumbers * 2;
    Words4 in[kStageNumbers / 32][kEights] = {};
#pragma unroll
    for (int g = 0; g < kStageNumbers / 32; ++g)
#pragma unroll
      for (int e = 0; e < kEights; ++e)
        if (e * 8 + row < rows && g * 32 < count * B::kNumbers) in[g][e] = load<Words4>(at + e * 8 * pitch + g * 64);
    if (stage > 0) {
      ptx::named_barrier_sync(1 + warp, 64);
#pragma unroll
      for (int e = 0; e < kEights; ++e)
#pragma unroll
        for (int v = 0; v < 4; ++v) acc[e][v] = handed[e][lane_id][v];
    }
#pragma unroll
    for (int g = 0; g < kStageNumbers / 32; ++g) {
      if (g * 32 >= count * B::kNumbers) break;
#pragma unroll
      for (int s = 0; s < 2; ++s) {
        const auto& a = w[g * 2 + s];
#pragma unroll
        for (int e = 0; e < kEights; ++e)
          ptx::mma_16816(acc[e], a[0][0], a[1][0], a[0][1], a[1][1], in[g][e].v[2 * s], in[g][e].v[2 * s + 1]);
      }
    }
    if (stage + 1 == stages) return true;
#pragma unroll
    for (int e = 0; e < kEights; ++e)
#pragma unroll
      for (int v = 0; v < 4; ++v) handed[e][lane_id][v] = acc[e][v];
    asm volatile("bar.arrive %0, %1;" ::"r"(1 + (warp + 1) % kTogether), "r"(64) : "memory");
  }
  return false;
}

// fn(row of x, row of the warp's tiles, sum) for a lane's sums.
template <int kTiles, int kEights, class Fn>
__device__ __forceinline__ void each_sum(const float (&acc)[kEights][4], Fn&& fn) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int e = 0; e < kEights; ++e)
#pragma unroll
    for (int v = 0; v < 2 * kTiles; ++v) fn(e * 8 + lane % 4 * 2 + v % 2, lane / 4 + v / 2 * kTileRows, acc[e][v]);
}

}  // namespace dsmoe::cuda::packed
