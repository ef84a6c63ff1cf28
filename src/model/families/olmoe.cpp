// OLMoE: queries and keys are normed over all heads together; softmax scores as they are, every layer a MoE layer.
#include "model/families/common.h"

namespace dsmoe {

namespace {

constexpr FieldName kOlmoeFields[] = {
    {"n_routed_experts", "num_experts"},
    {"n_routed_experts", "num_local_experts"},
    {"moe_intermediate_size", "intermediate_size"},  // there are no dense layers
};

// Of OlmoeConfig. The first released files have no rms_norm_eps.
ModelConfig olmoe_defaults() {
  ModelConfig c;
  c.vocab_size = 50304;
  c.hidden_size = 2048;
  c.intermediate_size = c.moe_intermediate_size = 2048;
  c.num_hidden_layers = 16;
  c.num_attention_heads = 16;
  c.num_key_value_heads.reset();
  c.n_routed_experts = 64;
  c.num_experts_per_tok = 8;
  c.max_position_embeddings = 4096;
  c.rms_norm_eps = 1e-5;
  c.aux_loss_alpha = 0;
  c.pad_token_id = 1;
  c.bos_token_id.reset();
  c.eos_token_id = {50279};
  return c;
}

ModelSpec olmoe_spec(const ModelConfig& c) {
  GqaSpec attention = attention_spec(c);
  attention.bias = attention.output_bias = c.attention_bias;
  attention.qk_norm = QkNorm::kWidth;
  return model_spec(c, attention);
}

}  // namespace

Family olmoe_family() {
  return {.model_type = "olmoe",
          .architecture = "OlmoeForCausalLM",
          .check = check_family,
          .spec = olmoe_spec,
          .names = kUsualNames,
          .fields = kOlmoeFields,
          .defaults = olmoe_defaults,
          .title = "OLMoE"};
}

}  // namespace dsmoe
