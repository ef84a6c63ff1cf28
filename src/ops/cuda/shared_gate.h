// Kernels of the shared experts' gate. T tokens, D model width, S shared experts; pointers are device pointers.
#pragma once

#include <cuda_runtime_api.h>

#include "dsmoe/dtype.h"
#include "dsmoe/tensor.h"

namespace dsmoe::cuda {

struct SharedGate {
  const void *x, *w;  // [T, D], [D]
  DType dtype;        // of both
  int tokens, shared, width;
  float* weight;  // [S * T and more]: of the plan's rows
};

// weight[s, t] = sigmoid(<x[t], w>)
void weigh_shared(const SharedGate& gate, cudaStream_t stream);

// out = h [rows, columns], the first `weighed` rows times their weight.
void weigh_rows(const void* h, DType dtype, Index rows, Index weighed, Index columns, const float* weight, void* out,
                cudaStream_t stream);

// dlogits [T] from row_grads [R, parts]; dx [T, D] += dlogits w; partial [slices, D]: dlogits x, summed over slices of so
// many tokens.
struct SharedGateGrads {
  float *dlogits, *partial;
  void* dx;
};
void weigh_shared_backward(const SharedGate& gate, const float* row_grads, int parts, int slice,
                           const SharedGateGrads& grads, cudaStream_t stream);

}  // namespace dsmoe::cuda
