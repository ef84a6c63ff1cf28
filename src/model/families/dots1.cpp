// dots.llm1: DeepSeek-V3's gate without groups on plain attention, queries and keys normed head by head.
#include "model/families/common.h"

namespace dsmoe {

namespace {

constexpr FieldName kDots1Fields[] = {
    {"n_routed_experts", "n_routed_experts"},
    {"n_routed_experts", "num_local_experts"},
};

// Of Dots1Config.
ModelConfig dots1_defaults() {
  ModelConfig c;
  c.vocab_size = 152064;
  c.hidden_size = 4608;
  c.intermediate_size = 10944;
  c.moe_intermediate_size = 1408;
  c.num_hidden_layers = 62;
  c.num_attention_heads = 32;
  c.num_key_value_heads = 32;
  c.scoring_func = "sigmoid";
  c.topk_method = "noaux_tc";
  c.n_group = c.topk_group = 1;
  c.max_position_embeddings = 2048;
  c.aux_loss_alpha = 0;
  c.bos_token_id.reset();
  c.eos_token_id.clear();
  return c;
}

// Released files call sigmoid scores by the name of the method.
void dots1_finish(ModelConfig& c) {
  if (c.scoring_func == "noaux_tc") c.scoring_func = "sigmoid";
}

ModelSpec dots1_spec(const ModelConfig& c) {
  GqaSpec attention = attention_spec(c);
  attention.bias = attention.output_bias = c.attention_bias;
  attention.qk_norm = QkNorm::kHead;
  return model_spec(c, attention);
}

}  // namespace

Family dots1_family() {
  return {.model_type = "dots1",
          .architecture = "Dots1ForCausalLM",
          .check = check_family,
          .spec = dots1_spec,
          .names = kUsualNames,
          .fields = kDots1Fields,
          .defaults = dots1_defaults,
          .finish = dots1_finish,
          .title = "dots.llm1",
          .window_from_layer = 62};
}

}  // namespace dsmoe
