// The grouped products for any device and any size: scalar f32 arithmetic, or mma.sync for bf16 (sm_80 and newer).
#pragma once

#include <cuda_runtime_api.h>

#include "ops/cuda/plan.h"

namespace dsmoe::cuda::portable {

// The same steps as in hopper.h, over `dtype`. `mma` needs bf16.
struct Step {
  const Sizes& sizes;
  const PlanView& plan;
  DType dtype;
  bool mma;
  cudaStream_t stream;
};

void gate_up(const Step& s, const void* x, const void* weights, void* h, void* gate_up);
void down(const Step& s, const void* h, const void* weights, void* out);

int hidden_backward_parts(const Sizes& s);
void hidden_backward(const Step& s, const void* dy, const void* down_weights, void* gate_up, void* weighted,
                     float* weight_grad);
void input_backward(const Step& s, const void* dgate_up, const void* weights, void* out);
// As hopper::WeightGrad; gradients are f32 or s.dtype.
struct WeightGrad {
  const void* a;
  int m;
  const void* b;
  bool transposed;
  void* grad;
  bool f32, accumulate;
};
void weight_backward(const Step& s, const WeightGrad& g);

}  // namespace dsmoe::cuda::portable
