// Rows of f32 to and from GGUF's quantized types: the one place that knows how numbers become blocks.
#pragma once

#include <span>

#include "dsmoe/dtype.h"

namespace dsmoe::ops {

// x.size() is a multiple of the type's block; `blocks` has room for row_bytes(dtype, x.size()). NaN, infinite and too
// large numbers (the scale of a block is an f16) are an Error. Q8_0, Q4_0 and Q5_0 follow GGUF's closed formulas; the
// K types have many encodings, of which a search for the least squared error picks one.
void quantize_row(DType dtype, std::span<const float> x, void* blocks);

// The numbers that the blocks stand for, exactly: dequantized x equals what every op here computes with.
void dequantize_row(DType dtype, const void* blocks, std::span<float> x);

}  // namespace dsmoe::ops
