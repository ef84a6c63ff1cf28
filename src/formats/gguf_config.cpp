#include "formats/gguf_config.h"

#include <algorithm>
#include <cmath>
#include <string_view>

#include "core/fail.h"
#include "core/printable.h"
#include "formats/config_spellings.h"
#include "formats/gguf_keys.h"
#include "formats/gguf_latent_keys.h"
#include "formats/gguf_names.h"

namespace dsmoe {

namespace {

using io::GgufMetadata;
using io::GgufValue;

constexpr std::string_view kModelJson = "dsmoe.config_json";

// The keys of an architecture begin with its name.
struct Keys {
  const GgufArchitecture& architecture;
  std::string operator()(std::string_view name) const { return fmt::format("{}.{}", architecture.name, name); }
};

// One number, or one per layer, all the same.
Index uniform(const GgufMetadata& m, const std::string& name) {
  if (m.find(name) == nullptr || m.find(name)->type != io::GgufType::kArray) return m.integer(name);
  const std::vector<std::int64_t> all = m.integers(name);
  if (all.empty() || std::any_of(all.begin(), all.end(), [&](auto v) { return v != all.front(); }))
    fail(ErrorCode::kUnsupported, "{}: {} differs between layers, which is not supported", m.where(), name);
  return all.front();
}

RopeScaling read_scaling(const GgufMetadata& m, const Keys& key) {
  const std::string type = m.text(key("rope.scaling.type"), "linear");
  const double factor = gguf_decimal(m, key("rope.scaling.factor"), gguf_decimal(m, key("rope.scale_linear"), 0));
  if (type == "none" || factor == 0 || factor == 1) return {};
  if (type == "yarn" && key.architecture.latent) return read_yarn_keys(m, key(""), factor);
  if (type != "linear")
    fail(ErrorCode::kUnsupported, "{}: {} is {}; none and linear are supported in this architecture", m.where(),
         key("rope.scaling.type"), in_quotes(type));
  return {RopeScalingType::kLinear, factor};
}

// What the architecture's readers do not do, or this model does not.
const GgufArchitecture& supported_architecture(const GgufMetadata& m) {
  const std::string name = m.text("general.architecture");
  const GgufArchitecture* const architecture = find_gguf_architecture(name);
  if (!architecture)
    fail(ErrorCode::kUnsupported, "{}: architecture {} is not supported, only {} are", m.where(), in_quotes(name),
         known_gguf_architectures());
  if (m.integer("split.count", 1) > 1)
    fail(ErrorCode::kUnsupported, "{}: one of {} parts of a model; merge them into one file first", m.where(),
         m.integer("split.count"));
  if (!architecture->latent) return *architecture;
  // Several families have this one: the file's own config.json says which; else its scores do, and where it does not say
  // them, as files of GLM-4.7-Flash for a while, its vocabulary.
  const bool glm = m.integer(name + ".vocab_size", 0) == 154880;
  const bool sigmoid = m.integer(name + ".expert_gating_func", glm ? 2 : 1) == 2;
  std::string family = sigmoid ? glm ? "glm4_moe_lite" : "deepseek_v3" : "deepseek_v2";
  if (m.contains(kModelJson))
    family = ModelConfig::from_json(m.text(kModelJson), fmt::format("{}: {}", m.where(), kModelJson)).model_type;
  const GgufArchitecture& row = gguf_architecture_of(family);
  return row.name == name ? row : *architecture;
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
constexpr std::string_view kFurtherLayers = "nextn_predict_layers";

// How much of a head is turned, in the field that the family has for it.
void read_rotary(const GgufMetadata& m, const Keys& key, ModelConfig& c) {
  const Index rotary = m.integer(key("rope.dimension_count"), c.head_dim());
  if (rotary == c.rotary_width()) return;
  if (knows(family_of(c.model_type), "rotary_dim"))
    c.rotary_dim = rotary;
  else
    c.partial_rotary_factor = static_cast<double>(rotary) / static_cast<double>(std::max<Index>(1, c.head_dim()));
}

void read_sizes(const io::GgufFile& file, const Keys& key, ModelConfig& c) {
  const GgufMetadata& m = file.metadata();
  c.num_hidden_layers = m.integer(key("block_count"));
  // Each layer has tensors: what goes over the layers below, and lists of them, follow what the file holds.
  const auto tensors = static_cast<Index>(file.tensors().size());
  if (c.num_hidden_layers < 1 || c.num_hidden_layers > tensors)
    fail(ErrorCode::kFormat, "{}: {} is {}, but the file has {} tensors", m.where(), key("block_count"),
         c.num_hidden_layers, tensors);
  if (key.architecture.further_layers) {
    const Index further = m.integer(key(kFurtherLayers), 0);
    if (further < 0 || further >= c.num_hidden_layers)
      fail(ErrorCode::kFormat, "{}: {} is {} of {} layers", m.where(), key(kFurtherLayers), further, c.num_hidden_layers);
    c.num_hidden_layers -= further;
    if (further > 0) c.num_nextn_predict_layers = further;
  }
  c.max_position_embeddings = m.integer(key("context_length"));
  c.hidden_size = m.integer(key("embedding_length"));
  c.num_attention_heads = uniform(m, key("attention.head_count"));
  require(c.num_attention_heads > 0 && c.hidden_size > 0, "{}: {} attention heads of a model {} wide", m.where(),
          c.num_attention_heads, c.hidden_size);
  if (m.contains(key("feed_forward_length"))) c.intermediate_size = uniform(m, key("feed_forward_length"));
  // The table's own height; a file may leave the key out.
  const Shape& table = file.info("token_embd.weight").shape;
  c.vocab_size = table.rank() == 2 ? table[0] : m.integer(key("vocab_size"));
  if (key.architecture.latent) return read_latent_keys(file, key(""), c);
  const bool kv = m.contains(key("attention.head_count_kv"));
  const Index kv_heads = kv ? uniform(m, key("attention.head_count_kv")) : c.num_attention_heads;
  if (kv_heads != c.kv_heads() || c.source_json.empty()) c.num_key_value_heads = kv_heads;
  const Index head_dim = m.integer(key("attention.key_length"), c.head_dim());
  const bool partial = key.architecture.partial_rotary;
  for (const char* name : {"attention.value_length", "rope.dimension_count"})
    if (const Index other = m.integer(key(name), head_dim); other != head_dim && !(partial && name[0] == 'r'))
      fail(ErrorCode::kUnsupported, "{}: {} is {}, not the {} of a whole head; that is not supported", m.where(), key(name),
           other, head_dim);
  if (head_dim != c.head_dim()) c.explicit_head_dim = head_dim;
  if (partial) read_rotary(m, key, c);
}

// How many shared experts there are; a file that does not say it has their matrices, as wide as all of them together.
void read_shared(const io::GgufFile& file, const Keys& key, Index layer, ModelConfig& c) {
  const std::string matrix = fmt::format("blk.{}.ffn_gate_shexp.weight", layer);
  const Index width = file.contains(matrix) ? file.info(matrix).shape[0] : 0,
              each = std::max<Index>(1, c.moe_intermediate_size);
  const Index shared = file.metadata().integer(key("expert_shared_count"), width / each);
  if (shared != c.shared_experts()) c.n_shared_experts = shared;
  if (knows(family_of(c.model_type), "shared_expert_intermediate_size")) c.shared_expert_intermediate_size = width;
}

void read_experts(const io::GgufFile& file, const Keys& key, ModelConfig& c) {
  const GgufMetadata& m = file.metadata();
  const Index experts = m.integer(key("expert_count"), 0);
  const Index dense = m.integer(key("leading_dense_block_count"), 0);
  if (experts == 0 && !key.architecture.dense_layers)
    fail(ErrorCode::kUnsupported, "{}: a model of architecture {} without experts is not supported", m.where(),
         in_quotes(key.architecture.name));
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
  const std::string width = key("expert_feed_forward_length");  // of files without dense layers feed_forward_length
  const bool same_width = !key.architecture.dense_layers && !m.contains(width);
  c.moe_intermediate_size = same_width ? uniform(m, key("feed_forward_length")) : m.integer(width);
  read_shared(file, key, dense, c);
  bool same = true;
  for (Index l = 0; l < c.num_hidden_layers; ++l) same = same && c.is_moe_layer(l) == (l >= dense);
  if (same) return;
  c.first_k_dense_replace = dense;
  c.moe_layer_freq = 1;
}

// How experts are scored, chosen and weighed. A key that is missing changes nothing.
void read_gate(const io::GgufFile& file, const Keys& key, ModelConfig& c) {
  const GgufMetadata& m = file.metadata();
  if (!c.n_routed_experts) return;
  const std::string scale = key("expert_weights_scale"), gating = key("expert_gating_func");
  if (const double value = gguf_decimal(m, scale, 0); value != 0)  // 0 is none
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
  if (groups > 1 && !bias && key.architecture.latent)
    c.topk_method = "group_limited_greedy";  // DeepSeek-V2's
  else if (groups > 1 && !bias)
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

// In more than the digits that f32 has not.
bool differs(double a, double b) { return std::fabs(a - b) > 1e-6 * std::fabs(b); }

// f32 is what the format has; where config.json says the same number with more digits, that is kept.
double carried(const GgufMetadata& m, const std::string& name, double otherwise, double said) {
  const double value = gguf_decimal(m, name, otherwise);
  return static_cast<float>(value) == static_cast<float>(said) ? said : value;
}

void read_rope(const GgufMetadata& m, const Keys& key, ModelConfig& c) {
  const double said = c.rope_scaling.base(c.rope_theta, c.rotary_width());
  const double base = carried(m, key("rope.freq_base"), 10000, said);
  const RopeScaling scaling = read_scaling(m, key);
  // An alpha is part of the base; config.json alone tells the two apart.
  if (c.rope_scaling.alpha && base == said && scaling.type == RopeScalingType::kNone) return;
  c.rope_theta = base;
  if (c.rope_scaling.alpha || scaling.type != c.rope_scaling.type || differs(scaling.factor, c.rope_scaling.factor) ||
      scaling.original_max_positions != c.rope_scaling.original_max_positions ||
      differs(scaling.beta_fast, c.rope_scaling.beta_fast) || differs(scaling.beta_slow, c.rope_scaling.beta_slow) ||
      differs(scaling.mscale_all_dim.value_or(0), c.rope_scaling.mscale_all_dim.value_or(0)))
    c.rope_scaling = scaling;
}

// What a file of the architecture means that says nothing.
ModelConfig bare_config(const GgufArchitecture& a) {
  ModelConfig c = family_of(a.model_type).default_config();
  c.num_key_value_heads.reset();
  c.explicit_head_dim.reset();
  c.rotary_dim.reset();
  c.partial_rotary_factor = 1;
  c.first_k_dense_replace = 0;
  c.n_shared_experts.reset();
  c.n_group.reset(), c.topk_group.reset();
  c.routed_scaling_factor = 1;
  c.pad_token_id.reset();
  c.bos_token_id.reset();
  c.eos_token_id.clear();
  if (a.normalised != GgufRule::kKey) c.norm_topk_prob = a.normalised == GgufRule::kAlways;
  return c;
}

bool carries_layers(const ModelConfig& c) {
  for (Index l = 0; l < c.num_hidden_layers; ++l)
    if (c.n_routed_experts && c.is_moe_layer(l) != (l >= c.first_k_dense_replace)) return false;
  return true;
}

}  // namespace

void check_gguf_carries(const ModelConfig& c) {
  const GgufArchitecture& a = gguf_architecture_of(c.model_type);  // throws for a family that has none
  const auto refuse = [&](const char* field, const auto& value, const char* why) {
    fail(ErrorCode::kUnsupported,
         "{} is {}, which GGUF's architecture \"{}\" cannot carry: {}; keep the model as a Hugging Face folder", field,
         value, a.name, why);
  };
  if (!carries_layers(c))
    refuse("moe_layer_freq", c.moe_layer_freq, "every layer after the leading dense ones is a MoE layer there");
  if (c.moe_layers() > 0) {
    const bool several = c.experts_per_token() > 1, scaled = c.routed_scaling_factor != 1;
    if (a.normalised == GgufRule::kNever && c.norm_topk_prob && several)
      refuse("norm_topk_prob", true, "the chosen experts' scores are not normalised there");
    if (a.normalised == GgufRule::kAlways && !c.norm_topk_prob)
      refuse("norm_topk_prob", false, "the chosen experts' scores are always normalised there");
    if (a.needs_shared && c.shared_experts() == 0) refuse("n_shared_experts", 0, "a MoE layer has shared experts there");
    if (a.selection_bias == GgufRule::kNever && c.selection_bias())
      refuse("topk_method", c.topk_method, "experts are chosen without a bias there");
    if (a.selection_bias == GgufRule::kAlways && !c.selection_bias())
      refuse("topk_method", c.topk_method, "experts are chosen with a bias there");
    if (!a.any_score && c.scoring_func != "softmax") refuse("scoring_func", c.scoring_func, "scores are a softmax there");
    if (!a.any_score && a.name != "deepseek" && scaled)
      refuse("routed_scaling_factor", c.routed_scaling_factor, "weights are not scaled there");
    if (c.expert_groups() > 1 && !a.latent) refuse("n_group", c.expert_groups(), "experts have no groups there");
    if (c.expert_groups() > 1 && !c.selection_bias())
      refuse("n_group", c.expert_groups(), "groups are scored by their two best experts there");
    if (!a.dense_layers && c.first_k_dense_replace > 0)
      refuse("first_k_dense_replace", c.first_k_dense_replace, "every layer is a MoE layer there");
  }
  if (c.attention_bias && !a.qkv_bias) refuse("attention_bias", true, "the output of attention has no bias there");
  if (c.rope_scaling.by_length()) refuse("rope_scaling", "dynamic", "only linear scaling and none are known there");
  if (c.rope_scaling.type == RopeScalingType::kYarn && !a.latent)
    refuse("rope_scaling", "yarn", "only linear scaling and none are supported there");
  if (const char* const why = why_yarn_is_not_carried(c.rope_scaling); why && a.latent) refuse("rope_scaling", "yarn", why);
  if (!a.any_head && c.num_attention_heads * c.head_dim() != c.hidden_size)
    refuse("head_dim", c.head_dim(), "heads are as wide as hidden_size / num_attention_heads there");
  if (a.needs_equal_heads && c.kv_heads() != c.num_attention_heads)
    refuse("num_key_value_heads", c.kv_heads(), "there are as many as heads there");
  if (a.needs_head && c.tie_word_embeddings) refuse("tie_word_embeddings", true, "the head is a tensor of its own there");
}

io::GgufMetadata gguf_metadata(const ModelConfig& c, const std::string& name) {
  c.validate();
  check_gguf_carries(c);
  const Keys key{gguf_architecture_of(c.model_type)};
  const GgufArchitecture& a = key.architecture;
  GgufMetadata m(name);
  const auto put = [&](const char* k, Index value) { m.set(key(k), GgufValue::u32(static_cast<std::uint32_t>(value))); };
  const auto real = [&](const char* k, double value) { m.set(key(k), GgufValue::f32(static_cast<float>(value))); };
  m.set("general.architecture", GgufValue::string(std::string(a.name)));
  m.set("general.type", GgufValue::string("model"));
  m.set("general.name", GgufValue::string(name));
  put("block_count", c.num_hidden_layers);
  put("context_length", c.max_position_embeddings);
  put("embedding_length", c.hidden_size);
  const bool one_width = spellings(family_of(c.model_type), "moe_intermediate_size").front() == "intermediate_size";
  put("feed_forward_length", one_width ? c.moe_intermediate_size : c.intermediate_size);
  put("attention.head_count", c.num_attention_heads);
  if (!a.latent) put("attention.head_count_kv", c.kv_heads());
  real("attention.layer_norm_rms_epsilon", c.rms_norm_eps);
  real("rope.freq_base", c.rope_scaling.base(c.rope_theta, c.rotary_width()));  // an alpha is part of it
  put("rope.dimension_count", c.rotary_width());
  if (a.latent) {
    put_latent_keys(c, key(""), m);
  } else if (a.any_head) {
    put("attention.key_length", c.head_dim());
    put("attention.value_length", c.head_dim());
  }
  const bool linear = c.rope_scaling.type == RopeScalingType::kLinear, yarn = c.rope_scaling.type == RopeScalingType::kYarn;
  m.set(key("rope.scaling.type"), GgufValue::string(linear ? "linear" : yarn ? "yarn" : "none"));
  if (linear) real("rope.scaling.factor", c.rope_scaling.factor);
  if (yarn) put_yarn_keys(c.rope_scaling, key(""), m);
  put("vocab_size", c.vocab_size);
  const bool moe = c.moe_layers() > 0;
  put("leading_dense_block_count", moe ? c.first_k_dense_replace : c.num_hidden_layers);
  put("expert_count", moe ? c.routed_experts() : 0);
  put("expert_used_count", moe ? c.experts_per_token() : 0);
  put("expert_shared_count", moe ? c.shared_experts() : 0);
  put("expert_feed_forward_length", moe ? c.moe_intermediate_size : 0);
  real("expert_weights_scale", c.routed_scaling_factor);
  if (moe && c.expert_groups() > 1) {
    put("expert_group_count", c.expert_groups());
    put("expert_group_used_count", *c.topk_group);
  }
  if (a.any_score) put("expert_gating_func", c.scoring_func == "sigmoid" ? 2 : 1);
  if (a.normalised == GgufRule::kKey) m.set(key("expert_weights_norm"), GgufValue::boolean(c.norm_topk_prob));
  if (a.layer_step) put("interleave_moe_layer_step", 1);
  if (a.shared_width && c.routed_experts() > 0)
    put("expert_shared_feed_forward_length", c.shared_experts() * c.moe_intermediate_size);
  m.set(kModelJson, GgufValue::string(c.to_json()));
  return m;
}

ModelConfig config_from_gguf(const io::GgufFile& file) {
  const GgufMetadata& m = file.metadata();
  const Keys key{supported_architecture(m)};
  ModelConfig c = bare_config(key.architecture);
  if (m.contains(kModelJson))
    c = ModelConfig::from_json(m.text(kModelJson), fmt::format("{}: {}", file.path(), kModelJson));
  if (c.model_type != key.architecture.model_type)
    fail(ErrorCode::kUnsupported, "{}: architecture {} is not that of the model_type \"{}\" in {}", m.where(),
         in_quotes(key.architecture.name), c.model_type, kModelJson);
  read_sizes(file, key, c);
  read_experts(file, key, c);
  read_gate(file, key, c);
  read_tokens(m, c);
  if (!m.contains(key("attention.layer_norm_rms_epsilon"))) m.number(key("attention.layer_norm_rms_epsilon"));
  c.rms_norm_eps = carried(m, key("attention.layer_norm_rms_epsilon"), c.rms_norm_eps, c.rms_norm_eps);
  read_rope(m, key, c);
  c.tie_word_embeddings = !file.contains("output.weight");
  c.attention_bias = file.contains("blk.0.attn_q.bias");
  if (knows(family_of(c.model_type), "use_qk_norm")) c.use_qk_norm = file.contains("blk.0.attn_q_norm.weight");
  try {
    c.validate();
  } catch (const Error& error) {
    throw Error(error.code(), file.path() + ": " + error.what());
  }
  std::vector<std::string_view> read(std::begin(kRead), std::end(kRead));
  if (key.architecture.further_layers) read.push_back(kFurtherLayers);
  if (key.architecture.latent) read.insert(read.end(), latent_gguf_keys().begin(), latent_gguf_keys().end());
  check_gguf_keys(m, key(""), read, c);
  return c;
}

}  // namespace dsmoe
