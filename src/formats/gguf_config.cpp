#include "formats/gguf_config.h"

#include <algorithm>
#include <cmath>
#include <string_view>

#include "core/fail.h"
#include "core/printable.h"
#include "formats/gguf_keys.h"
#include "formats/gguf_names.h"

namespace dsmoe {

namespace {

using io::GgufMetadata;
using io::GgufValue;

constexpr std::string_view kArchitecture = "deepseek";
constexpr std::string_view kModelJson = "dsmoe.config_json";

std::string key(std::string_view name) { return fmt::format("{}.{}", kArchitecture, name); }

// The decimal number that was meant: 1e-6 went through f32, and its shortest form there is 1e-6 again.
double decimal(const GgufMetadata& m, const std::string& name, double otherwise) {
  if (!m.contains(name)) return otherwise;
  const double value = m.number(name);
  const auto narrow = static_cast<float>(value);
  if (static_cast<double>(narrow) != value) return value;
  return std::stod(fmt::format("{}", narrow));
}

// One number, or one per layer, all the same.
Index uniform(const GgufMetadata& m, const std::string& name) {
  if (m.find(name) == nullptr || m.find(name)->type != io::GgufType::kArray) return m.integer(name);
  const std::vector<std::int64_t> all = m.integers(name);
  if (all.empty() || std::any_of(all.begin(), all.end(), [&](auto v) { return v != all.front(); }))
    fail(ErrorCode::kUnsupported, "{}: {} differs between layers, which is not supported", m.where(), name);
  return all.front();
}

RopeScaling read_scaling(const GgufMetadata& m) {
  const std::string type = m.text(key("rope.scaling.type"), "linear");
  const double factor = decimal(m, key("rope.scaling.factor"), decimal(m, key("rope.scale_linear"), 0));
  if (type == "none" || factor == 0 || factor == 1) return {};
  if (type != "linear")
    fail(ErrorCode::kUnsupported, "{}: {} is {}; none and linear are supported", m.where(), key("rope.scaling.type"),
         in_quotes(type));
  return {RopeScalingType::kLinear, factor};
}

// What the architecture's readers do not do, or this model does not.
void check_supported(const GgufMetadata& m) {
  const std::string architecture = m.text("general.architecture");
  if (architecture != kArchitecture)
    fail(ErrorCode::kUnsupported, "{}: architecture {} is not supported, only \"deepseek\" (DeepSeekMoE) is", m.where(),
         in_quotes(architecture));
  if (m.integer("split.count", 1) > 1)
    fail(ErrorCode::kUnsupported, "{}: one of {} parts of a model; merge them into one file first", m.where(),
         m.integer("split.count"));
}

// Every key that is read here, for check_gguf_keys().
constexpr std::string_view kRead[] = {"block_count",
                                      "context_length",
                                      "embedding_length",
                                      "feed_forward_length",
                                      "vocab_size",
                                      "attention.head_count",
                                      "attention.head_count_kv",
                                      "attention.key_length",
                                      "attention.value_length",
                                      "attention.layer_norm_rms_epsilon",
                                      "rope.dimension_count",
                                      "rope.freq_base",
                                      "rope.scaling.type",
                                      "rope.scaling.factor",
                                      "rope.scale_linear",
                                      "leading_dense_block_count",
                                      "expert_count",
                                      "expert_used_count",
                                      "expert_shared_count",
                                      "expert_feed_forward_length",
                                      "expert_weights_scale",
                                      "expert_weights_norm",
                                      "expert_gating_func",
                                      "expert_group_count",
                                      "expert_group_used_count"};

void read_sizes(const io::GgufFile& file, ModelConfig& c) {
  const GgufMetadata& m = file.metadata();
  c.num_hidden_layers = m.integer(key("block_count"));
  // Each layer has tensors: what goes over the layers below, and lists of them, follow what the file holds.
  const auto tensors = static_cast<Index>(file.tensors().size());
  if (c.num_hidden_layers < 1 || c.num_hidden_layers > tensors)
    fail(ErrorCode::kFormat, "{}: {} is {}, but the file has {} tensors", m.where(), key("block_count"),
         c.num_hidden_layers, tensors);
  c.max_position_embeddings = m.integer(key("context_length"));
  c.hidden_size = m.integer(key("embedding_length"));
  c.num_attention_heads = uniform(m, key("attention.head_count"));
  require(c.num_attention_heads > 0 && c.hidden_size > 0, "{}: {} attention heads of a model {} wide", m.where(),
          c.num_attention_heads, c.hidden_size);
  const bool kv = m.contains(key("attention.head_count_kv"));
  const Index kv_heads = kv ? uniform(m, key("attention.head_count_kv")) : c.num_attention_heads;
  if (kv_heads != c.kv_heads() || c.source_json.empty()) c.num_key_value_heads = kv_heads;
  const Index head_dim = m.integer(key("attention.key_length"), c.head_dim());
  for (const char* name : {"attention.value_length", "rope.dimension_count"})
    if (const Index other = m.integer(key(name), head_dim); other != head_dim)
      fail(ErrorCode::kUnsupported, "{}: {} is {}, not the {} of a whole head; that is not supported", m.where(), key(name),
           other, head_dim);
  if (head_dim != c.head_dim()) c.explicit_head_dim = head_dim;
  if (m.contains(key("feed_forward_length"))) c.intermediate_size = uniform(m, key("feed_forward_length"));
  // The table's own height; a file may leave the key out.
  const Shape& table = file.info("token_embd.weight").shape;
  c.vocab_size = table.rank() == 2 ? table[0] : m.integer(key("vocab_size"));
}

void read_experts(const io::GgufFile& file, ModelConfig& c) {
  const GgufMetadata& m = file.metadata();
  const Index experts = m.integer(key("expert_count"), 0);
  const Index dense = m.integer(key("leading_dense_block_count"), 0);
  if (experts == 0 || dense >= c.num_hidden_layers) {
    if (c.moe_layers() == 0) return;  // what config.json said of a model without MoE layers
    c.n_routed_experts = c.num_experts_per_tok = c.n_shared_experts = std::nullopt;
    return;
  }
  const std::string router = fmt::format("blk.{}.ffn_gate_inp.weight", dense);
  if (const Shape& shape = file.info(router).shape; shape.rank() != 2 || shape[0] != experts)
    fail(ErrorCode::kFormat, "{}: {} is {}, but tensor '{}' is {}", m.where(), key("expert_count"), experts, router, shape);
  c.n_routed_experts = experts;
  c.num_experts_per_tok = m.integer(key("expert_used_count"));
  const Index shared = m.integer(key("expert_shared_count"), 0);
  if (shared != c.shared_experts()) c.n_shared_experts = shared;
  c.moe_intermediate_size = m.integer(key("expert_feed_forward_length"));
  bool same = true;
  for (Index l = 0; l < c.num_hidden_layers; ++l) same = same && c.is_moe_layer(l) == (l >= dense);
  if (same) return;
  c.first_k_dense_replace = dense;
  c.moe_layer_freq = 1;
}

// How experts are scored, chosen and weighed. A key that is missing changes nothing.
void read_gate(const io::GgufFile& file, ModelConfig& c) {
  const GgufMetadata& m = file.metadata();
  if (!c.n_routed_experts) return;
  const std::string scale = key("expert_weights_scale"), gating = key("expert_gating_func");
  if (const double value = decimal(m, scale, 0); value != 0)  // 0 is none
    if (static_cast<float>(value) != static_cast<float>(c.routed_scaling_factor)) c.routed_scaling_factor = value;
  c.norm_topk_prob = m.boolean(key("expert_weights_norm"), c.norm_topk_prob);
  if (m.contains(gating)) {
    const auto function = m.integer(gating);
    if (function != 1 && function != 2)
      fail(ErrorCode::kUnsupported, "{}: {} is {}; 1 (softmax) and 2 (sigmoid) are supported", m.where(), gating, function);
    c.scoring_func = function == 1 ? "softmax" : "sigmoid";
  }
  const bool bias = file.contains(fmt::format("blk.{}.exp_probs_b.bias", c.first_k_dense_replace));
  if (bias != c.selection_bias()) c.topk_method = bias ? "noaux_tc" : "greedy";
  const Index groups = m.integer(key("expert_group_count"), c.expert_groups());
  if (groups == c.expert_groups() && !m.contains(key("expert_group_used_count"))) return;
  // Without a bias a group may be scored by its best expert or by its two best, and the file does not say which.
  if (groups > 1 && !bias)
    fail(ErrorCode::kUnsupported, "{}: {} is {}, but the file has no selection bias (exp_probs_b); groups need one",
         m.where(), key("expert_group_count"), groups);
  if (groups != c.expert_groups()) c.n_group = groups;
  if (groups > 1) c.topk_group = m.integer(key("expert_group_used_count"));
}

void read_tokens(const GgufMetadata& m, ModelConfig& c) {
  if (m.contains("tokenizer.ggml.bos_token_id")) c.bos_token_id = m.integer("tokenizer.ggml.bos_token_id");
  if (m.contains("tokenizer.ggml.eos_token_id")) {
    const Index eos = m.integer("tokenizer.ggml.eos_token_id");
    if (std::find(c.eos_token_id.begin(), c.eos_token_id.end(), eos) == c.eos_token_id.end()) c.eos_token_id = {eos};
  }
}

bool carries_layers(const ModelConfig& c) {
  for (Index l = 0; l < c.num_hidden_layers; ++l)
    if (c.n_routed_experts && c.is_moe_layer(l) != (l >= c.first_k_dense_replace)) return false;
  return true;
}

}  // namespace

void check_gguf_carries(const ModelConfig& c) {
  const auto refuse = [](const char* field, const auto& value, const char* why) {
    fail(ErrorCode::kUnsupported,
         "{} is {}, which GGUF's architecture \"deepseek\" cannot carry: {}; keep the model as a Hugging Face folder",
         field, value, why);
  };
  gguf_names(c.model_type);  // throws for a family that has none
  if (!carries_layers(c))
    refuse("moe_layer_freq", c.moe_layer_freq, "every layer after the leading dense ones is a MoE layer there");
  if (c.moe_layers() > 0 && c.norm_topk_prob && c.experts_per_token() > 1)
    refuse("norm_topk_prob", true, "the chosen experts' scores are not normalised there");
  if (c.moe_layers() > 0 && c.shared_experts() == 0) refuse("n_shared_experts", 0, "a MoE layer has shared experts there");
  if (c.moe_layers() > 0 && c.selection_bias())
    refuse("topk_method", c.topk_method, "experts are chosen without a bias there");
  if (c.moe_layers() > 0 && c.scoring_func != "softmax")
    refuse("scoring_func", c.scoring_func, "scores are a softmax there");
  if (c.moe_layers() > 0 && c.expert_groups() > 1) refuse("n_group", c.expert_groups(), "experts have no groups there");
  if (c.attention_bias) refuse("attention_bias", true, "the output of attention has no bias there");
  if (c.rope_scaling.type == RopeScalingType::kDynamic)
    refuse("rope_scaling", "dynamic", "only linear scaling and none are known there");
  if (c.num_attention_heads * c.head_dim() != c.hidden_size)
    refuse("head_dim", c.head_dim(), "heads are as wide as hidden_size / num_attention_heads there");
}

io::GgufMetadata gguf_metadata(const ModelConfig& c, const std::string& name) {
  c.validate();
  check_gguf_carries(c);
  GgufMetadata m(name);
  const auto put = [&](const char* k, Index value) { m.set(key(k), GgufValue::u32(static_cast<std::uint32_t>(value))); };
  const auto real = [&](const char* k, double value) { m.set(key(k), GgufValue::f32(static_cast<float>(value))); };
  m.set("general.architecture", GgufValue::string(kArchitecture));
  m.set("general.type", GgufValue::string("model"));
  m.set("general.name", GgufValue::string(name));
  put("block_count", c.num_hidden_layers);
  put("context_length", c.max_position_embeddings);
  put("embedding_length", c.hidden_size);
  put("feed_forward_length", c.intermediate_size);
  put("attention.head_count", c.num_attention_heads);
  put("attention.head_count_kv", c.kv_heads());
  real("attention.layer_norm_rms_epsilon", c.rms_norm_eps);
  real("rope.freq_base", c.rope_theta);
  put("rope.dimension_count", c.head_dim());
  const bool linear = c.rope_scaling.type == RopeScalingType::kLinear;
  m.set(key("rope.scaling.type"), GgufValue::string(linear ? "linear" : "none"));
  if (linear) real("rope.scaling.factor", c.rope_scaling.factor);
  put("vocab_size", c.vocab_size);
  const bool moe = c.moe_layers() > 0;
  put("leading_dense_block_count", moe ? c.first_k_dense_replace : c.num_hidden_layers);
  put("expert_count", moe ? c.routed_experts() : 0);
  put("expert_used_count", moe ? c.experts_per_token() : 0);
  put("expert_shared_count", moe ? c.shared_experts() : 0);
  put("expert_feed_forward_length", moe ? c.moe_intermediate_size : 0);
  real("expert_weights_scale", c.routed_scaling_factor);
  m.set(kModelJson, GgufValue::string(c.to_json()));
  return m;
}

ModelConfig config_from_gguf(const io::GgufFile& file) {
  const GgufMetadata& m = file.metadata();
  check_supported(m);
  ModelConfig c;
  c.num_key_value_heads.reset();
  c.bos_token_id.reset();
  c.eos_token_id.clear();
  if (m.contains(kModelJson))
    c = ModelConfig::from_json(m.text(kModelJson), fmt::format("{}: {}", file.path(), kModelJson));
  read_sizes(file, c);
  read_experts(file, c);
  read_gate(file, c);
  read_tokens(m, c);
  // f32 is what the format has; where config.json says the same number with more digits, that is kept.
  const auto keep = [&](double& value, const char* name, double otherwise) {
    const double carried = decimal(m, key(name), otherwise);
    if (static_cast<float>(carried) != static_cast<float>(value)) value = carried;
  };
  if (!m.contains(key("attention.layer_norm_rms_epsilon"))) m.number(key("attention.layer_norm_rms_epsilon"));
  keep(c.rms_norm_eps, "attention.layer_norm_rms_epsilon", c.rms_norm_eps);
  keep(c.rope_theta, "rope.freq_base", 10000);
  const RopeScaling scaling = read_scaling(m);
  if (scaling.type != c.rope_scaling.type ||
      static_cast<float>(scaling.factor) != static_cast<float>(c.rope_scaling.factor))
    c.rope_scaling = scaling;
  c.tie_word_embeddings = !file.contains("output.weight");
  c.attention_bias = file.contains("blk.0.attn_q.bias");
  try {
    c.validate();
  } catch (const Error& error) {
    throw Error(error.code(), file.path() + ": " + error.what());
  }
  check_gguf_keys(m, key(""), kRead, c);
  return c;
}

}  // namespace dsmoe
