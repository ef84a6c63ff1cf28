// GLM-4.7-Flash: DeepSeek-V3's attention and gate, without groups and without stretched positions.
#include "model/families/common.h"

namespace dsmoe {

namespace {

// Of Glm4MoeLiteConfig; files have no scoring_func.
ModelConfig glm4_lite_defaults() {
  ModelConfig c;
  c.vocab_size = 154880;
  c.hidden_size = 2048;
  c.intermediate_size = 10240;
  c.moe_intermediate_size = 1536;
  c.num_hidden_layers = 47;
  c.num_attention_heads = 20;
  c.num_key_value_heads.reset();
  c.n_shared_experts = 1;
  c.n_routed_experts = 64;
  c.num_experts_per_tok = 4;
  c.first_k_dense_replace = 1;
  c.norm_topk_prob = true;
  c.scoring_func = "sigmoid";
  c.topk_method = "noaux_tc";
  c.n_group = c.topk_group = 1;
  c.routed_scaling_factor = 1.8;
  c.q_lora_rank = 768;
  c.kv_lora_rank = 512;
  c.qk_nope_head_dim = 192;
  c.qk_rope_head_dim = 64;
  c.v_head_dim = 256;
  c.max_position_embeddings = 202752;
  c.rms_norm_eps = 1e-5;
  c.aux_loss_alpha = 0;
  c.bos_token_id = 0;
  c.eos_token_id = {1};
  return c;
}

}  // namespace

Family glm4_moe_lite_family() {
  return latent_family("glm4_moe_lite", "Glm4MoeLiteForCausalLM", "GLM-4.7-Flash", check_sigmoid_latent,
                       glm4_lite_defaults);
}

}  // namespace dsmoe
