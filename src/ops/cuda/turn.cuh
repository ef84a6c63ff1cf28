// q, k and v of few new tokens behind their products: q turned, k turned and in the cache, v in the cache. A warp has 8
// neighbours of the first half of a head and their partners in the second half, in the places of mma.sync: a lane has
// columns g = lane / 4 of either half, of rows 2 (lane % 4) and the next of every 8. Numbers are rounded as where they go
// through memory (rope.cu).
#pragma once

#include "ops/cuda/linear.h"
#include "ops/cuda/numbers.cuh"

namespace dsmoe::cuda {

struct Turn {
  // The angles, and where the rows go: looked up before the products, which take long enough for them to arrive. `matrix`:
  // 0 to 2 for q, k and v; `unit`: which eight columns of which head.
  __device__ __forceinline__ Turn(const hopper::TurnAndStore& turn, int rows, int matrix, int unit)
      : half_(turn.half), rows_(rows), turned_(matrix < 2) {
    const int place = unit % (half_ / 8) * 8 + static_cast<int>(threadIdx.x) % 32 / 4;
    column_ = unit / (half_ / 8) * 2 * half_ + place;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = min(row_of(i), rows - 1);
      cos_[i] = turned_ ? turn.cos[row * half_ + place] : 1.0f;
      sin_[i] = turned_ ? turn.sin[row * half_ + place] : 0.0f;
      to_[i] = matrix == 0 ? row : turn.cache_row[row];
    }
  }

  // `columns`: of a row of y.
  template <int kTiles>
  __device__ __forceinline__ void store(const float (&acc)[kTiles][4], void* y, int columns) const {
#pragma unroll
    for (int i = 0; i < 2 * kTiles; ++i) {
      if (row_of(i) >= rows_) continue;
      __nv_bfloat16 first = __float2bfloat16_rn(acc[i / 2][i % 2]), second = __float2bfloat16_rn(acc[i / 2][i % 2 + 2]);
      if (turned_) {
        const float a = to_float(first), b = to_float(second);
        from_float(fmaf(a, cos_[i], -__fmul_rn(b, sin_[i])), first);
        from_float(fmaf(b, cos_[i], __fmul_rn(a, sin_[i])), second);
      }
      __nv_bfloat16* const out = static_cast<__nv_bfloat16*>(y) + static_cast<std::size_t>(to_[i]) * columns + column_;
      out[0] = first;
      out[half_] = second;
    }
  }

 private:
  static __device__ __forceinline__ int row_of(int i) { return i / 2 * 8 + static_cast<int>(threadIdx.x) % 4 * 2 + i % 2; }

  int half_, rows_, column_;
  bool turned_;
  float cos_[4], sin_[4];
  int to_[4];
};

}  // namespace dsmoe::cuda
