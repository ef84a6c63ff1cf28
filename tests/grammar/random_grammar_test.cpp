// Random grammars and random texts: every mask equals what the plain matcher says of each token, one by one.
#include <gtest/gtest.h>

#include "dsmoe/error.h"
#include "grammar/support.h"
#include "support/sanitized.h"

namespace dsmoe::grammar::testing {
namespace {

// Characters of one, two, three and four bytes that share beginnings.
const std::vector<std::string> kLetters = {"a", "b", "c", "\xC3\xA9", "\xC3\xA8", "\xE2\x82\xAC", "\xF0\x9F\x98\x80"};

class RandomGrammar {
 public:
  explicit RandomGrammar(Draw& draw) : draw_(draw), rules_(1 + draw.below(5)) {}

  std::string text() {
    std::string out;
    for (rule_ = 0; rule_ < rules_; ++rule_) out += name(rule_) + " ::= " + alternatives(0) + "\n";
    return out;
  }

 private:
  static std::string name(std::size_t r) { return r == 0 ? "root" : "r" + std::to_string(r); }

  std::string alternatives(int depth) {
    std::string out = sequence(depth);
    for (std::size_t i = draw_.below(3); i > 0; --i) out += " | " + sequence(depth);
    return out;
  }
  std::string sequence(int depth) {
    std::string out;
    for (std::size_t i = draw_.one_in(8) ? 0 : 1 + draw_.below(3); i > 0; --i) out += item(depth) + repetition() + " ";
    return out;
  }
  std::string repetition() {
    static const std::vector<std::string> kinds = {"*", "+", "?", "{2}", "{1,3}", "{2,}", "{0,2}"};
    return draw_.one_in(3) ? draw_.of(kinds) : "";
  }
  std::string item(int depth) {
    switch (draw_.below(depth < 2 ? 6 : 5)) {
      case 0: return draw_.one_in(4) ? "." : "[^" + draw_.of(kLetters) + "]";
      case 1: return "[" + draw_.of(kLetters) + draw_.of(kLetters) + "]";
      case 2:
        return draw_.one_in(10) ? "\"\"" : "\"" + draw_.of(kLetters) + (draw_.one_in(2) ? draw_.of(kLetters) : "") + "\"";
      case 3:
      case 4: return call();
      default: return "(" + alternatives(depth + 1) + ")";
    }
  }

  // With a letter before it most of the time where it could be left recursion.
  std::string call() {
    const std::size_t r = draw_.below(rules_);
    return r > rule_ || draw_.one_in(8) ? name(r) : "(\"" + draw_.of(kLetters) + "\" " + name(r) + ")";
  }

  Draw& draw_;
  std::size_t rules_, rule_ = 0;
};

std::vector<std::string> random_tokens(Draw& draw) {
  std::vector<std::string> tokens;
  for (const std::string& letter : kLetters)
    for (const char byte : letter) tokens.push_back(std::string(1, byte));  // some twice
  for (int i = 0; i < 60; ++i) {
    std::string text;
    for (std::size_t n = 1 + draw.below(5); n > 0; --n) text += draw.of(kLetters);
    const std::size_t from = draw.below(text.size());
    tokens.push_back(text.substr(from, 1 + draw.below(text.size() - from)));  // may begin or end inside a character
  }
  return tokens;
}

// Walks along one random text and compares at each token. Returns the number of masks.
int compare(const Grammar& grammar, Draw& draw, const std::string& shown) {
  const std::shared_ptr<const Vocabulary> vocabulary = vocabulary_of(random_tokens(draw));
  const auto end = static_cast<std::int32_t>(vocabulary->size() - 1);
  Reference reference(grammar);
  const auto compiled = std::make_shared<CompiledGrammar>(grammar, vocabulary, draw.below(2) * 1000);
  Matcher matcher(compiled);
  std::string text;
  int masks = 0;
  for (int step = 0; step < 12; ++step, ++masks) {
    std::vector<std::int32_t> expected;
    for (std::int32_t id = 0; id < end; ++id)
      if (reference.is_beginning(text + std::string(vocabulary->bytes(id)))) expected.push_back(id);
    const bool whole = reference.matches(text);
    if (whole) expected.push_back(end);
    const std::vector<std::int32_t> got = allowed(matcher);
    EXPECT_EQ(got, expected) << shown << "after '" << text << "'";
    EXPECT_EQ(matcher.can_end(), whole) << shown << "after '" << text << "'";
    for (std::int32_t id = 0; id <= end; ++id) {
      Matcher copy = matcher;
      EXPECT_EQ(copy.accept(id), std::binary_search(expected.begin(), expected.end(), id)) << shown << text;
    }
    EXPECT_EQ(allowed(matcher), got) << "a copy changed the original";
    if (::testing::Test::HasFailure()) return masks;
    std::erase(expected, end);
    if (expected.empty()) break;
    const std::int32_t id = draw.of(expected);
    EXPECT_TRUE(matcher.accept(id));
    text += vocabulary->bytes(id);
  }
  return masks;
}

TEST(RandomGrammars, EveryMaskIsThatOfThePlainMatcher) {
  int compared = 0, masks = 0, refused = 0;
  for (std::uint64_t seed = 0; seed < test::rounds(100u) && !HasFailure(); ++seed) {
    Draw draw(seed);
    const std::string text = RandomGrammar(draw).text();
    const Grammar grammar = parse_gbnf(text);
    try {
      masks += compare(grammar, draw, text);
      ++compared;
    } catch (const Error& e) {
      EXPECT_NE(e.code(), ErrorCode::kInternal) << text << e.what();
      ++refused;  // left recursion, or no text at all
    }
  }
  EXPECT_GT(compared, test::rounds(50));
  EXPECT_GT(masks, test::rounds(400));
  EXPECT_GT(refused, test::rounds(5) - 2);
  RecordProperty("masks", masks);
}

// Grammars that are hard in one way each.
TEST(RandomGrammars, HardOnes) {
  const std::vector<std::string> hard = {
      "root ::= [ab]* \"a\" [ab]{12}",                                         // exponentially many sets of states
      "root ::= \"a\" root \"b\" | \"a\" other \"c\" | \"\"\nother ::= root",  // exponentially many separate stacks
      "root ::= x x x\nx ::= \"a\" x? | \"b\"",                                // ends of several rules at one place
      "root ::= \"a\" root | \"b\"",                                           // a call at the end
      "root ::= list\nlist ::= item rest\nrest ::= \"\" | \"b\" list\nitem ::= \"a\" | \"(\" list \")\"",
      "root ::= (a | b | c)*\na ::= \"a\" b?\nb ::= \"b\" c?\nc ::= \"c\" a?",
      "root ::= (\"a\"? \"b\"?)* (\"\" | \"c\")+",
      "root ::= ([a-c]?){0,6} \"\xC3\xA9\"",
      "root ::= v\nv ::= \"a\" (v (\"b\" v)*)? \"c\"",
      "root ::= s{2,4}\ns ::= t | \"a\" s t\nt ::= \"b\"+ | [^ab]",
  };
  for (const std::string& text : hard)
    for (std::uint64_t seed = 0; seed < 3 && !HasFailure(); ++seed) {
      Draw draw(seed + 1000);
      compare(parse_gbnf(text), draw, text);
    }
}

TEST(RandomGrammars, TheComparisonCanFail) {
  const Grammar grammar = parse_gbnf("root ::= \"ab\"* | [^a]");
  Reference reference(grammar);
  EXPECT_TRUE(reference.is_beginning("aba"));
  EXPECT_FALSE(reference.is_beginning("aa"));
  EXPECT_TRUE(reference.matches("abab"));
  EXPECT_FALSE(reference.matches("aba"));
  EXPECT_TRUE(reference.is_beginning("\xE2\x82"));
  EXPECT_FALSE(reference.matches("\xE2\x82"));
  EXPECT_TRUE(reference.matches("\xE2\x82\xAC"));
  EXPECT_FALSE(reference.is_beginning("\xC0"));
  EXPECT_FALSE(reference.is_beginning("\xED\xA0"));
}

}  // namespace
}  // namespace dsmoe::grammar::testing
