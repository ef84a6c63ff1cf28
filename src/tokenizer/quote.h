// A text from a file, fit for one line of an error message.
#pragma once

#include <fmt/format.h>

#include <string>
#include <string_view>

#include "tokenizer/utf8.h"

namespace dsmoe {

inline std::string quote(std::string_view text) {
  constexpr std::size_t kMost = 60;
  std::string out = "\"";
  std::size_t at = 0;
  while (at < text.size() && at < kMost) {
    const utf8::Sequence s = utf8::sequence_at(text, at);
    const auto byte = static_cast<unsigned char>(text[at]);
    if (!s.valid || byte < 0x20 || byte == 0x7F)
      out += fmt::format("\\x{:02x}", byte), ++at;
    else
      out += text.substr(at, s.length), at += s.length;
  }
  return out + (at < text.size() ? "...\"" : "\"");
}

}  // namespace dsmoe
