// Hunyuan-A13B: queries and keys normed head by head after rotary positions, whose base is stretched by an alpha whatever
// the length; softmax scores normalised, one shared expert; numbers of experts as lists with one entry per layer.
#include "core/fail.h"
#include "model/families/common.h"

namespace dsmoe {

namespace {

constexpr RoleName kHunyuanNames[] = {
    {"attention.q_norm.weight", "model.layers.{layer}.self_attn.query_layernorm.weight"},
    {"attention.k_norm.weight", "model.layers.{layer}.self_attn.key_layernorm.weight"},
    {"router.weight", "model.layers.{layer}.mlp.gate.wg.weight"},
    {"shared_experts.gate.weight", "model.layers.{layer}.mlp.shared_mlp.gate_proj.weight"},
    {"shared_experts.up.weight", "model.layers.{layer}.mlp.shared_mlp.up_proj.weight"},
    {"shared_experts.down.weight", "model.layers.{layer}.mlp.shared_mlp.down_proj.weight"},
};
constexpr FieldName kHunyuanFields[] = {
    {"n_routed_experts", "num_experts"}, {"n_routed_experts", "num_local_experts"},
    {"num_experts_per_tok", "moe_topk"}, {"n_shared_experts", "num_shared_expert"},
    {"use_qk_norm", "use_qk_norm"},
};
constexpr std::string_view kHunyuanLists[] = {"moe_topk", "moe_intermediate_size", "num_shared_expert"};

constexpr Index kClassWidth = 11008;

// Of HunYuanMoEV1Config, which knows no moe_intermediate_size: its experts are as wide as intermediate_size says. One
// expert for all tokens, as that has it, is not supported: a file says how many there are.
ModelConfig hunyuan_defaults() {
  ModelConfig c;
  c.vocab_size = 290943;
  c.hidden_size = 4096;
  c.intermediate_size = kClassWidth;
  c.moe_intermediate_size = kClassWidth;
  c.num_hidden_layers = 32;
  c.num_attention_heads = 32;
  c.num_key_value_heads.reset();
  c.n_shared_experts = 1;
  c.norm_topk_prob = true;
  c.use_qk_norm = true;
  c.max_position_embeddings = 2048;
  c.rms_norm_eps = 1e-5;
  c.aux_loss_alpha = 0;
  c.pad_token_id = 0;
  c.bos_token_id = 1;
  c.eos_token_id = {2};
  return c;
}

void hunyuan_finish(ModelConfig& c) {
  if (c.moe_intermediate_size == kClassWidth) c.moe_intermediate_size = c.intermediate_size;
}

void hunyuan_resized(ModelConfig& c) { c.intermediate_size = c.moe_intermediate_size; }

void check_hunyuan(const ModelConfig& c) {
  check_family(c);
  // transformers takes the one for the width of experts, the released code the other.
  if (c.routed_experts() > 0 && c.moe_intermediate_size != c.intermediate_size)
    fail(ErrorCode::kUnsupported,
         "moe_intermediate_size is {}, but intermediate_size is {}; only the same number in both is supported in models of "
         "model_type \"{}\"",
         c.moe_intermediate_size, c.intermediate_size, c.model_type);
  if (!c.use_qk_norm) fail(ErrorCode::kUnsupported, "use_qk_norm is false; only true is supported");
  if (!c.norm_topk_prob) fail(ErrorCode::kUnsupported, "norm_topk_prob is false; only true is supported");
}

ModelSpec hunyuan_spec(const ModelConfig& c) {
  GqaSpec attention = attention_spec(c);
  attention.bias = attention.output_bias = c.attention_bias;
  attention.qk_norm = QkNorm::kHead;
  attention.norm_turned = true;
  return model_spec(c, attention);
}

}  // namespace

Family hunyuan_v1_moe_family() {
  return {.model_type = "hunyuan_v1_moe",
          .architecture = "HunYuanMoEV1ForCausalLM",
          .check = check_hunyuan,
          .spec = hunyuan_spec,
          .names = kHunyuanNames,
          .more_names = kUsualNames,
          .fields = kHunyuanFields,
          .defaults = hunyuan_defaults,
          .finish = hunyuan_finish,
          .resized = hunyuan_resized,
          .rope_alpha = true,
          .title = "Hunyuan",
          .per_layer = kHunyuanLists,
          .said = R"({"use_qk_norm": true, "use_mixed_mlp_moe": true, "use_cla": false})"};
}

}  // namespace dsmoe
