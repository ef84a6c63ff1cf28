// Launchers of the Hopper kernels. Pointers are device pointers; sizes and plans as in plan.h.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include "ops/cuda/kernels.h"
#include "ops/cuda/norm.h"

namespace dsmoe::cuda::hopper {

using bf16 = __nv_bfloat16;

// Gate and plan of few tokens in one launch of one cluster. Of the plan it makes what inference needs: offset, token,
// slot_row and the tiles.
bool can_route_few(const MoeConfig& config, Index tokens);
void route_few(const MoeConfig& config, const Sizes& s, const GateInput& in, const ChosenView& out, const PlanView& plan,
               cudaStream_t stream);

// The same for one token, with the residual sum and the norm that give x, which goes to `normed`; in.x is null. The next
// kernel is gate_up_one(): this one lets it start before there is anything to read but weights.
bool can_route_one(const MoeConfig& config);
void route_one(const MoeConfig& config, const Sizes& s, const GateInput& in, const AddNormRow<float>& norm, bf16* normed,
               const ChosenView& out, const PlanView& plan, cudaStream_t stream);

// h[R, F] = silu(x W_gate') * (x W_up'); also gate_up[R, 2F] when that is not null. `sorted` holds x as gather_rows()
// leaves it; when it is null the kernel gathers by itself, which is better for few tokens.
void gate_up(const Sizes& s, const PlanView& plan, const bf16* x, const bf16* sorted, const bf16* weights, bf16* h,
             bf16* gate_up, cudaStream_t stream);

// out[R, columns] = h W_down', output columns [first, first + columns) of D.
void down(const Sizes& s, const PlanView& plan, const bf16* h, const bf16* weights, bf16* out, int first, int columns,
          cudaStream_t stream);

// One token alone, with no more than 8 experts, in inference: the same bits, and down adds up the experts: y[D], with the
// weight of each chosen one.
bool is_one_token(const Sizes& s);
void gate_up_one(const Sizes& s, const PlanView& plan, const bf16* x, const bf16* weights, bf16* h, cudaStream_t stream);
void down_one(const Sizes& s, const PlanView& plan, const bf16* h, const bf16* weights, const float* weight, bf16* y,
              cudaStream_t stream);

// From gate_up[R, 2F] and dy: overwrites gate_up with its gradient, writes weighted[R, F] = row weight * h, and
// weight_grad[R, parts] whose sums over parts are d loss / d row weight. sorted_dy as gather_rows() leaves it.
int hidden_backward_parts(const Sizes& s);
void hidden_backward(const Sizes& s, const PlanView& plan, const bf16* dy, const bf16* sorted_dy, const bf16* down_weights,
                     bf16* gate_up, bf16* weighted, float* weight_grad, cudaStream_t stream);

// out[R, columns] = dgate_up W_gate_up, output columns [first, first + columns) of D.
void input_backward(const Sizes& s, const PlanView& plan, const bf16* dgate_up, const bf16* weights, bf16* out, int first,
                    int columns, cudaStream_t stream);

// Per expert: grad[m, D] (or its transpose [D, m]) = a[rows, m]' * b[token of row, D].
struct WeightGrad {
  const bf16* a;         // [R, m]
  const bf16* b;         // [T, D]
  const bf16* sorted_b;  // the same as gather_rows() leaves it
  int m;
  bool transposed;  // grad is [experts, D, m] instead of [experts, m, D]
  void* grad;
  bool f32, accumulate;
  // Shared experts' tokens in parts of part_rows, a multiple of 64: their sums, f32 [parts, S, m, D] (or [D, m]), go here
  // instead, and are to be added up.
  int parts = 1, part_rows = 0;
  float* partial = nullptr;
};
void weight_backward(const Sizes& s, const PlanView& plan, const WeightGrad& g, cudaStream_t stream);

// The gate's products with dlogits as the sum of two bf16, [T, 2, split]: dx[T, D], and
// partial[slices, 2 * split, D] over slices of `slice` tokens, a multiple of 64.
void gate_input_backward(const Sizes& s, int experts, int split, const bf16* dlogits, const bf16* gate, bf16* dx,
                         cudaStream_t stream);
void gate_weight_backward(const Sizes& s, int split, int slice, const bf16* dlogits, const bf16* x, float* partial,
                          cudaStream_t stream);

}  // namespace dsmoe::cuda::hopper
