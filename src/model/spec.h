// What a model is, whatever file it came from: sizes, and for each layer an attention and a feed-forward. Families
// (families/) make a spec of their config.json; everything that computes, counts or lists parameters reads the spec.
// Behaviour is a number, a flag or a module here; no family names.
#pragma once

#include <cstdint>
#include <variant>
#include <vector>

#include "dsmoe/moe_config.h"
#include "dsmoe/rope_scaling.h"

namespace dsmoe {

// Norms of queries and keys, each with weights of its own.
enum class QkNorm : std::uint8_t {
  kNone,
  kHead,   // every head by itself, one weight [head_dim] for all heads
  kWidth,  // all heads of a token together, weight [heads * head_dim]
};

// Multi-head attention whose query heads share key/value heads (GQA), with rotary positions on heads or the first part of
// them.
struct GqaSpec {
  Index heads = 0;     // H
  Index kv_heads = 0;  // divides heads
  Index head_dim = 0;
  bool bias = false;         // of the projections to queries, keys and values
  bool output_bias = false;  // of the projection back
  QkNorm qk_norm = QkNorm::kNone;
  bool norm_turned = false;  // these norms come after rotary positions, not before
  double norm_eps = 0;       // of these norms
  Index rotary = 0;          // numbers of a head that files have turned; 0: the whole head (row_order.h)
};

// Multi-head latent attention (MLA): keys and values of all heads are made of one latent per token, and keys have a part
// more that all heads share and that rotary positions turn. A head's query is [nope | rope], its key the same.
struct MlaSpec {
  Index heads = 0;      // H
  Index q_rank = 0;     // numbers that queries are made of; 0: the token itself
  Index kv_rank = 0;    // of the latent
  Index nope = 0;       // of a head's query and key, which positions do not turn
  Index rope = 0;       // which they do
  Index value = 0;      // of a head's value
  double scale = 0;     // of the scores
  double norm_eps = 0;  // of the norms of the latent and of what queries are made of

  Index query() const { return nope + rope; }
  Index cached() const { return kv_rank + rope; }  // what is kept of a token
};

// One SwiGLU that every token runs.
struct DenseSpec {
  Index width = 0;
};

using AttentionSpec = std::variant<GqaSpec, MlaSpec>;
using FeedForwardSpec = std::variant<DenseSpec, MoeConfig>;

struct LayerSpec {
  AttentionSpec attention;
  FeedForwardSpec feed_forward;
};

struct RopeSpec {
  Index head_dim = 0;  // of a head, or of its part that is turned; the same in all layers
  double theta = 10000.0;
  RopeScaling scaling;
  Index max_positions = 0;  // that the model was trained for
  Index rotary = 0;         // numbers of a head that are turned; 0: all
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
