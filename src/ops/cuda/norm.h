// A row's residual sum and norm, for kernels that begin with them (norm_row.cuh).
#pragma once

#include <cuda_bf16.h>

namespace dsmoe::cuda {

// sum = x + y, and its norm. `sum` is not x, which all blocks read.
template <class Y>
struct AddNormRow {
  const Y* y;
  const float* x;
  const __nv_bfloat16* weight;
  float* sum;
  float eps;
  int width;
};

// Whether such rows are taken: narrower ones have sums of another order in rms_norm.cu; and boxes of 64 columns are full.
inline bool norms_rows_of(int width) { return width > 512 && width <= 2048 && width % 64 == 0; }

}  // namespace dsmoe::cuda
