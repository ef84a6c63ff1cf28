// That a list of merges, one for each token, joins as the order of tokens does (docs/design/tokenizer-ranks.md).
#include "tokenizer/rank_merges.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <unordered_map>

#include "support.h"

namespace dsmoe {
namespace {

using Words = std::vector<std::string>;

Words merges(const Words& tokens) { return merges_of_ranks(tokens, std::vector<bool>(tokens.size(), true)); }

// tiktoken's way, word for word: of all neighbours the two whose sum is the first token, the leftmost two.
Words joined_by_order(const Words& tokens, const std::string& text) {
  std::unordered_map<std::string, std::size_t> ranks;
  for (std::size_t i = 0; i < tokens.size(); ++i) ranks[tokens[i]] = i;
  Words parts;
  for (const char c : text) parts.emplace_back(1, c);
  for (;;) {
    std::size_t best = tokens.size(), at = 0;
    for (std::size_t i = 0; i + 1 < parts.size(); ++i)
      if (const auto sum = ranks.find(parts[i] + parts[i + 1]); sum != ranks.end() && sum->second < best)
        best = sum->second, at = i;
    if (best == tokens.size()) return parts;
    parts[at] += parts[at + 1];
    parts.erase(parts.begin() + static_cast<std::ptrdiff_t>(at) + 1);
  }
}

Tokenizer tokenizer_of(const Words& tokens, const Words& list) {
  TokenizerParts parts;
  parts.vocab = tokens;
  parts.merges = list;
  parts.pre_tokenizer = R"({"type": "ByteLevel", "add_prefix_space": false, "use_regex": false})";
  return Tokenizer::from_parts(parts);
}

Words joined_by_list(const Tokenizer& t, const std::string& text) {
  Words parts;
  for (const std::int32_t id : t.encode(text)) parts.emplace_back(t.bytes(id));
  return parts;
}

// Tokens of two or three letters in any order: many texts are sums of tokens in many ways.
Words random_tokens(const Philox& random, std::uint64_t& draw, std::uint64_t letters) {
  Words tokens;
  for (std::uint64_t i = 0; i < letters; ++i) tokens.push_back(std::string(1, static_cast<char>('a' + i)));
  const std::uint64_t count = 3 + random.below(draw++, 40), longest = 2 + random.below(draw++, 7);
  for (std::uint64_t i = 0; i < count; ++i) {
    std::string token;
    for (std::uint64_t n = 2 + random.below(draw++, longest); n > 0; --n)
      token += static_cast<char>('a' + random.below(draw++, letters));
    if (std::find(tokens.begin(), tokens.end(), token) == tokens.end()) tokens.push_back(token);
  }
  for (std::size_t i = tokens.size() - 1; i > 0; --i) std::swap(tokens[i], tokens[random.below(draw++, i + 1)]);
  return tokens;
}

TEST(RankMerges, JoinAsTheOrderDoes) {
  const Philox random(17, 1);
  std::uint64_t draw = 0;
  std::size_t joined = 0, without_last = 0;
  for (int round = 0; round < 80; ++round) {
    const std::uint64_t letters = 2 + random.below(draw++, 2);
    const Words tokens = random_tokens(random, draw, letters);
    Words list = merges(tokens);
    const Tokenizer t = tokenizer_of(tokens, list);
    if (!list.empty()) list.pop_back();
    const Tokenizer shorter = tokenizer_of(tokens, list);
    for (int i = 0; i < 12; ++i) {
      std::string text;
      for (std::uint64_t n = 1 + random.below(draw++, 100); n > 0; --n)  // both ways of Bpe, for short and for long pieces
        text += static_cast<char>('a' + random.below(draw++, letters));
      const Words want = joined_by_order(tokens, text);
      ASSERT_EQ(joined_by_list(t, text), want) << text;
      joined += want.size() < text.size();
      without_last += joined_by_list(shorter, text) != want;
    }
  }
  EXPECT_GT(joined, 500u);
  EXPECT_GT(without_last, 50u) << "a list that lacks one differs";
}

TEST(RankMerges, TheLastPairOfEachToken) {
  EXPECT_EQ(merges({"a", "b", "c", "ab", "bc", "abc"}), (Words{"a b", "b c", "ab c"}));
  EXPECT_EQ(merges({"a", "b", "c", "bc", "ab", "abc"}), (Words{"b c", "a b", "a bc"}));
  EXPECT_EQ(merges({"a", "aa", "aaa", "aaaa"}), (Words{"a a", "aa a", "aa aa"}));
  EXPECT_EQ(merges({"abc", "a", "b", "c", "ab"}), (Words{"ab c", "a b"})) << "of a token that comes later";
  EXPECT_EQ(merges({"a", "b", "c", "abc"}), (Words{})) << "a b c is never down to two";
  EXPECT_EQ(merges({"a", "b", "c", "ab", "bcd", "d", "abcd"}), (Words{"a b"})) << "ab c d";
  EXPECT_EQ(merges({"ab", "b"}), (Words{})) << "a is no token";
  EXPECT_EQ(merges({"Ġ", "é", "Ġé"}), (Words{"Ġ é"})) << "characters, not bytes";
  EXPECT_EQ(merges({"", "a", " ", "a ", "aa"}), (Words{"a a"})) << "a space parts the two of a merge";
  const Words tokens = {"a", "b", "ab", "aba"};
  EXPECT_EQ(merges_of_ranks(tokens, {true, true, false, true}), (Words{})) << "a token that does not join";
}

TEST(RankMerges, Refuses) {
  EXPECT_TRUE(testing::throws_error([] { merges({"a", "b", "a"}); }, {"two tokens are 'a'"}, ErrorCode::kFormat));
  EXPECT_TRUE(testing::throws_error([] { merges({std::string(2000, 'a')}); }, {"2000 bytes", "1024"}, ErrorCode::kFormat));
}

}  // namespace
}  // namespace dsmoe
