#include "tokenizer/pre_tokenizer.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "dsmoe/error.h"
#include "dsmoe/tokenizer.h"
#include "support/expect_error.h"

namespace dsmoe {
namespace {

using nlohmann::json;
using Words = std::vector<std::string>;

Words pieces(const SplitStage& stage, std::string_view text) {
  RegexScratch scratch;
  std::vector<PieceRange> ranges;
  split(stage, text, scratch, ranges);
  Words out;
  for (const auto [begin, end] : ranges) out.emplace_back(text.substr(begin, end - begin));
  return out;
}

Words dashes(SplitBehavior behavior, bool invert = false) {
  return pieces({Regex("-"), behavior, invert}, "the-final--countdown");
}

// The example of Hugging Face's documentation of SplitDelimiterBehavior.
TEST(PreTokenizer, Behaviors) {
  EXPECT_EQ(dashes(SplitBehavior::kRemoved), (Words{"the", "final", "countdown"}));
  EXPECT_EQ(dashes(SplitBehavior::kIsolated), (Words{"the", "-", "final", "-", "-", "countdown"}));
  EXPECT_EQ(dashes(SplitBehavior::kMergedWithPrevious), (Words{"the-", "final-", "-", "countdown"}));
  EXPECT_EQ(dashes(SplitBehavior::kMergedWithNext), (Words{"the", "-final", "-", "-countdown"}));
  EXPECT_EQ(dashes(SplitBehavior::kContiguous), (Words{"the", "-", "final", "--", "countdown"}));
  EXPECT_EQ(dashes(SplitBehavior::kRemoved, true), (Words{"-", "-", "-"}));
}

TEST(PreTokenizer, ReadsEveryKind) {
  const json description = json::parse(R"({"type": "Sequence", "pretokenizers": [
    {"type": "Split", "pattern": {"String": "."}, "behavior": "Removed", "invert": false},
    {"type": "Digits", "individual_digits": false},
    {"type": "Punctuation", "behavior": "Isolated"},
    {"type": "Sequence", "pretokenizers": [{"type": "Whitespace"}, {"type": "WhitespaceSplit"}]},
    {"type": "ByteLevel", "add_prefix_space": true, "use_regex": true}]})");
  const auto stages = read_pre_tokenizer(description);
  ASSERT_EQ(stages.size(), 6u);
  EXPECT_EQ(pieces(stages[0], "a.b"), (Words{"a", "b"}));
  EXPECT_EQ(pieces(stages[1], "a12\u00BDb"), (Words{"a", "12\u00BD", "b"}));
  EXPECT_EQ(pieces(stages[2], "a$\u3002b"), (Words{"a", "$", "\u3002", "b"}));
  EXPECT_EQ(pieces(stages[3], "ab ,; c"), (Words{"ab", ",;", "c"}));
  EXPECT_EQ(pieces(stages[4], " ab\u3000c"), (Words{"ab", "c"}));
  EXPECT_EQ(pieces(stages[5], "I'll go  2 X!"), (Words{"I", "'ll", " go", " ", " 2", " X", "!"}));
  EXPECT_TRUE(stages[5].prefix_space);
  EXPECT_FALSE(stages[4].prefix_space);
}

TEST(PreTokenizer, RefusesByName) {
  const auto refused = [](const std::string& description, std::string_view words) {
    return testing::throws_error([&] { read_pre_tokenizer(json::parse(description)); }, {words});
  };
  EXPECT_TRUE(refused(R"({"type": "Metaspace"})", "'Metaspace'"));
  EXPECT_TRUE(refused(R"({"type": "Digits", "individual_digits": true})", "ByteLevel"));
  EXPECT_TRUE(refused("null", "ByteLevel"));
  EXPECT_TRUE(refused(R"({"type": "Sequence", "pretokenizers": [{"type": "ByteLevel"}, {"type": "Digits"}]})",
                      "'Digits' after ByteLevel"));
  EXPECT_TRUE(refused(R"({"type": "Split", "pattern": {"Regex": "a"}, "behavior": "Odd"})", "'Odd'"));
  EXPECT_TRUE(refused(R"({"type": "Split", "behavior": "Removed"})", "'pattern' is missing"));
  EXPECT_TRUE(refused(R"({"type": "Digits", "individual_digits": 1})", "individual_digits"));
  std::string deep = R"({"type": "ByteLevel"})";
  for (int i = 0; i < 50; ++i) deep = R"({"type": "Sequence", "pretokenizers": [)" + deep + "]}";
  EXPECT_TRUE(refused(deep, "nested"));
}

TEST(PreTokenizer, KnownNames) {
  for (const char* name :
       {"deepseek-llm", "deepseek-coder", "deepseek-v3", "llama-bpe", "qwen2", "kimi-k2", "gpt-4o", "gpt-2", "gigachat"})
    EXPECT_FALSE(read_pre_tokenizer(json::parse(pre_tokenizer_json(name))).empty()) << name;
  EXPECT_THROW(pre_tokenizer_json("qwen7"), Error);
  for (const char* name : {"deepseek-llm", "qwen2", "kimi-k2", "gpt-4o", "gpt-2"})
    EXPECT_EQ(pre_tokenizer_name(pre_tokenizer_json(name)), name);
}

}  // namespace
}  // namespace dsmoe
