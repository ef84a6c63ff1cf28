// Launchers of the steps around the products: gate, plan, combine, balance losses and their gradients.
#pragma once

#include <cuda_runtime_api.h>

#include "ops/cuda/plan.h"

namespace dsmoe::cuda {

// Tokens that one block of the gate scores; counts[chunks, E] are taken over blocks of that many tokens.
int gate_chunk(const Problem& p);
int gate_chunks(const Problem& p);

// Scores, the K best experts of each token, and counts per chunk. `mma`: products on the tensor cores (bf16).
void gate(const Problem& p, bool mma, const void* x, const Weights& weights, const Routing& routing, std::int32_t* counts,
          cudaStream_t stream);

void make_plan(const Problem& p, const Routing& routing, const std::int32_t* counts, int token_tile, const Plan& plan,
               cudaStream_t stream);

// in[T, D] as rows of the routed experts: out[token_sorted[t, k]] = in[t], zeros between the experts. D must be a
// multiple of 16 bytes.
void gather_rows(const Problem& p, const Plan& plan, const void* in, void* out, cudaStream_t stream);

// out[t, first + c] = start[t, first + c] + sum over shared experts + sum over chosen experts of weight * rows[row, c],
// for c < columns, in that order. `weights` null: all ones; `start` [T, D] null: zero. The shared experts have S rows
// per token, or one that is their sum.
struct Combine {
  const void* rows;
  int first, columns, shared_rows;
  const float* weights;
  const void* start;
  void* out;
};
void combine(const Problem& p, const Plan& plan, const Combine& args, cudaStream_t stream);

// Balance losses from scores and ids: loss[3] (sequence, batch, device), each times its alpha; may be null. Leaves in
// scratch what the gradients need: counts[B + 2, E] of each of the B sequences, of all tokens, and the mean count over
// the experts of each expert's device group.
std::size_t balance_floats(const Problem& p);
void balance(const Problem& p, const Routing& routing, float* scratch, float* loss, cudaStream_t stream);

// dlogits from the gradient of the row weights (parts summed in order) and the balance losses: f32 [T, E], or as the
// sum of two bf16 [T, 2, split_experts(E)] for the Hopper products; the other one is null.
struct LogitGrad {
  float* plain;
  void* split;
};
inline int split_experts(Index experts) { return static_cast<int>((experts + 63) / 64 * 64); }
void gate_scores_backward(const Problem& p, const Plan& plan, const Routing& routing, const float* weight_grad, int parts,
                          const float* balance_counts, float balance_scale, const LogitGrad& dlogits, cudaStream_t stream);
// dx[T, D] (p.dtype) = dlogits * gate.
void gate_input_backward(const Problem& p, bool mma, const float* dlogits, const void* gate, void* dx, cudaStream_t stream);
// dgate[E, D] = dlogits' * x: partial sums over slices of tokens, then their sum. add_slices() takes
// partial[slices, halves, stride, D] and adds slices and halves in order.
int gate_slice(const Problem& p);
int gate_slices(const Problem& p);
void gate_weight_backward(const Problem& p, bool mma, const float* dlogits, const void* x, float* partial,
                          cudaStream_t stream);
void add_slices(const Problem& p, const float* partial, int halves, int stride, void* dgate, bool accumulate,
                cudaStream_t stream);

}  // namespace dsmoe::cuda
