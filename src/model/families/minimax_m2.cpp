// MiniMax-M2: queries and keys normed over all heads together, rotary positions on half of each head, sigmoid scores with a
// selection bias, no shared experts.
#include "model/families/common.h"

namespace dsmoe {

namespace {

constexpr RoleName kMinimaxNames[] = {
    {"experts.gate.weight", "model.layers.{layer}.block_sparse_moe.experts.{expert}.w1.weight"},
    {"experts.up.weight", "model.layers.{layer}.block_sparse_moe.experts.{expert}.w3.weight"},
    {"experts.down.weight", "model.layers.{layer}.block_sparse_moe.experts.{expert}.w2.weight"},
    {"router.weight", "model.layers.{layer}.block_sparse_moe.gate.weight"},
    {"router.bias", "model.layers.{layer}.block_sparse_moe.e_score_correction_bias"},
    {"router.bias", "model.layers.{layer}.mlp.e_score_correction_bias"},
};
constexpr FieldName kMinimaxFields[] = {
    {"n_routed_experts", "num_local_experts"},
    {"n_routed_experts", "num_experts"},
    {"moe_intermediate_size", "intermediate_size"},  // there are no dense layers
    {"use_qk_norm", "use_qk_norm"},
    {"rotary_dim", "rotary_dim"},
    {"partial_rotary_factor", "partial_rotary_factor"},
};

// Of MiniMaxM2Config, and what released files mean that say neither scoring_func nor use_qk_norm.
ModelConfig minimax_defaults() {
  ModelConfig c;
  c.vocab_size = 200064;
  c.hidden_size = 3072;
  c.intermediate_size = c.moe_intermediate_size = 1536;
  c.num_hidden_layers = 62;
  c.num_attention_heads = 48;
  c.num_key_value_heads = 8;
  c.explicit_head_dim = 128;
  c.n_routed_experts = 256;
  c.num_experts_per_tok = 8;
  c.norm_topk_prob = true;
  c.scoring_func = "sigmoid";
  c.topk_method = "noaux_tc";
  c.use_qk_norm = true;
  c.max_position_embeddings = 196608;
  c.rope_theta = 5e6;
  c.aux_loss_alpha = 0;
  c.bos_token_id = 200034;
  c.eos_token_id = {200020};
  return c;
}

ModelSpec minimax_spec(const ModelConfig& c) {
  GqaSpec attention = attention_spec(c);
  if (c.use_qk_norm) attention.qk_norm = QkNorm::kWidth;
  return model_spec(c, attention);
}

}  // namespace

Family minimax_m2_family() {
  return {.model_type = "minimax_m2",
          .architecture = "MiniMaxM2ForCausalLM",
          .check = check_family,
          .spec = minimax_spec,
          .names = kMinimaxNames,
          .more_names = kUsualNames,
          .fields = kMinimaxFields,
          .defaults = minimax_defaults,
          .title = "MiniMax-M2"};
}

}  // namespace dsmoe
