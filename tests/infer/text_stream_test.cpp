#include "infer/text_stream.h"

#include <gtest/gtest.h>

namespace dsmoe {
namespace {

// A tokenizer with one token per byte of the printable alphabet, no merges.
Tokenizer letters() {
  TokenizerParts parts;
  for (char c = '!'; c <= '~'; ++c) parts.vocab.push_back(std::string(1, c));
  parts.pre_tokenizer = pre_tokenizer_json("gpt-2");
  return Tokenizer::from_parts(parts);
}

// All parts that come for `text`, joined by '|' where they were given out.
std::string stream(const std::string& text, std::vector<std::string> stop) {
  TextStream s(letters(), std::move(stop));
  std::string all;
  for (const char c : text) {
    all += s.push(c - '!') + "|";
    if (s.stopped()) return all + "stopped";
  }
  return all + s.finish();
}

TEST(TextStream, GivesTextAtOnceWithoutStopStrings) { EXPECT_EQ(stream("abc", {}), "a|b|c|"); }

TEST(TextStream, HoldsBackWhatMayBecomeAStopString) {
  EXPECT_EQ(stream("xEND", {"END"}), "x||||stopped");
  EXPECT_EQ(stream("xENxy", {"END"}), "x|||ENx|y|") << "it did not";
  EXPECT_EQ(stream("xEN", {"END"}), "x|||EN") << "the text ended first";
  EXPECT_EQ(stream("aab", {"ab"}), "|a||stopped") << "the beginning may begin again";
  EXPECT_EQ(stream("abcd", {"zzz", "bc"}), "a|||stopped");
}

}  // namespace
}  // namespace dsmoe
