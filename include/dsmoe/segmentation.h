// The three architectures that the DeepSeekMoE paper compares (section 3), from the numbers of one conventional
// layer of N experts of width F of which K run per token:
//
//                                   routed    active    shared  width
//   (a) conventional top-K          N         K         0       F
//   (b) fine-grained, m             mN        mK        0       F/m
//   (c) DeepSeekMoE, m and Ks       mN - Ks   mK - Ks   Ks      F/m
//
// Expert parameters and expert computation are the same for all three.
#pragma once

#include <string>

#include "dsmoe/moe_config.h"

namespace dsmoe {

struct Architecture {
  Index routed = 0;
  Index active = 0;  // routed experts chosen per token; the shared ones come on top
  Index shared = 0;
  Index width = 0;  // of one expert; 0 when unknown

  MoeConfig apply(MoeConfig base) const;  // base with these numbers of experts and this width
  friend bool operator==(const Architecture&, const Architecture&) = default;
};

struct Segmentation {
  static constexpr Index kMaxExperts = 65536;  // mN; keeps exact counting of combinations under a second

  Index experts = 0;      // N
  Index active = 0;       // K
  Index split = 1;        // m: every expert becomes m experts of a part of its width
  Index shared = 0;       // Ks: so many of them serve every token
  Index expert_size = 0;  // F; 0 when unknown

  void validate() const;  // throws Error naming the field and why
  Architecture conventional() const;
  Architecture fine_grained() const;
  Architecture deepseek_moe() const;

  // The layer of which `layer` is the DeepSeekMoE form with this split; throws when it does not divide.
  static Segmentation of(const Architecture& layer, Index split);
  // The largest split of which `layer` can be the result and that leaves at least two active experts, as the
  // paper's conventional layers have; 1 when there is none.
  static Index coarsest_split(const Architecture& layer);
};

// How many sets of `active` experts can be chosen from `routed`: exact, in decimal.
std::string expert_combinations(Index routed, Index active);

}  // namespace dsmoe
