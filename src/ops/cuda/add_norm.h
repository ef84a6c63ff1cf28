// What a kernel that adds and normalizes one token's row itself is given: the op's arguments as pointers.
#pragma once

#include "ops/cuda/norm.h"
#include "ops/rms_norm.h"

namespace dsmoe::cuda {

// y is of type Y, the weight bf16, the sum f32.
template <class Y>
AddNormRow<Y> add_norm_row(const ops::AddNorm& in, Tensor& sum) {
  return {static_cast<const Y*>(in.y.raw()),
          static_cast<const float*>(in.x.raw()),
          static_cast<const __nv_bfloat16*>(in.weight.raw()),
          static_cast<float*>(sum.raw_mutable()),
          in.eps,
          static_cast<int>(in.x.dim(1))};
}

}  // namespace dsmoe::cuda
