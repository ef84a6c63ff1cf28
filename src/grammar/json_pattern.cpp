#include "grammar/json_pattern.h"

#include "core/fail.h"
#include "core/printable.h"
#include "core/utf8.h"
#include "grammar/json_schema.h"
#include "grammar/text_cursor.h"

namespace dsmoe::grammar {

namespace {

constexpr int kMaxPatternNesting = 50;

class PatternParser : TextCursor {
 public:
  using Ref = Grammar::Ref;
  PatternParser(Grammar& grammar, JsonText& json, std::string_view text, std::string_view where)
      : TextCursor(text), g_(grammar), json_(json), where_(where) {}

  Ref parse();

 private:
  template <class... Args>
  [[noreturn]] void refuse(fmt::format_string<Args...> format, Args&&... args) const {
    fail(ErrorCode::kFormat, "{}: the pattern {} at byte {}: {}", where_, in_quotes(text_), at_,
         fmt::format(format, std::forward<Args>(args)...));
  }

  Ref alternatives(int nesting);
  Ref sequence(int nesting);
  Ref item(int nesting);
  Ref group(int nesting);
  Ref repeated(Ref part);
  bool counts(std::uint32_t& min, std::uint32_t& max);
  CharSet char_class();
  CharSet escaped(bool in_class);
  char32_t hexadecimal(int digits);
  Ref anything() { return g_.repeat(json_.characters(CharSet::all()), 0, kUnbounded); }

  Grammar& g_;
  JsonText& json_;
  std::string_view where_;
};

const CharSet kDigits({{'0', '9'}});
const CharSet kWords({{'0', '9'}, {'a', 'z'}, {'A', 'Z'}, {'_', '_'}});
const CharSet kSpaces({{9, 13},
                       {' ', ' '},
                       {0xA0, 0xA0},
                       {0x1680, 0x1680},
                       {0x2000, 0x200A},
                       {0x2028, 0x2029},
                       {0x202F, 0x202F},
                       {0x205F, 0x205F},
                       {0x3000, 0x3000},
                       {0xFEFF, 0xFEFF}});
const CharSet kLineEnds({{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}});

PatternParser::Ref PatternParser::parse() {
  const Ref body = alternatives(0);
  if (!at_end()) refuse("unexpected ')'");
  return body;
}

// Each alternative at the top has its own ends: ^a|b is found at the beginning or anywhere.
PatternParser::Ref PatternParser::alternatives(int nesting) {
  if (nesting > kMaxPatternNesting) refuse("groups are nested more than {} deep", kMaxPatternNesting);
  std::vector<Ref> parts;
  do {
    if (nesting > 0) {
      parts.push_back(sequence(nesting));
      continue;
    }
    const bool from_start = take("^");
    const Ref body = sequence(nesting);
    const bool to_end = take("$");
    if (!at_end() && peek() != '|' && peek() != ')') refuse("'$' is supported at the end alone");
    std::vector<Ref> whole;
    if (!from_start) whole.push_back(anything());
    whole.push_back(body);
    if (!to_end) whole.push_back(anything());
    parts.push_back(g_.sequence(std::move(whole)));
  } while (take("|"));
  return g_.choice(std::move(parts));
}

PatternParser::Ref PatternParser::sequence(int nesting) {
  std::vector<Ref> parts;
  while (!at_end() && peek() != '|' && peek() != ')' && peek() != '$') parts.push_back(repeated(item(nesting)));
  if (nesting > 0 && peek() == '$') refuse("'$' in a group is not supported");
  return g_.sequence(std::move(parts));
}

PatternParser::Ref PatternParser::item(int nesting) {
  switch (peek()) {
    case '(': return group(nesting);
    case '[': return json_.characters(char_class());
    case '.': ++at_; return json_.characters(kLineEnds.complement());
    case '\\': ++at_; return json_.characters(escaped(false));
    case '^': refuse("'^' is supported at the beginning alone");
    case '*':
    case '+':
    case '?': refuse("nothing to repeat");
    default: return json_.characters(CharSet::one(utf8::next(text_, at_)));
  }
}

PatternParser::Ref PatternParser::group(int nesting) {
  ++at_;
  if (peek() == '?' && !take("?:")) {
    const bool named = peek(1) == '<' && peek(2) != '=' && peek(2) != '!';
    if (!named) refuse("'(?{}' is not supported", printable(text_.substr(at_ + 1, 1)));
    const std::size_t close = text_.find('>', at_);
    if (close == std::string_view::npos) refuse("the name of a group has no end");
    at_ = close + 1;
  }
  const Ref body = alternatives(nesting + 1);
  if (!take(")")) refuse("a group has no ')'");
  return body;
}

bool PatternParser::counts(std::uint32_t& min, std::uint32_t& max) {
  const std::size_t begin = at_;
  const auto number = [&](std::uint32_t& out) {
    const std::size_t first = at_;
    for (out = 0; peek() >= '0' && peek() <= '9'; ++at_) {
      out = out * 10 + static_cast<std::uint32_t>(peek() - '0');
      if (out > kMaxSchemaRepeat) refuse("more than {} repetitions", kMaxSchemaRepeat);
    }
    return at_ != first;
  };
  ++at_;
  bool good = number(min);
  max = min;
  if (good && take(",") && !number(max)) max = kUnbounded;
  good = good && take("}");
  if (!good) at_ = begin;  // a brace that counts nothing is a character
  return good;
}

PatternParser::Ref PatternParser::repeated(Ref part) {
  std::uint32_t min = 0, max = kUnbounded;
  if (take("*")) {
  } else if (take("+")) {
    min = 1;
  } else if (take("?")) {
    max = 1;
  } else if (peek() != '{' || !counts(min, max)) {
    return part;
  }
  if (min > max) refuse("at least {} and at most {} repetitions exclude each other", min, max);
  take("?");  // which of several ways to match comes first does not matter
  if (peek() == '*' || peek() == '+' || peek() == '?') refuse("nothing to repeat");
  return g_.repeat(part, min, max);
}

CharSet PatternParser::char_class() {
  ++at_;
  const bool negated = take("^");
  std::vector<CharRange> ranges;
  const auto one = [&] { return take("\\") ? escaped(true) : CharSet::one(utf8::next(text_, at_)); };
  while (peek() != ']') {
    if (at_end()) refuse("a set of characters has no ']'");
    const CharSet first = one();
    if (peek() == '-' && peek(1) != ']' && at_ + 1 < text_.size()) {
      ++at_;
      const CharSet last = one();
      const auto is_one = [](const CharSet& s) {
        return s.ranges().size() == 1 && s.ranges()[0].first == s.ranges()[0].last;
      };
      if (!is_one(first) || !is_one(last) || first.ranges()[0].first > last.ranges()[0].first)
        refuse("a range of characters without order");
      ranges.push_back({first.ranges()[0].first, last.ranges()[0].first});
    } else {
      ranges.insert(ranges.end(), first.ranges().begin(), first.ranges().end());
    }
  }
  ++at_;
  const CharSet set(std::move(ranges));
  return negated ? set.complement() : set;
}

char32_t PatternParser::hexadecimal(int digits) {
  char32_t value = 0;
  for (int i = 0; i < digits; ++i, ++at_) {
    static constexpr std::string_view kHex = "0123456789abcdef0123456789ABCDEF";
    const std::size_t digit = at_end() ? std::string_view::npos : kHex.find(peek());
    if (digit == std::string_view::npos) refuse("expected {} hexadecimal digits", digits);
    value = value * 16 + static_cast<char32_t>(digit % 16);
  }
  if (value >= 0xD800 && value <= 0xDFFF) refuse("half of a character; write the character itself");
  return value;
}

CharSet PatternParser::escaped(bool in_class) {
  if (at_end()) refuse("a backslash at the end");
  const char c = peek();
  if (static_cast<unsigned char>(c) >= 0x80) return CharSet::one(utf8::next(text_, at_));
  ++at_;
  switch (c) {
    case 'd': return kDigits;
    case 'D': return kDigits.complement();
    case 'w': return kWords;
    case 'W': return kWords.complement();
    case 's': return kSpaces;
    case 'S': return kSpaces.complement();
    case 'n': return CharSet::one('\n');
    case 'r': return CharSet::one('\r');
    case 't': return CharSet::one('\t');
    case 'f': return CharSet::one('\f');
    case 'v': return CharSet::one('\v');
    case 'x': return CharSet::one(hexadecimal(2));
    case 'u': return CharSet::one(hexadecimal(4));
    case 'b':
      if (in_class) return CharSet::one('\b');
      [[fallthrough]];
    default: break;
  }
  const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
  if (letter) refuse("'\\{}' is not supported", c);
  return CharSet::one(static_cast<unsigned char>(c));
}

// Days that exist, leap years too (RFC 3339).
constexpr std::string_view kDate =
    R"((?:[0-9]{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|)"
    R"(02-(?:0[1-9]|1[0-9]|2[0-8]))|(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)-02-29))";
constexpr std::string_view kTime =
    R"((?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,9})?(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9]))";

}  // namespace

std::optional<std::string_view> pattern_of_format(std::string_view format) {
  static const std::string date = fmt::format("^{}$", kDate), time = fmt::format("^{}$", kTime),
                           date_time = fmt::format("^{}T{}$", kDate, kTime);
  if (format == "date") return date;
  if (format == "time") return time;
  if (format == "date-time") return date_time;
  if (format == "uuid") return "^[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}$";
  if (format == "ipv4")
    return R"(^(?:(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])\.){3}(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])$)";
  if (format == "email")
    return R"(^[A-Za-z0-9_+-]{1,32}(?:\.[A-Za-z0-9_+-]{1,32}){0,3}@(?:[A-Za-z0-9](?:[A-Za-z0-9-]{0,30}[A-Za-z0-9])?\.){1,4}[A-Za-z]{2,16}$)";
  return std::nullopt;
}

Grammar::Ref string_with_pattern(Grammar& grammar, JsonText& json, std::string_view pattern, std::string_view where) {
  return json.quoted(PatternParser(grammar, json, pattern, where).parse());
}

}  // namespace dsmoe::grammar
