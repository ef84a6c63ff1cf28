#include "model/families/common.h"

#include "core/fail.h"

namespace dsmoe {

namespace {

constexpr RoleName kLlamaNames[] = {
    {"embedding.weight", "model.embed_tokens.weight"},
    {"attention.q.weight", "model.layers.{layer}.self_attn.q_proj.weight"},
    {"attention.q.bias", "model.layers.{layer}.self_attn.q_proj.bias"},
    {"attention.k.weight", "model.layers.{layer}.self_attn.k_proj.weight"},
    {"attention.k.bias", "model.layers.{layer}.self_attn.k_proj.bias"},
    {"attention.v.weight", "model.layers.{layer}.self_attn.v_proj.weight"},
    {"attention.v.bias", "model.layers.{layer}.self_attn.v_proj.bias"},
    {"attention.o.weight", "model.layers.{layer}.self_attn.o_proj.weight"},
    {"attention.o.bias", "model.layers.{layer}.self_attn.o_proj.bias"},
    {"attention.q_norm.weight", "model.layers.{layer}.self_attn.q_norm.weight"},
    {"attention.k_norm.weight", "model.layers.{layer}.self_attn.k_norm.weight"},
    {"experts.gate.weight", "model.layers.{layer}.mlp.experts.{expert}.gate_proj.weight"},
    {"experts.up.weight", "model.layers.{layer}.mlp.experts.{expert}.up_proj.weight"},
    {"experts.down.weight", "model.layers.{layer}.mlp.experts.{expert}.down_proj.weight"},
    {"experts.gate_up.stack", "model.layers.{layer}.mlp.experts.gate_up_proj"},
    {"experts.down.stack", "model.layers.{layer}.mlp.experts.down_proj"},
    {"router.weight", "model.layers.{layer}.mlp.gate.weight"},
    {"router.bias", "model.layers.{layer}.mlp.gate.e_score_correction_bias"},
    {"shared_experts.gate.weight", "model.layers.{layer}.mlp.shared_experts.gate_proj.weight"},
    {"shared_experts.up.weight", "model.layers.{layer}.mlp.shared_experts.up_proj.weight"},
    {"shared_experts.down.weight", "model.layers.{layer}.mlp.shared_experts.down_proj.weight"},
    {"dense.gate.weight", "model.layers.{layer}.mlp.gate_proj.weight"},
    {"dense.up.weight", "model.layers.{layer}.mlp.up_proj.weight"},
    {"dense.down.weight", "model.layers.{layer}.mlp.down_proj.weight"},
    {"attention_norm.weight", "model.layers.{layer}.input_layernorm.weight"},
    {"feed_forward_norm.weight", "model.layers.{layer}.post_attention_layernorm.weight"},
    {"final_norm.weight", "model.norm.weight"},
    {"head.weight", "lm_head.weight"},
};

}  // namespace

const std::span<const RoleName> kUsualNames = kLlamaNames;

void check_usual(const ModelConfig& c) {
  const auto supported = [](bool ok, const char* field, const std::string& value, const char* what) {
    if (!ok) fail(ErrorCode::kUnsupported, "{} is \"{}\"; {}", field, value, what);
  };
  supported(c.scoring_func == "softmax" || c.scoring_func == "sigmoid", "scoring_func", c.scoring_func,
            "\"softmax\" and \"sigmoid\" are supported");
  supported(c.topk_method == "greedy" || c.topk_method == "group_limited_greedy" || c.selection_bias(), "topk_method",
            c.topk_method, "\"greedy\", \"group_limited_greedy\" and \"noaux_tc\" are supported");
  supported(c.hidden_act == "silu", "hidden_act", c.hidden_act, "only \"silu\" is supported");
  if (c.mlp_bias) fail(ErrorCode::kUnsupported, "mlp_bias is true; experts with a bias are not supported, only false is");
  if (c.pretraining_tp != 1)
    fail(ErrorCode::kUnsupported,
         "pretraining_tp is {}; only 1 is supported: the reference's sliced path cannot run MoE layers, and 1 gives the "
         "same "
         "results with the same weights, so write 1",
         c.pretraining_tp);
}

void check_family(const ModelConfig& c) {
  check_usual(c);
  if (c.norm_topk_prob && c.num_experts_per_tok == 1)
    fail(ErrorCode::kUnsupported, "norm_topk_prob with num_experts_per_tok 1 is not supported; choose more experts");
}

GqaSpec attention_spec(const ModelConfig& c) {
  GqaSpec s{.heads = c.num_attention_heads, .kv_heads = c.kv_heads(), .head_dim = c.head_dim()};
  s.norm_eps = c.rms_norm_eps;
  s.rotary = c.rotary_width();
  return s;
}

MoeConfig moe_spec(const ModelConfig& c, Index layer) {
  MoeConfig m;
  m.hidden_size = c.hidden_size;
  m.expert_size = c.moe_intermediate_size;
  m.routed_experts = c.routed_experts();
  m.shared_experts = c.shared_experts();
  m.experts_per_token = c.experts_per_token();
  m.score = c.scoring_func == "sigmoid" ? ScoreFunction::kSigmoid : ScoreFunction::kSoftmax;
  m.norm_topk_prob = c.norm_topk_prob;
  m.routed_scaling_factor = static_cast<float>(c.routed_scaling_factor);
  m.selection_bias = c.selection_bias();
  m.groups = c.expert_groups();
  m.groups_per_token = m.groups > 1 ? *c.topk_group : 1;
  m.group_score = c.selection_bias() ? GroupScore::kTop2Sum : GroupScore::kMax;
  m.device_balance_alpha = static_cast<float>(c.device_aux_loss_alpha);
  m.devices = c.aux_loss_devices;
  m.router_z_alpha = static_cast<float>(c.router_z_loss_alpha);
  (c.seq_aux ? m.seq_balance_alpha : m.batch_balance_alpha) = static_cast<float>(c.aux_loss_alpha);
  m.layer_index = static_cast<int>(layer);
  return m;
}

ModelSpec model_spec(const ModelConfig& c, const AttentionSpec& attention) {
  ModelSpec s{.vocab = c.vocab_size, .width = c.hidden_size, .norm_eps = c.rms_norm_eps};
  s.rope = {c.latent_attention() ? c.qk_rope_head_dim : c.head_dim(), c.rope_theta, c.rope_scaling,
            c.max_position_embeddings, c.rotary_width()};
  s.tied_head = c.tie_word_embeddings;
  for (Index layer = 0; layer < c.num_hidden_layers; ++layer) {
    const bool moe = c.is_moe_layer(layer);
    s.layers.push_back({attention, moe ? FeedForwardSpec(moe_spec(c, layer)) : DenseSpec{c.intermediate_size}});
  }
  return s;
}

}  // namespace dsmoe
