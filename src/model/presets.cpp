#include "model/presets.h"

#include <array>
#include <utility>

#include "core/fail.h"
#include "dsmoe/model_config.h"

namespace dsmoe {

namespace {

// Small enough to learn something visible in about a minute on two CPU cores, with everything that the large models
// have: a dense first layer, shared experts, one shared expert to three active routed ones. It is N = 8, K = 2, m = 4,
// Ks = 2 of a conventional layer of width 256. The vocabulary has room for 256 bytes and a few merges.
ModelConfig tiny() {
  ModelConfig c;
  c.vocab_size = 512;
  c.hidden_size = 128;
  c.intermediate_size = 512;  // what a token runs in a MoE layer: (6 + 2) * 64
  c.moe_intermediate_size = 64;
  c.num_hidden_layers = 4;
  c.num_attention_heads = c.num_key_value_heads.emplace(4);
  c.n_shared_experts = 2;
  c.n_routed_experts = 30;
  c.num_experts_per_tok = 6;
  c.first_k_dense_replace = 1;
  c.max_position_embeddings = 512;
  c.bos_token_id = 256;
  c.eos_token_id = {257};
  return c;
}

// The validation model of the paper's section 4: N = 16, K = 2, m = 4, Ks = 1. The paper does not give the expert
// width; a quarter of a standard FFN of 8 D^2 parameters is 853.33. 848 is the nearest multiple of 16 and gives the
// published 2.0B parameters, 0.3B activated and 4.3 TFLOPs per 2K tokens; the multiples of 64 beside it, 832 and 896,
// give 1.9B and 2.1B. No tokenizer was published, so there are no special tokens.
ModelConfig paper_2b() {
  ModelConfig c;
  c.vocab_size = 8192;
  c.hidden_size = 1280;
  c.intermediate_size = 8 * 848;  // not used: all layers are MoE
  c.moe_intermediate_size = 848;
  c.num_hidden_layers = 9;
  c.num_attention_heads = c.num_key_value_heads.emplace(10);
  c.n_shared_experts = 1;
  c.n_routed_experts = 63;
  c.num_experts_per_tok = 7;
  c.aux_loss_alpha = 0.01;
  c.initializer_range = 0.006;
  c.max_position_embeddings = 2048;
  c.bos_token_id.reset();
  c.eos_token_id.clear();
  return c;
}

// The released deepseek-moe-16b-base and -chat.
ModelConfig deepseek_moe_16b() {
  ModelConfig c;
  c.vocab_size = 102400;
  c.hidden_size = 2048;
  c.intermediate_size = 10944;
  c.moe_intermediate_size = 1408;
  c.num_hidden_layers = 28;
  c.num_attention_heads = c.num_key_value_heads.emplace(16);
  c.n_shared_experts = 2;
  c.n_routed_experts = 64;
  c.num_experts_per_tok = 6;
  c.first_k_dense_replace = 1;
  c.max_position_embeddings = 4096;
  c.torch_dtype = DType::kBF16;
  return c;
}

// The paper's section 7. Expert width: an eighth of 8 D^2 / (3 D) = 10922.67, aligned to 64 as at 16B. The width of
// the dense first layer is not given; 21888 (twice the 16B model's) gives the published 144.6B.
ModelConfig paper_145b() {
  ModelConfig c = deepseek_moe_16b();
  c.hidden_size = 4096;
  c.intermediate_size = 21888;
  c.num_hidden_layers = 62;
  c.num_attention_heads = c.num_key_value_heads.emplace(32);
  c.n_shared_experts = 4;
  c.n_routed_experts = 128;
  c.num_experts_per_tok = 12;
  c.aux_loss_alpha = 0.003;
  c.initializer_range = 0.006;
  return c;
}

constexpr std::array<std::pair<const char*, ModelConfig (*)()>, 23> kPresets = {{
    {"tiny", tiny},
    {"paper-2b", paper_2b},
    {"deepseek-moe-16b", deepseek_moe_16b},
    {"paper-145b", paper_145b},
    {"qwen3-30b-a3b", qwen3_30b_a3b},
    {"qwen3-235b-a22b", qwen3_235b_a22b},
    {"glm-4.5-air", glm_4_5_air},
    {"glm-4.5", glm_4_5},
    {"olmoe-1b-7b", olmoe_1b_7b},
    {"mixtral-8x7b", mixtral_8x7b},
    {"mixtral-8x22b", mixtral_8x22b},
    {"ernie-4.5-21b-a3b", ernie_4_5_21b_a3b},
    {"minimax-m2", minimax_m2},
    {"dots.llm1", dots_llm1},
    {"hunyuan-a13b", hunyuan_a13b},
    {"qwen1.5-moe-a2.7b", qwen1_5_moe_a2_7b},
    {"qwen2-57b-a14b", qwen2_57b_a14b},
    {"deepseek-v2-lite", deepseek_v2_lite},
    {"deepseek-v2", deepseek_v2},
    {"deepseek-v3", deepseek_v3},
    {"moonlight-16b-a3b", moonlight_16b_a3b},
    {"kimi-k2", kimi_k2},
    {"glm-4.7-flash", glm_4_7_flash},
}};

}  // namespace

const std::vector<std::string>& ModelConfig::preset_names() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> list;
    for (const auto& [name, make] : kPresets) list.emplace_back(name);
    return list;
  }();
  return names;
}

ModelConfig ModelConfig::preset(std::string_view name) {
  for (const auto& [known, make] : kPresets)
    if (name == known) return make();
  fail(ErrorCode::kInvalidArgument, "there is no preset \"{}\"; choose {}", name, fmt::join(preset_names(), ", "));
}

}  // namespace dsmoe
