// Qwen3-MoE (Qwen3-30B-A3B, Qwen3-235B-A22B, Qwen3-Coder): no shared experts, a softmax whose chosen scores are normalised
// in every release, queries and keys normed head by head.
#include "model/families/common.h"

namespace dsmoe {

namespace {

constexpr FieldName kQwen3Fields[] = {
    {"n_routed_experts", "num_experts"},
    {"n_routed_experts", "num_local_experts"},
};

// Of Qwen3MoeConfig. A file without norm_topk_prob means false there, although all releases say true.
ModelConfig qwen3_defaults() {
  ModelConfig c;
  c.vocab_size = 151936;
  c.hidden_size = 2048;
  c.intermediate_size = 6144;
  c.moe_intermediate_size = 768;
  c.num_hidden_layers = 24;
  c.num_attention_heads = 32;
  c.num_key_value_heads = 4;
  c.n_routed_experts = 128;
  c.num_experts_per_tok = 8;
  c.max_position_embeddings = 32768;
  c.aux_loss_alpha = 0;  // router_aux_loss_coef is another loss, which the reference adds only when asked to
  c.bos_token_id.reset();
  c.eos_token_id.clear();
  c.use_qk_norm = true;
  return c;
}

ModelSpec qwen3_spec(const ModelConfig& c) {
  GqaSpec attention = attention_spec(c);
  attention.bias = attention.output_bias = c.attention_bias;
  attention.qk_norm = QkNorm::kHead;
  return model_spec(c, attention);
}

}  // namespace

Family qwen3_moe_family() {
  return {.model_type = "qwen3_moe",
          .architecture = "Qwen3MoeForCausalLM",
          .check = check_family,
          .spec = qwen3_spec,
          .names = kUsualNames,
          .fields = kQwen3Fields,
          .defaults = qwen3_defaults,
          .title = "Qwen3-MoE"};
}

}  // namespace dsmoe
