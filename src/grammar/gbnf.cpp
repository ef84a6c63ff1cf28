#include "grammar/gbnf.h"

#include <unordered_map>

#include "core/fail.h"
#include "core/printable.h"
#include "core/utf8.h"
#include "grammar/text_cursor.h"

namespace dsmoe::grammar {

namespace {

// Lines begin the next rule, so white space is of two kinds: with and without them.
enum class Lines { kEnd, kSkip };

class GbnfParser : TextCursor {
 public:
  GbnfParser(std::string_view text, std::string_view where) : TextCursor(text), where_(where) {}
  Grammar parse();

 private:
  using Ref = Grammar::Ref;

  template <class... Args>
  [[noreturn]] void fail_at(std::size_t at, fmt::format_string<Args...> format, Args&&... args) const {
    std::size_t line = 1, begin = 0;
    for (std::size_t i = 0; i < at; ++i)
      if (text_[i] == '\n') ++line, begin = i + 1;
    fail(ErrorCode::kFormat, "{}: line {}, column {}: {}", where_, line, at - begin + 1,
         fmt::format(format, std::forward<Args>(args)...));
  }
  std::string found() const;  // what is here, for messages

  void skip_space(Lines lines);
  bool next_line_goes_on();
  bool begins_line(std::size_t at) const {
    const std::size_t last = at == 0 ? std::string_view::npos : text_.find_last_not_of(" \t", at - 1);
    return last == std::string_view::npos || text_[last] == '\n' || text_[last] == '\r';
  }
  static bool is_name(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_';
  }
  std::string_view name();

  void rule();
  Ref alternatives(int nesting);
  Ref sequence(int nesting);
  bool item(int nesting, std::vector<Ref>& parts);
  Ref repeated(Ref part);
  std::uint32_t count();
  std::string literal();
  CharSet char_class();
  char32_t character(char closing);
  char32_t escaped();
  std::uint32_t rule_called(std::string_view name, std::size_t at);

  std::string_view where_;
  Grammar grammar_;
  std::unordered_map<std::string_view, std::uint32_t> numbers_;
  std::vector<std::size_t> first_use_;  // of each rule, for messages
};

std::string GbnfParser::found() const {
  if (at_end()) return "the end of the text";
  if (peek() == '\n' || peek() == '\r') return "the end of the line";
  return in_quotes(text_.substr(at_, utf8::sequence_at(text_, at_).length));
}

void GbnfParser::skip_space(Lines lines) {
  for (; !at_end(); ++at_) {
    const char c = peek();
    if (c == '#')
      while (at_ + 1 < text_.size() && text_[at_ + 1] != '\n' && text_[at_ + 1] != '\r') ++at_;
    else if (c != ' ' && c != '\t' && (lines == Lines::kEnd || (c != '\n' && c != '\r')))
      return;
  }
}

// An alternative may begin a line.
bool GbnfParser::next_line_goes_on() {
  const std::size_t here = at_;
  skip_space(Lines::kSkip);
  if (peek() == '|') return true;
  at_ = here;
  return false;
}

std::string_view GbnfParser::name() {
  const std::size_t begin = at_;
  while (!at_end() && is_name(peek())) ++at_;
  if (begin == at_) fail_at(at_, "expected the name of a rule, found {}", found());
  return text_.substr(begin, at_ - begin);
}

std::uint32_t GbnfParser::rule_called(std::string_view name, std::size_t at) {
  const auto known = numbers_.find(name);
  if (known != numbers_.end()) return known->second;
  const std::uint32_t rule = grammar_.add_rule(std::string(name));
  numbers_.emplace(name, rule);
  first_use_.push_back(at);
  return rule;
}

Grammar GbnfParser::parse() {
  if (text_.size() > kMaxGbnfBytes)
    fail(ErrorCode::kFormat, "{}: {} bytes, at most {} are read", where_, text_.size(), kMaxGbnfBytes);
  if (const std::size_t good = utf8::valid_prefix(text_); good != text_.size()) fail_at(good, "not UTF-8");
  if (const std::size_t zero = text_.find('\0'); zero != std::string_view::npos) fail_at(zero, "a zero byte");
  for (skip_space(Lines::kSkip); !at_end(); skip_space(Lines::kSkip)) rule();
  for (std::size_t r = 0; r < grammar_.rules().size(); ++r)
    if (!grammar_.rules()[r].defined)
      fail_at(first_use_[r], "the rule {} is not defined", in_quotes(grammar_.rules()[r].name));
  const auto root = numbers_.find("root");
  if (root == numbers_.end()) fail(ErrorCode::kFormat, "{}: there is no rule 'root', which a whole text matches", where_);
  grammar_.root = root->second;
  return std::move(grammar_);
}

void GbnfParser::rule() {
  const std::size_t begin = at_;
  const std::uint32_t number = rule_called(name(), begin);
  if (grammar_.rules()[number].defined)
    fail_at(begin, "the rule {} is defined twice", in_quotes(grammar_.rules()[number].name));
  skip_space(Lines::kEnd);
  if (!take("::=")) fail_at(at_, "expected '::=' behind the name of a rule, found {}", found());
  skip_space(Lines::kSkip);
  grammar_.define(number, alternatives(0));
  if (!at_end() && peek() != '\n' && peek() != '\r' && !begins_line(at_))
    fail_at(at_, "expected the end of the rule, found {}", found());
}

GbnfParser::Ref GbnfParser::alternatives(int nesting) {
  std::vector<Ref> parts = {sequence(nesting)};
  while (peek() == '|' || (nesting == 0 && next_line_goes_on())) {
    ++at_;
    skip_space(Lines::kSkip);
    parts.push_back(sequence(nesting));
  }
  return grammar_.choice(std::move(parts));
}

GbnfParser::Ref GbnfParser::sequence(int nesting) {
  std::vector<Ref> parts;
  while (item(nesting, parts)) skip_space(nesting > 0 ? Lines::kSkip : Lines::kEnd);
  return grammar_.sequence(std::move(parts));
}

bool GbnfParser::item(int nesting, std::vector<Ref>& parts) {
  const std::size_t begin = at_;
  const char c = peek();
  Ref part = 0;
  if (c == '"') {
    part = grammar_.text(literal());
  } else if (c == '[') {
    part = grammar_.chars(char_class());
  } else if (c == '.') {
    ++at_;
    part = grammar_.chars(CharSet::all());
  } else if (c == '(') {
    if (nesting == kMaxGbnfNesting) fail_at(at_, "parentheses are nested more than {} deep", kMaxGbnfNesting);
    ++at_;
    skip_space(Lines::kSkip);
    part = alternatives(nesting + 1);
    if (!take(")")) fail_at(at_, "expected ')', found {}", found());
  } else if (!at_end() && is_name(c)) {
    const std::string_view called = name();
    if (nesting == 0) {  // or does the next rule begin here?
      const std::size_t here = at_;
      skip_space(Lines::kEnd);
      const bool is_rule = text_.substr(at_, 3) == "::=";
      at_ = here;
      if (is_rule && !begins_line(begin)) fail_at(begin, "a rule begins on a line of its own");
      if (is_rule) return at_ = begin, false;  // the one before ends with nothing
    }
    part = grammar_.call(rule_called(called, begin));
  } else if (c == '<') {
    fail_at(at_, "tokens by name or number ('<...>') are not supported; write their text");
  } else {
    return false;
  }
  parts.push_back(repeated(part));
  return true;
}

GbnfParser::Ref GbnfParser::repeated(Ref part) {
  for (int stars = 0;; ++stars) {
    const std::size_t begin = at_;
    std::uint32_t min = 0, max = kUnbounded;
    if (take("*")) {
    } else if (take("+")) {
      min = 1;
    } else if (take("?")) {
      max = 1;
    } else if (take("{")) {
      skip_space(Lines::kEnd);
      if (peek() != ',') min = count();
      skip_space(Lines::kEnd);
      if (!take(",")) {
        max = min;
      } else {
        skip_space(Lines::kEnd);
        if (peek() != '}') max = count();
        skip_space(Lines::kEnd);
      }
      if (!take("}")) fail_at(at_, "expected '}}' behind a number of repetitions, found {}", found());
      if (max < min) fail_at(begin, "at least {} and at most {} repetitions exclude each other", min, max);
    } else {
      return part;
    }
    if (stars == kMaxGbnfNesting) fail_at(begin, "too many repetitions of a repetition");
    part = grammar_.repeat(part, min, max);
  }
}

std::uint32_t GbnfParser::count() {
  const std::size_t begin = at_;
  std::uint32_t value = 0;
  for (; peek() >= '0' && peek() <= '9'; ++at_) {
    value = value * 10 + static_cast<std::uint32_t>(peek() - '0');
    if (value > kMaxGbnfRepeat) fail_at(begin, "more than {} repetitions", kMaxGbnfRepeat);
  }
  if (at_ == begin) fail_at(at_, "expected a number of repetitions, found {}", found());
  return value;
}

std::string GbnfParser::literal() {
  const std::size_t begin = at_++;
  std::string out;
  while (peek() != '"') {
    if (at_end() || peek() == '\n') fail_at(begin, "a text in quotes has no end");
    utf8::append(out, character('"'));
  }
  ++at_;
  return out;
}

CharSet GbnfParser::char_class() {
  const std::size_t begin = at_++;
  const bool negated = take("^");
  std::vector<CharRange> ranges;
  while (peek() != ']') {
    if (at_end() || peek() == '\n') fail_at(begin, "a set of characters in brackets has no end");
    const std::size_t here = at_;
    const char32_t first = character(']');
    char32_t last = first;
    if (peek() == '-' && peek(1) != ']') {
      ++at_;
      if (at_end() || peek() == '\n') fail_at(begin, "a set of characters in brackets has no end");
      last = character(']');
      if (last < first) fail_at(here, "a range of characters whose first is above its last");
    }
    ranges.push_back({first, last});
  }
  ++at_;
  const CharSet set(std::move(ranges));
  return negated ? set.complement() : set;
}

char32_t GbnfParser::character(char closing) {
  if (peek() != '\\') return utf8::next(text_, at_);
  const std::size_t begin = at_++;
  const char c = peek();
  if (c == 'x' || c == 'u' || c == 'U') return escaped();
  ++at_;
  switch (c) {
    case 'n': return '\n';
    case 'r': return '\r';
    case 't': return '\t';
    case '\\':
    case '"':
    case '[':
    case ']': return static_cast<unsigned char>(c);
    case '-':
    case '^':
      if (closing == ']') return static_cast<unsigned char>(c);
      [[fallthrough]];
    default: at_ = begin + 1; fail_at(begin, "unknown escape: a backslash before {}", found());
  }
}

char32_t GbnfParser::escaped() {
  const std::size_t begin = at_ - 1;
  const char kind = text_[at_++];
  const int digits = kind == 'x' ? 2 : kind == 'u' ? 4 : 8;
  std::uint64_t value = 0;
  for (int i = 0; i < digits; ++i, ++at_) {
    const char c = peek();
    const int digit = c >= '0' && c <= '9'   ? c - '0'
                      : c >= 'a' && c <= 'f' ? c - 'a' + 10
                      : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                             : -1;
    if (digit < 0) fail_at(begin, "expected {} hexadecimal digits behind '\\{}'", digits, kind);
    value = value * 16 + static_cast<std::uint64_t>(digit);
  }
  if (value > kLastChar || (value >= 0xD800 && value <= 0xDFFF)) fail_at(begin, "U+{:04X} is no character", value);
  return static_cast<char32_t>(value);
}

}  // namespace

Grammar parse_gbnf(std::string_view text, std::string_view where) { return GbnfParser(text, where).parse(); }

}  // namespace dsmoe::grammar
