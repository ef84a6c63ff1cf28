// DeepSeek-V2, V2.5, V2-Lite and Coder-V2: latent attention, softmax scores, experts from all or from the best groups.
#include "core/fail.h"
#include "model/families/common.h"

namespace dsmoe {

namespace {

// Of DeepseekV2Config.
ModelConfig deepseek_v2_defaults() {
  ModelConfig c;
  c.vocab_size = 102400;
  c.num_hidden_layers = 32;
  c.num_key_value_heads.reset();
  c.n_shared_experts = 2;
  c.n_routed_experts = 64;
  c.q_lora_rank = 1536;
  c.kv_lora_rank = 512;
  c.qk_nope_head_dim = 128;
  c.qk_rope_head_dim = 64;
  c.v_head_dim = 128;
  c.aux_loss_alpha = 0;
  c.bos_token_id = 1;
  c.eos_token_id = {2};
  return c;
}

// What DeepSeek's own code and transformers' make of these values differs; no release has them.
void check_deepseek_v2(const ModelConfig& c) {
  check_latent(c);
  if (c.norm_topk_prob)
    fail(ErrorCode::kUnsupported, "norm_topk_prob is true; only false is supported in models of model_type \"{}\"",
         c.model_type);
  if (c.scoring_func != "softmax" || c.selection_bias())
    fail(ErrorCode::kUnsupported,
         "scoring_func \"{}\" with topk_method \"{}\" is not supported in models of model_type \"{}\"; \"softmax\" with "
         "\"greedy\" or \"group_limited_greedy\" are",
         c.scoring_func, c.topk_method, c.model_type);
}

}  // namespace

Family deepseek_v2_family() {
  Family family =
      latent_family("deepseek_v2", "DeepseekV2ForCausalLM", "DeepSeek-V2", check_deepseek_v2, deepseek_v2_defaults);
  family.skipped = {};  // no release has layers behind the last
  return family;
}

}  // namespace dsmoe
