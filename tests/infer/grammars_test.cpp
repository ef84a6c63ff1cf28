#include "infer/grammars.h"

#include <gtest/gtest.h>

#include "support/expect_error.h"

namespace dsmoe {
namespace {

using infer::GrammarMask;
using infer::Grammars;
using infer::GrammarSource;
using Kind = GrammarSource::Kind;

Tokenizer capital_letters() {
  TokenizerParts parts;
  for (char c = 'A'; c <= 'Z'; ++c) parts.vocab.push_back(std::string(1, c));
  parts.pre_tokenizer = pre_tokenizer_json("gpt-2");
  return Tokenizer::from_parts(parts);
}

TEST(Grammars, TheSameOneIsCompiledOnce) {
  Grammars grammars(capital_letters(), 40, {1});
  const auto first = grammars.compiled({Kind::kGbnf, "root ::= \"C\"+", "grammar"});
  EXPECT_EQ(grammars.compiled({Kind::kGbnf, "root ::= \"C\"+", "elsewhere"}), first);
  EXPECT_NE(grammars.compiled({Kind::kGbnf, "root ::= \"D\"+", "grammar"}), first);
  EXPECT_EQ(grammars.kept(), 2u);
  EXPECT_TRUE(testing::throws_error(
      [&] {
        grammars.compiled({Kind::kGbnf, "root ::= x", "the grammar"});
      },
      {"the grammar"}));
  EXPECT_EQ(grammars.kept(), 2u);
}

TEST(Grammars, TheLeastRecentlyUsedGoesFirst) {
  Grammars grammars(capital_letters(), 40, {1}, /*most_bytes=*/1);
  const auto first = grammars.compiled({Kind::kGbnf, "root ::= \"C\"+", "grammar"});
  grammars.compiled({Kind::kGbnf, "root ::= \"D\"+", "grammar"});
  EXPECT_EQ(grammars.kept(), 1u) << "the newest stays";
  EXPECT_NE(grammars.compiled({Kind::kGbnf, "root ::= \"C\"+", "grammar"}), first);
}

TEST(GrammarMask, FollowsTheText) {
  Grammars grammars(capital_letters(), 40, {1});
  GrammarMask mask(grammars.compiled({Kind::kGbnf, "root ::= \"CD\" \"E\"?", "grammar"}));
  std::vector<std::uint32_t> bits(2);
  const auto only = [](int id) { return std::vector<std::uint32_t>{1u << id, 0}; };
  ASSERT_TRUE(mask.allowed(bits));
  EXPECT_EQ(bits, only(2));
  mask.accept(2);
  ASSERT_TRUE(mask.allowed(bits));
  EXPECT_EQ(bits, only(3));
  mask.accept(3);
  ASSERT_TRUE(mask.allowed(bits));
  EXPECT_EQ(bits, (std::vector<std::uint32_t>{1u << 4 | 1u << 1, 0})) << "E, or the end";
  mask.accept(4);
  EXPECT_FALSE(mask.allowed(bits)) << "nothing can follow";
}

TEST(GrammarMask, CharactersThatNoTokenHasAreAnError) {
  Grammars grammars(capital_letters(), 40, {1});
  GrammarMask mask(grammars.compiled({Kind::kGbnf, "root ::= \"Cd\"", "grammar"}));
  std::vector<std::uint32_t> bits(2);
  ASSERT_TRUE(mask.allowed(bits));
  mask.accept(2);
  EXPECT_TRUE(testing::throws_error([&] { mask.allowed(bits); }, {"no token"}));
}

}  // namespace
}  // namespace dsmoe
