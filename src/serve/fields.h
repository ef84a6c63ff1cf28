// Fields of requests: each is checked, and what is wrong is an ApiError that names it.
#pragma once

#include <fmt/format.h>

#include <optional>
#include <string>
#include <string_view>

#include "core/json_read.h"
#include "serve/api_error.h"
#include "serve/parameters.h"

namespace dsmoe::serve {

using Json = json_read::OrderedJson;  // schemas keep the order of their properties

[[noreturn]] inline void refuse(const std::string& param, const std::string& message, const char* code = "invalid_value") {
  throw ApiError(400, message, param, code);
}

inline Json parsed(std::string_view body) {
  if (body.empty()) throw ApiError(400, "the body is empty; send a JSON object", {}, "invalid_json");
  try {
    return json_read::parse_object<Json>(body, "the body");
  } catch (const Error& e) {
    throw ApiError(400, e.what(), {}, "invalid_json");
  }
}

template <class T>
T typed(const Json& value, const std::string& name) {
  std::optional<T> out = json_read::try_as<T>(value);
  if (!out)
    refuse(name, fmt::format("'{}' must be {}, found {}", name, json_read::expected<T>(), json_read::shown(value)),
           "invalid_type");
  return std::move(*out);
}

// A member that may be absent or null.
template <class T>
std::optional<T> field(const Json& object, const std::string& name) {
  const Json* const value = json_read::find(object, name);
  return value ? std::optional<T>(typed<T>(*value, name)) : std::nullopt;
}

template <class T>
T number(const Json& object, const std::string& name, T otherwise, T low, T high) {
  const T value = field<T>(object, name).value_or(otherwise);
  if (!(value >= low && value <= high))
    refuse(name, fmt::format("'{}' is {}, it must be from {} to {}", name, value, low, high));
  return value;
}

// What chats and completions have in common. `most_tokens`: of an answer, where the request does not say.
infer::Request read_common(const Json& body, const RequestDefaults& defaults, CompletionRequest& out, Index most_tokens);
const Tokenizer& tokenizer_of(const RequestDefaults& defaults);

}  // namespace dsmoe::serve
