// Sums and conversions of whole tensors. Every number is rounded once, so backends agree to the bit.
#pragma once

#include "dsmoe/context.h"
#include "dsmoe/tensor.h"

namespace dsmoe::ops {

// x += y. x is f32 (the residual stream, a gradient), y f32 or bf16 of the same shape.
void add(Context& ctx, const Tensor& y, Tensor& x);

// to = from, each f32 or bf16, of the same shape.
void convert(Context& ctx, const Tensor& from, Tensor& to);
// In f32 or bf16; x itself when it is in that already.
Tensor converted(Context& ctx, const Tensor& x, DType dtype);

// y += bias in every row. y [T, N] and bias [N] are f32 or bf16 each.
void add_bias(Context& ctx, const Tensor& bias, Tensor& y);

// dbias [N] f32 += the sum of the rows of dy [T, N].
void add_bias_backward(Context& ctx, const Tensor& dy, Tensor& dbias);

// to [n] f32 = parts[0] + parts[1] + ... of parts [P, n] f32, in this order.
void add_up(Context& ctx, const Tensor& parts, Tensor& to);

// x *= factor, f32.
void scale(Context& ctx, float factor, Tensor& x);

namespace ref {
void add(const Tensor& y, Tensor& x);
void convert(const Tensor& from, Tensor& to);
void add_bias(const Tensor& bias, Tensor& y);
void add_bias_backward(const Tensor& dy, Tensor& dbias);
void scale(float factor, Tensor& x);
void add_up(const Tensor& parts, Tensor& to);
}  // namespace ref

namespace cpu {
void add(Context& ctx, const Tensor& y, Tensor& x);
void convert(Context& ctx, const Tensor& from, Tensor& to);
void add_bias(Context& ctx, const Tensor& bias, Tensor& y);
void add_bias_backward(Context& ctx, const Tensor& dy, Tensor& dbias);
}  // namespace cpu

namespace cuda {
void add(Context& ctx, const Tensor& y, Tensor& x);
void convert(Context& ctx, const Tensor& from, Tensor& to);
void add_bias(Context& ctx, const Tensor& bias, Tensor& y);
void add_bias_backward(Context& ctx, const Tensor& dy, Tensor& dbias);
void scale(Context& ctx, float factor, Tensor& x);
void add_up(Context& ctx, const Tensor& parts, Tensor& to);
}  // namespace cuda

}  // namespace dsmoe::ops
