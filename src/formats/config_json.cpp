// config.json: one list of fields, visited to read, to write and to compare.
#include "formats/config_json.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <limits>
#include <set>

#include "core/fail.h"
#include "core/json_read.h"
#include "core/log.h"
#include "core/printable.h"
#include "formats/config_fields.h"
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
  visit("device_aux_loss_alpha", c.device_aux_loss_alpha);
  visit("aux_loss_devices", c.aux_loss_devices);
  visit("router_z_loss_alpha", c.router_z_loss_alpha);
}

[[noreturn]] void wrong_type(const char* field, const Json& value, const char* expected) {
  fail(ErrorCode::kFormat, "{} is {}; expected {}", field, json_read::shown(value), expected);
}

constexpr std::pair<const char*, DType> kDTypes[] = {
    {"float32", DType::kF32}, {"bfloat16", DType::kBF16}, {"float16", DType::kF16}};

// Newer files call torch_dtype just dtype; whichever stands in the file is read and written back.
const char* name_in(const Json& object, const char* field) {
  return std::strcmp(field, "torch_dtype") == 0 && object.contains("dtype") ? "dtype" : field;
}

// Sets each field that the file has. Null is Python's None: it turns a flag off and is a value of the optional fields.
class Reader {
 public:
  explicit Reader(const Json& object) : object_(object) {}

  template <class T>
  void operator()(const char* field, T& out) const {
    const char* name = name_in(object_, field);
    const auto found = object_.find(name);
    if (found != object_.end()) read(name, *found, out);
  }

 private:
  static void read(const char* name, const Json& v, Index& out) {
    if (!v.is_number_integer()) wrong_type(name, v, "a whole number");
    if (v.is_number_unsigned() && v.get<std::uint64_t>() > std::numeric_limits<Index>::max())
      wrong_type(name, v, "a number of at most 63 bits");
    out = v.get<Index>();
  }
  static void read(const char* name, const Json& v, std::optional<Index>& out) {
    if (v.is_null()) return out.reset();
    read(name, v, out.emplace());
  }
  static void read(const char* name, const Json& v, double& out) {
    if (!v.is_number()) wrong_type(name, v, "a number");
    out = v.get<double>();
  }
  static void read(const char* name, const Json& v, bool& out) {
    if (!v.is_boolean() && !v.is_null()) wrong_type(name, v, "true or false");
    out = v.is_boolean() && v.get<bool>();
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
  static void read(const char* name, const Json& v, RopeScaling& out) {
    out = {};
    if (v.is_null()) return;
    if (!v.is_object() || (!v.contains("type") && !v.contains("rope_type")))
      wrong_type(name, v, "null or an object with \"type\" (or \"rope_type\") and \"factor\"");
    for (const auto& [key, value] : v.items())
      if (key != "type" && key != "rope_type" && key != "factor" && key != "original_max_position_embeddings")
        fail(ErrorCode::kUnsupported, "{} has {} {}, which is not supported", name, in_quotes(key),
             json_read::shown(value));
    const Json& type = v.contains("rope_type") ? v["rope_type"] : v["type"];
    if (v.contains("type") && v["type"] != type)
      fail(ErrorCode::kFormat, "{} has type {} and rope_type {}; remove one", name, json_read::shown(v["type"]),
           json_read::shown(type));
    if (type == "default") return;
    if (type != "linear" && type != "dynamic")
      fail(ErrorCode::kUnsupported, "{} type is {}; \"linear\" and \"dynamic\" are supported", name,
           json_read::shown(type));
    if (!v.contains("factor")) wrong_type(name, v, "an object with \"factor\"");
    out.type = type == "linear" ? RopeScalingType::kLinear : RopeScalingType::kDynamic;
    read("rope_scaling factor", v["factor"], out.factor);
  }

  const Json& object_;
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
Json to_value(const RopeScaling& v) {
  if (v.type == RopeScalingType::kNone) return nullptr;
  return {{"type", v.type == RopeScalingType::kLinear ? "linear" : "dynamic"}, {"factor", v.factor}};
}

// Dynamic scaling is by max_position_embeddings, as in the reference; newer files may say another length beside it.
void check_original_length(const char* name, const Json& scaling, const ModelConfig& c) {
  const Json* const length = json_read::find(scaling, "original_max_position_embeddings");
  if (c.rope_scaling.type == RopeScalingType::kDynamic && length && *length != c.max_position_embeddings)
    fail(ErrorCode::kUnsupported,
         "{} has original_max_position_embeddings {}; only max_position_embeddings {} is supported", name,
         json_read::shown(*length), c.max_position_embeddings);
}

// What newer versions of transformers write instead of rope_theta and rope_scaling. Where a file has both, they must agree.
void read_rope_parameters(const Json& object, ModelConfig& c) {
  const Json* const found = json_read::find(object, "rope_parameters");
  if (!found) return;
  if (!found->is_object()) wrong_type("rope_parameters", *found, "null or an object");
  Json scaling = *found;
  ModelConfig said;
  Reader{scaling}("rope_theta", said.rope_theta);
  const bool theta = scaling.erase("rope_theta") > 0;
  if (const Json* const part = json_read::find(scaling, "partial_rotary_factor"); part && *part != 1)
    fail(ErrorCode::kUnsupported, "rope_parameters has partial_rotary_factor {}; only 1 is supported",
         json_read::shown(*part));
  scaling.erase("partial_rotary_factor");
  if (!scaling.contains("type") && !scaling.contains("rope_type")) scaling["rope_type"] = "default";
  Reader{Json{{"rope_parameters", scaling}}}("rope_parameters", said.rope_scaling);
  const bool twice = theta && object.contains("rope_theta") && said.rope_theta != c.rope_theta;
  if (twice || (json_read::find(object, "rope_scaling") && said.rope_scaling != c.rope_scaling))
    fail(ErrorCode::kFormat, "rope_parameters and {} say different things; remove one of them",
         twice ? "rope_theta" : "rope_scaling");
  if (theta) c.rope_theta = said.rope_theta;
  c.rope_scaling = said.rope_scaling;
  check_original_length("rope_parameters", scaling, c);
}

ModelConfig from_object(const Json& object) {
  ModelConfig config;
  const Reader read(object);
  read("model_type", config.model_type);
  config.validate();  // another model's file must be refused as such, not for the first field that differs
  visit_fields(config, read);
  if (const Json* const scaling = json_read::find(object, "rope_scaling"))
    check_original_length("rope_scaling", *scaling, config);
  read_rope_parameters(object, config);
  return config;
}

// Names from a file, for one line.
std::string listed(const std::vector<std::string>& names) {
  constexpr std::size_t kMost = 20;
  std::string out;
  for (std::size_t i = 0; i < std::min(names.size(), kMost); ++i) {
    if (i > 0) out += ", ";
    out += in_quotes(names[i]);
  }
  return names.size() > kMost ? fmt::format("{} and {} more", out, names.size() - kMost) : out;
}

std::vector<std::string> known_fields() {
  std::vector<std::string> names;
  visit_fields(static_cast<const ModelConfig&>(ModelConfig()),
               [&](const char* field, const auto&) { names.emplace_back(field); });
  return names;
}

}  // namespace

ModelConfig ModelConfig::from_json(std::string_view text, const std::string& source) {
  const Json object = json_read::parse_object<Json>(text, source);
  try {
    ModelConfig config = from_object(object);
    config.validate();
    refuse_fields(object, config);
    if (const std::vector<std::string> unknown = unknown_fields(object, known_fields()); !unknown.empty())
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
  Json out = fresh ? Json{{"architectures", {std::string(family_of(model_type).architecture)}}}
                   : json_read::parse_object<Json>(source_json, "config.json");
  const ModelConfig before = fresh ? ModelConfig() : from_object(out);
  Json unchanged = Json::object();
  visit_fields(before, [&](const char* field, const auto& value) { unchanged[field] = to_value(value); });
  // Changed rope settings are written in the fields that every version of transformers reads.
  if (before.rope_theta != rope_theta || before.rope_scaling != rope_scaling)
    if (out.erase("rope_parameters") > 0) unchanged.erase("rope_theta"), unchanged.erase("rope_scaling");
  // A new file has every field, except those of variants while they say nothing. A file that was read keeps its text
  // where the value is the same, so 10000 does not become 10000.0.
  static const std::set<std::string> kOnlyWhenSet = {"pad_token_id",     "head_dim",           "mlp_bias",
                                                     "n_group",          "topk_group",         "routed_scaling_factor",
                                                     "torch_dtype",      "topk_method",        "device_aux_loss_alpha",
                                                     "aux_loss_devices", "router_z_loss_alpha"};
  visit_fields(*this, [&](const char* field, const auto& value) {
    Json now = to_value(value);
    const bool same = now == unchanged[field];
    if (same && (!fresh || kOnlyWhenSet.count(field) != 0)) return;
    out[name_in(out, field)] = std::move(now);
  });
  return out.dump(2) + "\n";
}

}  // namespace dsmoe
