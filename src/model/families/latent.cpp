// What the families with latent attention (MLA) have in common.
#include <cmath>

#include "core/fail.h"
#include "model/families/common.h"

namespace dsmoe {

namespace {

constexpr RoleName kLatentNames[] = {
    {"attention.q_a.weight", "model.layers.{layer}.self_attn.q_a_proj.weight"},
    {"attention.q_a_norm.weight", "model.layers.{layer}.self_attn.q_a_layernorm.weight"},
    {"attention.q_b.weight", "model.layers.{layer}.self_attn.q_b_proj.weight"},
    {"attention.kv_a.weight", "model.layers.{layer}.self_attn.kv_a_proj_with_mqa.weight"},
    {"attention.kv_a_norm.weight", "model.layers.{layer}.self_attn.kv_a_layernorm.weight"},
    {"attention.kv_b.weight", "model.layers.{layer}.self_attn.kv_b_proj.weight"},
};
constexpr FieldName kLatentFields[] = {
    {"n_routed_experts", "n_routed_experts"},
    {"n_routed_experts", "num_local_experts"},
    {"n_routed_experts", "num_experts"},
    {"kv_lora_rank", "kv_lora_rank"},
    {"q_lora_rank", "q_lora_rank"},
    {"qk_nope_head_dim", "qk_nope_head_dim"},
    {"qk_rope_head_dim", "qk_rope_head_dim"},
    {"v_head_dim", "v_head_dim"},
    {"rope_interleave", "rope_interleave"},
    {"num_nextn_predict_layers", "num_nextn_predict_layers"},
    {"num_nextn_predict_layers", "num_mtp_layers"},
};

// References leave the class's default to the norms inside of attention, whatever rms_norm_eps is.
constexpr double kLatentNormEps = 1e-6;

// Layers behind the last, which predict further tokens.
constexpr std::string_view kLatentSkipped[] = {"model.layers.{layers}."};

// transformers writes the turned part as head_dim; nobody reads it.
void finish_latent(ModelConfig& c) { c.explicit_head_dim.reset(); }

ModelSpec latent_model_spec(const ModelConfig& c) {
  MlaSpec s{.heads = c.num_attention_heads,
            .q_rank = c.q_lora_rank.value_or(0),
            .kv_rank = *c.kv_lora_rank,
            .nope = c.qk_nope_head_dim,
            .rope = c.qk_rope_head_dim,
            .value = c.v_head_dim};
  s.scale = c.rope_scaling.score_factor() / std::sqrt(static_cast<double>(s.query()));
  s.norm_eps = kLatentNormEps;
  return model_spec(c, s);
}

}  // namespace

void check_latent(const ModelConfig& c) {
  check_family(c);
  if (!c.latent_attention())
    fail(ErrorCode::kUnsupported, "kv_lora_rank is missing; models of model_type \"{}\" have latent attention",
         c.model_type);
  if (c.kv_heads() != c.num_attention_heads)
    fail(ErrorCode::kUnsupported, "num_key_value_heads is {}; latent attention has as many as heads, {}", c.kv_heads(),
         c.num_attention_heads);
  if (!c.rope_interleave) fail(ErrorCode::kUnsupported, "rope_interleave is false; only true is supported");
  if (c.attention_bias)
    fail(ErrorCode::kUnsupported, "attention_bias is true; latent attention with biases is not supported");
}

void check_sigmoid_latent(const ModelConfig& c) {
  check_latent(c);
  if (c.scoring_func != "sigmoid" || !c.selection_bias())
    fail(ErrorCode::kUnsupported,
         "scoring_func \"{}\" with topk_method \"{}\" is not supported in models of model_type \"{}\"; \"sigmoid\" with "
         "\"noaux_tc\" is",
         c.scoring_func, c.topk_method, c.model_type);
}

Family latent_family(std::string_view model_type, std::string_view architecture, std::string_view title,
                     void (*check)(const ModelConfig&), ModelConfig (*defaults)()) {
  return {.model_type = model_type,
          .architecture = architecture,
          .check = check,
          .spec = latent_model_spec,
          .names = kLatentNames,
          .more_names = kUsualNames,
          .fields = kLatentFields,
          .defaults = defaults,
          .finish = finish_latent,
          .rotary_pairs = true,
          .title = title,
          .skipped = kLatentSkipped};
}

}  // namespace dsmoe
