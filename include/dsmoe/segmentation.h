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
  Index shared = 0;       // Ks: how many of the split experts are shared
  Index expert_size = 0;  // F; 0 when unknown

  void validate() const;  // throws Error naming the field and why
  Architecture conventional() const;
  Architecture fine_grained() const;
  Architecture deepseek_moe() const;

  // The conventional layer that `layer` results from by this split; throws when there is none.
  static Segmentation of(const Architecture& layer, Index split);
  // The largest split that `layer` can result from and that leaves two or more active experts, as the paper's
  // conventional layers have; 1 when there is none.
  static Index coarsest_split(const Architecture& layer);
};

// How many sets of `active` experts can be chosen from `routed`: exact, in decimal.
std::string expert_combinations(Index routed, Index active);

}  // namespace dsmoe
