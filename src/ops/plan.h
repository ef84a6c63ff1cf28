// The dispatch plan on the CPU: a stable counting sort of the (token, choice) pairs by expert.
#pragma once

#include "ops/gate.h"

namespace dsmoe::ops {

// `shared`: the entries of the list that every token takes; all shared experts may be one wide entry.
Plan make_plan(const MoeConfig& config, const Chosen& chosen, Index shared);

}  // namespace dsmoe::ops
