// The products of ops/experts.h without their sums: what a rank computes for the tokens of others, which add up the rows of
// their tokens themselves. Added in the order of the backend (docs/design/determinism.md), the bits are those of
// experts_down_combine() and experts_gate_up_backward(). Such rows are f32 on the CPU, which rounds only sums, and have the
// dtype of the weights on a GPU, which sums rounded rows.
#pragma once

#include <span>

#include "ops/experts.h"

namespace dsmoe::ops {

// The plan of R rows that are tokens of their own: the i-th goes to expert[i] of `experts` alone.
Plan plan_of_rows(Context& ctx, const MoeConfig& config, std::span<const std::int32_t> expert,
                  std::span<const float> weight, Index experts, DType dtype);

// [R, D] W_down h of each row, without its weight; in the order of the tokens of a plan_of_rows().
Tensor expert_rows(Context& ctx, const Experts& w, const Plan& plan, const Tensor& h);
// The same of experts_gate_up_backward(): each row's own gradient.
Tensor expert_row_grads(Context& ctx, const Experts& w, const Plan& plan, const ExpertRowGrads& d);

// For a plan_of_shared(): [T, D] f32, the sum of each token's rows; and the sum of their gradients, added to dx [T, D] f32.
Tensor shared_sums(Context& ctx, const Experts& w, const Plan& plan, const Tensor& h);
void add_shared_grads(Context& ctx, const Experts& w, const Plan& plan, const ExpertRowGrads& d, Tensor& dx);

// sums [T, D] f32: sums[t] += weight[t, j] * rows[row[t, j]] for j = 0, 1, ... K - 1, in this order; weights of 1 when
// empty. row [T, K] i32, -1 for none, weight [T, K] f32, rows [R, D].
void add_rows(Context& ctx, const Tensor& row, const Tensor& weight, const Tensor& rows, Tensor& sums);

// to[i] = from[index[i]], rows of any dtype; index i32.
Tensor gathered_rows(Context& ctx, const Tensor& from, const Tensor& index);

namespace cuda {
Tensor expert_rows(Context& ctx, const Experts& w, const Plan& plan, const Tensor& h);
Tensor expert_row_grads(Context& ctx, const Experts& w, const Plan& plan, const ExpertRowGrads& d);
Tensor shared_sums(Context& ctx, const Experts& w, const Plan& plan, const Tensor& h);
void add_shared_grads(Context& ctx, const Experts& w, const Plan& plan, const ExpertRowGrads& d, Tensor& dx);
void add_rows(Context& ctx, const Tensor& row, const Tensor& weight, const Tensor& rows, Tensor& sums);
// The rows of `each` sums of T rows one after another, added to sums [T, D].
void add_rows_in_turn(Context& ctx, int each, const Tensor& rows, Tensor& sums);
Tensor gathered_rows(Context& ctx, const Tensor& from, const Tensor& index);
}  // namespace cuda

}  // namespace dsmoe::ops
