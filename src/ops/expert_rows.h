// The products of ops/experts.h without their sums: what a rank computes for the tokens of others, which add up the rows of
// their tokens themselves. Row by row and in the order of the experts, the bits are those of experts_down_combine() and
// experts_gate_up_backward(). CPU only.
#pragma once

#include <span>

#include "ops/experts.h"

namespace dsmoe::ops {

// The plan in which row r is the whole of "token" place[r], with weight 1: products are then not summed.
Plan rows_apart(const Plan& plan, std::span<const std::int32_t> place);

// [plan.tokens, D] f32: experts_down_combine() before it is rounded.
Tensor expert_sums(Context& ctx, const Experts& w, const Plan& plan, const Tensor& h);

// dx [plan.tokens, D] f32 += the rows' gradients in the order of the experts: experts_gate_up_backward() before rounding.
void add_expert_grads(Context& ctx, const Experts& w, const Plan& plan, const ExpertRowGrads& d, Tensor& dx);
// The same for rows that are apart: [R, D] f32, each the row's own gradient.
Tensor expert_row_grads(Context& ctx, const Experts& w, const Plan& apart, const ExpertRowGrads& d);

// sums [T, D] f32: sums[t] += weight[t, j] * rows[row[t, j]] for j = 0, 1, ... K - 1, in this order; weights of 1 when
// empty. row [T, K] i32, -1 for none, weight [T, K] f32, rows [R, D] f32.
void add_rows(Context& ctx, const Tensor& row, const Tensor& weight, const Tensor& rows, Tensor& sums);

// to[i] = from[index[i]], rows of any dtype.
Tensor gathered_rows(Context& ctx, const Tensor& from, std::span<const std::int32_t> index);

}  // namespace dsmoe::ops
