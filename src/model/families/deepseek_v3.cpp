// DeepSeek-V3 and R1, Moonlight, and Kimi-K2, which differs in its model_type: latent attention, sigmoid scores with a
// selection bias, groups scored by their two best experts.
#include "model/families/common.h"

namespace dsmoe {

namespace {

// Of DeepseekV3Config.
ModelConfig deepseek_v3_defaults() {
  ModelConfig c;
  c.vocab_size = 129280;
  c.hidden_size = 7168;
  c.intermediate_size = 18432;
  c.moe_intermediate_size = 2048;
  c.num_hidden_layers = 61;
  c.num_attention_heads = 128;
  c.num_key_value_heads.reset();
  c.n_shared_experts = 1;
  c.n_routed_experts = 256;
  c.num_experts_per_tok = 8;
  c.first_k_dense_replace = 3;
  c.norm_topk_prob = true;
  c.scoring_func = "sigmoid";
  c.topk_method = "noaux_tc";
  c.n_group = 8, c.topk_group = 4;
  c.routed_scaling_factor = 2.5;
  c.q_lora_rank = 1536;
  c.kv_lora_rank = 512;
  c.qk_nope_head_dim = 128;
  c.qk_rope_head_dim = 64;
  c.v_head_dim = 128;
  c.max_position_embeddings = 4096;
  c.aux_loss_alpha = 0;
  c.bos_token_id = 0;
  c.eos_token_id = {1};
  return c;
}

}  // namespace

Family deepseek_v3_family() {
  return latent_family("deepseek_v3", "DeepseekV3ForCausalLM", "DeepSeek-V3", check_sigmoid_latent, deepseek_v3_defaults);
}
Family kimi_k2_family() {
  return latent_family("kimi_k2", "DeepseekV3ForCausalLM", "Kimi-K2", check_sigmoid_latent, deepseek_v3_defaults);
}

}  // namespace dsmoe
