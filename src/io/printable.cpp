#include "io/printable.h"

#include <fmt/format.h>

namespace dsmoe::io {

namespace {
constexpr std::size_t kLongest = 200;  // bytes; the longest tensor name of a real model is below 100
}

std::string printable(std::string_view text) {
  const bool cut = text.size() > kLongest;
  if (cut) {
    std::size_t end = kLongest;
    while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0u) == 0x80u) --end;  // not inside a character
    text = text.substr(0, end);
  }
  std::string out;
  for (const char c : text) {
    const auto u = static_cast<unsigned char>(c);
    if (u < 0x20 || u == 0x7F) {
      out += fmt::format("\\x{:02x}", u);
    } else {
      out += c;
    }
  }
  if (cut) out += "...";
  return out;
}

std::string in_quotes(std::string_view name) { return fmt::format("'{}'", printable(name)); }

}  // namespace dsmoe::io
