// Products that every head has for itself on tensor cores (bf16, sm_80 and newer): the chains of heads.cu, steps of 16 in
// ascending k, with operands that are copied 16 bytes at a time. Blocks of 128 rows, or for few rows of 16, whose weights
// are on their way before the kernel ahead has ended.
#pragma once

#include <cuda_runtime_api.h>

#include "dsmoe/tensor.h"

namespace dsmoe::cuda::heads {

// y(m, n) = sum over k of x(m, k) w(n, k), or, turned, w(k, n), for every head. Pointers are at the first head's first
// number; `head`: from one head to the next; `row`: from one row to the next.
struct Product {
  struct Place {
    const void* at;
    Index head, row;
  };
  Place x, w, y;
  int heads, m, n, k;
  bool turned;
};

// Whether sizes and places are multiples of what is copied at a time.
bool takes(const Product& p);
void run(const Product& p, cudaStream_t stream);

}  // namespace dsmoe::cuda::heads
