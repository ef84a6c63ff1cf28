// An options struct (dsmoe/options.h) as a JSON object, and back.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "core/json_read.h"
#include "core/options.h"
#include "core/printable.h"

namespace dsmoe::io {

template <class Options>
nlohmann::ordered_json options_to_json(const Options& options) {
  nlohmann::ordered_json object = nlohmann::ordered_json::object();
  Options::visit(options, [&](const auto& value, const OptionInfo& option) {
    if constexpr (NamedEnum<std::decay_t<decltype(value)>>)
      object[option.name] = option_name(value);
    else
      object[option.name] = value;
  });
  return object;
}

// Fields that are missing keep their defaults; unknown ones are ignored. `where` begins every message.
template <class Options>
Options options_from_json(const nlohmann::ordered_json& object, const std::string& where) {
  if (!object.is_object()) fail(ErrorCode::kFormat, "{}: the options are not a JSON object", where);
  Options options;
  Options::visit(options, [&]<class T>(T& value, const OptionInfo& option) {
    const auto stored = object.find(option.name);
    if (stored == object.end()) return;
    if constexpr (NamedEnum<T>) {
      const auto name = json_read::as<std::string>(*stored, option.name, where);
      const std::optional<T> found = option_value<T>(name);
      if (!found)
        fail(ErrorCode::kFormat, "{}: the option {} is {}; expected {}", where, option.name, in_quotes(name),
             list_of_choices(option_choices<T>()));
      value = *found;
    } else {
      value = json_read::as<T>(*stored, option.name, where);
    }
  });
  return options;
}

}  // namespace dsmoe::io
