// Checkpoints whose projections are 8-bit floats (e4m3) with one scale per block of 128 x 128: a weight "X.weight" in
// F8_E4M3 and its scales "X.weight_scale_inv", which multiply it in spite of their name.
#pragma once

#include <string>

#include "io/checkpoint.h"

namespace dsmoe {

bool is_fp8(const io::Checkpoint& checkpoint, const std::string& name);
std::string fp8_scale_name(const std::string& weight);

// The matrix as bf16. Scales are F32, BF16 or powers of two (F8_E8M0). NaN in either is an Error.
Tensor read_fp8(const io::Checkpoint& checkpoint, const std::string& name, const Shape& shape);

}  // namespace dsmoe
