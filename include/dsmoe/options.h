// How an options struct is declared once. Its static visit() lists every field with a name, a help text and a range:
//
//   template <class Self, class Visitor>
//   static void visit(Self& o, Visitor&& v) {
//     v(o.batch_size, {"batch-size", "Sequences per forward and backward pass", at_least(1)});
//   }
//
// Validation, JSON, the flags of the command line and docs/options.md are visitors of that list. A visitor is called with
// a reference to the field and an OptionInfo.
#pragma once

#include <array>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "dsmoe/dtype.h"

namespace dsmoe {

// The values that a number may have. Infinity and NaN are never allowed.
struct OptionRange {
  double low = -std::numeric_limits<double>::infinity(), high = std::numeric_limits<double>::infinity();
  bool low_open = false, high_open = false;  // the bound itself is not allowed

  constexpr OptionRange at_most(double bound) const { return {low, bound, low_open, false}; }
  constexpr OptionRange under(double bound) const { return {low, bound, low_open, true}; }

  // "it must be at least 1", naming the bound that `value` is beyond; "" for a value in the range.
  std::string refusal(double value) const;
  std::string text() const;  // "≥ 0, < 1"; "" for any number
};
constexpr OptionRange at_least(double bound) { return OptionRange{.low = bound}; }
constexpr OptionRange over(double bound) { return OptionRange{.low = bound, .low_open = true}; }

struct OptionInfo {
  const char* name;  // "batch-size"
  const char* help;
  OptionRange range = {};
};

// An enum that is an option specialises this with
//   static constexpr std::array values = {std::pair{Order::kShuffle, "shuffle"}, ...};
// and, if the option may be given without a value, with the one that it has then:
//   static constexpr Order without_value = Order::kShuffle;
template <class E>
struct OptionNames;

template <class E>
concept NamedEnum = std::is_enum_v<E> && requires {
  OptionNames<E>::values;
};

template <NamedEnum E>
constexpr const char* option_name(E value) {
  for (const auto& [v, name] : OptionNames<E>::values)
    if (v == value) return name;
  return "?";
}

template <NamedEnum E>
std::optional<E> option_value(std::string_view name) {
  for (const auto& [v, n] : OptionNames<E>::values)
    if (n == name) return v;
  return {};
}

template <NamedEnum E>
std::vector<std::string> option_choices() {
  std::vector<std::string> names;
  for (const auto& value : OptionNames<E>::values) names.emplace_back(value.second);
  return names;
}

// An optional enum that is not set is written so.
inline constexpr const char* kAutoOption = "auto";

// What a model can be computed in.
template <>
struct OptionNames<DType> {
  static constexpr std::array values = {std::pair{DType::kF32, "f32"}, std::pair{DType::kBF16, "bf16"}};
};

}  // namespace dsmoe
