// DeepSeek-V3 and R1, Moonlight, and Kimi-K2, which differs in its model_type: latent attention, sigmoid scores with a
// selection bias, groups scored by their two best experts.
#include "core/fail.h"
#include "model/families/common.h"

namespace dsmoe {

namespace {

constexpr std::string_view kDeepseekV3Skipped[] = {"model.layers.{layers}."};

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

Family family_with(std::string_view model_type, std::string_view title) {
  return {.model_type = model_type,
          .architecture = "DeepseekV3ForCausalLM",
          .check = check_sigmoid_latent,
          .spec = latent_model_spec,
          .names = kLatentNames,
          .more_names = kUsualNames,
          .fields = kLatentFields,
          .defaults = deepseek_v3_defaults,
          .finish = finish_latent,
          .rotary_pairs = true,
          .title = title,
          .skipped = kDeepseekV3Skipped};
}

}  // namespace

Family deepseek_v3_family() { return family_with("deepseek_v3", "DeepSeek-V3"); }
Family kimi_k2_family() { return family_with("kimi_k2", "Kimi-K2"); }

}  // namespace dsmoe
