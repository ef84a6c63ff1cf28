// What a model needs before it exists: parameters, computation, memory, combinations of experts.
#pragma once

#include <optional>
#include <string>

#include "dsmoe/tensor.h"

namespace dsmoe {

// One of: a preset's name; the path of a config.json, a model's folder or a GGUF file; the text of a config.json; or the
// numbers of one conventional MoE layer and how it is cut (dsmoe/segmentation.h). 0: not given.
struct PlanRequest {
  std::string preset, config, config_json;

  std::optional<Index> experts;            // N
  Index active = 0;                        // K
  std::optional<Index> split;              // m; with a model: how much it was split, unset for the coarsest that fits
  Index shared = 0;                        // Ks
  Index hidden_size = 0, expert_size = 0;  // adds the sizes of the MoE layers
  Index layers = 0, vocab_size = 0;        // adds the rest of a model

  Index context = 0;  // 0: the model's, or 4096
  Index batch = 0;    // sequences of a training pass on a GPU, or of a step of all ranks; 0: not asked for

  // Of training by many processes: how many, over how many of them the routed experts are spread, ZeRO's stage, and
  // whether one sum per rank comes back instead of all rows.
  Index ranks = 1, expert_parallel = 1, zero = 0;
  bool partial_sums = false;
  // Ranks of a machine, of which the first ones are a group of experts: what they send is inside it. 0: all of them.
  Index ranks_per_machine = 0;
  // And how long a step takes at best, in bf16, and with which layout: the card of each rank ("h100"), bytes per second
  // that a rank sends to others, and the share of the card's peak that one rank by itself reaches. "": not asked for.
  std::string card;
  double link = 0, efficiency = 1;
  double link_inside = 0;  // bytes per second to ranks of the same machine, where `link` is that to others; 0: the same
  // How unevenly experts are used, which all wait for: how many times its even share the busiest expert of a layer has
  // (0: twice), or the JSON file of an inspection that has counted it for each.
  double expert_load_max = 0;
  std::string expert_loads;
};

// As JSON, with the keys of `dsmoe plan --json`. Numbers of combinations are strings: they do not fit a JSON number.
std::string plan_json(const PlanRequest& request);

}  // namespace dsmoe
