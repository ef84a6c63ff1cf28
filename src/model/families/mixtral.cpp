// Mixtral 8x7B and 8x22B: few wide experts under names of their own, the two chosen scores normalised.
#include "model/families/common.h"

namespace dsmoe {

namespace {

constexpr RoleName kMixtralNames[] = {
    {"experts.gate.weight", "model.layers.{layer}.block_sparse_moe.experts.{expert}.w1.weight"},
    {"experts.up.weight", "model.layers.{layer}.block_sparse_moe.experts.{expert}.w3.weight"},
    {"experts.down.weight", "model.layers.{layer}.block_sparse_moe.experts.{expert}.w2.weight"},
    {"router.weight", "model.layers.{layer}.block_sparse_moe.gate.weight"},
};
constexpr FieldName kMixtralFields[] = {
    {"n_routed_experts", "num_local_experts"},
    {"n_routed_experts", "num_experts"},
    {"moe_intermediate_size", "intermediate_size"},  // there are no dense layers
};

// Of MixtralConfig.
ModelConfig mixtral_defaults() {
  ModelConfig c;
  c.vocab_size = 32000;
  c.hidden_size = 4096;
  c.intermediate_size = c.moe_intermediate_size = 14336;
  c.num_hidden_layers = 32;
  c.num_attention_heads = 32;
  c.num_key_value_heads = 8;
  c.n_routed_experts = 8;
  c.num_experts_per_tok = 2;
  c.norm_topk_prob = true;
  c.max_position_embeddings = 131072;
  c.rms_norm_eps = 1e-5;
  c.rope_theta = 1e6;
  c.aux_loss_alpha = 0;
  c.bos_token_id = 1;
  c.eos_token_id = {2};
  return c;
}

ModelSpec mixtral_spec(const ModelConfig& c) { return model_spec(c, attention_spec(c)); }

}  // namespace

Family mixtral_family() {
  return {.model_type = "mixtral",
          .architecture = "MixtralForCausalLM",
          .check = check_family,
          .spec = mixtral_spec,
          .names = kMixtralNames,
          .more_names = kUsualNames,
          .fields = kMixtralFields,
          .defaults = mixtral_defaults,
          .title = "Mixtral"};
}

}  // namespace dsmoe
