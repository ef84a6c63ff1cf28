// Launchers of y = x · Wᵀ: x [T, K], W [N, K]; y [T, N] is f32 or has the dtype of x. Every output is one sum over k in
// ascending order, whatever the number of rows.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include "dsmoe/dtype.h"
#include "dsmoe/tensor.h"

namespace dsmoe::cuda {

struct LinearSizes {
  int rows, inner, columns;  // T, K, N
};

namespace hopper {
// K a multiple of 8. N may be anything; of a bf16 y it is a multiple of 8 too.
void linear(const LinearSizes& s, const __nv_bfloat16* x, const __nv_bfloat16* w, DType y_dtype, void* y,
            cudaStream_t stream);
}  // namespace hopper

namespace portable {
void linear(const LinearSizes& s, DType dtype, bool mma, const void* x, const void* w, DType y_dtype, void* y,
            cudaStream_t stream);
}

}  // namespace dsmoe::cuda
