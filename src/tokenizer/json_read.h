// Reading JSON that may be anything: every access checks the type and names the place.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "core/fail.h"

namespace dsmoe::json_read {

using Json = nlohmann::json;

inline Json parse(std::string_view text, std::string_view what) {
  Json value = Json::parse(text, nullptr, false);
  if (value.is_discarded()) fail(ErrorCode::kFormat, "{}: not valid JSON", what);
  if (!value.is_object()) fail(ErrorCode::kFormat, "{}: expected a JSON object, found {}", what, value.type_name());
  return value;
}

// The member, or nothing when it is absent or null.
inline const Json* find(const Json& object, const char* key) {
  const auto it = object.find(key);
  return it == object.end() || it->is_null() ? nullptr : &*it;
}

inline const Json& member(const Json& object, const char* key, std::string_view where) {
  const Json* value = find(object, key);
  if (!value) fail(ErrorCode::kFormat, "{}: \"{}\" is missing", where, key);
  return *value;
}

[[noreturn]] inline void wrong_type(const Json& value, const char* key, const char* expected, std::string_view where) {
  fail(ErrorCode::kFormat, "{}: \"{}\" should be {}, found {}", where, key, expected, value.type_name());
}

inline const std::string& text(const Json& object, const char* key, std::string_view where) {
  const Json& value = member(object, key, where);
  if (!value.is_string()) wrong_type(value, key, "a string", where);
  return value.get_ref<const std::string&>();
}

inline bool flag(const Json& object, const char* key, bool otherwise, std::string_view where) {
  const Json* value = find(object, key);
  if (!value) return otherwise;
  if (!value->is_boolean()) wrong_type(*value, key, "true or false", where);
  return value->get<bool>();
}

// A token id as it may stand in a file: 0 to 2^31 - 1. Nothing for any other value.
inline std::optional<std::int32_t> token_id(const Json& value) {
  if (!value.is_number_integer()) return std::nullopt;
  const bool fits = value.is_number_unsigned() ? value.get<std::uint64_t>() <= 0x7FFFFFFF
                                               : value.get<std::int64_t>() >= 0 && value.get<std::int64_t>() <= 0x7FFFFFFF;
  return fits ? std::optional(value.get<std::int32_t>()) : std::nullopt;
}

inline const Json& array(const Json& object, const char* key, std::string_view where) {
  const Json& value = member(object, key, where);
  if (!value.is_array()) wrong_type(value, key, "an array", where);
  return value;
}

inline const Json& object(const Json& parent, const char* key, std::string_view where) {
  const Json& value = member(parent, key, where);
  if (!value.is_object()) wrong_type(value, key, "an object", where);
  return value;
}

}  // namespace dsmoe::json_read
