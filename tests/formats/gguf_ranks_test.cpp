// tiktoken's ranks in a GGUF file: alone with the format's own keys it cuts texts as the folder's do.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "dsmoe/error.h"
#include "formats/gguf_tokenizer.h"
#include "io/io_test_support.h"
#include "tokenizer/tiktoken.h"

namespace dsmoe {
namespace {

using io::GgufMetadata;
using io::GgufValue;
using Json = nlohmann::json;

void expect_same_ids(const Tokenizer& a, const Tokenizer& b) {
  for (const char* text : {"", "The quick brown fox doesn't", "HelloWorld汉字 abc  \n\n\t", "  <|im_end|><|eos|>x<think>",
                           " qxz \u2042\u2042", "<|eos|>\u0338 \u212B", "\xff"}) {
    EXPECT_EQ(a.encode(text), b.encode(text)) << text;
    EXPECT_EQ(a.encode(text, {.parse_special = false}), b.encode(text, {.parse_special = false})) << text;
    EXPECT_EQ(a.decode(a.encode(text)), b.decode(a.encode(text)));
  }
  EXPECT_EQ(a.bos_id(), b.bos_id());
  EXPECT_EQ(a.eos_id(), b.eos_id());
  EXPECT_EQ(a.pad_id(), b.pad_id());
  EXPECT_EQ(a.chat_template(), b.chat_template());
  EXPECT_EQ(a.vocab_size(), b.vocab_size());
}

class GgufRanks : public ::testing::TestWithParam<std::string> {
 protected:
  const std::string pre = GetParam();
  Tokenizer original() const {
    const std::string folder = DSMOE_TEST_DATA "/tokenizer/data/tiktoken";
    if (pre == "kimi-k2") return Tokenizer::load(folder);
    return tokenizer_of_ranks("hy.tiktoken", testing::read_bytes(folder + "/tiktoken.model"), R"({"chat_template": "x"})",
                              "");
  }
};

TEST_P(GgufRanks, ToGgufAndBack) {
  const Tokenizer t = original();
  GgufMetadata m("x.gguf");
  put_tokenizer(t, 800, m);
  EXPECT_EQ(m.text("tokenizer.ggml.model"), "gpt2");
  EXPECT_EQ(m.text("tokenizer.ggml.pre"), pre);
  EXPECT_EQ(m.texts("tokenizer.ggml.merges").size(), 527 - 256 - 2u);
  EXPECT_EQ(m.integer("tokenizer.ggml.bos_token_id"), pre == "kimi-k2" ? 527 : 529);
  EXPECT_FALSE(m.boolean("tokenizer.ggml.add_bos_token"));
  const std::vector<std::int64_t> types = m.integers("tokenizer.ggml.token_type");
  EXPECT_EQ(types[526], 1);
  EXPECT_EQ(types[530], 3);
  EXPECT_EQ(types[*t.id_of(pre == "kimi-k2" ? "<think>" : "<|eos|>")], pre == "kimi-k2" ? 4 : 3);
  EXPECT_EQ(tokenizer_from_gguf(m)->to_json(), t.to_json()) << "to the byte";
  m.remove("tokenizer.huggingface.json");
  m.remove("dsmoe.tokenizer_config_json");
  m.remove("tokenizer.ggml.add_bos_token");  // as files of others
  const Tokenizer others = *tokenizer_from_gguf(m);
  expect_same_ids(others, t);
  EXPECT_EQ(others.encode(" qxz \u2042\u2042"), t.encode(" qxz \u2042\u2042")) << "tokens that nothing is joined to";
  EXPECT_EQ(others.encode("<|eos|>\u0338"), t.encode("<|eos|>\u0338"));
  m.remove("tokenizer.ggml.merges");  // which llama.cpp takes of Kimi-K2
  expect_same_ids(*tokenizer_from_gguf(m), t);
}

TEST_P(GgufRanks, MergesWinOverRanks) {
  GgufMetadata m("x.gguf");
  put_tokenizer(original(), 800, m);
  std::vector<std::string> merges = m.texts("tokenizer.ggml.merges");
  merges.resize(40);  // a word that is a token as a whole needs none
  m.set("tokenizer.ggml.merges", GgufValue::strings(merges));
  for (const bool ours : {true, false}) {
    if (!ours) m.remove("tokenizer.huggingface.json");
    if (ours) m.set("dsmoe.config_json", GgufValue::string("{}"));
    EXPECT_GT(tokenizer_from_gguf(m)->encode("Thequickbrownfox").size(), original().encode("Thequickbrownfox").size());
  }
}
INSTANTIATE_TEST_SUITE_P(Of, GgufRanks, ::testing::Values("kimi-k2", "hunyuan"),
                         [](const auto& one) { return one.param == "hunyuan" ? "Hunyuan" : "Kimi"; });

// A tokenizer.json that someone else made of ranks, which says no more than one of ours.
TEST(GgufRankNames, NamesThatMeanWholeTokens) {
  const auto named = [](const char* pre, bool nfc, bool ignore_merges) {
    Json json = {
        {"added_tokens", Json::array()},
        {"pre_tokenizer", Json::parse(pre_tokenizer_json(pre))},
        {"decoder", {{"type", "ByteLevel"}}},
        {"model", {{"type", "BPE"}, {"vocab", {{"a", 0}, {"b", 1}, {"ab", 2}}}, {"merges", Json::array({"a b"})}}}};
    if (nfc) json["normalizer"] = {{"type", "NFC"}};
    json["model"]["ignore_merges"] = ignore_merges;
    GgufMetadata m;
    put_tokenizer(Tokenizer::from_json(json.dump()), 8, m);
    return m.text("tokenizer.ggml.pre");
  };
  EXPECT_EQ(named("kimi-k2", false, true), "kimi-k2");
  EXPECT_EQ(named("qwen2", true, true), "hunyuan");
  EXPECT_EQ(named("qwen2", true, false), "qwen2");
  for (const auto& [pre, nfc, ignore] :
       {std::tuple{"kimi-k2", false, false}, {"kimi-k2", true, true}, {"qwen2", false, true}})
    EXPECT_THROW(named(pre, nfc, ignore), Error) << pre;
}

}  // namespace
}  // namespace dsmoe
