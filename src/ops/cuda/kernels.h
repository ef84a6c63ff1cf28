// Launchers of the kernels around the products: gate, plan, combine, balance losses and their gradients. Pointers are
// device pointers.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

#include "dsmoe/moe_config.h"
#include "ops/cuda/plan.h"

namespace dsmoe::cuda {

// Where the gate's choice goes (ops::Chosen), and where it reports a NaN or infinite score: it lowers *fault_word to
// fault | token (core/fault.h).
struct ChosenView {
  std::int32_t* experts;  // [T, K]
  float* weights;         // [T, K]
  float* scores;          // [T, E]
  unsigned long long* fault_word;
  unsigned long long fault;
};

struct GateInput {
  const void* x;       // [T, D]
  const void* weight;  // [E, D], same dtype
  const float* bias;   // [E], null: none
  DType dtype;
  int tokens;
};

// Scores, the K best experts of each token, and counts[chunks, E] of them over chunks of gate_chunk() tokens. `mma`:
// products on the tensor cores (bf16, D a multiple of 8).
void gate(const MoeConfig& config, const GateInput& in, bool mma, int chunk, const ChosenView& out, std::int32_t* counts,
          cudaStream_t stream);

void make_plan(const Sizes& s, const ChosenView& chosen, const std::int32_t* counts, int chunk, const PlanView& plan,
               cudaStream_t stream);

// The plan of `shared` experts that have all tokens: offset, token and weight.
void make_plan_of_shared(int tokens, int shared, const PlanView& plan, cudaStream_t stream);

// in[T, D] as rows of the routed experts: out[token_sorted[t, k]] = in[t], zeros between the experts. `row_bytes`, of one
// token, must be a multiple of 16.
void gather_rows(const Sizes& s, const PlanView& plan, std::size_t row_bytes, const void* in, void* out,
                 cudaStream_t stream);

// out[t, first + c] = start[t, first + c] + sum over shared experts + sum over chosen experts of weight * rows[row, c],
// for c < columns, in that order. `weights` null: all ones; `start` [T, D] null: zero, and it may be `out`. The shared
// experts have S rows per token, or one that is their sum.
struct Combine {
  const void* rows;
  int first, columns, shared_rows;
  const float* weights;
  const void* start;
  void* out;
};
void combine(const Sizes& s, const std::int32_t* slot_row, DType dtype, const Combine& args, cudaStream_t stream);

// Balance losses from scores and ids: loss[4] (sequence, batch, device, 0), each times its alpha; may be null. Leaves in
// scratch what the gradients need: counts[B + 2, E] of each of the B sequences, of all tokens, and the mean count over
// the experts of each expert's device group.
struct BalanceInput {
  const std::int32_t* experts;  // [T, K]
  const float* scores;          // [T, E]
  Index tokens, sequence_length;
  // Of a batch that other processes have parts of: its tokens that chose each expert [E], and its tokens and sequences.
  const float* whole_counts = nullptr;  // null: these are all
  Index whole_tokens = 0, whole_sequences = 0;

  Index all_tokens() const { return whole_counts ? whole_tokens : tokens; }
  Index all_sequences() const { return whole_counts ? whole_sequences : tokens / sequence_length; }
};
std::size_t balance_floats(const MoeConfig& config, Index tokens, Index sequence_length);
void balance(const MoeConfig& config, const BalanceInput& in, float* scratch, double* loss, cudaStream_t stream);

// dlogits from the gradient of the row weights (parts summed in order) and the balance losses: f32 [T, E], or as the
// sum of two bf16 [T, 2, split_experts(E)] for the Hopper products; the other one is null.
struct LogitGrad {
  float* plain;
  void* split;
};
inline int split_experts(Index experts) { return static_cast<int>((experts + 63) / 64 * 64); }
struct ScoresBackward {
  BalanceInput chosen;
  const std::int32_t* slot_row;  // [T, K]
  const float* weight_grad;      // [R, parts]
  int parts;
  const float* balance_counts;  // as balance() left them; null: no balance loss
  float balance_scale;
  const float* scale_factor;  // multiplies balance_scale; null: 1
};
void gate_scores_backward(const MoeConfig& config, const ScoresBackward& in, const LogitGrad& out, cudaStream_t stream);

// The gate's two products: dx[T, D] = dlogits * gate, and dgate[E, D] = dlogits' * x as partial sums over slices of tokens.
struct GateProducts {
  DType dtype;  // of x, the gate and dx
  bool mma;
  int tokens, experts, width;  // T, E, D
  const float* dlogits;        // [T, E]
};
void gate_input_backward(const GateProducts& p, const void* gate, void* dx, cudaStream_t stream);
void gate_weight_backward(const GateProducts& p, const void* x, float* partial, cudaStream_t stream);

// grad[size] = the sum over `slices` of partial[slice, stride], in order, of the first `size` of each; added to what is
// there with `accumulate`.
void add_slices(const float* partial, int slices, std::size_t stride, std::size_t size, DType grad_dtype, void* grad,
                bool accumulate, cudaStream_t stream);

// sum[columns] += partial[pieces, columns] over the pieces, as a tree that their number decides.
void add_pieces(const float* partial, int pieces, int columns, float* sum, cudaStream_t stream);

}  // namespace dsmoe::cuda
