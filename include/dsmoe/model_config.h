// What one MoE language model is: the fields of a Hugging Face config.json with model_type "deepseek", named as there, with
// the defaults of the reference's configuration class (which are not the released 16B model's); and those that other
// families add. Their other spellings and defaults are known to src/model/families.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "dsmoe/dtype.h"
#include "dsmoe/moe_config.h"
#include "dsmoe/rope_scaling.h"

namespace dsmoe {

struct ModelConfig {
  std::string model_type = "deepseek";
  Index vocab_size = 102400;                      // V
  Index hidden_size = 4096;                       // D
  Index intermediate_size = 11008;                // width of the dense layers
  Index moe_intermediate_size = 1407;             // F
  Index num_hidden_layers = 30;                   // L
  Index num_attention_heads = 32;                 // H
  std::optional<Index> num_key_value_heads = 32;  // none: as many as heads
  std::optional<Index> n_shared_experts;          // S; none: no shared experts
  std::optional<Index> n_routed_experts;          // E; none: every layer is dense
  std::optional<Index> num_experts_per_tok;       // K
  Index moe_layer_freq = 1;
  Index first_k_dense_replace = 0;
  bool norm_topk_prob = false;
  std::string scoring_func = "softmax";  // or "sigmoid"
  double aux_loss_alpha = 0.001;
  bool seq_aux = true;  // balance loss per sequence; false: over the batch
  std::string hidden_act = "silu";
  Index max_position_embeddings = 2048;
  double initializer_range = 0.02;
  double rms_norm_eps = 1e-6;
  bool use_cache = true;
  // Token ids belong to the tokenizer; bos and eos are not checked against vocab_size, since the class defaults
  // stand in files of small vocabularies too.
  std::optional<Index> pad_token_id;
  std::optional<Index> bos_token_id = 100000;
  std::vector<Index> eos_token_id = {100001};  // one number or a list in the file; empty: none
  Index pretraining_tp = 1;
  bool tie_word_embeddings = false;
  double rope_theta = 10000.0;
  RopeScaling rope_scaling;
  bool attention_bias = false;
  double attention_dropout = 0.0;  // in training only

  // Fields that variants of the family add.
  std::optional<Index> explicit_head_dim;  // "head_dim"; none: hidden_size / num_attention_heads
  bool mlp_bias = false;
  std::optional<DType> torch_dtype;  // "torch_dtype" or "dtype": what the weights are stored as
  // How experts are chosen: "greedy", from all; "group_limited_greedy", from the topk_group groups of the n_group with the
  // best expert (DeepSeek-V2); "noaux_tc", with a bias per expert (e_score_correction_bias) added to the scores for
  // choosing, from the groups whose two best experts have the largest sum (DeepSeek-V3).
  std::string topk_method = "greedy";
  std::optional<Index> n_group, topk_group;
  double routed_scaling_factor = 1.0;  // of the chosen experts' weights, after norm_topk_prob

  // Of other families; what they mean is said there (src/model/families).
  bool use_qk_norm = false;                              // queries and keys are normed
  double partial_rotary_factor = 1.0;                    // part of a head that rotary positions turn
  std::optional<Index> rotary_dim;                       // the same as a number; wins over the factor
  std::optional<Index> shared_expert_intermediate_size;  // width of all shared experts together
  Index num_nextn_predict_layers = 0;                    // layers behind the last, for predicting further tokens; not read
  // Latent attention (MLA): keys and values are made of kv_lora_rank numbers of a token, and of qk_rope_head_dim that all
  // heads share and that rotary positions turn. Without kv_lora_rank there is none of it.
  std::optional<Index> kv_lora_rank;
  std::optional<Index> q_lora_rank;  // queries are made of so many numbers; none: of the token itself
  Index qk_nope_head_dim = 0, qk_rope_head_dim = 0, v_head_dim = 0;
  bool rope_interleave = true;  // the two of a turned pair are side by side

  // Ours, for training: written to the file when set.
  double device_aux_loss_alpha = 0;  // the paper's device-level loss
  Index aux_loss_devices = 1;        // number of equal groups of experts for it
  double router_z_loss_alpha = 0;    // on the router's logits (ST-MoE)

  std::string source_json;  // the text it was read from: to_json keeps its unknown fields and its order

  // `source` names the text in errors, for example the path of the file. Reads and validates.
  static ModelConfig from_json(std::string_view text, const std::string& source);
  static ModelConfig load(const std::filesystem::path& path);  // a model's folder, the file itself, or a GGUF file
  static ModelConfig preset(std::string_view name);            // throws with the list of names when unknown
  static const std::vector<std::string>& preset_names();

  // A copy with other values of some fields: {"num_hidden_layers=8", "scoring_func=sigmoid"}. Values are as in config.json,
  // strings without quotes. They are set all at once, so that sizes which depend on each other can be changed together.
  ModelConfig with(const std::vector<std::string>& assignments) const;

  std::string to_json() const;  // indented, ends with a newline
  void validate() const;        // throws Error naming the field and why

  bool latent_attention() const { return kv_lora_rank.has_value(); }
  Index head_dim() const {  // of queries and keys
    if (latent_attention()) return qk_nope_head_dim + qk_rope_head_dim;
    return explicit_head_dim ? *explicit_head_dim : hidden_size / num_attention_heads;
  }
  // Numbers of a head that rotary positions turn.
  Index rotary_width() const {
    if (latent_attention()) return qk_rope_head_dim;
    if (rotary_dim || partial_rotary_factor == 1) return rotary_dim.value_or(head_dim());
    return static_cast<Index>(static_cast<double>(head_dim()) * partial_rotary_factor);
  }
  Index kv_heads() const { return num_key_value_heads.value_or(num_attention_heads); }
  Index shared_experts() const { return n_shared_experts.value_or(0); }
  Index routed_experts() const { return n_routed_experts.value_or(0); }
  bool selection_bias() const { return topk_method == "noaux_tc"; }
  Index expert_groups() const { return n_group.value_or(1); }
  Index experts_per_token() const { return num_experts_per_tok.value_or(0); }
  // The modulo is on the layer's own index: moe_layer_freq 2 and first_k_dense_replace 1 give layers 2, 4, 6, ...
  bool is_moe_layer(Index layer) const {
    return n_routed_experts.has_value() && layer >= first_k_dense_replace && layer % moe_layer_freq == 0;
  }
  Index moe_layers() const;          // how many layers are MoE
  MoeConfig moe(Index layer) const;  // of a MoE layer; throws when that layer is dense
};

}  // namespace dsmoe
