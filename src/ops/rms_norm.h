// y = weight * x / sqrt(mean(x²) + eps), each token on its own. x [T, D] is the residual stream, always f32.
#pragma once

#include "dsmoe/context.h"
#include "dsmoe/tensor.h"

namespace dsmoe::ops {

// weight [D] and y [T, D] are f32 or bf16 each.
void rms_norm(Context& ctx, const Tensor& x, const Tensor& weight, float eps, Tensor& y);

// sum = x + y, then the norm of it into h: a block's residual sum and the norm that follows it. y is f32 or bf16; sum may
// be x itself.
void add_rms_norm(Context& ctx, const Tensor& y, const Tensor& x, const Tensor& weight, float eps, Tensor& sum, Tensor& h);

// The residual sum and the norm that an op begins with: x becomes x + y (as it is where y is empty), and the op is given
// the norm of that. Ops that take this do what add_rms_norm() would have done before them; some kernels do both in one
// launch.
struct AddNorm {
  const Tensor& y;
  Tensor& x;
  const Tensor& weight;
  float eps;
  DType dtype;  // of the norm
  bool keep;    // the sum has memory of its own, which it may have anyway: the x before stays what it was
};
Tensor add_rms_norm(Context& ctx, const AddNorm& in);

// dx [T, D] f32 += and dweight [D] f32 +=, from dy [T, D] in f32 or bf16. The inverse root is computed again. `rounded`: a
// bf16 copy of dx for the products that follow.
void rms_norm_backward(Context& ctx, const Tensor& dy, const Tensor& x, const Tensor& weight, float eps, Tensor& dx,
                       Tensor& dweight, Tensor* rounded = nullptr);

namespace ref {
void rms_norm(const Tensor& x, const Tensor& weight, float eps, Tensor& y);
void rms_norm_backward(const Tensor& dy, const Tensor& x, const Tensor& weight, float eps, Tensor& dx, Tensor& dweight);
}  // namespace ref

namespace cpu {
void rms_norm(Context& ctx, const Tensor& x, const Tensor& weight, float eps, Tensor& y);
void rms_norm_backward(Context& ctx, const Tensor& dy, const Tensor& x, const Tensor& weight, float eps, Tensor& dx,
                       Tensor& dweight);
}  // namespace cpu

namespace cuda {
void rms_norm(Context& ctx, const Tensor& x, const Tensor& weight, float eps, Tensor& y);
void add_rms_norm(Context& ctx, const Tensor& y, const Tensor& x, const Tensor& weight, float eps, Tensor& sum, Tensor& h);
void rms_norm_backward(Context& ctx, const Tensor& dy, const Tensor& x, const Tensor& weight, float eps, Tensor& dx,
                       Tensor& dweight, Tensor* rounded);
}  // namespace cuda

}  // namespace dsmoe::ops
