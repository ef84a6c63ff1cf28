// The dispatch plan: all (token, slot) pairs sorted by expert, over one list of S shared and then E routed experts.
// A shared expert is an expert that every token chooses with weight 1. The sort is stable, so the rows of an
// expert are in the order of the tokens.
#pragma once

#include <cstdint>
#include <vector>

#include "dsmoe/moe_config.h"
#include "ops/experts.h"
#include "ops/routing.h"

namespace dsmoe {

struct Plan {
  Index tokens = 0;
  std::vector<Index> offset;           // [S + E + 1]: expert e has rows [offset[e], offset[e + 1])
  std::vector<std::int32_t> token;     // [R] the row's token, R = T * (S + K)
  std::vector<float> weight;           // [R] what its output is multiplied by
  std::vector<std::int32_t> slot_row;  // [T * K] the row of the token's k-th choice: the inverse map

  Index rows() const { return static_cast<Index>(token.size()); }
  Index count(Index expert) const {
    return offset[static_cast<std::size_t>(expert) + 1] - offset[static_cast<std::size_t>(expert)];
  }
  ops::ExpertRows view() const { return {tokens, offset, token, weight}; }
};

// `shared`: the entries of the list that every token chooses; all shared experts may be one wide entry.
Plan make_plan(const MoeConfig& config, const ops::Chosen& chosen, Index shared);
inline Plan make_plan(const MoeConfig& config, const ops::Chosen& chosen) {
  return make_plan(config, chosen, config.shared_experts);
}

}  // namespace dsmoe
