// A place in a text that is being read.
#pragma once

#include <string_view>

namespace dsmoe::grammar {

class TextCursor {
 protected:
  explicit TextCursor(std::string_view text) : text_(text) {}

  bool at_end() const { return at_ == text_.size(); }
  char peek(std::size_t ahead = 0) const { return at_ + ahead < text_.size() ? text_[at_ + ahead] : '\0'; }
  bool take(std::string_view word) {
    if (text_.substr(at_, word.size()) != word) return false;
    at_ += word.size();
    return true;
  }

  std::string_view text_;
  std::size_t at_ = 0;
};

}  // namespace dsmoe::grammar
