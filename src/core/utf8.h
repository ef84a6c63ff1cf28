// UTF-8 by hand: what is well-formed, and what to do with the rest.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace dsmoe::utf8 {

struct Sequence {
  std::size_t length = 0;  // of the character, or of the maximal ill-formed part (Unicode 15, section 3.9)
  bool valid = false;
  bool cut = false;  // ill-formed only because the text ends here
};

Sequence sequence_at(std::string_view text, std::size_t at);
std::size_t valid_prefix(std::string_view text);     // bytes before the first ill-formed part
std::string replace_invalid(std::string_view text);  // every maximal ill-formed part becomes U+FFFD
std::size_t cut_tail(std::string_view text);         // bytes at the end that may still become a character, 0 to 3

// The character at `at` of well-formed text; moves `at` behind it.
char32_t next(std::string_view text, std::size_t& at);
// Where the character that ends at `end` of well-formed text begins.
std::size_t previous(std::string_view text, std::size_t end);
void append(std::string& out, char32_t c);

bool is_white_space(char32_t c);  // the Unicode property White_Space

}  // namespace dsmoe::utf8
