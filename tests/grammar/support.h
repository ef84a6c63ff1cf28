// Random choices, vocabularies and checks that the tests of grammars share.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "core/random.h"
#include "grammar/gbnf.h"
#include "grammar/matcher.h"
#include "grammar/reference.h"

namespace dsmoe::grammar::testing {

class Draw {
 public:
  explicit Draw(std::uint64_t seed) : philox_(seed, 0) {}
  std::size_t below(std::size_t count) { return philox_.word(next_++) % count; }
  bool one_in(std::size_t count) { return below(count) == 0; }
  template <class T>
  const T& of(const std::vector<T>& list) {
    return list[below(list.size())];
  }

 private:
  Philox philox_;
  std::uint64_t next_ = 0;
};

// All single bytes, so that every text has tokens, and the end token behind the last.
inline std::vector<std::string> byte_tokens() {
  std::vector<std::string> tokens;
  for (int b = 0; b < 256; ++b) tokens.push_back(std::string(1, static_cast<char>(b)));
  return tokens;
}

inline std::shared_ptr<const Vocabulary> vocabulary_of(std::vector<std::string> tokens) {
  tokens.push_back("");  // the end token
  const auto end = static_cast<std::int32_t>(tokens.size() - 1);
  return std::make_shared<Vocabulary>(tokens, std::vector<std::int32_t>{end});
}

inline std::vector<std::int32_t> allowed(const Matcher& matcher) {
  const Vocabulary& v = matcher.grammar().vocabulary();
  std::vector<std::uint64_t> mask(v.words());
  matcher.mask(mask);
  std::vector<std::int32_t> ids;
  for (std::size_t i = 0; i < v.size(); ++i)
    if (mask[i / 64] >> (i % 64) & 1) ids.push_back(static_cast<std::int32_t>(i));
  return ids;
}

inline Matcher matcher_of(const Grammar& grammar, const std::shared_ptr<const Vocabulary>& vocabulary,
                          std::size_t prepared = 0) {
  return Matcher(std::make_shared<CompiledGrammar>(grammar, vocabulary, prepared));
}

// True when the whole text matches.
inline bool accepts(const Matcher& start, std::string_view text) {
  Matcher m = start;
  return m.accept(text) && m.can_end();
}

}  // namespace dsmoe::grammar::testing
