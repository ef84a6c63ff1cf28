// Products of few tokens, where reading the weights is all that takes time: a warp owns 16 rows of a weight matrix and
// streams them through a ring of its own in shared memory. Sums are the chains of k16 steps of hopper_gemm.cuh, by another
// instruction with the same arithmetic, so the bits are the same.
#pragma once

#include "ops/cuda/hopper.h"
#include "ops/cuda/ptx.cuh"

namespace dsmoe::cuda::hopper {

inline constexpr int kFewRows = 16;                     // of the weights
inline constexpr int kBoxK = 64;                        // what one copy brings of each row: 128 bytes
inline constexpr int kFewBytes = kFewRows * kBoxK * 2;  // of one copy

// Rows of 128 bytes have their 16-byte chunks swizzled, as the copy engine leaves them where rows begin at 1024 bytes.
__device__ __forceinline__ std::uint32_t swizzled(int row, int chunk) {
  return static_cast<std::uint32_t>(row * 128 + ((chunk ^ (row & 7)) << 4));
}

// Where this lane finds its part of the operands of the four k16 steps of a box. A warp has no other that could compute
// while it finds its addresses, so they are found once.
struct LanePlaces {
  std::uint32_t a[kBoxK / 16], b[kBoxK / 32];

  // Token lane % 8 is row `row` of what is multiplied; tokens that are not there may be any row. kPlain: one row, not
  // swizzled.
  template <bool kPlain = false>
  __device__ __forceinline__ void set(int row) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int step = 0; step < kBoxK / 16; ++step) a[step] = swizzled(lane % 16, 2 * step + lane / 16);
#pragma unroll
    for (int pair = 0; pair < kBoxK / 32; ++pair)
      b[pair] = kPlain ? (4 * pair + lane / 8) * 16 : swizzled(row, 4 * pair + lane / 8);
  }
};

// The operands of one box: 16 weight rows and 8 tokens.
struct BoxOperands {
  std::uint32_t a[kBoxK / 16][4], b[kBoxK / 32][4];

  __device__ __forceinline__ void load(const LanePlaces& at, std::uint32_t weights, std::uint32_t tokens) {
#pragma unroll
    for (int step = 0; step < kBoxK / 16; ++step) {
      if (step % 2 == 0) ptx::ldmatrix(b[step / 2], tokens + at.b[step / 2]);
      ptx::ldmatrix(a[step], weights + at.a[step]);
    }
  }
  __device__ __forceinline__ void multiply(float (&acc)[4]) const {
#pragma unroll
    for (int step = 0; step < kBoxK / 16; ++step)
      ptx::mma_16816(acc, a[step][0], a[step][1], a[step][2], a[step][3], b[step / 2][step % 2 * 2],
                     b[step / 2][step % 2 * 2 + 1]);
  }
};

// acc += the first `boxes` boxes of a stage, whose tokens lie token_step bytes apart. Operands are loaded a box ahead.
template <int kBoxes>
__device__ __forceinline__ void multiply_stage(float (&acc)[4], const LanePlaces& at, std::uint32_t weights,
                                               std::uint32_t tokens, int token_step, int boxes) {
  BoxOperands operands[2];
  if (boxes >= kBoxes) {
    operands[0].load(at, weights, tokens);
#pragma unroll
    for (int i = 0; i < kBoxes; ++i) {
      if (i + 1 < kBoxes) operands[(i + 1) % 2].load(at, weights + (i + 1) * kFewBytes, tokens + (i + 1) * token_step);
      operands[i % 2].multiply(acc);
    }
  } else {
#pragma unroll 1
    for (int i = 0; i < boxes; ++i) {
      operands[0].load(at, weights + i * kFewBytes, tokens + i * token_step);
      operands[0].multiply(acc);
    }
  }
}

// The ring of one warp. Stage n, counted from the start of the kernel, is at n % kStages.
template <int kStages, int kStageBytes>
struct WarpRing {
  std::uint32_t data, barriers;

  __device__ __forceinline__ std::uint32_t stage(int n) const { return data + n % kStages * kStageBytes; }
  __device__ __forceinline__ std::uint32_t barrier(int n) const { return barriers + n % kStages * 8; }
  __device__ __forceinline__ void set_up() const {  // by one thread
    for (int i = 0; i < kStages; ++i) ptx::barrier_init(barriers + i * 8, 1);
    ptx::barrier_init_fence();
  }
  __device__ __forceinline__ void wait(int n) const { ptx::barrier_wait(barrier(n), n / kStages % 2); }
};

}  // namespace dsmoe::cuda::hopper
