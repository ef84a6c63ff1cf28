#include "core/printable.h"

#include <fmt/format.h>

#include "core/utf8.h"

namespace dsmoe {

namespace {

bool is_harmful(char32_t c) {
  return c < 0x20 || (c >= 0x7F && c < 0xA0)  // C0 and C1 controls
         || c == 0x2028 || c == 0x2029        // line and paragraph separator
         || c == 0x200E || c == 0x200F        // direction marks
         || (c >= 0x202A && c <= 0x202E)      // direction embeddings and overrides
         || (c >= 0x2066 && c <= 0x2069)      // direction isolates
         || c == 0xFEFF;                      // byte order mark
}

}  // namespace

std::string printable(std::string_view text, std::size_t most) {
  std::string out;
  std::size_t at = 0;
  while (at < text.size() && at < most) {
    const utf8::Sequence s = utf8::sequence_at(text, at);
    if (at + s.length > most) break;
    const std::size_t begin = at;
    const char32_t c = s.valid ? utf8::next(text, at) : 0;
    if (!s.valid)
      for (; at < begin + s.length; ++at) out += fmt::format("\\x{:02x}", static_cast<unsigned char>(text[at]));
    else if (is_harmful(c))
      out += c < 0x100 ? fmt::format("\\x{:02x}", static_cast<unsigned>(c))
                       : fmt::format("\\u{:04x}", static_cast<unsigned>(c));
    else
      out += text.substr(begin, s.length);
  }
  return at < text.size() ? out + "..." : out;
}

std::string in_quotes(std::string_view text) { return fmt::format("'{}'", printable(text)); }

}  // namespace dsmoe
