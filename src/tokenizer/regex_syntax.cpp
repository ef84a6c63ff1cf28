// Oniguruma's pattern syntax (its Ruby default, which tokenizer.json is written for) in terms of PCRE2's.
// Where both read a construct alike it is copied; where they differ it is rewritten, or refused when rare.
#include <algorithm>
#include <cctype>
#include <vector>

#include "core/fail.h"
#include "core/printable.h"
#include "tokenizer/regex.h"

namespace dsmoe {

namespace {

// White_Space; PCRE2's own \s also holds U+180E.
constexpr std::string_view kSpace =
    R"(\x09-\x0d\x20\x85\xa0\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})";
constexpr std::string_view kNotSpace =
    R"(\x00-\x08\x0e-\x1f\x21-\x84\x86-\x9f\xa1-\x{167f}\x{1681}-\x{1fff}\x{200b}-\x{2027}\x{202a}-\x{202e})"
    R"(\x{2030}-\x{205e}\x{2060}-\x{2fff}\x{3001}-\x{10ffff})";
// Oniguruma counts the superscripts and fractions of Latin-1 as word characters; PCRE2 leaves out the marks.
constexpr std::string_view kWord = R"(\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\xb2\xb3\xb9\xbc-\xbe)";
// Every character has one of these general categories.
constexpr std::string_view kCategories[] = {"Lu", "Ll", "Lt", "Lm", "Lo", "Mn", "Mc", "Me", "Nd", "Nl",
                                            "No", "Pc", "Pd", "Ps", "Pe", "Pi", "Pf", "Po", "Sm", "Sc",
                                            "Sk", "So", "Zs", "Zl", "Zp", "Cc", "Cf", "Cs", "Co", "Cn"};

class Translator {
 public:
  explicit Translator(std::string_view pattern) : pattern_(pattern) {}

  std::string run() {
    while (at_ < pattern_.size()) {
      const char c = pattern_[at_];
      if (c == '\\') {
        escape(false);
      } else if (c == '[') {
        character_class();
      } else if (c == '(') {
        group();
      } else if (c == '{') {
        quantifier();
      } else {
        out_ += c, ++at_;
      }
    }
    return std::move(out_);
  }

 private:
  [[noreturn]] void refuse(std::string_view construct) const {
    fail(ErrorCode::kUnsupported, "regular expression {}: {} at byte {} is not supported", in_quotes(pattern_), construct,
         at_);
  }
  char peek(std::size_t ahead) const { return at_ + ahead < pattern_.size() ? pattern_[at_ + ahead] : '\0'; }
  void copy(std::size_t n) {
    out_ += pattern_.substr(at_, n);
    at_ += n;
  }

  void escape(bool in_class) {
    const char c = peek(1);
    if (at_ + 1 >= pattern_.size()) refuse("a backslash at the end");
    const auto emit = [&](std::string_view items, std::string_view open, std::string_view close) {
      if (!in_class) out_ += open;
      out_ += items;
      if (!in_class) out_ += close;
      at_ += 2;
    };
    switch (c) {
      case 's': return emit(kSpace, "[", "]");
      case 'S': return emit(kNotSpace, "[", "]");
      case 'w': return emit(kWord, "[", "]");
      case 'h': return emit("0-9A-Fa-f", "[", "]");
      case 'v': return emit("\\x0b", "", "");
      case 'W':
        if (in_class) refuse("\\W in a class");
        return emit(fmt::format("[^{}]", kWord), "", "");
      case 'b':
      case 'B':
        if (in_class) refuse(fmt::format("\\{} in a class", c));
        return word_boundary(c == 'b');
      case 'p':
      case 'P': return property();
      case 'x': return hexadecimal();
      case 'u': return unicode();
      case 'd':
      case 'D':
      case 'r':
      case 'n':
      case 't':
      case 'f':
      case 'e':
      case 'a': return copy(2);
      case 'A':
      case 'z':
      case 'Z':
      case 'R':
      case 'X':
        if (!in_class) return copy(2);
        break;
      default:
        if (!std::isalnum(static_cast<unsigned char>(c)) && static_cast<unsigned char>(c) < 0x80) return copy(2);
        // A backslash before a character that is not ASCII means that character in Oniguruma, nothing in PCRE2.
        if (static_cast<unsigned char>(c) >= 0x80) return static_cast<void>(++at_);
    }
    refuse(fmt::format("\\{}", c));
  }

  void word_boundary(bool boundary) {
    const std::string w = fmt::format("[{}]", kWord);
    out_ += boundary ? fmt::format("(?:(?<={0})(?!{0})|(?<!{0})(?={0}))", w)
                     : fmt::format("(?:(?<={0})(?={0})|(?<!{0})(?!{0}))", w);
    at_ += 2;
  }

  // \p{L}, \p{^L}, \pL and scripts. A script's name alone means Script_Extensions in PCRE2, Script in Oniguruma.
  void property() {
    if (peek(2) != '{') {
      // Oniguruma reads \pL as the letters p and L.
      refuse("\\p without braces");
    }
    const std::size_t end = pattern_.find('}', at_);
    if (end == std::string_view::npos) refuse("\\p without its closing brace");
    std::string_view name = pattern_.substr(at_ + 3, end - at_ - 3);
    out_ += pattern_.substr(at_, 3);
    if (name.starts_with('^')) out_ += '^', name.remove_prefix(1);
    for (const char c : name)
      if (!std::isalnum(static_cast<unsigned char>(c)) && c != '_' && c != ' ' && c != '-' && c != '&') refuse("\\p{...}");
    const bool known = name.size() <= 2 || name == "Any" || name == "Alphabetic" || name == "Lowercase" ||
                       name == "Uppercase" || name == "White_Space" || name == "Emoji";
    if (!known) out_ += "sc:";
    out_ += name;
    out_ += '}';
    at_ = end + 1;
  }

  std::size_t hex_digits(std::size_t from, std::size_t most) const {
    std::size_t n = 0;
    while (n < most && from + n < pattern_.size() && std::isxdigit(static_cast<unsigned char>(pattern_[from + n]))) ++n;
    return n;
  }

  void hexadecimal() {
    if (peek(2) == '{') {
      const std::size_t n = hex_digits(at_ + 3, 8);
      if (n == 0 || peek(3 + n) != '}') refuse("\\x{...}");
      return copy(n + 4);
    }
    // Two digits above 7F would be one byte of a character in Oniguruma.
    if (hex_digits(at_ + 2, 2) != 2 || peek(2) > '7') refuse("\\x with other than two digits up to 7F");
    copy(4);
  }

  void unicode() {
    if (hex_digits(at_ + 2, 4) != 4) refuse("\\u without four digits");
    out_ += fmt::format("\\x{{{}}}", pattern_.substr(at_ + 2, 4));
    at_ += 6;
  }

  void character_class() {
    const std::size_t begin = at_, out_begin = out_.size();
    copy(1);
    if (peek(0) == '^') copy(1);
    if (peek(0) == ']') out_ += '\\', copy(1);
    class_items();
    if (peek(0) == '&') return without(pattern_.substr(begin + 1, at_ - begin - 1), out_begin);
    copy(1);
  }

  // Up to the closing bracket, or to && .
  void class_items() {
    while (at_ < pattern_.size()) {
      const char c = pattern_[at_];
      if (c == ']' || (c == '&' && peek(1) == '&')) return;
      if (c == '[') refuse(peek(1) == ':' ? "a POSIX class" : "a class in a class");
      if (c == '\\')
        escape(true);
      else
        copy(1);
    }
    refuse("a class without its closing bracket");
  }

  // [A&&[^B]] with A of general categories: no other category, and not B. As one class it is matched without a stack,
  // however long a run of such characters is.
  void without(std::string_view items, std::size_t out_begin) {
    std::vector<std::string_view> kept;
    while (items.starts_with("\\p{") && items.find('}') != std::string_view::npos) {
      kept.push_back(items.substr(3, items.find('}') - 3));
      items.remove_prefix(items.find('}') + 1);
    }
    const auto known = [](std::string_view name) {
      return std::any_of(std::begin(kCategories), std::end(kCategories),
                         [&](std::string_view category) { return !name.empty() && category.starts_with(name); });
    };
    const bool all_known = std::all_of(kept.begin(), kept.end(), known);
    if (kept.empty() || !all_known || !items.empty() || !pattern_.substr(at_).starts_with("&&[^") || peek(4) == ']')
      refuse("&& in a class");
    out_.resize(out_begin);
    out_ += "[^";
    for (const std::string_view category : kCategories)
      if (std::none_of(kept.begin(), kept.end(), [&](std::string_view name) { return category.starts_with(name); }))
        out_ += fmt::format("\\p{{{}}}", category);
    at_ += 4;
    class_items();
    if (peek(0) != ']' || peek(1) != ']') refuse("&& in a class");
    at_ += 1;
    copy(1);
  }

  void group() {
    if (peek(1) == '*') refuse("(*");
    if (peek(1) != '?') return copy(1);
    for (const std::string_view known : {"(?:", "(?=", "(?!", "(?<=", "(?<!", "(?>", "(?i:", "(?-i:", "(?i)", "(?-i)"})
      if (pattern_.substr(at_).starts_with(known)) return copy(known.size());
    refuse(fmt::format("({}{}", peek(1), peek(2)));
  }

  // {n}, {n,}, {n,m} and {,m}; any other brace is itself.
  void quantifier() {
    std::size_t end = at_ + 1;
    const auto digits = [&] {
      const std::size_t from = end;
      while (end < pattern_.size() && std::isdigit(static_cast<unsigned char>(pattern_[end]))) ++end;
      return end != from;
    };
    const bool low = digits();
    bool high = false, comma = false;
    if (end < pattern_.size() && pattern_[end] == ',') comma = true, ++end, high = digits();
    if ((!low && !high) || end >= pattern_.size() || pattern_[end] != '}') {
      out_ += '\\';
      return copy(1);
    }
    ++end;
    // a{2}+ repeats a{2} in Oniguruma and is possessive in PCRE2.
    if (end < pattern_.size() && (pattern_[end] == '+' || (pattern_[end] == '?' && !comma))) refuse("{n} with a suffix");
    out_ += low ? "{" : "{0";
    at_ += 1;
    copy(end - at_);
  }

  std::string_view pattern_;
  std::size_t at_ = 0;
  std::string out_;
};

}  // namespace

std::string to_pcre2(std::string_view pattern) { return Translator(pattern).run(); }

}  // namespace dsmoe
