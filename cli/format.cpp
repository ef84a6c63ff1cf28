#include "cli/format.h"

#include <fmt/format.h>

#include <array>
#include <cmath>

namespace dsmoe::cli {

namespace {

// Three significant digits and the largest unit that leaves at least 1.
template <std::size_t N>
std::string scaled(double value, double step, const std::array<const char*, N>& units) {
  std::size_t unit = 0;
  // 999.5 would round up to four digits
  while (unit + 1 < N && std::abs(value) >= step - 0.5) {
    value /= step;
    ++unit;
  }
  if (unit == 0) return fmt::format("{:.0f}{}", value, units[0]);
  const double size = std::abs(value);
  const int decimals = size < 9.995 ? 2 : size < 99.95 ? 1 : 0;
  return fmt::format("{:.{}f}{}", value, decimals, units[unit]);
}

}  // namespace

std::string thousands(std::string_view digits) {
  std::string out;
  const std::size_t sign = !digits.empty() && digits[0] == '-' ? 1 : 0;
  for (std::size_t i = 0; i < digits.size(); ++i) {
    if (i > sign && (digits.size() - i) % 3 == 0) out += ',';
    out += digits[i];
  }
  return out;
}

std::string thousands(std::int64_t value) { return thousands(std::to_string(value)); }

std::string human_count(double value) { return scaled<5>(value, 1000, {"", " K", " M", " B", " T"}); }

std::string human_flops(double value) {
  return scaled<7>(value, 1000, {" FLOP", " KFLOP", " MFLOP", " GFLOP", " TFLOP", " PFLOP", " EFLOP"});
}

std::string human_bytes(double value) {
  return scaled<7>(value, 1024, {" B", " KiB", " MiB", " GiB", " TiB", " PiB", " EiB"});
}

std::string human_duration(double seconds) {
  const auto s = static_cast<std::int64_t>(std::llround(std::fmin(std::fmax(seconds, 0), 1e15)));
  if (s < 60) return fmt::format("{} s", s);
  if (s < 3600) return fmt::format("{}:{:02}", s / 60, s % 60);
  return fmt::format("{}:{:02}:{:02}", s / 3600, s / 60 % 60, s % 60);
}

}  // namespace dsmoe::cli
