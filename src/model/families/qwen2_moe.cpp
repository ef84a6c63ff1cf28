// Qwen2-MoE (Qwen1.5-MoE-A2.7B, Qwen2-57B-A14B): biases on queries, keys and values, softmax scores as they are, and
// shared experts behind a gate of their own.
#include "core/fail.h"
#include "model/families/common.h"

namespace dsmoe {

namespace {

constexpr RoleName kQwen2Names[] = {
    {"shared_experts.gate.weight", "model.layers.{layer}.mlp.shared_expert.gate_proj.weight"},
    {"shared_experts.up.weight", "model.layers.{layer}.mlp.shared_expert.up_proj.weight"},
    {"shared_experts.down.weight", "model.layers.{layer}.mlp.shared_expert.down_proj.weight"},
    {"shared_gate.weight", "model.layers.{layer}.mlp.shared_expert_gate.weight"},
};
constexpr FieldName kQwen2Fields[] = {
    {"n_routed_experts", "num_experts"},
    {"n_routed_experts", "num_local_experts"},
    {"attention_bias", "qkv_bias"},
    {"shared_expert_intermediate_size", "shared_expert_intermediate_size"},
};

// Files have one MLP of so many times an expert's width: it is as many experts.
void qwen2_finish(ModelConfig& c) {
  const Index width = c.shared_expert_intermediate_size.value_or(0);
  c.n_shared_experts = c.moe_intermediate_size > 0 ? width / c.moe_intermediate_size : 0;
}

void qwen2_resized(ModelConfig& c) { c.shared_expert_intermediate_size = c.shared_experts() * c.moe_intermediate_size; }

// Of Qwen2MoeConfig.
ModelConfig qwen2_defaults() {
  ModelConfig c;
  c.vocab_size = 151936;
  c.hidden_size = 2048;
  c.intermediate_size = 5632;
  c.moe_intermediate_size = 1408;
  c.shared_expert_intermediate_size = 5632;
  c.num_hidden_layers = 24;
  c.num_attention_heads = 16;
  c.num_key_value_heads = 16;
  c.n_routed_experts = 60;
  c.num_experts_per_tok = 4;
  c.max_position_embeddings = 32768;
  c.attention_bias = true;
  c.aux_loss_alpha = 0;
  c.bos_token_id.reset();
  c.eos_token_id.clear();
  qwen2_finish(c);
  return c;
}

void check_qwen2(const ModelConfig& c) {
  check_family(c);
  if (c.routed_experts() == 0) return;
  const Index width = c.shared_expert_intermediate_size.value_or(0);
  const bool whole = c.shared_experts() >= 0 && c.moe_intermediate_size > 0 &&
                     width / c.moe_intermediate_size == c.shared_experts() && width % c.moe_intermediate_size == 0;
  if (!whole)
    fail(ErrorCode::kUnsupported,
         "shared_expert_intermediate_size is {}; only {} (n_shared_experts) times moe_intermediate_size {} is supported",
         width, c.shared_experts(), c.moe_intermediate_size);
}

ModelSpec qwen2_spec(const ModelConfig& c) {
  GqaSpec attention = attention_spec(c);
  attention.bias = c.attention_bias;  // the projection back has none
  ModelSpec spec = model_spec(c, attention);
  for (LayerSpec& layer : spec.layers)
    if (auto* const moe = std::get_if<MoeConfig>(&layer.feed_forward)) moe->shared_gate = moe->shared_experts > 0;
  return spec;
}

}  // namespace

Family qwen2_moe_family() {
  return {.model_type = "qwen2_moe",
          .architecture = "Qwen2MoeForCausalLM",
          .check = check_qwen2,
          .spec = qwen2_spec,
          .names = kQwen2Names,
          .more_names = kUsualNames,
          .fields = kQwen2Fields,
          .defaults = qwen2_defaults,
          .finish = qwen2_finish,
          .resized = qwen2_resized,
          .title = "Qwen2-MoE",
          .one_row = "shared_gate.weight"};
}

}  // namespace dsmoe
