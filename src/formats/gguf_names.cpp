#include "formats/gguf_names.h"

#include "core/fail.h"

namespace dsmoe {

namespace {

constexpr GgufName kBefore[] = {{"embedding.weight", "token_embd.weight"}};

constexpr GgufName kLayer[] = {
    {"attention_norm.weight", "attn_norm.weight"},
    {"attention.q.weight", "attn_q.weight"},
    {"attention.q.bias", "attn_q.bias"},
    {"attention.k.weight", "attn_k.weight"},
    {"attention.k.bias", "attn_k.bias"},
    {"attention.q_norm.weight", "attn_q_norm.weight"},
    {"attention.k_norm.weight", "attn_k_norm.weight"},
    {"attention.v.weight", "attn_v.weight"},
    {"attention.v.bias", "attn_v.bias"},
    {"attention.q_a.weight", "attn_q_a.weight"},
    {"attention.q_a_norm.weight", "attn_q_a_norm.weight"},
    {"attention.q_b.weight", "attn_q_b.weight"},
    {"attention.kv_a.weight", "attn_kv_a_mqa.weight"},
    {"attention.kv_a_norm.weight", "attn_kv_a_norm.weight"},
    {"attention.kv_b.weight", "attn_k_b.weight"},
    {"attention.kv_b.weight", "attn_v_b.weight"},
    {"attention.o.weight", "attn_output.weight"},
    {"attention.o.bias", "attn_output.bias"},
    {"feed_forward_norm.weight", "ffn_norm.weight"},
    {"router.weight", "ffn_gate_inp.weight"},
    {"router.bias", "exp_probs_b.bias"},
    {"shared_experts.gate.weight", "ffn_gate_shexp.weight"},
    {"shared_experts.up.weight", "ffn_up_shexp.weight"},
    {"shared_experts.down.weight", "ffn_down_shexp.weight"},
    {"shared_gate.weight", "ffn_gate_inp_shexp.weight"},
    {"experts.gate.weight", "ffn_gate_exps.weight"},
    {"experts.up.weight", "ffn_up_exps.weight"},
    {"experts.down.weight", "ffn_down_exps.weight"},
    {"dense.gate.weight", "ffn_gate.weight"},
    {"dense.up.weight", "ffn_up.weight"},
    {"dense.down.weight", "ffn_down.weight"},
};

constexpr GgufName kAfter[] = {{"final_norm.weight", "output_norm.weight"}, {"head.weight", "output.weight"}};

constexpr GgufNames kNames = {kBefore, kLayer, kAfter};

// One architecture of four families.
constexpr GgufArchitecture deepseek2(std::string_view model_type, GgufRule selection_bias) {
  return {.name = "deepseek2",
          .model_type = model_type,
          .names = kNames,
          .pairs = true,
          .normalised = GgufRule::kKey,
          .selection_bias = selection_bias,
          .any_score = true,
          .latent = true,
          .needs_shared = true,
          .dense_layers = true,
          .further_layers = true};
}

constexpr GgufArchitecture kArchitectures[] = {
    {.name = "deepseek",
     .model_type = "deepseek",
     .names = kNames,
     .pairs = true,
     .any_head = false,
     .needs_shared = true,
     .dense_layers = true},
    {.name = "qwen3moe", .model_type = "qwen3_moe", .names = kNames, .normalised = GgufRule::kAlways},
    {.name = "qwen2moe",
     .model_type = "qwen2_moe",
     .names = kNames,
     .any_head = false,
     .qkv_bias = true,
     .needs_shared = true,
     .needs_head = true,
     .shared_width = true},
    {.name = "glm4moe",
     .model_type = "glm4_moe",
     .names = kNames,
     .feed_forward_norm = "post_attention_norm.weight",
     .normalised = GgufRule::kKey,
     .selection_bias = GgufRule::kAlways,
     .any_score = true,
     .partial_rotary = true,
     .qkv_bias = true,
     .dense_layers = true,
     .further_layers = true},
    {.name = "olmoe",
     .model_type = "olmoe",
     .names = kNames,
     .any_head = false,
     .needs_head = true,
     .needs_equal_heads = true},
    {.name = "llama", .model_type = "mixtral", .names = kNames, .pairs = true, .normalised = GgufRule::kAlways},
    {.name = "ernie4_5-moe",
     .model_type = "ernie4_5_moe",
     .names = kNames,
     .pairs = true,
     .normalised = GgufRule::kAlways,
     .selection_bias = GgufRule::kKey,
     .dense_layers = true,
     .shared_width = true,
     .layer_step = true},
    {.name = "minimax-m2",
     .model_type = "minimax_m2",
     .names = kNames,
     .normalised = GgufRule::kAlways,
     .selection_bias = GgufRule::kAlways,
     .any_score = true,
     .partial_rotary = true,
     .needs_head = true},
    {.name = "dots1",
     .model_type = "dots1",
     .names = kNames,
     .normalised = GgufRule::kKey,
     .selection_bias = GgufRule::kKey,
     .any_score = true,
     .needs_shared = true,
     .needs_head = true,
     .dense_layers = true},
    {.name = "hunyuan-moe",
     .model_type = "hunyuan_v1_moe",
     .names = kNames,
     .normalised = GgufRule::kAlways,
     .needs_shared = true,
     .shared_width = true},
    deepseek2("deepseek_v2", GgufRule::kNever),
    deepseek2("deepseek_v3", GgufRule::kAlways),
    deepseek2("kimi_k2", GgufRule::kAlways),
    deepseek2("glm4_moe_lite", GgufRule::kAlways),
};

}  // namespace

const GgufArchitecture& gguf_architecture_of(std::string_view model_type) {
  for (const GgufArchitecture& a : kArchitectures)
    if (a.model_type == model_type) return a;
  fail(ErrorCode::kUnsupported,
       "models of model_type \"{}\" cannot be a GGUF file yet; keep the model as a Hugging Face folder", model_type);
}

const GgufArchitecture* find_gguf_architecture(std::string_view name) {
  for (const GgufArchitecture& a : kArchitectures)
    if (a.name == name) return &a;
  return nullptr;
}

std::string known_gguf_architectures() {
  std::string all;
  for (const GgufArchitecture& a : kArchitectures)
    if (&a == find_gguf_architecture(a.name)) all += fmt::format("{}\"{}\"", all.empty() ? "" : ", ", a.name);
  return all;
}

}  // namespace dsmoe
