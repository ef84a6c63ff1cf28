// AdamW over a list of tensors, in one pass over memory: clipping, moments, decay, update, rounding to storage, and the
// gradient cleared for the next step.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "dsmoe/context.h"
#include "dsmoe/tensor.h"

namespace dsmoe::ops {

struct AdamTensor {
  Tensor weight;    // f32
  Tensor gradient;  // f32
  Tensor m, v;      // f32
  Tensor stored;    // bf16 copy of the weight, written too; empty when the weight itself is used
  bool decay = false;
};

struct AdamOptions {
  double rate = 1e-3;  // of this step
  double beta1 = 0.9, beta2 = 0.95, epsilon = 1e-8, weight_decay = 0.1;
  double grad_scale = 1;  // multiplies the gradients first
  // Of clip_scale(): read when the update is made, in place of grad_scale. NaN: nothing is changed.
  Tensor scale = {};
  Index step = 1;     // from 1: the moments start at zero and are corrected for it
  bool clear = true;  // the gradients are zero afterwards; else they may be anything
};

void adamw(Context& ctx, std::span<AdamTensor> tensors, const AdamOptions& options);

// The sum of squares of all gradients, [1] f64. Its order of summation is fixed by the sizes of the tensors alone.
Tensor gradient_square(Context& ctx, std::span<const AdamTensor> tensors);

// What the gradients are to be multiplied by so that their norm is at most `clip` (0: any), [1] f64. When the norm is not
// finite, or a kernel has found a fault in its data, it is NaN, and so are all that come after it in the same tensor.
void clip_scale(Context& ctx, const Tensor& square, double clip, Tensor& scale);

namespace ref {
void adamw(std::span<AdamTensor> tensors, const AdamOptions& options);
double gradient_square(std::span<const AdamTensor> tensors);
void clip_scale(double square, double clip, double& scale);
}  // namespace ref
namespace cpu {
void adamw(Context& ctx, std::span<AdamTensor> tensors, const AdamOptions& options);
double gradient_square(Context& ctx, std::span<const AdamTensor> tensors);
}  // namespace cpu
namespace cuda {
void adamw(Context& ctx, std::span<AdamTensor> tensors, const AdamOptions& options);
void gradient_square(Context& ctx, std::span<const AdamTensor> tensors, Tensor& sum);
void clip_scale(Context& ctx, const Tensor& square, double clip, Tensor& scale);
}  // namespace cuda

}  // namespace dsmoe::ops
