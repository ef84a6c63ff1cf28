// The matcher as a server uses it: masks, end tokens, copies, threads, long and deep texts.
#include "grammar/matcher.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <thread>

#include "grammar/support.h"
#include "support/expect_error.h"

namespace dsmoe::grammar::testing {
namespace {

std::vector<std::string> words_of(const Matcher& m) {
  std::vector<std::string> out;
  for (const std::int32_t id : allowed(m))
    out.push_back(m.grammar().vocabulary().is_end(id) ? "<end>" : std::string(m.grammar().vocabulary().bytes(id)));
  return out;
}

using Words = std::vector<std::string>;

TEST(Matcher, EndTokensComeOnlyWhereTheTextMayEnd) {
  Matcher m = matcher_of(parse_gbnf("root ::= \"ab\" \"c\"?"), vocabulary_of({"a", "b", "c", "ab", "abc", "bc", ""}));
  const std::int32_t end = 7;
  EXPECT_EQ(words_of(m), (Words{"a", "ab", "abc"}));
  EXPECT_FALSE(m.accept(end));
  EXPECT_FALSE(m.accept(1));
  EXPECT_FALSE(m.accept(6)) << "a token without bytes";
  EXPECT_FALSE(m.accept(-1));
  EXPECT_FALSE(m.accept(99));
  EXPECT_TRUE(m.accept(3));
  EXPECT_EQ(words_of(m), (Words{"c", "<end>"}));
  EXPECT_TRUE(m.accept(end));
  EXPECT_TRUE(m.ended());
  EXPECT_EQ(words_of(m), Words{});
  EXPECT_FALSE(m.can_end());
  EXPECT_FALSE(m.accept(2));
}

TEST(Matcher, ATokenMayCrossTheEndsOfSeveralRules) {
  const char* grammar = "root ::= a \"!\"\na ::= \"(\" b \")\" (\"<\" b \">\")?\nb ::= \"[\" (a | b | \"x\") \"]\"";
  Matcher m =
      matcher_of(parse_gbnf(grammar), vocabulary_of({"(", "[", "x", "]", ")", "!", "x])", "x])!", "]])", "])!", "x]>"}));
  for (const std::int32_t id : {0, 1}) EXPECT_TRUE(m.accept(id));
  EXPECT_EQ(words_of(m), (Words{"(", "[", "x", "x])", "x])!"}));
  EXPECT_TRUE(m.accept(1));
  EXPECT_EQ(words_of(m), (Words{"(", "[", "x"})) << "one more ] must come";
  EXPECT_TRUE(m.accept(2));
  EXPECT_EQ(words_of(m), (Words{"]", "]])"}));
}

TEST(Matcher, SplitCharacters) {
  // "é" is C3 A9, "€" is E2 82 AC.
  Matcher m = matcher_of(
      parse_gbnf("root ::= [\xC3\xA9\xE2\x82\xAC]{2}"),
      vocabulary_of({"\xC3", "\xA9", "\xE2", "\x82", "\xAC", "\xA9\xE2\x82", "\x82\xAC\xC3", "\xC3\xA9", "\xAC\xE2"}));
  EXPECT_EQ(allowed(m), (std::vector<std::int32_t>{0, 2, 7}));
  EXPECT_TRUE(m.accept(0));
  EXPECT_EQ(allowed(m), (std::vector<std::int32_t>{1, 5}));
  EXPECT_TRUE(m.accept(5));
  EXPECT_EQ(allowed(m), (std::vector<std::int32_t>{4}));
  EXPECT_FALSE(m.can_end());
  EXPECT_TRUE(m.accept(4));
  EXPECT_TRUE(m.can_end());
}

TEST(Matcher, ACopyIsAPlaceToComeBackTo) {
  Matcher m = matcher_of(parse_gbnf("root ::= \"[\" (root (\",\" root)*)? \"]\" | [0-9]"), vocabulary_of(byte_tokens()));
  std::vector<Matcher> before;
  std::vector<std::vector<std::int32_t>> masks;
  const std::string text = "[1,[2,[[],[3]]],[]]";
  for (const char c : text) {
    before.push_back(m);
    masks.push_back(allowed(m));
    ASSERT_TRUE(m.accept(std::string_view(&c, 1)));
  }
  EXPECT_TRUE(m.can_end());
  for (std::size_t i = 0; i < before.size(); ++i) {
    EXPECT_EQ(allowed(before[i]), masks[i]);
    Matcher again = before[i];
    EXPECT_TRUE(again.accept(std::string_view(text).substr(i)));
    EXPECT_TRUE(again.can_end());
  }
}

TEST(Matcher, DeepAndLongTexts) {
  const Matcher start = matcher_of(parse_gbnf("root ::= \"[\" (root (\",\" root)*)? \"]\""), vocabulary_of(byte_tokens()));
  Matcher m = start;
  const std::string open(20'000, '[');
  EXPECT_TRUE(m.accept(open));
  EXPECT_EQ(words_of(m), (Words{"[", "]"}));
  EXPECT_TRUE(m.accept(std::string(20'000, ']')));
  EXPECT_TRUE(m.can_end());

  // Calls at the end of a rule need no stack: the mask after 100,000 of them is as quick as the first.
  Matcher right = matcher_of(parse_gbnf("root ::= \"a\" b\nb ::= root | \"!\""), vocabulary_of(byte_tokens()));
  for (int i = 0; i < 100'000; ++i) ASSERT_TRUE(right.accept(std::string_view("a")));
  EXPECT_EQ(words_of(right), (Words{"!", "a"}));
}

TEST(Matcher, AmbiguityTakesPolynomialTime) {
  // 2^200 ways to read the text.
  Matcher m = matcher_of(
      parse_gbnf("root ::= s\ns ::= \"a\" s \"b\" | \"a\" t \"b\" | \"x\"\nt ::= \"a\" s \"b\" | \"a\" t \"b\" | \"x\""),
      vocabulary_of(byte_tokens()));
  EXPECT_TRUE(m.accept(std::string(200, 'a') + "x" + std::string(199, 'b')));
  EXPECT_EQ(words_of(m), (Words{"b"}));
  EXPECT_TRUE(m.accept("b"));
  EXPECT_TRUE(m.can_end());
}

// Hundreds of places at once along 4,096 long tokens.
TEST(Matcher, ManyPlacesAtOnce) {
  std::string grammar = "root ::= x*\nx ::= ";
  for (int i = 1; i <= 40; ++i) grammar += fmt::format("{}(\"a\" [ab]{{{}}} x?)", i > 1 ? " | " : "", i);
  std::vector<std::string> tokens = byte_tokens();
  for (int i = 0; i < 4096; ++i) {
    std::string token(60, 'a');
    for (int bit = 0; bit < 12; ++bit)
      if (i >> bit & 1) token[static_cast<std::size_t>(5 * bit)] = 'b';
    tokens.push_back(token);
  }
  // All but those that begin with b: what is behind an a is a or b until the next one may begin.
  EXPECT_EQ(allowed(matcher_of(parse_gbnf(grammar), vocabulary_of(tokens))).size(), 1 + 2048 + 1u);
}

TEST(Matcher, ManyThreadsShareOneGrammar) {
  std::vector<std::string> tokens = byte_tokens();
  for (const char* word : {"\"a\"", "\":", "[[", "]]", "1,", "},", "{\"", "\"]"}) tokens.push_back(word);
  const auto grammar = std::make_shared<CompiledGrammar>(
      parse_gbnf("root ::= v\nv ::= \"[\" (v (\",\" v)*)? \"]\" | \"{\" (p (\",\" p)*)? \"}\" | [0-9]+ | s\n"
                 "p ::= s \":\" v\ns ::= \"\\\"\" [^\"]* \"\\\"\""),
      vocabulary_of(tokens), 0);
  const auto walk = [&](std::uint64_t seed) {
    Draw draw(seed);
    Matcher m(grammar);
    std::vector<std::vector<std::int32_t>> masks;
    for (int i = 0; i < 200 && !m.ended(); ++i) {
      masks.push_back(allowed(m));
      m.accept(draw.of(masks.back()));
    }
    return masks;
  };
  std::vector<std::vector<std::vector<std::int32_t>>> results(8);
  std::vector<std::thread> threads;
  for (std::size_t t = 0; t < results.size(); ++t) threads.emplace_back([&, t] { results[t] = walk(t % 4); });
  for (std::thread& t : threads) t.join();
  for (std::size_t t = 0; t < results.size(); ++t) EXPECT_EQ(results[t], walk(t % 4));
}

TEST(Matcher, RepetitionsShareTheirTokenSets) {
  // 3,000 places in a string of bounded length, but what may follow differs only near its end: tokens have 4 bytes at most.
  const auto grammar = std::make_shared<CompiledGrammar>(parse_gbnf("root ::= \"(\" [a-z]{0,3000} \")\""),
                                                         vocabulary_of({"(", ")", "a", "ab", "abc", "abc)", "b)"}), 10'000);
  EXPECT_LT(grammar->token_sets().entries(), 20u);
  Matcher m(grammar);
  EXPECT_TRUE(m.accept("(" + std::string(2998, 'a')));
  EXPECT_EQ(words_of(m), (Words{")", "a", "ab", "b)"}));
}

TEST(Matcher, MistakesOfTheCaller) {
  const Matcher m = matcher_of(parse_gbnf("root ::= \"a\""), vocabulary_of({"a"}));
  std::vector<std::uint64_t> wrong(7);
  EXPECT_TRUE(dsmoe::testing::throws_error([&] { m.mask(wrong); }, {"7 words, expected 1"}, ErrorCode::kInvalidArgument));
  EXPECT_TRUE(dsmoe::testing::throws_error([] { Vocabulary({"a"}, {1}); }, {"end token 1"}));
}

}  // namespace
}  // namespace dsmoe::grammar::testing
