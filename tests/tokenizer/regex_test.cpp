#include "tokenizer/regex.h"

#include <gtest/gtest.h>

#include "core/random.h"
#include "support/expect_error.h"

namespace dsmoe {
namespace {

std::vector<std::string> matches(const Regex& regex, std::string_view text) {
  RegexScratch scratch;
  std::vector<std::string> out;
  regex.for_each(text, scratch, [&](Regex::Match m) { out.emplace_back(text.substr(m.begin, m.end - m.begin)); });
  return out;
}
using Words = std::vector<std::string>;

// Expected values are what Oniguruma 6.9 gives through Hugging Face tokenizers.
TEST(Regex, MeansWhatOnigurumaMeans) {
  EXPECT_EQ(matches(Regex(R"(\s)"), "a\u180Eb\u0085c\u200Bd\u2028e\x1C"), (Words{"\u0085", "\u2028"}));
  EXPECT_EQ(matches(Regex(R"([\S]+)"), "a\u180Eb\u3000c"), (Words{"a\u180Eb", "c"}));
  EXPECT_EQ(matches(Regex(R"(\w+)"), "a\u0301 _\u203F\u24B6 \u0B87\u200D \u00B2"),
            (Words{"a\u0301", "_\u203F\u24B6", "\u0B87", "\u00B2"}));
  EXPECT_EQ(matches(Regex(R"(\W+)"), "a\u0301 -b"), (Words{" -"}));
  EXPECT_EQ(matches(Regex(R"(\h+)"), "xyz12af \t"), (Words{"12af"}));
  EXPECT_EQ(matches(Regex(R"(\v)"), "a\vb\f"), (Words{"\v"}));
  EXPECT_EQ(matches(Regex(R"(a$)"), "a\nba"), (Words{"a", "a"}));
  EXPECT_EQ(matches(Regex(R"(^a)"), "a\naa"), (Words{"a", "a"}));
  EXPECT_EQ(matches(Regex(R"(a{,2})"), "aaa"), (Words{"aa", "a"}));
  EXPECT_EQ(matches(Regex(R"(a{x})"), "aa{x}"), (Words{"a{x}"}));
  EXPECT_EQ(matches(Regex(R"(\p{Han}+|\p{^L}|\P{Lu})"), "aB\u6F22\u5B571"), (Words{"a", "\u6F22\u5B57", "1"}));
  EXPECT_EQ(matches(Regex(R"((?i:'s))"), "a'\u017F'S"), (Words{"'\u017F", "'S"}));
  EXPECT_EQ(matches(Regex(R"([]a])"), "a]b"), (Words{"a", "]"}));
  EXPECT_EQ(matches(Regex(R"(\bfoo\b)"), "foo foobar f\u0301oo"), (Words{"foo"}));
  EXPECT_EQ(matches(Regex("\\u4e00|\\x{4e01}|\\x41"), "\u4E00\u4E01AB"), (Words{"\u4E00", "\u4E01", "A"}));
  EXPECT_EQ(matches(Regex("\\\u00E9"), "e\u00E9"), (Words{"\u00E9"}));
  EXPECT_EQ(matches(Regex(R"(.)"), "a\n\r"), (Words{"a", "\r"}));
}

// As Kimi-K2's pattern has it: letters but for those of one script.
TEST(Regex, ClassesWithoutAnother) {
  const Regex letters(R"([\p{Lu}\p{Lo}\p{M}&&[^\p{Han}x-z]]+)");
  EXPECT_EQ(matches(letters, "aBあ\u0301中カ々"), (Words{"Bあ\u0301", "カ"}))
      << "々 is Han, and a letter of another category";
  EXPECT_EQ(matches(Regex(R"([\p{L}&&[^\p{Lu}\s]]|[\p{C}\p{Nd}&&[^0-4]])"), "aB \u01C5中3_5\u0378"),
            (Words{"a", "\u01C5", "中", "5", "\u0378"}));
  std::string run;  // as one class it needs no memory for each character
  for (int i = 0; i < 1'000'000; ++i) run += "あ";
  EXPECT_EQ(matches(letters, run + "中").size(), 1u);
}

TEST(Regex, EmptyMatchesDoNotFollowAMatch) {
  EXPECT_EQ(matches(Regex("x*"), "axb"), (Words{"", "x", ""}));
  EXPECT_EQ(matches(Regex(""), "\u00E9b"), (Words{"", "", ""}));
}

TEST(Regex, LiteralIsNotAPattern) {
  EXPECT_EQ(matches(Regex::literal("a.b[\\E"), "a.b[\\E axb"), (Words{"a.b[\\E"}));
  EXPECT_EQ(matches(Regex::literal("\n\u00E9 #"), "x\n\u00E9 #"), (Words{"\n\u00E9 #"}));
}

TEST(Regex, RefusesWhatDiffersByName) {
  const std::vector<std::pair<std::string, std::string>> cases = {{"[a[b]]", "a class in a class"},
                                                                  {"[a&&b]", "&& in a class"},
                                                                  {"[a&&[^b]]", "&& in a class"},
                                                                  {R"([\p{L}a&&[^b]])", "&& in a class"},
                                                                  {R"([^\p{L}&&[^b]])", "&& in a class"},
                                                                  {R"([\p{L}&&[b]])", "&& in a class"},
                                                                  {R"([\p{L}&&[^b]c])", "&& in a class"},
                                                                  {R"([\p{L}&&[^]]])", "&& in a class"},
                                                                  {R"([\p{L}&&[^b&&c]])", "&& in a class"},
                                                                  {R"([\p{Greek}&&[^b]])", "&& in a class"},
                                                                  {R"([\p{L}&&[^[b]]])", "a class in a class"},
                                                                  {"[[:alpha:]]", "a POSIX class"},
                                                                  {"(?m:a)", "(?m"},
                                                                  {"(?<n>a)", "(?<"},
                                                                  {"(*FAIL)", "(*"},
                                                                  {"a{2}+", "{n} with a suffix"},
                                                                  {"\\K", "\\K"},
                                                                  {"(a)\\1", "\\1"},
                                                                  {"\\pL", "\\p without braces"},
                                                                  {"\\xE9", "\\x with"},
                                                                  {"[\\W]", "\\W in a class"},
                                                                  {"a\\", "a backslash at the end"}};
  for (const auto& [pattern, construct] : cases) {
    EXPECT_TRUE(testing::throws_error([&, text = pattern] { Regex{text}; }, {construct}, ErrorCode::kUnsupported))
        << pattern;
  }
  EXPECT_THROW(Regex("(a"), Error);
  EXPECT_THROW(Regex("[a"), Error);
  EXPECT_THROW(Regex("\\p{Nonsense}"), Error);
  EXPECT_THROW(Regex(std::string(1 << 17, 'a')), Error);
}

// The rewritten \s+$ against the same pattern in a form that is not rewritten.
TEST(Regex, SpaceAtTheEndIsFoundFromTheRunsStart) {
  const Regex fast(R"(\s+$)"), plain(R"((?:\s+$))");
  const Philox random(7, 0);
  const std::string alphabet[] = {" ", "\n", "\t", "a", "\u3000", "\r"};
  for (std::uint64_t i = 0; i < 3000; ++i) {
    std::string text = "x";
    for (std::uint64_t j = 0; j < i % 12; ++j) text += alphabet[random.below(i * 16 + j, 6)];
    RegexScratch scratch;
    std::vector<std::size_t> a, b;
    fast.for_each(text, scratch, [&](Regex::Match m) { a.push_back(m.begin), a.push_back(m.end); });
    plain.for_each(text, scratch, [&](Regex::Match m) { b.push_back(m.begin), b.push_back(m.end); });
    ASSERT_EQ(a, b) << text;
  }
  // Quadratic time would take minutes here.
  EXPECT_TRUE(matches(fast, std::string(1 << 20, ' ') + "1").empty());
}

TEST(Regex, AHostilePatternEndsWithAnError) {
  RegexScratch scratch;
  EXPECT_THROW(Regex("(?:a+)+[^a-c]").find(std::string(64, 'a') + "c", 0, scratch), Error);
}

}  // namespace
}  // namespace dsmoe
