// What a model is, whatever file it came from: sizes, and for each layer an attention and a feed-forward. Families
// (families/) make a spec of their config.json; everything that computes, counts or lists parameters reads the spec.
// Behaviour is a number, a flag or a module here; no family names.
#pragma once

#include <variant>
#include <vector>

#include "dsmoe/moe_config.h"
#include "dsmoe/rope_scaling.h"

namespace dsmoe {

// Multi-head attention whose query heads share key/value heads (GQA), with rotary positions on whole heads.
struct GqaSpec {
  Index heads = 0;     // H
  Index kv_heads = 0;  // divides heads
  Index head_dim = 0;
  bool bias = false;  // of all four projections
};

// One SwiGLU that every token runs.
struct DenseSpec {
  Index width = 0;
};

using AttentionSpec = std::variant<GqaSpec>;
using FeedForwardSpec = std::variant<DenseSpec, MoeConfig>;

struct LayerSpec {
  AttentionSpec attention;
  FeedForwardSpec feed_forward;
};

struct RopeSpec {
  Index head_dim = 0;  // numbers of a head that are turned; the same in all layers
  double theta = 10000.0;
  RopeScaling scaling;
  Index max_positions = 0;  // that the model was trained for
};

struct ModelSpec {
  Index vocab = 0;  // V
  Index width = 0;  // D
  double norm_eps = 0;
  RopeSpec rope;
  bool tied_head = false;  // the head is the embedding's own tensor
  std::vector<LayerSpec> layers;
};

}  // namespace dsmoe
