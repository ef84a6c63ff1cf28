// The architectures of GGUF files, one row per family: what roles (Parameter::role) are called there, and what readers of
// such files take for granted.
#pragma once

#include <span>
#include <string_view>

#include "dsmoe/model_config.h"

namespace dsmoe {

struct GgufName {
  std::string_view role, name;  // in a layer without "blk.N."
};

// In the order of a token's way through the model, which is that in which we write them.
struct GgufNames {
  std::span<const GgufName> before, layer, after;
};

// Something that readers do always, never, or as a key of the file says.
enum class GgufRule : std::uint8_t { kNever, kAlways, kKey };

struct GgufArchitecture {
  std::string_view name;        // general.architecture
  std::string_view model_type;  // of the family
  GgufNames names;
  std::string_view feed_forward_norm = "ffn_norm.weight";
  bool pairs = false;                          // rows of q and k: the two of a turned pair side by side (row_order.h)
  GgufRule normalised = GgufRule::kNever;      // the chosen experts' scores are divided by their sum
  GgufRule selection_bias = GgufRule::kNever;  // kKey: whether there is such a tensor
  bool any_score = false;                      // expert_gating_func and expert_weights_scale are read; else a softmax
  bool any_head = true;                        // attention.key_length is read
  bool latent = false;                         // latent attention (MLA), YaRN, and groups of experts
  bool partial_rotary = false;                 // rope.dimension_count may be less than a head
  bool qkv_bias = false;                       // q, k and v may have biases
  bool needs_shared = false;                   // a MoE layer has shared experts
  bool needs_head = false;                     // output.weight, even where it is the embedding
  bool needs_equal_heads = false;              // as many key/value heads as heads
  bool dense_layers = false;                   // leading_dense_block_count is read
  bool further_layers = false;                 // block_count counts those of nextn_predict_layers, which are passed over
  bool shared_width = false;                   // expert_shared_feed_forward_length is written
  bool layer_step = false;                     // interleave_moe_layer_step is written: 1, as every layer is a MoE layer
};

const GgufArchitecture& gguf_architecture_of(std::string_view model_type);  // an Error for a family that has none
const GgufArchitecture* find_gguf_architecture(std::string_view name);      // the first; null for an unknown one
std::string known_gguf_architectures();

}  // namespace dsmoe
