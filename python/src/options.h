// Options as keyword arguments: a visitor of the lists in the public headers, as the flags of the command line are.
// "batch-size" is batch_size here.
#pragma once

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <set>
#include <string>

#include "binding.h"
#include "dsmoe/error.h"
#include "dsmoe/options.h"
#include "dsmoe/routing_overrides.h"

namespace dsmoe::python {

template <class T>
inline constexpr bool kOptional = false;
template <class T>
inline constexpr bool kOptional<std::optional<T>> = true;

template <class T>
T option_from(nb::handle value, const OptionInfo& option) {
  if constexpr (kOptional<T>) {
    using Inner = typename T::value_type;
    if (value.is_none()) return {};
    if constexpr (NamedEnum<Inner>)
      if (nb::isinstance<nb::str>(value) && nb::cast<std::string>(value) == kAutoOption) return {};
    return option_from<Inner>(value, option);
  } else if constexpr (NamedEnum<T>) {
    if constexpr (requires { OptionNames<T>::without_value; })  // True or False in earlier versions
      if (nb::isinstance<nb::bool_>(value)) return nb::cast<bool>(value) ? OptionNames<T>::without_value : T{};
    const auto name = nb::cast<std::string>(value);
    if (const std::optional<T> found = option_value<T>(name)) return *found;
    std::string choices;
    for (const std::string& choice : option_choices<T>()) choices += (choices.empty() ? "" : ", ") + choice;
    throw Error(ErrorCode::kInvalidArgument, std::string(option.name) + " is \"" + name + "\"; choose one of " + choices);
  } else if constexpr (std::is_same_v<T, std::vector<std::string>>) {
    if (nb::isinstance<nb::str>(value)) return {nb::cast<std::string>(value)};
    return nb::cast<T>(value);
  } else {
    return nb::cast<T>(value);
  }
}

// Sets the fields that `given` names and removes them from it. Returns the names, as the library has them.
template <class Options>
std::set<std::string> take_options(nb::dict& given, Options& options) {
  std::set<std::string> taken;
  Options::visit(options, [&]<class T>(T& field, const OptionInfo& option) {
    std::string name = option.name;
    std::replace(name.begin(), name.end(), '-', '_');
    const nb::str key(name.c_str());
    if (!given.contains(key)) return;
    try {
      field = option_from<T>(given[key], option);
    } catch (const nb::cast_error&) {
      throw nb::type_error((name + " has the wrong type: " + option.help).c_str());
    }
    nb::del(given[key]);
    taken.insert(option.name);
  });
  return taken;
}

// {"skip_best": 1, "experts_per_token": 4, "drop_shared": True, "disabled": [(layer, expert), ...]}, or None.
std::optional<RoutingOverrides> overrides_from(nb::handle value);

}  // namespace dsmoe::python
