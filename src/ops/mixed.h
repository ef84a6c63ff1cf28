// Products of f32 rows with matrices in the dtype of a file: f16, bf16, quantized, or a mixture. linear(), head_linear()
// and the grouped products come here when a matrix has another dtype than the rows; there is no backward.
//
// With a quantized matrix the rows are rounded to 8 bits in blocks of 32 neighbours: that, and the dequantized weights, is
// what is multiplied; the CPU kernels differ from the reference by the rounding of f32 sums alone.
#pragma once

#include <span>

#include "dsmoe/context.h"
#include "dsmoe/tensor.h"
#include "ops/experts.h"
#include "ops/heads.h"
#include "ops/linear.h"

namespace dsmoe::ops {

// One row of a matrix of any dtype as f32.
void to_floats(DType dtype, const void* row, std::span<float> x);
// Row `row` of a matrix, which may be repacked; ld numbers from one row to the next.
void row_to_floats(DType dtype, const void* matrix, Index ld, Index row, std::span<float> x);
// A tensor of any dtype as f32 or bf16: one rounding of what its blocks stand for.
Tensor dequantized(const Tensor& t, DType dtype);

namespace ref {
void linear_mixed(const Tensor& x, const Tensor& w, Tensor& y);
void head_linear_mixed(const HeadNumbers& x, const HeadRows& w, HeadNumbers& y);
void experts_gate_up_mixed(const Experts& w, const ExpertRows& rows, const Tensor& x, Tensor& h);
void experts_down_combine_mixed(const Experts& w, const ExpertRows& rows, const Tensor& h, Tensor& y);
}  // namespace ref

namespace cpu {
void linear_mixed(Context& ctx, const Tensor& x, std::span<const Projection> projections);
void head_linear_mixed(Context& ctx, const HeadNumbers& x, const HeadRows& w, HeadNumbers& y);
void experts_gate_up_mixed(Context& ctx, const Experts& w, const ExpertRows& rows, const Tensor& x, Tensor& h);
void experts_down_combine_mixed(Context& ctx, const Experts& w, const ExpertRows& rows, const Tensor& h, Tensor& y);
}  // namespace cpu

}  // namespace dsmoe::ops
