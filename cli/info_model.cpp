// dsmoe info MODEL: what family a model is of, what it needs, and what of it is not supported.
#include "cli/info_model.h"

#include <fmt/format.h>

#include "cli/format.h"
#include "dsmoe/chat_template.h"
#include "formats/folder_source.h"
#include "formats/gguf_config.h"
#include "formats/gguf_tokenizer.h"
#include "formats/model_source.h"
#include "model/families/family.h"
#include "model/plan.h"

namespace dsmoe::cli {

namespace {

using Json = nlohmann::ordered_json;

void describe_attention(const GqaSpec& a, Json& needs) {
  needs.push_back(
      fmt::format("attention of {} heads of {} numbers, {} of keys and values", a.heads, a.head_dim, a.kv_heads));
  if (a.bias) needs.push_back(a.output_bias ? "biases of all four projections" : "biases of queries, keys and values");
  constexpr const char* kNorms[] = {"", "per head", "over all heads together"};
  if (a.qk_norm != QkNorm::kNone)
    needs.push_back(fmt::format("norms of queries and keys, {}{}", kNorms[static_cast<std::size_t>(a.qk_norm)],
                                a.norm_turned ? ", after rotary positions" : ""));
  if (a.rotary > 0 && a.rotary < a.head_dim)
    needs.push_back(fmt::format("rotary positions on {} of a head's {} numbers", a.rotary, a.head_dim));
}

void describe_attention(const MlaSpec& a, Json& needs) {
  needs.push_back(fmt::format("latent attention (MLA) of {} heads, with {} numbers per token and layer in the cache",
                              a.heads, a.cached()));
  if (a.q_rank > 0) needs.push_back(fmt::format("queries made of {} numbers", a.q_rank));
}

void describe_experts(const MoeConfig& m, Index layers, Json& needs) {
  needs.push_back(fmt::format("{} layers with {} experts of {}, {} per token", layers, m.routed_experts, m.expert_size,
                              m.experts_per_token));
  if (m.shared_experts > 0)
    needs.push_back(fmt::format("{} shared experts{}", m.shared_experts, m.shared_gate ? " behind a gate" : ""));
  std::string gate = m.score == ScoreFunction::kSigmoid ? "sigmoid scores" : "softmax scores";
  if (m.norm_topk_prob) gate += ", normalised";
  if (m.routed_scaling_factor != 1) gate += fmt::format(", times {}", m.routed_scaling_factor);
  if (m.selection_bias) gate += ", a bias for choosing";
  if (m.groups > 1) gate += fmt::format(", from {} of {} groups", m.groups_per_token, m.groups);
  needs.push_back(gate);
}

Json needs_of(const ModelConfig& config) {
  const ModelSpec spec = spec_of(config);
  Json needs = Json::array();
  std::visit([&](const auto& attention) { describe_attention(attention, needs); }, spec.layers.front().attention);
  const MoeConfig* moe = nullptr;
  Index layers = 0;
  for (const LayerSpec& layer : spec.layers)
    if (const auto* const m = std::get_if<MoeConfig>(&layer.feed_forward)) moe = m, ++layers;
  if (moe) describe_experts(*moe, layers, needs);
  if (const auto dense = static_cast<Index>(spec.layers.size()) - layers; dense > 0)
    needs.push_back(fmt::format("{} dense layer{}", dense, dense == 1 ? "" : "s"));
  if (config.rope_scaling.alpha)
    needs.push_back(fmt::format("rotary positions with a base stretched by an alpha of {}", *config.rope_scaling.alpha));
  else if (config.rope_scaling.type != RopeScalingType::kNone)
    needs.push_back(fmt::format("rotary positions stretched {} times", config.rope_scaling.factor));
  if (spec.tied_head) needs.push_back("the embedding as head");
  return needs;
}

// Runs a part, and adds what it throws to the list of what is not supported.
template <class Fn>
void attempt(Json& missing, const char* part, Fn fn) {
  try {
    fn();
  } catch (const Error& error) {
    missing.push_back(fmt::format("{}: {}", part, error.what()));
  }
}

}  // namespace

nlohmann::ordered_json model_info(const std::string& path) {
  Json info = {{"model", path}, {"supported", false}}, missing = Json::array();
  check_is_model(path);
  const auto source = ModelSource::open(path);
  attempt(missing, "the model", [&] {
    const ModelConfig& c = source->config();
    const Family& family = family_of(c.model_type);
    info["family"] = family.title.empty() ? family.model_type : family.title;
    info["model_type"] = c.model_type;
    const ParameterCount count = count_parameters(c);
    info["parameters"] = count.total;
    info["activated"] = count.activated;
    info["layers"] = c.num_hidden_layers;
    info["context"] = c.max_position_embeddings;
    info["vocabulary"] = c.vocab_size;
    info["needs"] = needs_of(c);
    info["supported"] = true;
    if (c.num_nextn_predict_layers > 0)
      missing.push_back(fmt::format("{} layers for predicting further tokens are not read", c.num_nextn_predict_layers));
    attempt(missing, "as a GGUF file", [&] { check_gguf_carries(c); });
    attempt(missing, "weights", [&] {
      source->check_tensors();
      info["weights"] = to_string(source->stored_dtype());
      info["bytes"] = source->stored_bytes();
    });
  });
  attempt(missing, "tokenizer", [&] {
    const std::optional<Tokenizer> tokenizer = source->tokenizer();
    info["tokenizer"] = tokenizer ? Json(tokenizer->vocab_size()) : Json();
    if (const std::string other = unread_tokenizer(path); !tokenizer && !other.empty())
      missing.push_back(fmt::format("tokenizer: {}", other));
    info["chat_template"] = tokenizer && !tokenizer->chat_template().empty();
    if (tokenizer && !tokenizer->chat_template().empty())
      attempt(missing, "chat template", [&] { ChatTemplate{tokenizer->chat_template()}; });
  });
  info["not_supported"] = missing;
  return info;
}

std::string model_report(const nlohmann::ordered_json& info) {
  std::string out = info["model"].get<std::string>() + "\n";
  const auto line = [&](const char* name, const std::string& value) { out += fmt::format("  {:<14}{}\n", name, value); };
  if (info.contains("family")) {
    line("family",
         fmt::format("{} (model_type {})", info["family"].get<std::string>(), info["model_type"].get<std::string>()));
    line("parameters", fmt::format("{}, {} for one token", human_count(info["parameters"].get<double>()),
                                   human_count(info["activated"].get<double>())));
    line("layers", std::to_string(info["layers"].get<Index>()));
    line("context", fmt::format("{} tokens", info["context"].get<Index>()));
  }
  if (info.contains("weights"))
    line("weights", fmt::format("{}, {}", info["weights"].get<std::string>(), human_bytes(info["bytes"].get<double>())));
  if (info.contains("tokenizer"))
    line("tokenizer", info["tokenizer"].is_null()
                          ? "none"
                          : fmt::format("{} tokens, {}", info["tokenizer"].get<Index>(),
                                        info["chat_template"] == true ? "with a chat template" : "no chat template"));
  const auto list = [&](const char* name, const Json& items) {
    const char* label = name;
    for (const Json& item : items) line(std::exchange(label, ""), item.get<std::string>());
  };
  if (info.contains("needs")) list("needs", info["needs"]);
  if (info["not_supported"].empty())
    line("not supported", "nothing");
  else
    list("not supported", info["not_supported"]);
  return out;
}

}  // namespace dsmoe::cli
