#include "formats/gguf_names.h"

#include "core/fail.h"

namespace dsmoe {

namespace {

constexpr GgufName kBefore[] = {{"embedding.weight", "token_embd.weight"}};

constexpr GgufName kLayer[] = {
    {"attention_norm.weight", "attn_norm.weight"},
    {"attention.q.weight", "attn_q.weight", true},
    {"attention.q.bias", "attn_q.bias", true},
    {"attention.k.weight", "attn_k.weight", true},
    {"attention.k.bias", "attn_k.bias", true},
    {"attention.v.weight", "attn_v.weight"},
    {"attention.v.bias", "attn_v.bias"},
    {"attention.o.weight", "attn_output.weight"},
    {"attention.o.bias", "attn_output.bias"},
    {"feed_forward_norm.weight", "ffn_norm.weight"},
    {"router.weight", "ffn_gate_inp.weight"},
    {"router.bias", "exp_probs_b.bias"},
    {"shared_experts.gate.weight", "ffn_gate_shexp.weight"},
    {"shared_experts.up.weight", "ffn_up_shexp.weight"},
    {"shared_experts.down.weight", "ffn_down_shexp.weight"},
    {"experts.gate.weight", "ffn_gate_exps.weight"},
    {"experts.up.weight", "ffn_up_exps.weight"},
    {"experts.down.weight", "ffn_down_exps.weight"},
    {"dense.gate.weight", "ffn_gate.weight"},
    {"dense.up.weight", "ffn_up.weight"},
    {"dense.down.weight", "ffn_down.weight"},
};

constexpr GgufName kAfter[] = {{"final_norm.weight", "output_norm.weight"}, {"head.weight", "output.weight"}};

constexpr struct {
  std::string_view model_type;
  GgufNames names;
} kFamilies[] = {{"deepseek", {kBefore, kLayer, kAfter}}};

}  // namespace

const GgufNames& gguf_names(std::string_view model_type) {
  for (const auto& family : kFamilies)
    if (family.model_type == model_type) return family.names;
  fail(ErrorCode::kUnsupported,
       "models of model_type \"{}\" cannot be a GGUF file yet; keep the model as a Hugging Face folder", model_type);
}

}  // namespace dsmoe
