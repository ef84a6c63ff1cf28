// Validation of an options struct that declares its fields in visit() (dsmoe/options.h).
#pragma once

#include <algorithm>
#include <string>

#include "core/fail.h"
#include "dsmoe/options.h"

namespace dsmoe {

template <class T>
inline constexpr bool kIsOptional = false;
template <class T>
inline constexpr bool kIsOptional<std::optional<T>> = true;

// "paper, cosine or constant"
std::string list_of_choices(const std::vector<std::string>& names);

// Throws unless the number is in its range. Whole numbers count things, and none has more than 2^40 of them: the product
// of two still fits 64 bits for most uses, and a wrong sign that wrapped around is caught.
void require_option(const OptionInfo& option, double value, bool whole);

template <class T>
void validate_option(const OptionInfo& option, const T& value) {
  if constexpr (kIsOptional<T>) {
    if (value) validate_option(option, *value);
  } else if constexpr (NamedEnum<T>) {
    const auto& all = OptionNames<T>::values;
    require(std::any_of(all.begin(), all.end(), [&](const auto& v) { return v.first == value; }),
            "{} has no such value; choose {}", option.name, list_of_choices(option_choices<T>()));
  } else if constexpr (std::is_arithmetic_v<T> && !std::is_same_v<T, bool>) {
    // Seeds are all of 64 bits, and have no range.
    if constexpr (!std::is_unsigned_v<T>) require_option(option, static_cast<double>(value), std::is_integral_v<T>);
  }
}

// Throws an Error that names the first option out of its range.
template <class Options>
void validate_options(const Options& options) {
  Options::visit(options, [](const auto& value, const OptionInfo& option) { validate_option(option, value); });
}

}  // namespace dsmoe
