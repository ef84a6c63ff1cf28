// The byte-level alphabet: every byte is written as one printable character, so that a token of arbitrary bytes
// can be a JSON string. Printable Latin-1 bytes are themselves; the other 68 are U+0100 and up, in order.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace dsmoe::byte_level {

std::string encode(std::string_view bytes);
std::optional<std::string> decode(std::string_view text);  // nothing when a character is not in the alphabet

}  // namespace dsmoe::byte_level
