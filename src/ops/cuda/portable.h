// The grouped products for any device and any size: scalar f32 arithmetic, or mma.sync for bf16 (sm_80 and newer).
#pragma once

#include <cuda_runtime_api.h>

#include "ops/cuda/plan.h"

namespace dsmoe::cuda::portable {

// The same steps as in hopper.h, over p.dtype. `mma` needs bf16.
struct Step {
  const Problem& problem;
  const Plan& plan;
  bool mma;
  cudaStream_t stream;
};

void gate_up(const Step& s, const void* x, const void* weights, void* h, void* gate_up);
void down(const Step& s, const void* h, const void* weights, void* out);

int hidden_backward_parts(const Problem& p);
void hidden_backward(const Step& s, const void* dy, const void* down_weights, void* gate_up, void* weighted,
                     float* weight_grad);
void input_backward(const Step& s, const void* dgate_up, const void* weights, void* out);
// As hopper::WeightGrad.
void weight_backward(const Step& s, const void* a, int m, const void* b, bool transposed, void* grad, bool accumulate);

}  // namespace dsmoe::cuda::portable
