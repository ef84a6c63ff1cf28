// What must hold for any grammar that compiles: every token that the mask allows is accepted, the others are not, and as
// long as the text may not end some token is allowed.
#pragma once

#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "dsmoe/error.h"
#include "grammar/matcher.h"

namespace dsmoe::grammar {

inline void must(bool condition, const char* what) {
  if (!condition) throw std::logic_error(what);
}

inline std::shared_ptr<const Vocabulary> fuzz_vocabulary() {
  static const auto vocabulary = [] {
    std::vector<std::string> tokens;
    for (int b = 0; b < 256; ++b) tokens.push_back(std::string(1, static_cast<char>(b)));
    for (const char* token :
         {"ab", "abc", "\"a\"", "\":", "{\"", "\"}", "],", "[[", "00", "\xC3\xA9", "\x82\xAC", "true", " \n  "})
      tokens.push_back(token);
    tokens.push_back("");  // the end token
    return std::make_shared<const Vocabulary>(tokens,
                                              std::vector<std::int32_t>{static_cast<std::int32_t>(tokens.size() - 1)});
  }();
  return vocabulary;
}

// Follows random choices; returns the text when it came to an end, with `whole` set.
inline std::string walk(const Grammar& grammar, std::uint64_t seed, bool& whole) {
  Matcher matcher(std::make_shared<CompiledGrammar>(grammar, fuzz_vocabulary(), 50));
  const Vocabulary& v = matcher.grammar().vocabulary();
  std::vector<std::uint64_t> mask(v.words());
  std::string text;
  for (int step = 0; step < 30 && !matcher.ended(); ++step) {
    matcher.mask(mask);
    std::vector<std::int32_t> allowed;
    for (std::int32_t id = 0; id < static_cast<std::int32_t>(v.size()); ++id) {
      const bool bit = mask[static_cast<std::size_t>(id) / 64] >> (id % 64) & 1;
      if (bit) allowed.push_back(id);
      if (step % 8 == 0) must(Matcher(matcher).accept(id) == bit, "a mask that differs from what is accepted");
    }
    must(!allowed.empty(), "nothing can follow");
    seed = seed * 6364136223846793005ull + 1442695040888963407ull;
    // The end as soon as it may come, most of the time.
    const bool ends = v.is_end(allowed.back()) && seed >> 60 != 0;
    const std::int32_t id = ends ? allowed.back() : allowed[(seed >> 33) % allowed.size()];
    must(matcher.accept(id), "an allowed token that is not accepted");
    text += v.bytes(id);
  }
  whole = matcher.ended();
  return text;
}

inline std::uint64_t seed_of(std::string_view bytes) {
  std::uint64_t seed = 1;
  for (const char c : bytes) seed = (seed ^ static_cast<unsigned char>(c)) * 0x100000001B3ull;
  return seed;
}

// Runs it: a result, or an Error of one line that is not our own bug.
template <class Call>
void result_or_error(Call&& call) {
  try {
    call();
  } catch (const Error& e) {
    must(e.code() != ErrorCode::kInternal, e.what());
    const std::string_view text = e.what();
    must(text.find('\n') == std::string_view::npos && text.size() < 4000,
         "a message of more than one line or without bound");
  }
}

}  // namespace dsmoe::grammar
