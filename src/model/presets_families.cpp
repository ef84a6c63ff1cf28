// Released sizes of other families than DeepSeekMoE.
#include "model/families/family.h"
#include "model/presets.h"

namespace dsmoe {

namespace {

ModelConfig released(std::string_view model_type) {
  ModelConfig c = family_of(model_type).default_config();
  c.torch_dtype = DType::kBF16;
  return c;
}

RopeScaling yarn(double factor, double mscale) {
  return {.type = RopeScalingType::kYarn,
          .factor = factor,
          .original_max_positions = 4096,
          .mscale = mscale,
          .mscale_all_dim = mscale};
}

}  // namespace

ModelConfig qwen3_30b_a3b() {
  ModelConfig c = released("qwen3_moe");
  c.num_hidden_layers = 48;
  c.explicit_head_dim = 128;
  c.norm_topk_prob = true;
  c.max_position_embeddings = 40960;
  c.rope_theta = 1e6;
  c.bos_token_id = 151643;
  c.eos_token_id = {151645};
  return c;
}

ModelConfig qwen3_235b_a22b() {
  ModelConfig c = qwen3_30b_a3b();
  c.hidden_size = 4096;
  c.intermediate_size = 12288;
  c.moe_intermediate_size = 1536;
  c.num_hidden_layers = 94;
  c.num_attention_heads = 64;
  return c;
}

ModelConfig glm_4_5_air() {
  ModelConfig c = released("glm4_moe");
  c.explicit_head_dim = 128;
  c.attention_bias = true;
  c.rope_theta = 1e6;
  c.eos_token_id = {151329, 151336, 151338};
  return c;
}

ModelConfig glm_4_5() {
  ModelConfig c = glm_4_5_air();
  c.hidden_size = 5120;
  c.intermediate_size = 12288;
  c.moe_intermediate_size = 1536;
  c.num_hidden_layers = 92;
  c.n_routed_experts = 160;
  c.first_k_dense_replace = 3;
  c.routed_scaling_factor = 2.5;
  c.use_qk_norm = true;
  return c;
}

ModelConfig olmoe_1b_7b() {
  ModelConfig c = released("olmoe");
  c.intermediate_size = c.moe_intermediate_size = 1024;
  c.num_key_value_heads = 16;
  return c;
}

ModelConfig mixtral_8x7b() {
  ModelConfig c = released("mixtral");
  c.max_position_embeddings = 32768;
  return c;
}

ModelConfig mixtral_8x22b() {
  ModelConfig c = released("mixtral");
  c.hidden_size = 6144;
  c.intermediate_size = c.moe_intermediate_size = 16384;
  c.num_hidden_layers = 56;
  c.num_attention_heads = 48;
  c.max_position_embeddings = 65536;
  return c;
}

ModelConfig ernie_4_5_21b_a3b() { return released("ernie4_5_moe"); }

ModelConfig minimax_m2() {
  ModelConfig c = released("minimax_m2");
  c.rotary_dim = 64;
  return c;
}

ModelConfig dots_llm1() {
  ModelConfig c = released("dots1");
  c.hidden_size = 4096;
  c.n_shared_experts = 2;
  c.n_routed_experts = 128;
  c.num_experts_per_tok = 6;
  c.first_k_dense_replace = 1;
  c.norm_topk_prob = true;
  c.routed_scaling_factor = 2.5;
  c.max_position_embeddings = 32768;
  c.rms_norm_eps = 1e-5;
  c.rope_theta = 1e7;
  c.eos_token_id = {151643};
  return c;
}

// Its config.json says another bos_token_id, which its tokenizer does not put anywhere; readers take <|bos|>.
ModelConfig hunyuan_a13b() {
  ModelConfig c = released("hunyuan_v1_moe");
  c.vocab_size = 128167;
  c.intermediate_size = c.moe_intermediate_size = 3072;
  c.num_key_value_heads = 8;
  c.n_routed_experts = 64;
  c.num_experts_per_tok = 8;
  c.explicit_head_dim = 128;
  c.max_position_embeddings = 32768;
  c.rope_scaling = {.type = RopeScalingType::kDynamic, .factor = 1, .alpha = 1000};
  c.tie_word_embeddings = true;
  c.pad_token_id.reset();
  c.bos_token_id = 127959;
  c.eos_token_id = {127960};
  return c;
}

ModelConfig qwen1_5_moe_a2_7b() {
  ModelConfig c = released("qwen2_moe");
  c.max_position_embeddings = 8192;
  c.rope_theta = 1e6;
  c.bos_token_id = c.eos_token_id.emplace_back(151643);
  return c;
}

ModelConfig qwen2_57b_a14b() {
  ModelConfig c = qwen1_5_moe_a2_7b();
  c.hidden_size = 3584;
  c.intermediate_size = 18944;
  c.moe_intermediate_size = 2560;
  c.shared_expert_intermediate_size = 20480;
  c.n_shared_experts = 8;
  c.num_hidden_layers = 28;
  c.num_attention_heads = 28;
  c.num_key_value_heads = 4;
  c.n_routed_experts = 64;
  c.num_experts_per_tok = 8;
  c.max_position_embeddings = 131072;
  return c;
}

ModelConfig deepseek_v2_lite() {
  ModelConfig c = released("deepseek_v2");
  c.hidden_size = 2048;
  c.intermediate_size = 10944;
  c.moe_intermediate_size = 1408;
  c.num_hidden_layers = 27;
  c.num_attention_heads = 16;
  c.num_experts_per_tok = 6;
  c.first_k_dense_replace = 1;
  c.q_lora_rank.reset();
  c.max_position_embeddings = 163840;
  c.rope_scaling = yarn(40, 0.707);
  c.bos_token_id = 100000;
  c.eos_token_id = {100001};
  return c;
}

ModelConfig deepseek_v2() {
  ModelConfig c = deepseek_v2_lite();
  c.hidden_size = 5120;
  c.intermediate_size = 12288;
  c.moe_intermediate_size = 1536;
  c.num_hidden_layers = 60;
  c.num_attention_heads = 128;
  c.n_routed_experts = 160;
  c.topk_method = "group_limited_greedy";
  c.n_group = 8, c.topk_group = 3;
  c.routed_scaling_factor = 16;
  c.q_lora_rank = 1536;
  return c;
}

ModelConfig deepseek_v3() {
  ModelConfig c = released("deepseek_v3");
  c.max_position_embeddings = 163840;
  c.rope_scaling = yarn(40, 1);
  return c;
}

ModelConfig moonlight_16b_a3b() {
  ModelConfig c = released("deepseek_v3");
  c.vocab_size = 163840;
  c.hidden_size = 2048;
  c.intermediate_size = 11264;
  c.moe_intermediate_size = 1408;
  c.num_hidden_layers = 27;
  c.num_attention_heads = 16;
  c.n_shared_experts = 2;
  c.n_routed_experts = 64;
  c.num_experts_per_tok = 6;
  c.first_k_dense_replace = 1;
  c.n_group = c.topk_group = 1;
  c.routed_scaling_factor = 2.446;
  c.q_lora_rank.reset();
  c.max_position_embeddings = 8192;
  c.rms_norm_eps = 1e-5;
  c.rope_theta = 5e4;
  c.bos_token_id = 163584;
  c.eos_token_id = {163585};
  return c;
}

ModelConfig kimi_k2() {
  ModelConfig c = released("kimi_k2");
  c.vocab_size = 163840;
  c.num_attention_heads = 64;
  c.n_routed_experts = 384;
  c.first_k_dense_replace = 1;
  c.n_group = c.topk_group = 1;
  c.routed_scaling_factor = 2.827;
  c.max_position_embeddings = 131072;
  c.rope_theta = 5e4;
  c.rope_scaling = yarn(32, 1);
  c.rope_scaling.beta_fast = 1;
  c.bos_token_id = 163584;
  c.eos_token_id = {163585};
  return c;
}

ModelConfig glm_4_7_flash() {
  ModelConfig c = released("glm4_moe_lite");
  c.rope_theta = 1e6;
  c.bos_token_id.reset();
  c.eos_token_id = {154820, 154827, 154829};
  return c;
}

}  // namespace dsmoe
