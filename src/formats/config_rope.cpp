#include "formats/config_rope.h"

#include <set>

#include "core/fail.h"
#include "core/printable.h"
#include "formats/config_values.h"

namespace dsmoe {

namespace {

using Json = json_read::OrderedJson;

template <class T>
void read_in(const char* name, const Json& object, const char* field, T& out) {
  if (const Json* const v = json_read::find(object, field)) read_value(fmt::format("{} {}", name, field).c_str(), *v, out);
}

void read_yarn(const char* name, const Json& v, const Family& family, RopeScaling& out) {
  if (!family.yarn)
    fail(ErrorCode::kUnsupported,
         "{} type is \"yarn\"; \"linear\" and \"dynamic\" are supported in models of model_type \"{}\"", name,
         family.model_type);
  out.type = RopeScalingType::kYarn;
  read_in(name, v, "beta_fast", out.beta_fast);
  read_in(name, v, "beta_slow", out.beta_slow);
  read_in(name, v, "mscale", out.mscale);
  read_in(name, v, "mscale_all_dim", out.mscale_all_dim);
  read_in(name, v, "attention_factor", out.attention_factor);
  read_in(name, v, "original_max_position_embeddings", out.original_max_positions);
  read_in(name, v, "truncate", out.truncate);
}

// Whether a key has a meaning beside the type, or stands in released files without one.
bool known_key(const std::string& key, const Json& type, const Family& family) {
  static const std::set<std::string_view> kYarn = {"beta_fast",      "beta_slow",        "mscale",
                                                   "mscale_all_dim", "attention_factor", "truncate"};
  static const std::set<std::string_view> kAlpha = {"alpha", "beta_fast", "beta_slow", "mscale", "mscale_all_dim"};
  if (key == "type" || key == "rope_type" || key == "factor" || key == "original_max_position_embeddings") return true;
  return (type == "yarn" && kYarn.contains(key)) || (type == "dynamic" && family.rope_alpha && kAlpha.contains(key));
}

}  // namespace

RopeScaling read_rope_scaling(const char* name, const Json& v, const Family& family) {
  RopeScaling out;
  if (v.is_null()) return out;
  if (!v.is_object() || (!v.contains("type") && !v.contains("rope_type")))
    wrong_type(name, v, "null or an object with \"type\" (or \"rope_type\") and \"factor\"");
  const Json& type = v.contains("rope_type") ? v["rope_type"] : v["type"];
  for (const auto& [key, value] : v.items())
    if (!known_key(key, type, family))
      fail(ErrorCode::kUnsupported, "{} has {} {}, which is not supported", name, in_quotes(key), json_read::shown(value));
  if (v.contains("type") && v["type"] != type)
    fail(ErrorCode::kFormat, "{} has type {} and rope_type {}; remove one", name, json_read::shown(v["type"]),
         json_read::shown(type));
  if (type == "default") return out;
  if (type != "linear" && type != "dynamic" && type != "yarn")
    fail(ErrorCode::kUnsupported, "{} type is {}; \"linear\", \"dynamic\" and \"yarn\" are supported", name,
         json_read::shown(type));
  if (type == "dynamic" && family.rope_alpha) read_in(name, v, "alpha", out.alpha);
  if (out.alpha == 0) out.alpha.reset();  // as the reference takes it
  if (!v.contains("factor") && !out.alpha) wrong_type(name, v, "an object with \"factor\"");
  if (type == "yarn")
    read_yarn(name, v, family, out);
  else
    out.type = type == "linear" ? RopeScalingType::kLinear : RopeScalingType::kDynamic;
  if (v.contains("factor")) read_value("rope_scaling factor", v["factor"], out.factor);
  return out;
}

Json rope_scaling_value(const RopeScaling& v) {
  if (v.type == RopeScalingType::kNone) return nullptr;
  if (v.type != RopeScalingType::kYarn) {
    Json out = {{"type", v.type == RopeScalingType::kLinear ? "linear" : "dynamic"}, {"factor", v.factor}};
    if (v.alpha) out["alpha"] = *v.alpha;
    return out;
  }
  Json out = {{"type", "yarn"}, {"factor", v.factor}, {"beta_fast", v.beta_fast}, {"beta_slow", v.beta_slow}};
  if (v.original_max_positions) out["original_max_position_embeddings"] = *v.original_max_positions;
  if (v.mscale) out["mscale"] = *v.mscale;
  if (v.mscale_all_dim) out["mscale_all_dim"] = *v.mscale_all_dim;
  if (v.attention_factor) out["attention_factor"] = *v.attention_factor;
  if (!v.truncate) out["truncate"] = false;
  return out;
}

void check_original_length(const char* name, const Json& scaling, const ModelConfig& c) {
  const Json* const length = json_read::find(scaling, "original_max_position_embeddings");
  if (c.rope_scaling.by_length() && length && *length != c.max_position_embeddings)
    fail(ErrorCode::kUnsupported,
         "{} has original_max_position_embeddings {}; only max_position_embeddings {} is supported", name,
         json_read::shown(*length), c.max_position_embeddings);
}

}  // namespace dsmoe
