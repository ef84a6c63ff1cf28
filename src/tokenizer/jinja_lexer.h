// Cuts a Jinja template into text and the tokens of its tags.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/fail.h"

namespace dsmoe::jinja {

struct Position {
  int line = 1, column = 1;
};

// Every error about a template says where.
template <class... Args>
[[noreturn]] void fail_at(ErrorCode code, Position at, fmt::format_string<Args...> format, Args&&... args) {
  fail(code, "chat template, line {}, column {}: {}", at.line, at.column, fmt::format(format, std::forward<Args>(args)...));
}

enum class TokenKind : std::uint8_t {
  kText,      // outside of tags
  kPrint,     // {{
  kPrintEnd,  // }}
  kTag,       // {%
  kTagEnd,    // %}
  kName,
  kString,  // its value
  kNumber,
  kOperator,
  kEnd,
};

struct Token {
  TokenKind kind = TokenKind::kEnd;
  Position at;
  std::string text;
  std::int64_t number = 0;
};

// White space is trimmed as with trim_blocks and lstrip_blocks: the newline after a tag, and the indentation before it.
std::vector<Token> tokenize(std::string_view source);

}  // namespace dsmoe::jinja
