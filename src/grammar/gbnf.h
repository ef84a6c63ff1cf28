// Reads grammars in GBNF, the notation of llama.cpp. docs/howto/structured-output.md describes it.
#pragma once

#include <string_view>

#include "grammar/grammar.h"

namespace dsmoe::grammar {

inline constexpr std::size_t kMaxGbnfBytes = 1 << 20;
inline constexpr std::uint32_t kMaxGbnfRepeat = 10'000;
inline constexpr int kMaxGbnfNesting = 100;  // of parentheses

// `where` (a file, or what the text is) begins every message; line and column follow.
Grammar parse_gbnf(std::string_view text, std::string_view where = "grammar");

}  // namespace dsmoe::grammar
