// Models made from models: without the experts that are used least, and with experts made of dense layers.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "formats/model_io.h"
#include "model/weights.h"
#include "study/routing_study.h"

namespace dsmoe::study {

// Tensors are handles, so this is cheap to copy.
struct LoadedModel {
  ModelConfig config;
  ModelWeights weights;
};

// A model that is computed tensor by tensor, so that it need not fit memory beside the one it is made of.
struct Surgery {
  ModelConfig config;
  TensorSource tensor;          // holds what it needs of the source's tensors
  std::function<void()> check;  // ModelWeights::check() of the sources

  ModelWeights weights() const;  // all at once, for small models
};

// Per layer, the `keep` experts that were chosen most, of each of its equal groups as many; the lower number among equals.
// Ascending, in the order of RoutingShape::layers.
std::vector<std::vector<Index>> most_used(const RoutingStudy& study, Index keep, Index groups = 1);

// The config of a model that is pruned to so many experts per layer; throws where there can be no such model.
ModelConfig pruned_config(const ModelConfig& config, Index keep);

// The model with these experts alone. All layers keep as many, since the config has one number for all.
Surgery prune(const LoadedModel& model, const std::vector<std::vector<Index>>& kept);

// A dense layer becomes experts by cutting its width I into m slices: FFN(x) = sum of FFN_p(x), p = 1..m, exactly.
// `shared` of the slices become shared experts, which every token has with weight 1. The other g = m - shared slices form a
// group; there are `copies` of the group, and a token is to run `active` of them: E = copies * g, K = active * g.
//
// Why the output does not change: within a group all experts have the same row in the router, so they have the same score,
// and choosing the K best takes whole groups (experts of one group lie side by side, and the lower index wins ties). With
// norm_topk_prob the weights of the K chosen sum to 1, so those of one slice, over the chosen groups, sum to 1 / g,
// whatever was chosen; the routed down projections are multiplied by g. This needs K > 1, for the reference does not
// normalise a single weight.
struct UpcycleOptions {
  Index copies = 8;
  Index slices = 4;  // m, a divisor of the dense width
  Index shared = 0;  // of the slices, less than m
  Index active = 1;
  Index keep_dense = 0;    // number of first layers that stay dense
  std::uint64_t seed = 0;  // of the router
};

// From one dense model: the same output at the start. From several of one shape (fine-tuned from one ancestor, say): copy i
// of a group comes from model i modulo their number, everything else is their mean.
Surgery upcycle(std::span<const LoadedModel> models, const UpcycleOptions& options);

}  // namespace dsmoe::study
