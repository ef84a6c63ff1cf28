// Foreign text in messages, the one way: one line, bounded, whatever the bytes are.
#pragma once

#include <string>
#include <string_view>

namespace dsmoe {

inline constexpr std::size_t kPrintableBytes = 200;  // the longest tensor name of a real model is below 100

// Escapes what a terminal would obey or hide (control characters, line separators, changes of writing direction) and what
// is not UTF-8, and cuts what is longer than `most` bytes, with "..." behind it.
std::string printable(std::string_view text, std::size_t most = kPrintableBytes);

// The same as 'text'.
std::string in_quotes(std::string_view text);

}  // namespace dsmoe
