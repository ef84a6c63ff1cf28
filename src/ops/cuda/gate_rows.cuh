// The gate's weight in registers, for kernels of a cluster of kGateParts blocks each of which takes a part of D.
#pragma once

#include "ops/cuda/numbers.cuh"
#include "ops/cuda/ptx.cuh"
#include "ops/cuda/routing.cuh"

namespace dsmoe::cuda {

struct GateWeight {
  const bf16* rows;  // [E, D]
  int experts, width;
};

// Which part of the logits a block of the cluster makes: steps of 32 columns of D.
struct GatePart {
  __device__ __forceinline__ GatePart(int width, int block) {
    const int steps = (width + 31) / 32, per_part = (steps + kGateParts - 1) / kGateParts;
    first = block * per_part, last = min(steps, first + per_part);
  }
  int first, last;
};

// What one warp needs of the gate for a part of up to kSteps steps, as operand A: 16 experts.
struct GateRows {
  static constexpr int kSteps = 8;
  uint4 low[kSteps], high[kSteps];

  __device__ __forceinline__ void load(const GateWeight& gate, const GatePart& part, int e0, int from) {
    const int lane = threadIdx.x % 32, g = lane / 4, c = lane % 4, experts = gate.experts;
    const bf16* a = gate.rows + static_cast<std::size_t>(min(e0 + g, experts - 1)) * gate.width + c * 8;
    const bf16* b = gate.rows + static_cast<std::size_t>(min(e0 + g + 8, experts - 1)) * gate.width + c * 8;
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      const int k = (from + i) * 32;
      const bool inside = from + i < part.last && k + c * 8 < gate.width;
      low[i] = inside ? __ldg(reinterpret_cast<const uint4*>(a + k)) : uint4{};
      high[i] = inside ? __ldg(reinterpret_cast<const uint4*>(b + k)) : uint4{};
    }
  }
  // load(k): eight numbers of this lane's token, from column k on.
  template <class Load>
  __device__ __forceinline__ void multiply(const GateWeight& gate, const GatePart& part, int from, float (&acc)[4],
                                           Load&& load) const {
    const int c = threadIdx.x % 4;
    uint4 x[kSteps];
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      const int k = (from + i) * 32;
      const bool inside = from + i < part.last && k + c * 8 < gate.width;
      x[i] = inside ? load(k + c * 8) : uint4{};
    }
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      if (from + i >= part.last) break;
      ptx::mma_16816(acc, low[i].x, high[i].x, low[i].y, high[i].y, x[i].x, x[i].y);
      ptx::mma_16816(acc, low[i].z, high[i].z, low[i].w, high[i].w, x[i].z, x[i].w);
    }
  }
};

}  // namespace dsmoe::cuda
