// MoeLayer's passes on a GPU: memory for ops/cuda/moe_layer.h, and its results as tensors.
#pragma once

#include "dsmoe/moe.h"

namespace dsmoe {

// x [T, D]; y gets `shape`, which has as many elements.
MoeForward cuda_forward(Context& ctx, const MoeConfig& config, const MoeWeights& weights, const Tensor& x,
                        const Shape& shape, Index sequence_length, bool training);
void cuda_finish(Context& ctx, const MoeConfig& config, MoeForward& forward);
// dy and the result [T, D].
Tensor cuda_backward(Context& ctx, const MoeConfig& config, const MoeWeights& weights, const Tensor& dy,
                     const MoeForward& forward, MoeGradients& grads, float aux_scale);

}  // namespace dsmoe
