// How the ranks of a run are laid out. Every rank has tokens of its own (data parallel); the routed experts of a layer are
// spread over the ranks of an expert group, and groups repeat each other. With R ranks and groups of M: ranks 0 to M - 1
// are the first group, M to 2M - 1 the second, and ranks r, r + M, r + 2M, ... have the same experts.
#pragma once

#include <memory>

#include "parallel/comm.h"

namespace dsmoe::parallel {

struct Mesh {
  std::shared_ptr<Comm> world;
  std::shared_ptr<Comm> data;     // the ranks with the same experts: they sum the gradients of those
  std::shared_ptr<Comm> experts;  // the ranks that have all experts between them
  // Of inference: every rank has all tokens, and computes what its experts do with them.
  bool same_tokens = false;
  // One sum per rank comes back instead of one row per expert: fewer bytes, but other roundings for other layouts.
  bool partial_sums = false;

  bool alone() const { return world->alone(); }
  bool spreads_experts() const { return !experts->alone(); }
  // Which of `routed` experts the rank `r` of an expert group has.
  Comm::Range experts_of(std::int64_t routed, int r) const { return experts->share(routed, r); }
  Comm::Range experts_here(std::int64_t routed) const { return experts->share(routed); }
};

// One process, alone.
Mesh one_rank();
// Throws where `expert_parallel` does not divide the number of ranks.
Mesh make_mesh(std::shared_ptr<Comm> world, std::int64_t expert_parallel);

}  // namespace dsmoe::parallel
