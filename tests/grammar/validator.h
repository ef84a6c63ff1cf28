// Whether a JSON value satisfies a schema, by the words of the specification, for the keywords that the tests use.
#pragma once

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <regex>
#include <stdexcept>
#include <string>

#include "core/utf8.h"

namespace dsmoe::grammar::testing {

class Validator {
 public:
  using Json = nlohmann::json;
  explicit Validator(Json schema) : root_(std::move(schema)) {}
  bool valid(const Json& value) const { return check(root_, value); }

 private:
  static bool is_whole(const Json& v) {
    return v.is_number_integer() || (v.is_number_float() && std::floor(v.get<double>()) == v.get<double>());
  }
  static bool has_type(const Json& v, const std::string& type) {
    if (type == "integer") return is_whole(v);
    if (type == "number") return v.is_number();
    if (type == "string") return v.is_string();
    if (type == "array") return v.is_array();
    if (type == "object") return v.is_object();
    if (type == "boolean") return v.is_boolean();
    if (type == "null") return v.is_null();
    throw std::logic_error("unknown type " + type);
  }

  bool check(const Json& s, const Json& v) const {
    if (s.is_boolean()) return s.get<bool>();
    if (s.contains("$ref") && !check(root_.at(Json::json_pointer(s["$ref"].get<std::string>().substr(1))), v)) return false;
    if (s.contains("type")) {
      const Json types = s["type"].is_array() ? s["type"] : Json::array({s["type"]});
      if (std::none_of(types.begin(), types.end(), [&](const Json& t) { return has_type(v, t.get<std::string>()); }))
        return false;
    }
    if (s.contains("const") && v != s["const"]) return false;
    if (s.contains("enum") && std::find(s["enum"].begin(), s["enum"].end(), v) == s["enum"].end()) return false;
    const auto matching = [&](const char* key) {
      return std::count_if(s[key].begin(), s[key].end(), [&](const Json& branch) { return check(branch, v); });
    };
    if (s.contains("allOf") && matching("allOf") != static_cast<long>(s["allOf"].size())) return false;
    if (s.contains("anyOf") && matching("anyOf") == 0) return false;
    if (s.contains("oneOf") && matching("oneOf") != 1) return false;
    if (v.is_number()) return number(s, v);
    if (v.is_string()) return string(s, v.get<std::string>());
    if (v.is_array()) return array(s, v);
    return !v.is_object() || object(s, v);
  }

  static bool number(const Json& s, const Json& v) {
    return !(s.contains("minimum") && v < s["minimum"]) && !(s.contains("maximum") && v > s["maximum"]) &&
           !(s.contains("exclusiveMinimum") && v <= s["exclusiveMinimum"]) &&
           !(s.contains("exclusiveMaximum") && v >= s["exclusiveMaximum"]);
  }

  static std::wstring wide(const std::string& text) {  // a character each
    std::wstring out;
    for (std::size_t at = 0; at < text.size();) out.push_back(static_cast<wchar_t>(utf8::next(text, at)));
    return out;
  }

  static bool string(const Json& s, const std::string& text) {
    const auto length =
        static_cast<std::size_t>(std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; }));
    if (s.contains("minLength") && length < s["minLength"].get<std::size_t>()) return false;
    if (s.contains("maxLength") && length > s["maxLength"].get<std::size_t>()) return false;
    return !s.contains("pattern") || std::regex_search(wide(text), std::wregex(wide(s["pattern"].get<std::string>())));
  }

  bool array(const Json& s, const Json& v) const {
    if (s.contains("minItems") && v.size() < s["minItems"].get<std::size_t>()) return false;
    if (s.contains("maxItems") && v.size() > s["maxItems"].get<std::size_t>()) return false;
    const std::size_t listed = s.contains("prefixItems") ? s["prefixItems"].size() : 0;
    for (std::size_t i = 0; i < v.size(); ++i) {
      if (i < listed && !check(s["prefixItems"][i], v[i])) return false;
      if (i >= listed && s.contains("items") && !check(s["items"], v[i])) return false;
    }
    return true;
  }

  bool object(const Json& s, const Json& v) const {
    if (s.contains("required"))
      for (const Json& name : s["required"])
        if (!v.contains(name.get<std::string>())) return false;
    for (const auto& [name, value] : v.items()) {
      if (s.contains("properties") && s["properties"].contains(name)) {
        if (!check(s["properties"][name], value)) return false;
      } else if (s.contains("additionalProperties") && !check(s["additionalProperties"], value)) {
        return false;
      }
    }
    return true;
  }

  Json root_;
};

}  // namespace dsmoe::grammar::testing
