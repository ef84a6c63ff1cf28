// Unicode regular expressions: PCRE2 with JIT, for patterns written for Oniguruma as in tokenizer.json.
#pragma once

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "core/utf8.h"

namespace dsmoe {

// The same pattern in the syntax of PCRE2, with Oniguruma's meaning; what has none is refused by name.
std::string to_pcre2(std::string_view pattern);

// Inside of a class: what counts as a word character in the parts of Hugging Face tokenizers that do not use
// Oniguruma (added tokens, the Whitespace pre-tokenizer).
constexpr std::string_view kRustWord = R"(\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\x{200C}\x{200D})";

namespace detail {
struct PcreDelete {
  void operator()(pcre2_code* p) const { pcre2_code_free(p); }
  void operator()(pcre2_match_data* p) const { pcre2_match_data_free(p); }
  void operator()(pcre2_match_context* p) const { pcre2_match_context_free(p); }
  void operator()(pcre2_jit_stack* p) const { pcre2_jit_stack_free(p); }
};
template <class T>
using PcrePtr = std::unique_ptr<T, PcreDelete>;
}  // namespace detail

// The memory of a match: one for each thread that matches.
class RegexScratch {
 public:
  RegexScratch();

 private:
  friend class Regex;
  detail::PcrePtr<pcre2_match_data> data_;
  detail::PcrePtr<pcre2_jit_stack> stack_;
  detail::PcrePtr<pcre2_match_context> context_;
};

class Regex {
 public:
  struct Match {
    std::size_t begin, end;
  };

  explicit Regex(std::string_view oniguruma_pattern);
  static Regex literal(std::string_view text);

  // The leftmost match that begins at `from` or later. The text is well-formed UTF-8 and not empty.
  std::optional<Match> find(std::string_view text, std::size_t from, RegexScratch& scratch) const;

  // Calls f(Match) for all matches from left to right; an empty match right behind another one does not count.
  template <class F>
  void for_each(std::string_view text, RegexScratch& scratch, F&& f) const {
    std::size_t from = 0, last_end = std::string_view::npos;
    while (from <= text.size()) {
      const auto match = find(text, from, scratch);
      if (!match) return;
      if (match->begin == match->end && match->end == last_end) {
        from += from < text.size() ? utf8::sequence_at(text, from).length : 1;
        continue;
      }
      from = last_end = match->end;
      f(*match);
    }
  }

 private:
  Regex() = default;
  void compile(const std::string& pcre2_pattern);

  std::string source_;  // as it was written, for messages
  std::shared_ptr<pcre2_code> code_;
  bool jit_ = false;
};

}  // namespace dsmoe
