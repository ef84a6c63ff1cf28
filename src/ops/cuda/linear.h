// Launchers of y = x · Wᵀ: x [T, K], W [N, K]; y [T, N] is f32 or has the dtype of x. Every output is one sum over k in
// ascending order, whatever the number of rows.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstdint>
#include <span>

#include "dsmoe/dtype.h"
#include "dsmoe/tensor.h"
#include "ops/cuda/norm.h"

namespace dsmoe::cuda {

struct LinearSizes {
  int rows, inner;  // T, K
};
struct LinearMatrix {
  const void* w;
  void* y;
  int columns;  // N
  DType y_dtype = DType::kF32;
};

// Of the gradients: dy [T, N], W and dW [N, K], dx and x [T, K]. dx = dy · W and dW = dyᵀ · x, added to with
// `accumulate`, are f32. On Hopper N and K are multiples of 8.
struct LinearGradSizes {
  int rows, columns, inner;  // T, N, K
};

namespace hopper {
// Several products of one x in one launch. K is a multiple of 8, and so is every N where y is bf16.
inline constexpr int kMostProjections = 3;
void linear(const LinearSizes& s, const __nv_bfloat16* x, std::span<const LinearMatrix> matrices, DType y_dtype,
            cudaStream_t stream);
// The same bits for at most kTinyTile rows, which linear() does not take; each y in its own dtype. Or of one row that is
// the norm of a sum.
void linear_few(const LinearSizes& s, const __nv_bfloat16* x, std::span<const LinearMatrix> matrices, cudaStream_t stream);
void linear_few(const LinearSizes& s, const AddNormRow<__nv_bfloat16>& norm, std::span<const LinearMatrix> matrices,
                cudaStream_t stream);
// q, k and v of new tokens, of which q is turned, and k is turned and stored in the cache, v stored. The `y`s are q [T, N]
// and the caches. bf16; half of a head is a multiple of 32, or, for up to kTinyTile tokens (project_few), of 8.
struct TurnAndStore {
  const float *cos, *sin;         // [T, half]
  const std::int32_t* cache_row;  // [T]
  int half;                       // of a head
};
void project(const LinearSizes& s, const __nv_bfloat16* x, std::span<const LinearMatrix> qkv, const TurnAndStore& turn,
             cudaStream_t stream);
void project_few(const LinearSizes& s, const __nv_bfloat16* x, std::span<const LinearMatrix> qkv, const TurnAndStore& turn,
                 cudaStream_t stream);
// Of one row that is the norm of a sum.
void project_few(const LinearSizes& s, const AddNormRow<__nv_bfloat16>& norm, std::span<const LinearMatrix> qkv,
                 const TurnAndStore& turn, cudaStream_t stream);
// dx = the sum of up to kMostProjections products, each with an N of its own; it is f32 or, without `accumulate`, bf16.
struct LinearInputGrad {
  const __nv_bfloat16 *dy, *w;
  int columns;  // N
};
void linear_backward_input(const LinearSizes& s, std::span<const LinearInputGrad> products, void* dx, DType dx_dtype,
                           bool accumulate, cudaStream_t stream);
// Over slices of `slice` tokens, a multiple of 64: grad [slices, N, K]. Several of them fill a device where W is small.
void linear_backward_weight(const LinearGradSizes& s, int slice, const __nv_bfloat16* dy, const __nv_bfloat16* x,
                            float* grad, bool accumulate, cudaStream_t stream);
}  // namespace hopper

namespace portable {
void linear(const LinearSizes& s, DType dtype, bool mma, const void* x, const LinearMatrix& matrix, DType y_dtype,
            cudaStream_t stream);
void linear_backward_input(const LinearGradSizes& s, DType dtype, bool mma, const void* dy, const void* w, float* dx,
                           bool accumulate, cudaStream_t stream);
void linear_backward_weight(const LinearGradSizes& s, DType dtype, bool mma, const void* dy, const void* x, float* dw,
                            bool accumulate, cudaStream_t stream);
}  // namespace portable

}  // namespace dsmoe::cuda
