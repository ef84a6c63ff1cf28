#include "tokenizer/jinja_lexer.h"

#include <cctype>
#include <charconv>

#include "core/utf8.h"

namespace dsmoe::jinja {

namespace {

constexpr std::size_t kMaxSource = 1 << 20;

bool is_digit(char c) { return std::isdigit(static_cast<unsigned char>(c)) != 0; }
bool is_name(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }

// All line ends become \n, and one at the very end goes.
std::string normalize_newlines(std::string_view source) {
  std::string out;
  for (std::size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\r' && i + 1 < source.size() && source[i + 1] == '\n') ++i;
    out += source[i] == '\r' ? '\n' : source[i];
  }
  if (out.ends_with('\n')) out.pop_back();
  return out;
}

class Lexer {
 public:
  explicit Lexer(std::string_view source) : source_(normalize_newlines(source)) {}

  std::vector<Token> run() {
    while (at_ < source_.size()) {
      const std::size_t tag = find_tag();
      text(tag);
      if (tag == source_.size()) break;
      const char kind = source_[tag + 1];
      at_ = tag;
      const Position start = position();
      at_ = tag + 2;
      if (peek() == '-' || peek() == '+') ++at_;
      if (kind == '#')
        comment(start);
      else
        inside(kind, start);
    }
    push(TokenKind::kEnd);
    return std::move(tokens_);
  }

 private:
  char peek(std::size_t ahead = 0) const { return at_ + ahead < source_.size() ? source_[at_ + ahead] : '\0'; }
  bool here(std::string_view what) const { return std::string_view(source_).substr(at_, what.size()) == what; }

  Position position() {
    for (; counted_ < at_; ++counted_) {
      if (source_[counted_] == '\n')
        ++here_.line, here_.column = 1;
      else if ((static_cast<unsigned char>(source_[counted_]) & 0xC0) != 0x80)
        ++here_.column;
    }
    return here_;
  }
  void push(TokenKind kind, std::string text = {}, std::int64_t number = 0) {
    tokens_.push_back({kind, position(), std::move(text), number});
  }

  std::size_t find_tag() const {
    for (std::size_t i = at_; i + 1 < source_.size(); ++i)
      if (source_[i] == '{' && (source_[i + 1] == '{' || source_[i + 1] == '%' || source_[i + 1] == '#')) return i;
    return source_.size();
  }

  // The text up to a tag, without the white space that the tag takes away.
  void text(std::size_t tag) {
    std::string_view text = std::string_view(source_).substr(at_, tag - at_);
    if (tag + 2 < source_.size() && source_[tag + 2] == '-') {
      while (!text.empty()) {
        const std::size_t before = utf8::previous(text, text.size());
        std::size_t i = before;
        if (!is_space(utf8::next(text, i))) break;
        text = text.substr(0, before);
      }
    } else if (tag + 1 < source_.size() && source_[tag + 1] != '{' &&
               !(tag + 2 < source_.size() && source_[tag + 2] == '+')) {
      const std::size_t line = text.rfind('\n') + 1;  // 0 when there is none
      bool blank = line > 0 || line_start_;
      for (std::size_t i = line; blank && i < text.size();) blank = is_space(utf8::next(text, i));
      if (blank) text = text.substr(0, line);
    }
    if (!text.empty()) push(TokenKind::kText, std::string(text));
  }

  // What Python's str.strip takes for white space.
  static bool is_space(char32_t c) { return utf8::is_white_space(c) || (c >= 0x1C && c <= 0x1F); }

  // Behind the end of a tag: "-" takes all white space away, a tag or comment takes one newline unless "+".
  void after_tag(bool minus, bool newline) {
    const std::size_t from = at_;
    if (minus) {
      for (std::size_t i = at_; i < source_.size() && is_space(utf8::next(source_, i));) at_ = i;
    } else if (newline && peek() == '\n') {
      ++at_;
    }
    line_start_ = at_ > from && source_[at_ - 1] == '\n';
  }

  void comment(Position start) {
    const std::size_t end = source_.find("#}", at_);
    if (end == std::string::npos) fail_at(ErrorCode::kFormat, start, "a comment without its end");
    const char sign = end > at_ ? source_[end - 1] : '\0';
    at_ = end + 2;
    after_tag(sign == '-', sign != '+');
  }

  // The tokens of {{ ... }} or {% ... %}.
  void inside(char kind, Position start) {
    const bool print = kind == '{';
    const std::string_view end = print ? "}}" : "%}";
    tokens_.push_back({print ? TokenKind::kPrint : TokenKind::kTag, start});
    int open = 0;  // brackets; "}}" may also close two dictionaries
    for (;;) {
      while (at_ < source_.size() && std::isspace(static_cast<unsigned char>(source_[at_]))) ++at_;
      if (at_ == source_.size()) fail_at(ErrorCode::kFormat, start, "a tag without its {}", end);
      if (open == 0) {
        const char sign =
            (peek() == '-' || (peek() == '+' && !print)) && std::string_view(source_).substr(at_ + 1, 2) == end ? peek()
                                                                                                                : '\0';
        if (sign != '\0') ++at_;
        if (here(end)) {
          push(print ? TokenKind::kPrintEnd : TokenKind::kTagEnd);
          at_ += 2;
          return after_tag(sign == '-', !print && sign != '+');
        }
      }
      const char c = peek();
      if (c == '(' || c == '[' || c == '{') ++open;
      if (c == ')' || c == ']' || c == '}') --open;
      if (open < 0) fail_at(ErrorCode::kFormat, position(), "'{}' without its beginning", c);
      token(c);
    }
  }

  void token(char c) {
    if (is_digit(c)) return number();
    if (is_name(c)) {
      std::size_t end = at_;
      while (end < source_.size() && is_name(source_[end])) ++end;
      push(TokenKind::kName, source_.substr(at_, end - at_));
      at_ = end;
      return;
    }
    if (c == '\'' || c == '"') return string(c);
    for (const std::string_view op : {"**", "//", "==", "!=", "<=", ">=", "+", "-", "*", "/", "%", "~", "<",
                                      ">",  "=",  ".",  ":",  ",",  "|",  "(", ")", "[", "]", "{", "}"}) {
      if (!here(op)) continue;
      push(TokenKind::kOperator, std::string(op));
      at_ += op.size();
      return;
    }
    fail_at(ErrorCode::kFormat, position(), "the byte 0x{:02X} cannot stand in a tag", static_cast<unsigned char>(c));
  }

  void number() {
    const char* begin = source_.data() + at_;
    std::int64_t value = 0;
    const auto [end, error] = std::from_chars(begin, source_.data() + source_.size(), value);
    const std::size_t after = at_ + static_cast<std::size_t>(end - begin);
    const bool more =
        after < source_.size() &&
        (is_name(source_[after]) || (source_[after] == '.' && after + 1 < source_.size() && is_digit(source_[after + 1])));
    if (error != std::errc() || more)
      fail_at(ErrorCode::kUnsupported, position(), "a number other than an integer of 64 bits is not supported");
    push(TokenKind::kNumber, {}, value);
    at_ = after;
  }

  void string(char quote) {
    const Position start = position();
    const std::size_t begin = at_++;
    std::string value;
    while (at_ < source_.size() && source_[at_] != quote) {
      if (source_[at_] == '\\')
        escape(value);
      else
        value += source_[at_++];
    }
    if (at_ == source_.size()) fail_at(ErrorCode::kFormat, start, "a string without its end");
    const std::size_t end = at_ + 1;
    at_ = begin;
    push(TokenKind::kString, std::move(value));
    at_ = end;
  }

  // As in Python; an escape that it does not know stays as it is.
  void escape(std::string& value) {
    const char c = peek(1);
    constexpr std::string_view kFrom = "nrtabfv\\'\"", kTo = "\n\r\t\a\b\f\v\\'\"";
    const std::size_t known = c == '\0' ? std::string_view::npos : kFrom.find(c);
    if (known != std::string_view::npos) {
      value += kTo[known];
      at_ += 2;
    } else if (c == '\n') {
      at_ += 2;
    } else if (c == 'x' || c == 'u' || c == 'U') {
      code_point(value, c == 'x' ? 2 : c == 'u' ? 4 : 8);
    } else if (is_digit(c) || c == 'N') {
      fail_at(ErrorCode::kUnsupported, position(), "the escape \\{} is not supported", c);
    } else {
      value += source_[at_++];
    }
  }

  void code_point(std::string& value, std::size_t digits) {
    std::uint32_t c = 0;
    const char* begin = source_.data() + at_ + 2;
    const bool room = at_ + 2 + digits <= source_.size();
    const auto result =
        room ? std::from_chars(begin, begin + digits, c, 16) : std::from_chars_result{begin, std::errc::invalid_argument};
    if (result.ec != std::errc() || result.ptr != begin + digits || c > 0x10FFFF || (c >= 0xD800 && c <= 0xDFFF))
      fail_at(ErrorCode::kFormat, position(), "an escape that is no character");
    utf8::append(value, c);
    at_ += 2 + digits;
  }

  std::string source_;
  std::size_t at_ = 0;
  bool line_start_ = true;
  std::size_t counted_ = 0;  // up to where here_ counts
  Position here_;
  std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> tokenize(std::string_view source) {
  if (source.size() > kMaxSource)
    fail(ErrorCode::kFormat, "chat template of {} bytes; at most {} are supported", source.size(), kMaxSource);
  if (const std::size_t good = utf8::valid_prefix(source); good != source.size())
    fail(ErrorCode::kFormat, "chat template: not valid UTF-8 at byte {}", good);
  return Lexer(source).run();
}

}  // namespace dsmoe::jinja
