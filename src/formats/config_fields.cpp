#include "formats/config_fields.h"

#include <algorithm>
#include <cmath>
#include <string_view>

#include "core/fail.h"
#include "model/families/family.h"

namespace dsmoe {

namespace {

using Json = json_read::OrderedJson;

// Whether a value leaves the model as this library computes it. Null always does.
using Harmless = bool (*)(const Json& value, const Json& object, const ModelConfig& config);

bool never(const Json&, const Json&, const ModelConfig&) { return false; }
bool off(const Json& v, const Json&, const ModelConfig&) {  // false, 0, an empty list
  return v == false || v == 0 || (v.is_structured() && v.empty());
}
bool one(const Json& v, const Json&, const ModelConfig&) { return v == 1; }

bool all_are_full(const Json& v) {
  return v.is_array() && std::all_of(v.begin(), v.end(), [](const Json& layer) { return layer == "full_attention"; });
}
bool window_is_off(const Json&, const Json& object, const ModelConfig& c) {
  if (object.contains("layer_types") && all_are_full(object["layer_types"])) return true;
  const Index from = family_of(c.model_type).window_from_layer;
  if (from == 0) return object.contains("use_sliding_window") && object["use_sliding_window"] == false;
  const Json* const said = json_read::find(object, "max_window_layers");
  return said ? said->is_number_integer() && *said >= c.num_hidden_layers : from >= c.num_hidden_layers;
}
// Some classes have a window by default.
bool window_is_missing(const Json& object, const ModelConfig& c) {
  return family_of(c.model_type).window_from_layer > 0 && !object.contains("sliding_window") &&
         !window_is_off({}, object, c);
}
bool all_full(const Json& v, const Json&, const ModelConfig&) { return all_are_full(v); }
bool whole_head(const Json& v, const Json&, const ModelConfig& c) { return v == c.head_dim(); }
bool usual_scale(const Json& v, const Json&, const ModelConfig& c) {
  const double usual = 1 / std::sqrt(static_cast<double>(c.head_dim()));
  return v.is_number() && std::fabs(v.get<double>() / usual - 1) < 1e-6;
}
bool routed_experts(const Json& v, const Json&, const ModelConfig& c) { return v == c.routed_experts(); }
bool shared_experts(const Json& v, const Json&, const ModelConfig& c) { return v == c.shared_experts(); }
bool shared_width(const Json& v, const Json&, const ModelConfig& c) {
  Index width = 0;  // without routed experts nothing has checked the two
  return !__builtin_mul_overflow(c.shared_experts(), c.moe_intermediate_size, &width) && v == width;
}
bool experts_per_token(const Json& v, const Json&, const ModelConfig& c) { return v == c.experts_per_token(); }
bool scoring(const Json& v, const Json&, const ModelConfig& c) { return v == c.scoring_func; }
bool biased(const Json& v, const Json&, const ModelConfig& c) { return v == c.selection_bias(); }
bool sparse_layers(const Json& v, const Json&, const ModelConfig& c) {
  if (!v.is_array() || static_cast<Index>(v.size()) != c.num_hidden_layers) return false;
  for (Index l = 0; l < c.num_hidden_layers; ++l)
    if (v[static_cast<std::size_t>(l)] != (c.is_moe_layer(l) ? "sparse" : "dense")) return false;
  return true;
}

// 8-bit floats with a scale per block of 128 x 128, which are read to bf16 (fp8.h).
bool fp8_blocks(const Json& v, const Json&, const ModelConfig&) {
  if (!v.is_object() || v.value("quant_method", Json()) != "fp8") return false;
  const Json format = v.value("fmt", Json("e4m3")), scheme = v.value("activation_scheme", Json("dynamic"));
  return (format == "e4m3" || format == "float8_e4m3fn") && scheme == "dynamic" &&
         v.value("weight_block_size", Json()) == Json({128, 128});
}
bool per_layer(const Json& v, const Json&, const ModelConfig&) { return v == "per_layer"; }
bool on(const Json& v, const Json&, const ModelConfig&) { return v == true; }
bool all_ones(const Json& v, const Json&, const ModelConfig&) {
  return v.is_array() && std::all_of(v.begin(), v.end(), [](const Json& layer) { return layer == 1; });
}
bool last_layer(const Json& v, const Json&, const ModelConfig& c) {
  return v == -1 || (v.is_number_integer() && v.get<std::int64_t>() >= c.num_hidden_layers - 1);
}

constexpr const char* kUnquantized =
    "weights that are quantized in this way are not supported; use the model's unquantized weights or a GGUF file";
constexpr const char* kMla = "latent attention (MLA) is not supported in models of this model_type";
constexpr const char* kQkNorm = "norms of queries and keys are not supported";
constexpr const char* kBias = "write attention_bias instead, which is for all four projections";
constexpr const char* kScaled = "scaled activations are not supported";
constexpr const char* kCapped = "soft caps are not supported";
constexpr const char* kPartial = "rotary positions on a part of a head are not supported";
constexpr const char* kLayers = "which layers are MoE is said by first_k_dense_replace and moe_layer_freq";

constexpr const char* kDropped = "experts that pass over tokens are not supported";

struct Refused {
  std::string_view field;
  Harmless harmless;
  const char* why;
};

constexpr Refused kRefused[] = {
    {"quantization_config", fp8_blocks, kUnquantized},
    {"compression_config", never, kUnquantized},
    {"sliding_window", window_is_off, "attention over a window is not supported; write null to attend to all tokens"},
    {"layer_types", all_full, "only layers of \"full_attention\" are supported"},
    {"attention_chunk_size", never, "attention in chunks is not supported"},
    {"no_rope_layers", off, "layers without rotary positions are not supported"},
    {"no_rope_layer_interval", off, "layers without rotary positions are not supported"},
    {"alibi", off, "ALiBi is not supported"},
    {"q_lora_rank", never, kMla},
    {"kv_lora_rank", never, kMla},
    {"partial_rotary_factor", one, kPartial},
    {"rotary_pct", one, kPartial},
    {"rotary_dim", whole_head, kPartial},
    {"rope_interleave", off, "rotary positions in pairs are not supported"},
    {"rope_local_base_freq", never, "a second rope_theta is not supported"},
    {"use_qk_norm", off, kQkNorm},
    {"qk_norm", off, kQkNorm},
    {"qk_layernorm", off, kQkNorm},
    {"clip_qkv", never, "clipped queries, keys and values are not supported"},
    {"attention_multiplier", usual_scale, "only 1 / sqrt(head_dim) is supported"},
    {"query_pre_attn_scalar", whole_head, "only head_dim is supported"},
    {"attn_logit_softcapping", off, kCapped},
    {"final_logit_softcapping", off, kCapped},
    {"logit_scale", one, kScaled},
    {"logits_scaling", one, kScaled},
    {"embedding_multiplier", one, kScaled},
    {"residual_multiplier", one, kScaled},
    {"scale_emb", one, kScaled},
    {"scale_depth", never, kScaled},
    {"norm_head", off, "a normalised head is not supported"},
    {"swiglu_limit", never, "a limited SwiGLU is not supported"},
    {"use_bias", off, kBias},
    {"qkv_bias", off, kBias},
    {"use_qkv_bias", off, kBias},
    {"add_qkv_bias", off, kBias},
    {"num_experts", routed_experts, "write n_routed_experts"},
    {"num_local_experts", routed_experts, "write n_routed_experts"},
    {"moe_num_experts", routed_experts, "write n_routed_experts"},
    {"num_shared_experts", shared_experts, "write n_shared_experts"},
    {"moe_num_shared_experts", shared_experts, "write n_shared_experts"},
    {"shared_expert_intermediate_size", shared_width,
     "write n_shared_experts; shared experts behind a gate are those of model_type \"qwen2_moe\""},
    {"moe_shared_expert_intermediate_size", shared_width, "write n_shared_experts"},
    {"experts_per_token", experts_per_token, "write num_experts_per_tok"},
    {"moe_k", experts_per_token, "write num_experts_per_tok"},
    {"moe_topk", experts_per_token, "write num_experts_per_tok"},
    {"score_function", scoring, "write scoring_func"},
    {"use_routing_bias", biased, "write topk_method \"noaux_tc\""},
    {"moe_router_enable_expert_bias", biased, "write topk_method \"noaux_tc\""},
    {"mlp_layer_types", sparse_layers, kLayers},
    {"mlp_only_layers", off, kLayers},
    {"decoder_sparse_step", one, kLayers},
    {"moe_layer_interval", one, kLayers},
    {"moe_layer_end_index", last_layer, "every layer after the leading dense ones is a MoE layer here"},
    {"qk_norm_type", per_layer, "queries and keys are normed over all heads together here"},
    {"attn_type_list", all_ones, "only layers of full attention (1) are supported"},
    {"shared_intermediate_size", off, "shared experts are not supported in this family"},
    {"attention_head_dim", whole_head, "write head_dim"},
    {"use_cla", off, "keys and values that layers share (CLA) are not supported"},
    {"use_mla", off, kMla},
    {"use_rotary_pos_emb", on, "models without rotary positions are not supported"},
    {"position_embedding_xdrope", off, "rotary positions in sections are not supported"},
    {"num_shared_expert", shared_experts, "write n_shared_experts"},
    {"moe_layer_num_skipped", off, kLayers},
    {"moe_drop_tokens", off, kDropped},
    {"moe_random_routing_dropped_token", off, kDropped},
    {"group_limited_greedy", off, "write topk_method \"group_limited_greedy\""},
    {"is_encoder_decoder", off, "only decoders are supported"},
    {"add_cross_attention", off, "only decoders are supported"},
    {"pruned_heads", off, "pruned heads are not supported"},
};

// Fields that every Hugging Face config may have, which say nothing about what a model computes, and those that are looked
// at together with others.
constexpr std::string_view kSilent[] = {"architectures",
                                        "attn_implementation",
                                        "auto_map",
                                        "bad_words_ids",
                                        "begin_suppress_tokens",
                                        "chunk_size_feed_forward",
                                        "cross_attention_hidden_size",
                                        "decoder_start_token_id",
                                        "diversity_penalty",
                                        "do_sample",
                                        "dtype",
                                        "early_stopping",
                                        "encoder_no_repeat_ngram_size",
                                        "ep_size",
                                        "exponential_decay_length_penalty",
                                        "finetuning_task",
                                        "forced_bos_token_id",
                                        "forced_eos_token_id",
                                        "gradient_checkpointing",
                                        "id2label",
                                        "is_decoder",
                                        "label2id",
                                        "length_penalty",
                                        "max_length",
                                        "max_window_layers",
                                        "min_length",
                                        "name_or_path",
                                        "no_repeat_ngram_size",
                                        "num_beam_groups",
                                        "num_beams",
                                        "num_return_sequences",
                                        "output_attentions",
                                        "output_hidden_states",
                                        "output_router_logits",
                                        "output_scores",
                                        "prefix",
                                        "problem_type",
                                        "qk_head_dim",
                                        "qk_nope_head_dim",
                                        "qk_rope_head_dim",
                                        "remove_invalid_values",
                                        "repetition_penalty",
                                        "return_dict",
                                        "return_dict_in_generate",
                                        "rope_parameters",
                                        "router_aux_loss_coef",
                                        "router_jitter_noise",
                                        "sep_token_id",
                                        "suppress_tokens",
                                        "task_specific_params",
                                        "temperature",
                                        "tf_legacy_loss",
                                        "tie_encoder_decoder",
                                        "tokenizer_class",
                                        "top_k",
                                        "top_p",
                                        "torchscript",
                                        "transformers_version",
                                        "typical_p",
                                        "unsloth_version",
                                        "use_bfloat16",
                                        "use_mixed_mlp_moe",
                                        "use_sliding_window",
                                        "v_head_dim"};

template <class List>
bool has(const List& list, std::string_view name) {
  return std::find(std::begin(list), std::end(list), name) != std::end(list);
}

}  // namespace

void refuse_fields(const Json& object, const ModelConfig& config, const std::vector<std::string>& known) {
  for (const Refused& refused : kRefused) {
    if (has(known, refused.field)) continue;
    const Json* const value = json_read::find(object, std::string(refused.field));
    if (value && !refused.harmless(*value, object, config))
      fail(ErrorCode::kUnsupported, "{} is {}; {}", refused.field, json_read::shown(*value), refused.why);
  }
  if (window_is_missing(object, config))
    fail(
        ErrorCode::kUnsupported,
        "sliding_window is missing, which means a window in layers from max_window_layers on; that is not supported, write "
        "\"sliding_window\": null to attend to all tokens");
}

void drop_outdated_fields(Json& object, const ModelConfig& before, const ModelConfig& now,
                          const std::vector<std::string>& known) {
  for (const Refused& refused : kRefused) {
    const std::string field(refused.field);
    const Json* const value = json_read::find(object, field);
    if (!value || has(known, field) || !refused.harmless(*value, object, before)) continue;
    if (!refused.harmless(*value, object, now)) object.erase(field);
  }
  if (window_is_missing(object, now)) object["sliding_window"] = nullptr;
}

std::vector<std::string> unknown_fields(const Json& object, const std::vector<std::string>& known) {
  std::vector<std::string> unknown;
  for (const auto& item : object.items()) {
    const std::string& name = item.key();
    const bool refused =
        std::any_of(std::begin(kRefused), std::end(kRefused), [&](const Refused& r) { return r.field == name; });
    const bool private_field = name.starts_with('_');  // of the program that wrote it
    if (!refused && !private_field && !has(kSilent, name) && !has(known, name)) unknown.push_back(name);
  }
  return unknown;
}

}  // namespace dsmoe
