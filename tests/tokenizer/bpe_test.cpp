#include "tokenizer/bpe.h"

#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>

#include "core/random.h"
#include "support/expect_error.h"
#include "tokenizer/byte_level.h"

namespace dsmoe {
namespace {

using nlohmann::json;
using Ids = std::vector<std::int32_t>;

json tiny_model() {
  return json::parse(R"({"type": "BPE", "vocab": {"a": 0, "b": 1, "c": 2, "ab": 3, "bc": 4, "abc": 5, "aa": 6, "aaaa": 7},
                         "merges": ["a b", ["b", "c"], "ab c", "a a", "aa aa"]})");
}

Ids encode(const json& model, std::string_view piece) {
  Vocab vocab;
  const Bpe bpe(model, vocab);
  BpeScratch scratch;
  Ids out;
  bpe.encode(piece, vocab, scratch, out);
  return out;
}

TEST(Bpe, MergesByRankThenFromTheLeft) {
  EXPECT_EQ(encode(tiny_model(), "abc"), (Ids{5}));
  EXPECT_EQ(encode(tiny_model(), "bcabc"), (Ids{4, 5}));
  EXPECT_EQ(encode(tiny_model(), "aaaaa"), (Ids{7, 0}));
  EXPECT_EQ(encode(tiny_model(), "aab"), (Ids{0, 3}));
  EXPECT_EQ(encode(tiny_model(), ""), Ids{});
}

// As slow and as plain as the definition: merge the leftmost pair of the lowest rank, again and again.
Ids naive(const std::map<std::pair<int, int>, std::pair<int, int>>& merges, Ids ids) {
  for (;;) {
    std::size_t best = ids.size();
    int best_rank = 1 << 30;
    for (std::size_t i = 0; i + 1 < ids.size(); ++i) {
      const auto it = merges.find({ids[i], ids[i + 1]});
      if (it != merges.end() && it->second.first < best_rank) best = i, best_rank = it->second.first;
    }
    if (best == ids.size()) return ids;
    ids[best] = merges.at({ids[best], ids[best + 1]}).second;
    ids.erase(ids.begin() + static_cast<std::ptrdiff_t>(best) + 1);
  }
}

// Random merges over three letters, pieces on both sides of the limit between the two algorithms.
TEST(Bpe, AgreesWithTheDefinition) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    const Philox random(seed, 0);
    std::uint64_t draw = 0;
    std::vector<std::string> tokens = {"a", "b", "c"};
    std::map<std::pair<int, int>, std::pair<int, int>> merges;
    json model = {{"vocab", json::object()}, {"merges", json::array()}};
    while (tokens.size() < 40) {
      const int l = static_cast<int>(random.below(draw++, tokens.size())),
                r = static_cast<int>(random.below(draw++, tokens.size()));
      const std::string both = tokens[static_cast<std::size_t>(l)] + tokens[static_cast<std::size_t>(r)];
      if (merges.contains({l, r}) || std::find(tokens.begin(), tokens.end(), both) != tokens.end()) continue;
      merges[{l, r}] = {static_cast<int>(merges.size()), static_cast<int>(tokens.size())};
      model["merges"].push_back(tokens[static_cast<std::size_t>(l)] + " " + tokens[static_cast<std::size_t>(r)]);
      tokens.push_back(both);
    }
    for (std::size_t i = 0; i < tokens.size(); ++i) model["vocab"][tokens[i]] = i;
    for (std::size_t length = 1; length < 200; length += length < 60 ? 1 : 23) {
      std::string piece;
      Ids ids;
      for (std::size_t i = 0; i < length; ++i) {
        ids.push_back(static_cast<std::int32_t>(random.below(draw++, 3)));
        piece += static_cast<char>('a' + ids.back());
      }
      ASSERT_EQ(encode(model, piece), naive(merges, ids)) << piece;
    }
  }
}

TEST(Bpe, UnknownBytes) {
  json model = tiny_model();
  EXPECT_THROW(encode(model, "a?"), Error);
  model["vocab"]["<unk>"] = 8;
  model["unk_token"] = "<unk>";
  EXPECT_EQ(encode(model, "a??b"), (Ids{0, 8, 8, 1}));
  model["fuse_unk"] = true;
  EXPECT_EQ(encode(model, "a??b?"), (Ids{0, 8, 1, 8}));
}

TEST(Bpe, IgnoreMerges) {
  json model = tiny_model();
  model["vocab"]["ca"] = 8;
  EXPECT_EQ(encode(model, "ca"), (Ids{2, 0}));
  model["ignore_merges"] = true;
  EXPECT_EQ(encode(model, "ca"), (Ids{8}));
  EXPECT_EQ(encode(model, "cab"), (Ids{2, 3}));
}

TEST(Bpe, RefusesByName) {
  const auto encode_with = [](const char* patch) {
    json model = tiny_model();
    model.merge_patch(json::parse(patch));
    encode(model, "a");
  };
  EXPECT_NO_THROW(encode_with(R"({"dropout": null, "continuing_subword_prefix": "", "byte_fallback": false})"));
  for (const auto& [patch, words] :
       std::vector<std::pair<const char*, const char*>>{{R"({"type": "WordPiece"})", "'WordPiece'"},
                                                        {R"({"byte_fallback": true})", "byte_fallback is true"},
                                                        {R"({"dropout": 0.1})", "dropout"},
                                                        {R"({"end_of_word_suffix": "</w>"})", "end_of_word_suffix"},
                                                        {R"({"unk_token": "?"})", "unk_token"},
                                                        {R"({"merges": ["a"]})", "merge 0"},
                                                        {R"({"merges": ["a b c"]})", "merge 0"},
                                                        {R"({"merges": [["a"]]})", "merge 0"},
                                                        {R"({"merges": ["a x"]})", "'x'"},
                                                        {R"({"merges": {}})", "merges"},
                                                        {R"({"vocab": {"x": 0}})", "id 0"},
                                                        {R"({"vocab": {"x": -1}})", "'x'"},
                                                        {R"({"vocab": {"x": 1e300}})", "'x'"},
                                                        {R"({"vocab": {"x": 2000000000}})", "2000000000"}})
    EXPECT_TRUE(testing::throws_error([&, text = patch] { encode_with(text); }, {words})) << patch;
}

}  // namespace
}  // namespace dsmoe
