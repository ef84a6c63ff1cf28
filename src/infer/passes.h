// Which requests of a step run in one pass of the model.
#pragma once

#include <vector>

#include "infer/scheduler.h"

namespace dsmoe::infer {

// Overrides are those of a pass, so requests with different ones run in passes of their own; embeddings take no logits, and
// a prompt whose tokens are scored takes those of every row, so it runs alone.
std::vector<std::vector<Share>> passes_of(const std::vector<Share>& shares);

}  // namespace dsmoe::infer
