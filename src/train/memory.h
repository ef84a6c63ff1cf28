// What training holds in memory.
#pragma once

#include <cstddef>

#include "dsmoe/model_config.h"

namespace dsmoe::train {

// Bytes that a pass over `sequences` of `length` tokens keeps from forward to backward (recompute: the blocks' inputs, and
// all of one block): the sum of what the modules say.
std::size_t kept_activation_bytes(const ModelConfig& config, DType dtype, Index sequences, Index length, bool recompute);

}  // namespace dsmoe::train
