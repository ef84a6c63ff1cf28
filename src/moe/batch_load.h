// The load of all experts by a batch whose tokens are spread over ranks.
#pragma once

#include <optional>

#include "ops/gate.h"
#include "parallel/comm.h"

namespace dsmoe {

// None where this rank has all tokens (`others` null, or alone), or where no loss needs to know.
std::optional<ops::BatchLoad> batch_load(const MoeConfig& config, const ops::Chosen& chosen, Index sequence_length,
                                         parallel::Comm* others);

}  // namespace dsmoe
