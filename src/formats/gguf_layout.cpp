#include "formats/gguf_layout.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

namespace dsmoe {

namespace {

using Kind = ParameterKind;

const char* name_of(Kind kind) {
  switch (kind) {
    case Kind::kEmbedding: return "token_embd.weight";
    case Kind::kInputNorm: return "attn_norm.weight";
    case Kind::kQueryWeight: return "attn_q.weight";
    case Kind::kQueryBias: return "attn_q.bias";
    case Kind::kKeyWeight: return "attn_k.weight";
    case Kind::kKeyBias: return "attn_k.bias";
    case Kind::kValueWeight: return "attn_v.weight";
    case Kind::kValueBias: return "attn_v.bias";
    case Kind::kOutputWeight: return "attn_output.weight";
    case Kind::kOutputBias: return "attn_output.bias";
    case Kind::kPostAttentionNorm: return "ffn_norm.weight";
    case Kind::kRouter: return "ffn_gate_inp.weight";
    case Kind::kRouterBias: return "exp_probs_b.bias";
    case Kind::kSharedGate: return "ffn_gate_shexp.weight";
    case Kind::kSharedUp: return "ffn_up_shexp.weight";
    case Kind::kSharedDown: return "ffn_down_shexp.weight";
    case Kind::kExpertGate: return "ffn_gate_exps.weight";
    case Kind::kExpertUp: return "ffn_up_exps.weight";
    case Kind::kExpertDown: return "ffn_down_exps.weight";
    case Kind::kDenseGate: return "ffn_gate.weight";
    case Kind::kDenseUp: return "ffn_up.weight";
    case Kind::kDenseDown: return "ffn_down.weight";
    case Kind::kFinalNorm: return "output_norm.weight";
    case Kind::kHead: return "output.weight";
  }
  return "";
}

// Within a layer, and outside them: the order of a token's way through the model.
constexpr Kind kOrder[] = {
    Kind::kEmbedding,         Kind::kInputNorm,   Kind::kQueryWeight, Kind::kQueryBias,    Kind::kKeyWeight,
    Kind::kKeyBias,           Kind::kValueWeight, Kind::kValueBias,   Kind::kOutputWeight, Kind::kOutputBias,
    Kind::kPostAttentionNorm, Kind::kRouter,      Kind::kSharedGate,  Kind::kSharedUp,     Kind::kSharedDown,
    Kind::kExpertGate,        Kind::kExpertUp,    Kind::kExpertDown,  Kind::kDenseGate,    Kind::kDenseUp,
    Kind::kDenseDown,         Kind::kFinalNorm,   Kind::kHead};

Shape stacked(const Parameter& p, Index experts) { return {experts, p.shape[0], p.shape[1]}; }

}  // namespace

std::vector<GgufTensor> gguf_layout(const ModelConfig& config, const std::vector<Parameter>& parameters) {
  std::map<std::pair<Index, Kind>, std::vector<std::size_t>> groups;
  for (std::size_t i = 0; i < parameters.size(); ++i) groups[{parameters[i].layer, parameters[i].kind}].push_back(i);
  std::vector<GgufTensor> list;
  const auto add = [&](Index layer, Kind kind) {
    const auto found = groups.find({layer, kind});
    if (found == groups.end()) return;
    const Parameter& first = parameters[found->second.front()];
    GgufTensor t{name_of(kind), first.shape, kind, layer, found->second, 0};
    if (layer >= 0) t.name = fmt::format("blk.{}.{}", layer, t.name);
    if (is_routed_expert(kind)) t.shape = stacked(first, config.routed_experts());
    if (kind == Kind::kQueryWeight || kind == Kind::kQueryBias) t.heads = config.num_attention_heads;
    if (kind == Kind::kKeyWeight || kind == Kind::kKeyBias) t.heads = config.kv_heads();
    list.push_back(std::move(t));
  };
  add(-1, Kind::kEmbedding);
  for (Index layer = 0; layer < config.num_hidden_layers; ++layer)
    for (const Kind kind : kOrder) add(layer, kind);
  add(-1, Kind::kFinalNorm);
  add(-1, Kind::kHead);
  return list;
}

}  // namespace dsmoe
