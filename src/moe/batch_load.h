// The load of all experts by a batch whose tokens are spread over ranks.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "ops/gate.h"
#include "parallel/comm.h"

namespace dsmoe {

// Whether losses of these tokens depend on how often those of other ranks chose an expert (`others`: null where this rank
// has all tokens).
bool needs_load_of_all(const MoeConfig& config, const parallel::Comm* others);

// How often the tokens here chose each expert, from the plan or from the choices, which are on this machine. The plan's on
// a GPU is waited for: so ask as soon as it is launched, and sum up when all else is.
std::vector<std::int64_t> load_here(Context& ctx, const MoeConfig& config, const ops::Plan& plan);
std::vector<std::int64_t> load_here(const MoeConfig& config, const Tensor& experts);

// Of all ranks. None where this one has all tokens, or where no loss needs to know. `load`: what was chosen here, or empty
// where it is not needed.
std::optional<ops::BatchLoad> batch_load(const MoeConfig& config, const std::vector<std::int64_t>& load, Index tokens,
                                         Index sequence_length, parallel::Comm* others);

}  // namespace dsmoe
