#include "core/options.h"

#include <cmath>

namespace dsmoe {

namespace {

std::string number(double value) { return fmt::format("{}", value); }

}  // namespace

std::string OptionRange::refusal(double value) const {
  if (std::isnan(value) || std::isinf(value)) return "it must be a finite number";
  if (value < low || (low_open && value == low))
    return fmt::format("it must be {} {}", low_open ? "over" : "at least", number(low));
  if (value > high || (high_open && value == high))
    return fmt::format("it must be {} {}", high_open ? "under" : "at most", number(high));
  return {};
}

std::string OptionRange::text() const {
  std::string out;
  if (std::isfinite(low)) out = fmt::format("{} {}", low_open ? ">" : "≥", number(low));
  if (std::isfinite(high)) out += fmt::format("{}{} {}", out.empty() ? "" : ", ", high_open ? "<" : "≤", number(high));
  return out;
}

std::string list_of_choices(const std::vector<std::string>& names) {
  std::string out;
  for (std::size_t i = 0; i < names.size(); ++i) out += (i == 0 ? "" : i + 1 == names.size() ? " or " : ", ") + names[i];
  return out;
}

void require_option(const OptionInfo& option, double value, bool whole) {
  constexpr double kMost = 0x1p40;
  OptionRange range = option.range;
  if (whole) range.high = std::min(range.high, kMost);
  const std::string refusal = range.refusal(value);
  require(refusal.empty(), "{} is {}; {}", option.name, whole ? fmt::format("{:.0f}", value) : fmt::format("{:.6g}", value),
          refusal);
}

}  // namespace dsmoe
