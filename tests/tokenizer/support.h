// The real vocabulary, loaded once, and a small one to bend.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "core/random.h"
#include "core/utf8.h"
#include "dsmoe/tokenizer.h"
#include "support/expect_error.h"
#include "tokenizer/byte_level.h"

namespace dsmoe::test {

inline const std::string kDeepSeek = DSMOE_TEST_DATA "/tokenizer/data/deepseek-llm";

inline const Tokenizer& deepseek() {
  static const Tokenizer tokenizer = Tokenizer::load(kDeepSeek);
  return tokenizer;
}

// All 256 bytes as ids 0 to 255, two merges, the special tokens <s> (258) and </s> (259).
inline nlohmann::json small_json() {
  nlohmann::json vocab = nlohmann::json::object();
  for (int b = 0; b < 256; ++b) vocab[byte_level::encode(std::string(1, static_cast<char>(b)))] = b;
  vocab["he"] = 256;
  vocab["Ġt"] = 257;
  const auto special = [](int id, const char* content) {
    return nlohmann::json{{"id", id},        {"content", content},  {"single_word", false}, {"lstrip", false},
                          {"rstrip", false}, {"normalized", false}, {"special", true}};
  };
  return {{"version", "1.0"},
          {"added_tokens", {special(258, "<s>"), special(259, "</s>")}},
          {"normalizer", nullptr},
          {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", true}}},
          {"post_processor", nullptr},
          {"decoder", {{"type", "ByteLevel"}}},
          {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", {"h e", "Ġ t"}}}}};
}

inline Tokenizer small(const nlohmann::json& patch = nlohmann::json::object(), const nlohmann::json& config = nullptr) {
  nlohmann::json file = small_json();
  file.merge_patch(patch);
  return Tokenizer::from_json(file.dump(), config.is_null() ? "" : config.dump());
}

// Any characters at all, with those that tokenizers trip over more often than their number suggests.
inline std::string random_text(std::uint64_t seed, std::size_t length) {
  static const char* const kTraps[] = {"ø",
                                       "ö",
                                       "ú",
                                       "ÿ",
                                       "õ",
                                       "÷",
                                       "û",
                                       "ý",
                                       "À",
                                       "ù",
                                       "Á",
                                       "þ",
                                       "ü",
                                       " ",
                                       "  ",
                                       "\n",
                                       "\r\n",
                                       "\t",
                                       "0",
                                       "12",
                                       "½",
                                       "the",
                                       " and",
                                       "'ll",
                                       "你好",
                                       "\u3000",
                                       "\u200D",
                                       "Ġ",
                                       "<",
                                       "｜",
                                       "▁",
                                       "<｜end▁of▁sentence｜>",
                                       std::string_view("\0", 1).data(),
                                       "\u180E",
                                       "🦙",
                                       "e\u0301"};
  const Philox random(seed, 1);
  std::string text;
  for (std::uint64_t i = 0; i < length; ++i) {
    const std::uint64_t kind = random.below(4 * i, 3);
    if (kind == 0) {
      text += kTraps[random.below(4 * i + 1, std::size(kTraps))];
    } else {
      const char32_t top = kind == 1 ? 0x80 : 0x110000;
      auto c = static_cast<char32_t>(random.below(4 * i + 2, top));
      if (c >= 0xD800 && c <= 0xDFFF) c = 0xFFFD;
      utf8::append(text, c);
    }
  }
  return text;
}

}  // namespace dsmoe::test
