// Numbers to any storage of a GGUF file.
#pragma once

#include <span>

#include "dsmoe/tensor.h"

namespace dsmoe {

// One row; ops::to_floats is the reverse. Rounds to nearest. Throws Error for numbers that the storage has no place for
// (infinite, NaN, too large for f16).
void write_row(DType dtype, std::span<const float> from, void* to);

// The whole tensor as f32, bf16 or f16; the same handle when nothing changes.
Tensor to_plain(const Tensor& tensor, DType dtype);

}  // namespace dsmoe
