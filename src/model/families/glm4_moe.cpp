// GLM-4.5, 4.6, 4.7 and GLM-4.5-Air: biases on queries, keys and values alone, rotary positions on half of each head,
// sigmoid scores with a selection bias, one shared expert; the large ones norm queries and keys head by head.
#include "model/families/common.h"

namespace dsmoe {

namespace {

constexpr FieldName kGlm4Fields[] = {
    {"n_routed_experts", "n_routed_experts"},
    {"n_routed_experts", "num_local_experts"},
    {"use_qk_norm", "use_qk_norm"},
    {"partial_rotary_factor", "partial_rotary_factor"},
    {"num_nextn_predict_layers", "num_nextn_predict_layers"},
    {"num_nextn_predict_layers", "num_mtp_layers"},
};
constexpr std::string_view kGlm4Skipped[] = {"model.layers.{layers}."};

// Of Glm4MoeConfig; files have no scoring_func and no topk_method.
ModelConfig glm4_defaults() {
  ModelConfig c;
  c.vocab_size = 151552;
  c.hidden_size = 4096;
  c.intermediate_size = 10944;
  c.moe_intermediate_size = 1408;
  c.num_hidden_layers = 46;
  c.num_attention_heads = 96;
  c.num_key_value_heads = 8;
  c.n_shared_experts = 1;
  c.n_routed_experts = 128;
  c.num_experts_per_tok = 8;
  c.first_k_dense_replace = 1;
  c.norm_topk_prob = true;
  c.scoring_func = "sigmoid";
  c.topk_method = "noaux_tc";
  c.n_group = c.topk_group = 1;
  c.max_position_embeddings = 131072;
  c.rms_norm_eps = 1e-5;
  c.partial_rotary_factor = 0.5;
  c.aux_loss_alpha = 0;
  c.bos_token_id.reset();
  c.eos_token_id.clear();
  return c;
}

ModelSpec glm4_spec(const ModelConfig& c) {
  GqaSpec attention = attention_spec(c);
  attention.bias = c.attention_bias;  // the projection back has none
  if (c.use_qk_norm) attention.qk_norm = QkNorm::kHead;
  return model_spec(c, attention);
}

}  // namespace

Family glm4_moe_family() {
  return {.model_type = "glm4_moe",
          .architecture = "Glm4MoeForCausalLM",
          .check = check_family,
          .spec = glm4_spec,
          .names = kUsualNames,
          .fields = kGlm4Fields,
          .defaults = glm4_defaults,
          .title = "GLM-4.5",
          .skipped = kGlm4Skipped};
}

}  // namespace dsmoe
