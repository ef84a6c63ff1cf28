// Quantized matrices in another order, for products on the CPU: 32 neighbouring rows become one stream of as many bytes,
// in place, where four numbers of 16 rows fill a vector. So a lane is a row: nothing is transposed, and no sum crosses
// lanes. docs/design/quantized-cpu.md says what it brings.
#pragma once

#include <span>

#include "dsmoe/context.h"
#include "dsmoe/tensor.h"

namespace dsmoe::ops {

// Whether the rows of a matrix fill groups; else it stays as it is.
bool can_repack(const Tensor& matrix);
// The same memory, which must be the caller's to write. [rows, columns]
Tensor repacked(Context& ctx, Tensor matrix);
// What row `row` of a group of 32 stands for: dequantize_row() of the row that it was.
void repacked_row(DType dtype, const void* group, Index row, std::span<float> x);

}  // namespace dsmoe::ops
