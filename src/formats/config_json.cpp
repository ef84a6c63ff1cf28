// config.json: one list of fields, visited to read, to write and to compare.
#include "formats/config_json.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <limits>
#include <set>
#include <type_traits>

#include "core/fail.h"
#include "core/json_read.h"
#include "core/log.h"
#include "core/printable.h"
#include "formats/config_fields.h"
#include "formats/config_rope.h"
#include "formats/config_spellings.h"
#include "formats/config_values.h"
#include "model/families/family.h"

namespace dsmoe {

namespace {

using Json = json_read::OrderedJson;

constexpr std::size_t kMaxBytes = std::size_t{4} << 20;  // a config.json has a few kilobytes

template <class Config, class Visit>
void visit_fields(Config& c, Visit&& visit) {
  visit("model_type", c.model_type);
  visit("vocab_size", c.vocab_size);
  visit("hidden_size", c.hidden_size);
  visit("intermediate_size", c.intermediate_size);
  visit("moe_intermediate_size", c.moe_intermediate_size);
  visit("num_hidden_layers", c.num_hidden_layers);
  visit("num_attention_heads", c.num_attention_heads);
  visit("num_key_value_heads", c.num_key_value_heads);
  visit("n_shared_experts", c.n_shared_experts);
  visit("n_routed_experts", c.n_routed_experts);
  visit("num_experts_per_tok", c.num_experts_per_tok);
  visit("moe_layer_freq", c.moe_layer_freq);
  visit("first_k_dense_replace", c.first_k_dense_replace);
  visit("norm_topk_prob", c.norm_topk_prob);
  visit("scoring_func", c.scoring_func);
  visit("aux_loss_alpha", c.aux_loss_alpha);
  visit("seq_aux", c.seq_aux);
  visit("hidden_act", c.hidden_act);
  visit("max_position_embeddings", c.max_position_embeddings);
  visit("initializer_range", c.initializer_range);
  visit("rms_norm_eps", c.rms_norm_eps);
  visit("use_cache", c.use_cache);
  visit("pad_token_id", c.pad_token_id);
  visit("bos_token_id", c.bos_token_id);
  visit("eos_token_id", c.eos_token_id);
  visit("pretraining_tp", c.pretraining_tp);
  visit("tie_word_embeddings", c.tie_word_embeddings);
  visit("rope_theta", c.rope_theta);
  visit("rope_scaling", c.rope_scaling);
  visit("attention_bias", c.attention_bias);
  visit("attention_dropout", c.attention_dropout);
  visit("head_dim", c.explicit_head_dim);
  visit("mlp_bias", c.mlp_bias);
  visit("torch_dtype", c.torch_dtype);
  visit("topk_method", c.topk_method);
  visit("n_group", c.n_group);
  visit("topk_group", c.topk_group);
  visit("routed_scaling_factor", c.routed_scaling_factor);
  visit("use_qk_norm", c.use_qk_norm);
  visit("partial_rotary_factor", c.partial_rotary_factor);
  visit("rotary_dim", c.rotary_dim);
  visit("shared_expert_intermediate_size", c.shared_expert_intermediate_size);
  visit("num_nextn_predict_layers", c.num_nextn_predict_layers);
  visit("kv_lora_rank", c.kv_lora_rank);
  visit("q_lora_rank", c.q_lora_rank);
  visit("qk_nope_head_dim", c.qk_nope_head_dim);
  visit("qk_rope_head_dim", c.qk_rope_head_dim);
  visit("v_head_dim", c.v_head_dim);
  visit("rope_interleave", c.rope_interleave);
  visit("device_aux_loss_alpha", c.device_aux_loss_alpha);
  visit("aux_loss_devices", c.aux_loss_devices);
  visit("router_z_loss_alpha", c.router_z_loss_alpha);
}

constexpr std::pair<const char*, DType> kDTypes[] = {
    {"float32", DType::kF32}, {"bfloat16", DType::kBF16}, {"float16", DType::kF16}};

// Sets each field that the file has. Null is Python's None: it turns a flag off and is a value of the optional fields.
class Reader {
 public:
  Reader(const Json& object, const Family& family) : object_(object), family_(family) {}

  template <class T>
  void operator()(const char* field, T& out) const {
    const std::string name = name_in(object_, family_, field);
    const auto found = name.empty() ? object_.end() : object_.find(name);
    if (found == object_.end()) return;
    constexpr bool kNumber = std::is_same_v<T, Index> || std::is_same_v<T, std::optional<Index>>;
    const bool list = kNumber && !family_.per_layer.empty();
    read(name.c_str(), list ? same_in_all_layers(name.c_str(), *found) : *found, out);
  }

 private:
  template <class T>
  static void read(const char* name, const Json& v, T& out) {
    read_value(name, v, out);
  }
  static void read(const char* name, const Json& v, std::string& out) {
    if (!v.is_string()) wrong_type(name, v, "a string");
    const auto& text = v.get_ref<const std::string&>();
    for (const char c : text)  // the known values are plain words, and the text goes into messages
      if (c <= ' ' || c > '~' || text.size() > 60) wrong_type(name, v, "a plain name");
    out = text;
  }
  static void read(const char* name, const Json& v, std::vector<Index>& out) {
    out.clear();
    if (v.is_null()) return;
    if (!v.is_array()) return read(name, v, out.emplace_back());
    for (const Json& id : v) read(name, id, out.emplace_back());
  }
  static void read(const char* name, const Json& v, std::optional<DType>& out) {
    out.reset();
    if (v.is_null()) return;
    for (const auto& [text, dtype] : kDTypes)
      if (v == text) out = dtype;
    if (!out) wrong_type(name, v, "\"float32\", \"bfloat16\" or \"float16\"");
  }
  void read(const char* name, const Json& v, RopeScaling& out) const { out = read_rope_scaling(name, v, family_); }

  const Json& object_;
  const Family& family_;
};

Json to_value(Index v) { return v; }
Json to_value(double v) { return v; }
Json to_value(bool v) { return v; }
Json to_value(const std::string& v) { return v; }
Json to_value(const std::optional<Index>& v) { return v ? Json(*v) : Json(nullptr); }
Json to_value(const std::vector<Index>& v) {
  if (v.empty()) return nullptr;
  return v.size() == 1 ? Json(v[0]) : Json(v);
}
Json to_value(const std::optional<DType>& v) {
  for (const auto& [text, dtype] : kDTypes)
    if (v == dtype) return text;
  return nullptr;
}
Json to_value(const RopeScaling& v) { return rope_scaling_value(v); }

// What newer versions of transformers write instead of rope_theta and rope_scaling. Where a file has both, they must agree.
void read_rope_parameters(const Json& object, const Family& family, ModelConfig& c) {
  const Json* const found = json_read::find(object, "rope_parameters");
  if (!found) return;
  if (!found->is_object()) wrong_type("rope_parameters", *found, "null or an object");
  Json scaling = *found;
  ModelConfig said;
  Reader{scaling, family}("rope_theta", said.rope_theta);
  const bool theta = scaling.erase("rope_theta") > 0;
  if (knows(family, "partial_rotary_factor"))
    Reader{scaling, family}("partial_rotary_factor", c.partial_rotary_factor);
  else if (const Json* const part = json_read::find(scaling, "partial_rotary_factor"); part && *part != 1)
    fail(ErrorCode::kUnsupported, "rope_parameters has partial_rotary_factor {}; only 1 is supported",
         json_read::shown(*part));
  scaling.erase("partial_rotary_factor");
  if (!scaling.contains("type") && !scaling.contains("rope_type")) scaling["rope_type"] = "default";
  const Json alone = {{"rope_parameters", scaling}};
  Reader{alone, family}("rope_parameters", said.rope_scaling);
  const bool twice = theta && object.contains("rope_theta") && said.rope_theta != c.rope_theta;
  if (twice || (json_read::find(object, "rope_scaling") && said.rope_scaling != c.rope_scaling))
    fail(ErrorCode::kFormat, "rope_parameters and {} say different things; remove one of them",
         twice ? "rope_theta" : "rope_scaling");
  if (theta) c.rope_theta = said.rope_theta;
  c.rope_scaling = said.rope_scaling;
  check_original_length("rope_parameters", scaling, c);
}

// Lists of numbers per layer have one for each layer; what is behind these is not read by anyone.
void check_lists(const Json& object, const Family& family, const ModelConfig& c) {
  if (family.per_layer.empty()) return;
  visit_fields(c, [&]<class T>(const char* field, const T&) {
    if (!std::is_same_v<T, Index> && !std::is_same_v<T, std::optional<Index>>) return;
    const std::string name = name_in(object, family, field);
    const Json* const v = name.empty() ? nullptr : json_read::find(object, name);
    if (v && v->is_array() && static_cast<Index>(v->size()) < c.num_hidden_layers)
      fail(ErrorCode::kFormat, "{} has {} numbers for {} layers", name, v->size(), c.num_hidden_layers);
  });
}

ModelConfig from_object(const Json& object) {
  ModelConfig config;
  const auto type = object.find("model_type");
  if (type != object.end()) Reader{object, family_of(config.model_type)}("model_type", config.model_type);
  const Family& family = family_of(config.model_type);  // another model's file is refused as such, not for a field of it
  config = family.default_config();
  check_spellings(object, family);
  visit_fields(config, Reader(object, family));
  if (const Json* const scaling = json_read::find(object, "rope_scaling"))
    check_original_length("rope_scaling", *scaling, config);
  read_rope_parameters(object, family, config);
  if (family.finish) family.finish(config);
  check_lists(object, family, config);
  return config;
}

// Whether a field is a list of numbers per layer, in a file that has it or in a new one.
bool is_list(const Json& object, const Family& family, const std::string& name) {
  const Json* const found = json_read::find(object, name);
  if (found) return !family.per_layer.empty() && found->is_array();
  return std::find(family.per_layer.begin(), family.per_layer.end(), name) != family.per_layer.end();
}

// Names from a file, for one line.
std::string listed(const std::vector<std::string>& names, std::size_t most = 20) {
  std::string out;
  for (std::size_t i = 0; i < std::min(names.size(), most); ++i) {
    if (i > 0) out += ", ";
    out += in_quotes(names[i]);
  }
  return names.size() > most ? fmt::format("{} and {} more", out, names.size() - most) : out;
}

std::vector<std::string> known_fields(const Family& family) {
  std::vector<std::string> names;
  visit_fields(static_cast<const ModelConfig&>(ModelConfig()), [&](const char* field, const auto&) {
    for (std::string& name : spellings(family, field)) names.push_back(std::move(name));
  });
  return names;
}

// Values as a user writes them: JSON, or a string without its quotes.
Json value_of(const std::string& text) {
  try {
    return json_read::parse<Json>(text, "value");
  } catch (const Error&) {
    return text;
  }
}

// A new file has every field, except those of variants while they say nothing, and in the file of another family those
// that only DeepSeekMoE's has.
bool only_when_set(const Family& family, std::string_view field) {
  static const std::set<std::string_view> kVariants = {"pad_token_id",     "head_dim",           "mlp_bias",
                                                       "n_group",          "topk_group",         "routed_scaling_factor",
                                                       "torch_dtype",      "topk_method",        "device_aux_loss_alpha",
                                                       "aux_loss_devices", "router_z_loss_alpha"};
  static const std::set<std::string_view> kDeepseek = {"n_shared_experts", "moe_layer_freq", "first_k_dense_replace",
                                                       "scoring_func",     "aux_loss_alpha", "seq_aux",
                                                       "pretraining_tp",   "attention_bias", "bos_token_id"};
  return kVariants.contains(field) || (family.defaults && kDeepseek.contains(field)) || is_of_other_families(field);
}

}  // namespace

ModelConfig ModelConfig::with(const std::vector<std::string>& assignments) const {
  if (assignments.empty()) return *this;
  const Family& family = family_of(model_type);
  const std::vector<std::string> known = known_fields(family);
  Json changes = Json::object();
  for (const std::string& assignment : assignments) {
    const std::size_t equals = assignment.find('=');
    require(equals != std::string::npos, "expected FIELD=VALUE, got {}", in_quotes(assignment));
    const std::string field = assignment.substr(0, equals);
    require(field != "model_type", "model_type cannot be changed: another family has other fields");
    require(std::find(known.begin(), known.end(), field) != known.end(), "a config.json has no field {}; there are {}",
            in_quotes(field), listed(known, known.size()));
    changes[field] = value_of(assignment.substr(equals + 1));
  }
  check_spellings(changes, family);
  ModelConfig config = *this;
  visit_fields(config, Reader(changes, family));
  if (family.finish) family.finish(config);
  config.validate();  // before lists with an entry for each layer are written
  const ModelConfig read = from_json(config.to_json(), "the changed config");  // as its file would be
  return source_json.empty() ? config : read;
}

ModelConfig ModelConfig::from_json(std::string_view text, const std::string& source) {
  const Json object = json_read::parse_object<Json>(text, source);
  try {
    ModelConfig config = from_object(object);
    config.validate();
    const std::vector<std::string> known = known_fields(family_of(config.model_type));
    refuse_fields(object, config, known);
    if (const std::vector<std::string> unknown = unknown_fields(object, known); !unknown.empty())
      note("{}: unknown fields have no effect: {}", source, listed(unknown));
    config.source_json = text;
    return config;
  } catch (const Error& error) {
    throw Error(error.code(), source + ": " + error.what());
  }
}

ModelConfig read_config_json(const std::filesystem::path& file) {
  std::ifstream in(file, std::ios::binary);
  if (!in) fail(ErrorCode::kIo, "cannot open {}: {}", file.string(), std::strerror(errno));
  std::string text(kMaxBytes + 1, '\0');
  in.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (in.bad()) fail(ErrorCode::kIo, "cannot read {}: {}", file.string(), std::strerror(errno));
  text.resize(static_cast<std::size_t>(in.gcount()));
  if (text.size() > kMaxBytes)
    fail(ErrorCode::kFormat, "{} is larger than {} bytes, not a config.json", file.string(), kMaxBytes);
  return ModelConfig::from_json(text, file.string());
}

std::string ModelConfig::to_json() const {
  const bool fresh = source_json.empty();
  const Family& family = family_of(model_type);
  Json out = fresh ? Json{{"architectures", {std::string(family.architecture)}}}
                   : json_read::parse_object<Json>(source_json, "config.json");
  if (fresh && !family.said.empty()) out.update(json_read::parse_object<Json>(family.said, "config.json"));
  const ModelConfig before = fresh ? family.default_config() : from_object(out);
  out.erase("quantization_config");  // weights are never written so
  Json unchanged = Json::object();
  visit_fields(before, [&](const char* field, const auto& value) { unchanged[field] = to_value(value); });
  // Changed rope settings are written in the fields that every version of transformers reads.
  if (before.rope_theta != rope_theta || before.rope_scaling != rope_scaling ||
      before.partial_rotary_factor != partial_rotary_factor)
    if (out.erase("rope_parameters") > 0)
      for (const char* field : {"rope_theta", "rope_scaling", "partial_rotary_factor"}) unchanged.erase(field);
  // A file that was read keeps its text where the value is the same, so 10000 does not become 10000.0.
  visit_fields(*this, [&](const char* field, const auto& value) {
    Json now = to_value(value);
    const bool same = now == unchanged[field];
    const std::string name = name_in(out, family, field);
    using Value = std::remove_cvref_t<decltype(value)>;
    constexpr bool kMayBeList = std::is_same_v<Value, Index> || std::is_same_v<Value, std::optional<Index>>;
    const bool list = kMayBeList && now.is_number() && is_list(out, family, name);
    const bool stale = list && !fresh && num_hidden_layers != before.num_hidden_layers;
    if (name.empty() || (same && !stale && (!fresh || (only_when_set(family, field) && !list)))) return;
    out[name] = list ? Json(std::vector<Json>(static_cast<std::size_t>(num_hidden_layers), now)) : std::move(now);
    for (const std::string& other : spellings(family, field))  // they would keep the old value
      if (other != name) out.erase(other);
  });
  drop_outdated_fields(out, before, *this, known_fields(family));
  return out.dump(2) + "\n";
}

}  // namespace dsmoe
