// ERNIE-4.5 with experts: rotary positions in pairs, softmax scores with a selection bias, dense layers first.
#include "model/families/common.h"

namespace dsmoe {

namespace {

constexpr RoleName kErnieNames[] = {
    {"router.bias", "model.layers.{layer}.mlp.moe_statics.e_score_correction_bias"},
    {"router.bias", "model.layers.{layer}.mlp.gate.moe_statics.e_score_correction_bias"},
};
constexpr FieldName kErnieFields[] = {
    {"n_routed_experts", "moe_num_experts"},
    {"n_routed_experts", "num_experts"},
    {"num_experts_per_tok", "moe_k"},
    {"n_shared_experts", "moe_num_shared_experts"},
    {"first_k_dense_replace", "moe_layer_start_index"},
    {"attention_bias", "use_bias"},
};
constexpr std::string_view kErnieSkipped[] = {"model.mtp_"};

// Of Ernie4_5_MoeConfig.
ModelConfig ernie_defaults() {
  ModelConfig c;
  c.vocab_size = 103424;
  c.hidden_size = 2560;
  c.intermediate_size = 12288;
  c.moe_intermediate_size = 1536;
  c.num_hidden_layers = 28;
  c.num_attention_heads = 20;
  c.num_key_value_heads = 4;
  c.n_shared_experts = 2;
  c.n_routed_experts = 64;
  c.num_experts_per_tok = 6;
  c.first_k_dense_replace = 1;
  c.norm_topk_prob = true;
  c.topk_method = "noaux_tc";
  c.max_position_embeddings = 131072;
  c.rms_norm_eps = 1e-5;
  c.rope_theta = 5e5;
  c.tie_word_embeddings = true;
  c.aux_loss_alpha = 0;
  c.pad_token_id = 0;
  c.bos_token_id = 1;
  c.eos_token_id = {2};
  return c;
}

ModelSpec ernie_spec(const ModelConfig& c) {
  GqaSpec attention = attention_spec(c);
  attention.bias = attention.output_bias = c.attention_bias;
  return model_spec(c, attention);
}

}  // namespace

Family ernie4_5_moe_family() {
  return {.model_type = "ernie4_5_moe",
          .architecture = "Ernie4_5_MoeForCausalLM",
          .check = check_family,
          .spec = ernie_spec,
          .names = kErnieNames,
          .more_names = kUsualNames,
          .fields = kErnieFields,
          .defaults = ernie_defaults,
          .rotary_pairs = true,
          .title = "ERNIE-4.5",
          .skipped = kErnieSkipped,
          .one_row = "router.bias"};
}

}  // namespace dsmoe
