#include "tokenizer/bpe_trainer.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

#include "support.h"
#include "support/expect_error.h"
#include "support/temp_folder.h"

namespace dsmoe::test {
namespace {

using Word = std::vector<std::int32_t>;

// The definition: count all pairs anew for every merge.
std::vector<std::string> slow_merges(std::map<std::string, std::uint64_t> words, std::int32_t merges,
                                     std::uint64_t min_count, const std::vector<std::string>& alphabet) {
  std::vector<std::string> vocab = alphabet, out;
  const auto id_of = [&](const std::string& token) {
    return static_cast<std::int32_t>(std::find(vocab.begin(), vocab.end(), token) - vocab.begin());
  };
  std::vector<std::pair<Word, std::uint64_t>> list;
  for (const auto& [text, count] : words) {
    Word word;
    for (const char c : text) word.push_back(id_of(byte_level::encode(std::string(1, c))));
    list.emplace_back(word, count);
  }
  const auto before = static_cast<std::int32_t>(vocab.size());
  vocab.resize(static_cast<std::size_t>(before) + 3, "<special>");
  while (static_cast<std::int32_t>(vocab.size()) < before + 3 + merges) {
    std::map<std::pair<std::int32_t, std::int32_t>, std::uint64_t> counts;
    for (const auto& [word, count] : list)
      for (std::size_t i = 0; i + 1 < word.size(); ++i) counts[{word[i], word[i + 1]}] += count;
    auto best = counts.end();
    for (auto it = counts.begin(); it != counts.end(); ++it)  // in the order of the pairs: the first of equals wins
      if (best == counts.end() || it->second > best->second) best = it;
    if (best == counts.end() || best->second < min_count) break;
    const auto [left, right] = best->first;
    const std::string l = vocab[static_cast<std::size_t>(left)], r = vocab[static_cast<std::size_t>(right)];
    if (std::find(out.begin(), out.end(), l + " " + r) == out.end()) out.push_back(l + " " + r);
    if (id_of(l + r) == static_cast<std::int32_t>(vocab.size())) vocab.push_back(l + r);
    const std::int32_t joined = id_of(l + r);
    for (auto& [word, count] : list) {
      Word merged;
      for (std::size_t i = 0; i < word.size(); ++i) {
        const bool here = i + 1 < word.size() && word[i] == left && word[i + 1] == right;
        merged.push_back(here ? joined : word[i]);
        if (here) ++i;
      }
      word = merged;
    }
  }
  return out;
}

BpeTrainerOptions gpt2(std::int32_t vocab_size) { return {.vocab_size = vocab_size, .pre_tokenizer = "gpt-2"}; }

TEST(BpeTrainer, EqualsTheDefinition) {
  int stopped_early = 0;
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    // Few letters: many ties, and runs of one letter, where merges overlap.
    const Philox random(seed, 5);
    std::uint64_t at = 0;
    const std::uint64_t letters = 2 + seed % 4, size = 20 + 10 * (seed % 7);
    std::map<std::string, std::uint64_t> words;
    std::string text;
    for (std::uint64_t w = 0; w < size; ++w) {
      std::string word = w == 0 ? "" : " ";
      for (std::uint64_t n = 1 + random.below(at++, 8); n > 0; --n)
        word += static_cast<char>('a' + random.below(at++, letters));
      text += word;
      ++words[word];
    }
    const std::int32_t merges = 5 + static_cast<std::int32_t>(seed % 3) * 30;
    BpeTrainerOptions options = gpt2(259 + merges);
    options.min_count = 1 + seed % 3;
    BpeTrainer trainer(options);
    trainer.add(text);
    const TokenizerParts parts = trainer.train();
    const std::vector<std::string> alphabet(parts.vocab.begin(), parts.vocab.begin() + 256);
    ASSERT_EQ(parts.merges, slow_merges(words, merges, options.min_count, alphabet)) << seed;
    stopped_early += static_cast<std::int32_t>(parts.vocab.size()) < options.vocab_size;
  }
  EXPECT_GT(stopped_early, 5);
  EXPECT_LT(stopped_early, 55);
}

TEST(BpeTrainer, TheDefinitionByHand) {
  BpeTrainer trainer(gpt2(259 + 4));
  trainer.add("aaaa aaaa bab");  // pieces "aaaa", " aaaa", " bab"
  const TokenizerParts parts = trainer.train();
  // a a: 6 times (overlaps count). Then "aa aa" 2; "ba", "ab", " b", " aa" are behind: once, once, once, once.
  EXPECT_EQ(parts.merges, (std::vector<std::string>{"a a", "aa aa"}));
  const Tokenizer t = Tokenizer::from_parts(parts);
  EXPECT_EQ(t.piece(259), "aa");
  EXPECT_EQ(t.encode("aaaaa", {.add_bos = false}), (std::vector<std::int32_t>{260, *t.id_of("a")}));
}

TEST(BpeTrainer, OrderOfTextsDoesNotMatter) {
  std::vector<std::string> texts;
  for (std::uint64_t i = 0; i < 200; ++i) texts.push_back(random_text(i, 30) + " the quick brown fox 1234 jumps\n");
  BpeTrainer forward({.vocab_size = 600}), backward({.vocab_size = 600});
  for (const std::string& text : texts) forward.add(text);
  for (auto it = texts.rbegin(); it != texts.rend(); ++it) backward.add(*it);
  const Tokenizer a = Tokenizer::from_parts(forward.train()), b = Tokenizer::from_parts(backward.train());
  EXPECT_EQ(a.to_json(), b.to_json());
  EXPECT_EQ(a.vocab_size(), 600);
}

TEST(BpeTrainer, WhatItLearnsIsATokenizer) {
  BpeTrainer trainer({.vocab_size = 400});
  for (std::uint64_t i = 0; i < 100; ++i) trainer.add(random_text(i, 50) + " hello world, hello 12 times\n");
  trainer.add("broken \xFF\xFE utf-8");
  trainer.add("");
  const Tokenizer t = Tokenizer::from_parts(trainer.train());
  EXPECT_EQ(t.bos_id(), 256);
  EXPECT_EQ(t.eos_id(), 257);
  EXPECT_EQ(t.pad_id(), 258);
  EXPECT_EQ(nlohmann::json::parse(t.to_json())["model"]["vocab"]["<｜end▁of▁sentence｜>"], 257)
      << "Hugging Face would give it another id otherwise";
  EXPECT_EQ(t.encode("").front(), 256) << "a text begins with bos";
  EXPECT_EQ(t.encode("<｜end▁of▁sentence｜>", {.add_bos = false}), std::vector<std::int32_t>{257});
  EXPECT_NE(t.encode("<｜end▁of▁sentence｜>", {.add_bos = false, .parse_special = false}).size(), 1u);
  for (std::uint64_t i = 0; i < 300; ++i) {
    const std::string text = random_text(1000 + i, 40);
    EXPECT_EQ(t.decode(t.encode(text, {.add_bos = false, .parse_special = false})), text) << "any text survives";
  }
  EXPECT_LT(t.encode(" hello world", {.add_bos = false}).size(), 4u) << "frequent words are short";
  EXPECT_EQ(t.encode("2024", {.add_bos = false}).size(), 4u) << "digits stay apart";
  const dsmoe::testing::TempFolder folder;
  t.save(folder.path());
  const Tokenizer again = Tokenizer::load(folder.path());
  EXPECT_EQ(again.encode("hello world 42"), t.encode("hello world 42"));
  EXPECT_EQ(again.chat_template(), t.chat_template());
  EXPECT_NE(again.chat_template(), "");
}

TEST(BpeTrainer, LongPiecesAndReservedTexts) {
  BpeTrainerOptions options = gpt2(300);
  options.bos_token = "<s>";
  options.eos_token = "ab";  // the text of a merge
  options.pad_token = "";
  BpeTrainer trainer(options);
  trainer.add(std::string(100000, '-') + "ab ab abc abc");
  const TokenizerParts parts = trainer.train();
  EXPECT_EQ(parts.added_tokens.size(), 2u);
  EXPECT_EQ(std::count(parts.merges.begin(), parts.merges.end(), "a b"), 0) << "a reserved text is not a merge";
  EXPECT_EQ(parts.merges.front(), "- -");
  const Tokenizer t = Tokenizer::from_parts(parts);
  EXPECT_EQ(t.eos_id(), 257);
}

TEST(BpeTrainer, RefusesNonsense) {
  using dsmoe::testing::throws_error;
  EXPECT_TRUE(throws_error([] { BpeTrainer trainer({.vocab_size = 258}); }, {"258", "259"}));
  EXPECT_TRUE(throws_error([] { BpeTrainer trainer({.vocab_size = 2000000}); }, {"2000000"}));
  EXPECT_TRUE(throws_error([] { BpeTrainer trainer({.pre_tokenizer = "none"}); }, {"none"}));
  EXPECT_TRUE(throws_error([] { BpeTrainer trainer({.bos_token = "<x>", .eos_token = "<x>"}); }, {"<x>", "twice"}));
  BpeTrainer empty({.vocab_size = 259});
  EXPECT_EQ(Tokenizer::from_parts(empty.train()).vocab_size(), 259);
}

}  // namespace
}  // namespace dsmoe::test
