// The router z-loss on a GPU, in kernels of its own: it is off unless asked for. Pointers are device pointers.
#pragma once

#include <cuda_runtime_api.h>

#include "ops/cuda/kernels.h"

namespace dsmoe::cuda {

// lse[T] = log of the sum of e^logit over the row of logits [T, E].
void logits_lse(const float* logits, int tokens, int experts, float* lse, cudaStream_t stream);

// *loss = alpha times the sum of lse² over `tokens`, divided by the `all` tokens of the batch.
void router_z_loss(const float* lse, int tokens, int all, float alpha, double* loss, cudaStream_t stream);

// Adds `factor` lse[t] scores[t, e], the gradient of a mean of lse² but for its coefficient, to dlogits, whichever form
// they have (LogitGrad). *more, unless null, multiplies the factor.
void router_z_backward(const float* lse, const float* scores, int tokens, int experts, float factor, const float* more,
                       const LogitGrad& dlogits, cudaStream_t stream);

}  // namespace dsmoe::cuda
