// The load of all experts by a batch whose tokens are spread over ranks.
#pragma once

#include <optional>

#include "ops/gate.h"
#include "parallel/comm.h"

namespace dsmoe {

// None where this rank has all tokens (`others` null, or alone), or where no loss needs to know. `plan`: of the
// tokens here. On a GPU this waits.
std::optional<ops::BatchLoad> batch_load(Context& ctx, const MoeConfig& config, const ops::Plan& plan,
                                         Index sequence_length, parallel::Comm* others);

}  // namespace dsmoe
