// Quantized matrices in GPU memory: the bytes of GGUF's blocks in another order (ops/cuda/packed_blocks.h). linear(),
// embedding() and the experts' products take them with bf16 activations.
#pragma once

#include <span>

#include "dsmoe/context.h"
#include "dsmoe/tensor.h"

namespace dsmoe::ops {

// Matrices [N, K] of one shape and one quantized dtype, in this machine's memory, one behind the other: [count * N, K]. N
// must be a multiple of 8 unless there is only one.
Tensor packed(Context& ctx, std::span<const Tensor> matrices);

// A packed matrix as bf16 [N, K].
Tensor unpacked(Context& ctx, const Tensor& matrix);

// A packed matrix of `rows` rows, with those of `some` (a multiple of 8 of them) over and over: for benchmarks.
Tensor packed_repeat(Context& ctx, const Tensor& some, Index rows);

namespace cuda {
Tensor packed(Context& ctx, std::span<const Tensor> matrices);
Tensor unpacked(Context& ctx, const Tensor& matrix);
Tensor packed_repeat(Context& ctx, const Tensor& some, Index rows);
}  // namespace cuda

}  // namespace dsmoe::ops
