#include "formats/gguf_keys.h"

#include <algorithm>
#include <cmath>

#include "core/fail.h"
#include "core/log.h"
#include "core/printable.h"

namespace dsmoe {

namespace {

using io::GgufMetadata;
using io::GgufType;

struct Refused {
  std::string_view name;
  double usual;  // leaves the model as it is; 0 does so, too, but for attention.causal
  const char* why;
};

constexpr const char* kWindow = "attention over a window is not supported";
constexpr const char* kMla = "latent attention (MLA) is not supported in this architecture";
constexpr const char* kCapped = "soft caps are not supported";
constexpr const char* kScaled = "scaled activations are not supported";
constexpr const char* kEveryLayer = "every layer after the leading dense ones is a MoE layer here";

constexpr Refused kRefused[] = {
    {"attention.sliding_window", 0, kWindow},
    {"attention.sliding_window_pattern", 0, kWindow},
    {"attention.chunk_size", 0, "attention in chunks is not supported"},
    {"attention.causal", 1, "only causal attention is supported"},
    {"attention.max_alibi_bias", 0, "ALiBi is not supported"},
    {"attention.clamp_kqv", 0, "clipped queries, keys and values are not supported"},
    {"attention.q_lora_rank", 0, kMla},
    {"attention.kv_lora_rank", 0, kMla},
    {"attention.key_length_mla", 0, kMla},
    {"attention.value_length_mla", 0, kMla},
    {"attn_logit_softcapping", 0, kCapped},
    {"final_logit_softcapping", 0, kCapped},
    {"logit_scale", 1, kScaled},
    {"residual_scale", 1, kScaled},
    {"embedding_scale", 1, kScaled},
    {"rope.scaling.attn_factor", 1, kScaled},
    {"rope.dimension_sections", 0, "rotary positions in sections are not supported"},
    {"nextn_predict_layers", 0, "layers that predict further tokens are not supported"},
    {"interleave_moe_layer_step", 1, kEveryLayer},
    {"moe_every_n_layers", 1, kEveryLayer},
    {"use_parallel_residual", 0, "attention beside the MLP is not supported"},
};

// Keys that say nothing about what is computed, or follow from others. The width of the shared experts is that of their
// tensors: llama.cpp's converter writes intermediate_size / num_key_value_heads for ERNIE, which is right by chance alone.
constexpr std::string_view kSilent[] = {"rope.scaling.finetuned", "rope.scaling.original_context_length",
                                        "attention.layer_norm_epsilon", "expert_shared_feed_forward_length",
                                        "tensor_data_layout"};

// A number or a flag; NaN for anything else.
double number_of(const GgufMetadata& m, const std::string& key) {
  switch (m.find(key)->type) {
    case GgufType::kBool: return m.boolean(key) ? 1 : 0;
    case GgufType::kString:
    case GgufType::kArray: return NAN;
    default: return m.number(key);
  }
}

void refuse(const GgufMetadata& m, const std::string& key, double usual, bool zero, const char* why) {
  if (!m.contains(key)) return;
  const double value = number_of(m, key);
  const bool same = std::fabs(value - usual) <= 1e-6 * std::fabs(usual);  // a key of 32 bits
  if (same || (zero && value == 0)) return;
  const std::string shown = std::isnan(value) ? "a list or a text" : fmt::format("{:g}", value);
  fail(ErrorCode::kUnsupported, "{}: {} is {}; {}", m.where(), key, shown, why);
}

}  // namespace

double gguf_decimal(const GgufMetadata& m, const std::string& name, double otherwise) {
  if (!m.contains(name)) return otherwise;
  const double value = m.number(name);
  const auto narrow = static_cast<float>(value);
  if (static_cast<double>(narrow) != value) return value;
  return std::stod(fmt::format("{}", narrow));
}

void check_gguf_keys(const GgufMetadata& m, std::string_view prefix, std::span<const std::string_view> read,
                     const ModelConfig& c) {
  const auto key = [&](std::string_view name) { return fmt::format("{}{}", prefix, name); };
  const auto in = [](std::span<const std::string_view> names, std::string_view name) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  for (const Refused& r : kRefused)
    if (!in(read, r.name)) refuse(m, key(r.name), r.usual, r.name != "attention.causal", r.why);
  refuse(m, key("attention.scale"), 1 / std::sqrt(static_cast<double>(c.head_dim())), true,
         "only 1 / sqrt(head size) is supported");

  std::string unknown;
  for (const GgufMetadata::Entry& entry : m.entries()) {
    if (!entry.key.starts_with(prefix)) continue;
    const std::string_view name = std::string_view(entry.key).substr(prefix.size());
    const bool checked = name == "attention.scale" || std::any_of(std::begin(kRefused), std::end(kRefused),
                                                                  [&](const Refused& r) { return r.name == name; });
    if (!checked && !in(read, name) && !in(kSilent, name))
      unknown += fmt::format("{}{}", unknown.empty() ? "" : ", ", in_quotes(entry.key));
  }
  if (!unknown.empty()) note("{}: unknown keys have no effect: {}", m.where(), printable(unknown, 1000));
}

}  // namespace dsmoe
