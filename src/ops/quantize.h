// Rows of f32 to and from GGUF's quantized types: the one place that knows how numbers become blocks.
#pragma once

#include <span>

#include "core/fail.h"
#include "dsmoe/dtype.h"
#include "ops/quant_blocks.h"

namespace dsmoe::ops {

// x.size() is a multiple of the type's block; `blocks` has room for row_bytes(dtype, x.size()). NaN, infinite and too
// large numbers (the scale of a block is an f16) are an Error. Q8_0, Q4_0 and Q5_0 follow GGUF's closed formulas; the
// K types have many encodings, of which a search for the least squared error picks one.
void quantize_row(DType dtype, std::span<const float> x, void* blocks);

// The numbers that the blocks stand for, exactly: dequantized x equals what every op here computes with.
void dequantize_row(DType dtype, const void* blocks, std::span<float> x);

// fn(a block of the type), for a pointer whose type says which.
template <class Fn>
void with_block_type(DType dtype, Fn fn) {
  switch (dtype) {
    case DType::kQ8_0: return fn(BlockQ8_0{});
    case DType::kQ4_0: return fn(BlockQ4_0{});
    case DType::kQ5_0: return fn(BlockQ5_0{});
    case DType::kQ4_K: return fn(BlockQ4_K{});
    case DType::kQ5_K: return fn(BlockQ5_K{});
    case DType::kQ6_K: return fn(BlockQ6_K{});
    default: fail(ErrorCode::kUnsupported, "{} is no quantized type", to_string(dtype));
  }
}

}  // namespace dsmoe::ops
