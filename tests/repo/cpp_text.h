// C++ and CUDA sources in parts: code without comments and texts, and the string literals.
#pragma once

#include <cctype>
#include <string>
#include <string_view>
#include <vector>

namespace dsmoe::repo {

struct Literal {
  std::size_t line = 0;  // from 1
  std::string text;      // between the quotes, escapes as they are written
};

struct CppText {
  std::string code;  // comments, literals and preprocessor lines as spaces; line breaks where they were
  std::vector<Literal> literals;
};

class CppReader {
 public:
  explicit CppReader(std::string_view text) : text_(text) { out_.code.reserve(text.size()); }

  CppText read() {
    bool fresh = true;  // only white space so far on this line
    while (at_ < text_.size()) {
      const char c = text_[at_];
      if (starts("//"))
        skip_line(false);
      else if (starts("/*"))
        skip_to(text_.find("*/", at_ + 2), 2);
      else if (fresh && c == '#')
        skip_line(true);
      else if (c == '"')
        literal();
      else if (c == '\'' && !is_word(previous()))  // not the ' of 1'000
        character();
      else
        take();
      fresh = c == '\n' || (fresh && std::isspace(static_cast<unsigned char>(c)));
    }
    return std::move(out_);
  }

 private:
  static bool is_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_'; }
  bool starts(std::string_view what) const { return text_.substr(at_).starts_with(what); }
  char previous() const { return at_ == 0 ? ' ' : text_[at_ - 1]; }
  void take() {
    if (text_[at_] == '\n') ++line_;
    out_.code += text_[at_++];
  }
  void blank() {
    if (text_[at_] == '\n') ++line_;
    out_.code += text_[at_++] == '\n' ? '\n' : ' ';
  }
  void skip_to(std::size_t end, std::size_t tail) {
    for (end = end == std::string_view::npos ? text_.size() : end + tail; at_ < end;) blank();
  }
  // A comment or a preprocessor line, the latter with what follows a backslash at its end.
  void skip_line(bool continued) {
    while (at_ < text_.size() && (text_[at_] != '\n' || (continued && previous() == '\\'))) {
      if (continued && (starts("//") || starts("/*"))) return;
      blank();
    }
  }
  void literal() {
    const std::size_t line = line_;
    std::size_t begin = at_ + 1, end = begin, tail = 1;
    if (previous() == 'R') {
      const std::string_view mark = text_.substr(begin, text_.find('(', begin) - begin);
      begin += mark.size() + 1;
      end = text_.find(")" + std::string(mark) + "\"", begin);
      tail = mark.size() + 2;
    } else {
      while (end < text_.size() && text_[end] != '"') end += text_[end] == '\\' ? 2 : 1;
    }
    if (end > text_.size()) end = text_.size();
    out_.literals.push_back({line, std::string(text_.substr(begin, end - begin))});
    skip_to(end, tail);
  }
  void character() {
    std::size_t end = at_ + 1;
    while (end < text_.size() && text_[end] != '\'') end += text_[end] == '\\' ? 2 : 1;
    skip_to(end, 1);
  }

  std::string_view text_;
  std::size_t at_ = 0, line_ = 1;
  CppText out_;
};

inline CppText read_cpp(std::string_view text) { return CppReader(text).read(); }

}  // namespace dsmoe::repo
