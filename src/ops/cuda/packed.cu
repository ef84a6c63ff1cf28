// Quantized matrices into the order of packed_blocks.h, and out of it as bf16.
#include "ops/cuda/launch.h"
#include "ops/cuda/numbers.cuh"
#include "ops/cuda/packed.h"
#include "ops/cuda/packed_blocks.h"
#include "ops/cuda/ptx.cuh"

namespace dsmoe::cuda::packed {

namespace {

constexpr int kThreads = 256;

// One thread per lane of a tile. Rows past the last are zeros.
template <DType kType>
__global__ void __launch_bounds__(kThreads)
    pack_kernel(const std::uint8_t* blocks, int rows, int per_row, std::uint8_t* to, Index lanes) {
  using B = Block<kType>;
  ptx::wait_for_previous_kernel();
  const Index i = static_cast<Index>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= lanes) return;
  const int lane = static_cast<int>(i % 32), row = lane / 4, quad = lane % 4;
  const Index tile = i / 32, first = tile / per_row * kTileRows, block = tile % per_row;
  const std::uint8_t zeros[B::kBytes] = {};
  const std::uint8_t* const from = first + row < rows ? blocks + ((first + row) * per_row + block) * B::kBytes : zeros;
  B::pack(from, row, quad, to + tile * kTileBytes<kType>);
}

// Words of a 4 x 4 square, a row of which each of four neighbouring lanes has, as columns: what was word i of lane q
// becomes word q of lane i.
__device__ __forceinline__ void transpose(std::uint32_t (&v)[4]) {
#pragma unroll
  for (int bit = 1; bit <= 2; ++bit) {
    const bool upper = threadIdx.x & bit;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (i & bit) continue;  // words i and i + bit: one is sent, the other kept
      const std::uint32_t got = __shfl_xor_sync(0xffffffffu, upper ? v[i] : v[i + bit], bit);
      (upper ? v[i] : v[i + bit]) = got;
    }
  }
}

// One warp per tile of one block.
template <DType kType>
__global__ void __launch_bounds__(kThreads) unpack_kernel(Matrix w, Unpacked out, Index tiles) {
  using B = Block<kType>;
  ptx::wait_for_previous_kernel();
  ptx::let_next_kernel_start();
  const Index tile = (static_cast<Index>(blockIdx.x) * kThreads + threadIdx.x) / 32;
  if (tile >= tiles) return;
  const int row_in_tile = threadIdx.x % 32 / 4, quad = threadIdx.x % 4, per_row = w.columns / B::kNumbers;
  const int row = static_cast<int>(tile / per_row) * kTileRows + row_in_tile, block = static_cast<int>(tile % per_row);
  const int group = min(row, w.rows - 1) / out.group;
  const bool wanted = row < w.rows && !(out.offsets && out.offsets[group] == out.offsets[group + 1]);
  if (!__any_sync(0xffffffffu, wanted)) return;
  const auto lane =
      load_lane<kType>(static_cast<const std::uint8_t*>(w.data) + tile * kTileBytes<kType>, row_in_tile, quad);
  bf16* const to = out.to + group * out.group_stride + (row - group * out.group) * out.ld;
#pragma unroll
  for (int g = 0; g < B::kNumbers / 32; ++g) {
    std::uint32_t pairs[2][2];
    B::step(lane, 2 * g, quad, pairs[0]);
    B::step(lane, 2 * g + 1, quad, pairs[1]);
    // A lane has every fourth pair of 32 numbers; it stores eight neighbours.
    std::uint32_t words[4] = {pairs[0][0], pairs[0][1], pairs[1][0], pairs[1][1]};
    transpose(words);
    const int k = block * B::kNumbers + g * 32 + 8 * quad, part = k / out.part;
    if (wanted)
      *reinterpret_cast<uint4*>(to + part * out.part_stride + (k - part * out.part)) = {words[0], words[1], words[2],
                                                                                        words[3]};
  }
}

// One block per token; a thread has one lane's part of one GGUF block.
template <DType kType>
__global__ void __launch_bounds__(kThreads)
    embedding_kernel(Matrix table, const std::int32_t* ids, unsigned long long fault, unsigned long long* faults,
                     float* x) {
  using B = Block<kType>;
  ptx::wait_for_previous_kernel();
  ptx::let_next_kernel_start();
  const std::int32_t id = ids[blockIdx.x];
  if (id < 0 || id >= table.rows) {
    if (threadIdx.x == 0) atomicMin(faults, fault | blockIdx.x);
    return;
  }
  const int per_row = table.columns / B::kNumbers, quad = threadIdx.x % 4;
  const std::uint8_t* const tiles =
      static_cast<const std::uint8_t*>(table.data) + static_cast<Index>(id / kTileRows) * per_row * kTileBytes<kType>;
  float* const to = x + static_cast<Index>(blockIdx.x) * table.columns;
  for (int block = threadIdx.x / 4; block < per_row; block += kThreads / 4) {
    const auto lane = load_lane<kType>(tiles + static_cast<Index>(block) * kTileBytes<kType>, id % kTileRows, quad);
#pragma unroll
    for (int s = 0; s < B::kNumbers / 16; ++s) {
      std::uint32_t pairs[2];
      B::step(lane, s, quad, pairs);
      float* const at = to + block * B::kNumbers + s * 16 + 2 * quad;
      *reinterpret_cast<float2*>(at) = ptx::unpack(pairs[0]);
      *reinterpret_cast<float2*>(at + 8) = ptx::unpack(pairs[1]);
    }
  }
}

__global__ void nothing_kernel() {}

unsigned blocks_for(Index threads) { return static_cast<unsigned>((threads + kThreads - 1) / kThreads); }

}  // namespace

Matrix matrix_of(const Tensor& w) {
  if (w.numel() == 0) return {};
  return {w.raw(), w.dtype(), static_cast<int>(w.dim(0)), static_cast<int>(w.dim(1))};
}

void pack(DType dtype, const void* blocks, int rows, int columns, void* to, cudaStream_t stream) {
  with_block(dtype, [&]<DType kType>() {
    const int per_row = columns / Block<kType>::kNumbers;
    const Index lanes = static_cast<Index>((rows + kTileRows - 1) / kTileRows) * per_row * 32;
    if (lanes == 0) return;
    launch(pack_kernel<kType>, blocks_for(lanes), kThreads, 0, stream, static_cast<const std::uint8_t*>(blocks), rows,
           per_row, static_cast<std::uint8_t*>(to), lanes);
  });
}

void unpack(const Matrix& w, const Unpacked& out, cudaStream_t stream) {
  with_block(w.dtype, [&]<DType kType>() {
    const Index tiles = static_cast<Index>((w.rows + kTileRows - 1) / kTileRows) * (w.columns / Block<kType>::kNumbers);
    if (tiles == 0) return;
    launch(unpack_kernel<kType>, blocks_for(tiles * 32), kThreads, 0, stream, w, out, tiles);
  });
}

// Launched without the permission to start early, it starts when all work ahead is done and seen.
void end_unpacking(cudaStream_t stream) {
  nothing_kernel<<<1, 1, 0, stream>>>();
  check_cuda(cudaGetLastError(), "launch");
}

void embedding(const Matrix& table, const std::int32_t* ids, int tokens, unsigned long long fault,
               unsigned long long* faults, float* x, cudaStream_t stream) {
  with_block(table.dtype, [&]<DType kType>() {
    launch(embedding_kernel<kType>, static_cast<unsigned>(tokens), kThreads, 0, stream, table, ids, fault, faults, x);
  });
}

}  // namespace dsmoe::cuda::packed
