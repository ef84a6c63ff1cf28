// Names from files shown in messages: one line, bounded, whatever the bytes are.
#pragma once

#include <string>
#include <string_view>

namespace dsmoe::io {

// 'name' with control characters escaped and long names cut, so that a message stays one line.
std::string in_quotes(std::string_view name);

// The same without the quotes.
std::string printable(std::string_view text);

}  // namespace dsmoe::io
