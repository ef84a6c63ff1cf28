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
    for (int step = 0; step < kBoxK / 16; ++step) multiply(acc, step);
  }
  // The same, and loads the operands of the next box in between: a product waits for the one before it anyway. The compiler
  // would move every load to right before its use, where both wait; it moves none across __syncwarp().
  __device__ __forceinline__ void multiply(float (&acc)[4], BoxOperands& next, const LanePlaces& at, std::uint32_t weights,
                                           std::uint32_t tokens) const {
#pragma unroll
    for (int step = 0; step < kBoxK / 16; ++step) {
      multiply(acc, step);
      if (step % 2 == 0) ptx::ldmatrix(next.b[step / 2], tokens + at.b[step / 2]);
      ptx::ldmatrix(next.a[step], weights + at.a[step]);
      __syncwarp();
    }
  }

 private:
  __device__ __forceinline__ void multiply(float (&acc)[4], int step) const {
    ptx::mma_16816(acc, a[step][0], a[step][1], a[step][2], a[step][3], b[step / 2][step % 2 * 2],
                   b[step / 2][step % 2 * 2 + 1]);
  }
};

// acc += the product of `boxes` boxes, kBoxes of which are a stage. weights(i) waits for stage i and says where it is,
// tokens(i) where its tokens are, which lie token_step bytes apart; done(i) is called when all of stage i has been read.
template <int kBoxes, class Weights, class Tokens, class Done>
__device__ __forceinline__ void multiply_boxes(float (&acc)[4], const LanePlaces& at, int boxes, int token_step,
                                               Weights&& weights, Tokens&& tokens, Done&& done) {
  static_assert(kBoxes % 2 == 0);
  const int stages = (boxes + kBoxes - 1) / kBoxes;
  BoxOperands operands[2];
  std::uint32_t w = weights(0), t = tokens(0);
  operands[0].load(at, w, t);
#pragma unroll 1
  for (int i = 0; i + 1 < stages; ++i) {
#pragma unroll
    for (int j = 0; j + 1 < kBoxes; ++j)
      operands[j % 2].multiply(acc, operands[(j + 1) % 2], at, w + (j + 1) * kFewBytes, t + (j + 1) * token_step);
    w = weights(i + 1), t = tokens(i + 1);
    operands[1].multiply(acc, operands[0], at, w, t);
    done(i);
  }
  const int rest = boxes - (stages - 1) * kBoxes;
#pragma unroll
  for (int j = 0; j < kBoxes; ++j) {
    if (j + 1 < rest)
      operands[j % 2].multiply(acc, operands[(j + 1) % 2], at, w + (j + 1) * kFewBytes, t + (j + 1) * token_step);
    else if (j < rest)
      operands[j % 2].multiply(acc);
  }
  done(stages - 1);
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
  // The same by another warp than the one that takes the stages, which may be a round further: that looks as if the stage
  // were not there, so there is an end to it.
  __device__ __forceinline__ void wait_a_little(int n) const {
    for (int i = 0; i < 512 && !ptx::barrier_passed(barrier(n), n / kStages % 2); ++i) continue;
  }
};

}  // namespace dsmoe::cuda::hopper
