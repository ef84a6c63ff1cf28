// Vocabularies of tiktoken's ranks, with what the code of Kimi-K2 and of Hunyuan-A13B adds to them.
#include "tokenizer/tiktoken.h"

#include <gtest/gtest.h>

#include <fstream>

#include "support.h"
#include "support/temp_folder.h"

namespace dsmoe {
namespace {

using json = nlohmann::json;
using Ids = std::vector<std::int32_t>;
using testing::throws_error;

const std::filesystem::path kRanks = DSMOE_TEST_DATA "/tokenizer/data/tiktoken";
constexpr std::int32_t kTokens = 527;  // of that vocabulary

std::string text_of(const std::filesystem::path& file) {
  std::ifstream in(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

void write(const std::filesystem::path& file, const std::string& text) { std::ofstream(file, std::ios::binary) << text; }

const std::string& ranks() {
  static const std::string text = text_of(kRanks / "tiktoken.model");
  return text;
}

Tokenizer kimi() { return Tokenizer::load(kRanks); }
Tokenizer hunyuan(const std::string& config = "") { return tokenizer_of_ranks("hy.tiktoken", ranks(), config, ""); }

TEST(Tiktoken, IdsOfTiktoken) {
  const Tokenizer a = kimi(), b = hunyuan();
  const json cases = json::parse(std::ifstream(kRanks / "cases.json"));
  ASSERT_GT(cases.size(), 80u);
  for (const json& c : cases) {
    const std::string text = c["text"];
    EXPECT_EQ(a.encode(text), c["kimi"].get<Ids>()) << text;
    EXPECT_EQ(b.encode(text), c["hunyuan"].get<Ids>()) << text;
    EXPECT_EQ(a.decode(c["kimi"].get<Ids>()), text);
  }
}

// 256 ids behind the vocabulary, of which the config names some; what is no special token there is none here.
TEST(Tiktoken, ControlTokensOfKimi) {
  const Tokenizer t = kimi();
  EXPECT_EQ(t.vocab_size(), kTokens + 256);
  EXPECT_EQ(t.id_of("[BOS]"), kTokens);
  EXPECT_EQ(t.id_of("<|im_end|>"), kTokens + 2);
  EXPECT_EQ(t.id_of("<|reserved_token_532|>"), kTokens + 5);
  EXPECT_EQ(t.id_of("[PAD]"), kTokens + 255);
  EXPECT_FALSE(t.id_of("<|reserved_token_783|>"));
  EXPECT_EQ(t.bos_id(), kTokens);
  EXPECT_EQ(t.eos_id(), kTokens + 1);
  EXPECT_EQ(t.pad_id(), kTokens + 255);
  EXPECT_TRUE(t.is_special(kTokens + 2));
  EXPECT_TRUE(t.is_special(kTokens + 5));
  EXPECT_FALSE(t.is_special(*t.id_of("<think>")));
  EXPECT_EQ(t.encode("<|im_end|>"), Ids{kTokens + 2});
  for (const std::int32_t id : t.encode("<|im_end|>", {.parse_special = false})) EXPECT_LT(id, kTokens) << "of a message";
  EXPECT_EQ(t.encode("a").size(), 1u) << "nothing around a text";
  EXPECT_EQ(t.chat_template().substr(0, 20), "{% for m in messages");
}

TEST(Tiktoken, ControlTokensOfHunyuan) {
  const Tokenizer t = hunyuan(R"({"tokenizer_class": "HYTokenizer", "eos_token": "<|extra_0|>", "chat_template": "x"})");
  EXPECT_EQ(t.vocab_size(), kTokens + 210);
  EXPECT_EQ(t.id_of("<|endoftext|>"), kTokens);
  EXPECT_EQ(t.id_of("<|startoftext|>"), kTokens + 1);
  EXPECT_EQ(t.id_of("<|extra_0|>"), kTokens + 5);
  EXPECT_EQ(t.id_of("<|extra_204|>"), kTokens + 209);
  EXPECT_EQ(t.bos_id(), kTokens + 2) << "which its config.json has wrong, and its tokenizer_config.json not at all";
  EXPECT_EQ(t.eos_id(), kTokens + 5);
  EXPECT_EQ(t.pad_id(), kTokens + 4);
  EXPECT_EQ(t.chat_template(), "x");
  EXPECT_EQ(hunyuan().eos_id(), kTokens + 3) << "without a config";
  EXPECT_EQ(hunyuan().encode("\u212B"), hunyuan().encode("\u00C5")) << "brought into NFC";
  EXPECT_NE(hunyuan().encode("<|eos|>\u0338").front(), kTokens + 3) << "whose end is another character then";
  for (std::int32_t id = kTokens; id < kTokens + 210; ++id) EXPECT_TRUE(t.is_special(id));
}

// A tokenizer.json, which needs no code of the model's: other readers take it as we do.
TEST(Tiktoken, IsSavedAsTokenizerJson) {
  for (const Tokenizer& t : {kimi(), hunyuan()}) {
    const testing::TempFolder dir;
    t.save(dir.path());
    const Tokenizer back = Tokenizer::load(dir.path());
    EXPECT_EQ(back.to_json(), t.to_json());
    EXPECT_EQ(back.config_json(), t.config_json());
    for (std::uint64_t seed = 0; seed < 50; ++seed) {
      const std::string text = test::random_text(seed, 40);
      EXPECT_EQ(back.encode(text), t.encode(text)) << text;
    }
    const json config = json::parse(t.config_json()), model = json::parse(t.to_json())["model"];
    EXPECT_EQ(config["tokenizer_class"], "PreTrainedTokenizerFast");
    EXPECT_FALSE(config.contains("auto_map"));
    EXPECT_EQ(model["ignore_merges"], true);
    EXPECT_EQ(model["merges"].size(), kTokens - 256 - 2u) << "for every token but bytes and two that nothing is joined to";
  }
  EXPECT_EQ(json::parse(kimi().config_json())["unk_token"], "[UNK]") << "the rest is as it was";
}

TEST(Tiktoken, WhichFileIsRead) {
  const testing::TempFolder dir;
  write(dir / "hy.tiktoken", ranks());
  EXPECT_EQ(Tokenizer::load(dir.path()).id_of("<|eos|>"), kTokens + 3);
  EXPECT_EQ(Tokenizer::load(dir / "hy.tiktoken").id_of("<|eos|>"), kTokens + 3);
  write(dir / "tokenizer_config.json", R"({"tokenizer_class": "QWenTokenizer"})");
  EXPECT_TRUE(throws_error([&] { Tokenizer::load(dir.path()); },
                           {dir.path().string(), "hy.tiktoken", "'QWenTokenizer'", "HYTokenizer"},
                           ErrorCode::kUnsupported));
  write(dir / "tokenizer_config.json", R"({"eos_token": "</s>"})");
  write(dir / "tokenizer.json", test::small_json().dump());
  EXPECT_EQ(Tokenizer::load(dir.path()).eos_id(), 259) << "tokenizer.json, where there is one";
  const testing::TempFolder bare;
  write(bare / "tiktoken.model", ranks());
  EXPECT_TRUE(throws_error([&] { Tokenizer::load(bare.path()); },
                           {"tiktoken.model", "tokenizer_config.json", "not beside it"}, ErrorCode::kFormat));
}

// Runs of any length: no time that grows with the square of it, and no stack.
TEST(Tiktoken, LongRuns) {
  const Tokenizer a = kimi(), b = hunyuan();
  for (const char* part : {"a", "A", " ", "\n", "中", "ab", "Ab", "\u0301", "1", "!", "'"}) {
    std::string text;
    while (text.size() < 300'000) text += part;
    for (const Tokenizer& t : {a, b}) EXPECT_EQ(t.decode(t.encode(text)), text) << part;
  }
}

std::string some_ranks() {
  std::string text;
  for (int b = 0; b < 256; ++b) {
    const auto high = static_cast<std::size_t>(b >> 2), low = static_cast<std::size_t>((b & 3) << 4);
    constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    text += std::string{kDigits[high], kDigits[low], '=', '='} + " " + std::to_string(b) + "\n";
  }
  return text;
}

TEST(Tiktoken, ReadsRanks) {
  std::vector<std::string> tokens = read_ranks(some_ranks() + "\r\n  \nYWI= \t257\r\nYWJj 256", "x", false);
  ASSERT_EQ(tokens.size(), 258u);
  EXPECT_EQ(tokens[0xE4], "\xE4");
  EXPECT_EQ(tokens[256], "abc");
  EXPECT_EQ(tokens[257], "ab");
}

TEST(Tiktoken, RefusesInOneLine) {
  const std::string all = some_ranks();
  const std::string without_a = std::string(all).replace(all.find("YQ== 97\n"), 8, "YWE= 97\n");
  const std::vector<std::pair<std::string, std::vector<std::string_view>>> cases = {
      {"", {"the byte 0x00"}},
      {without_a, {"no token for the byte 0x61"}},
      {all + "YWI 256", {"line 257", "'YWI'", "base64"}},
      {all + "YW?= 256", {"line 257", "base64"}},
      {all + "YW=I 256", {"line 257", "base64"}},
      {all + "YWJ= 256", {"line 257", "base64"}},
      {all + "==== 256", {"line 257", "base64"}},
      {all + "\nYWI=", {"line 258", "'' behind the token is not a rank"}},
      {all + "YWI= 256 1", {"line 257", "'256 1' behind the token"}},
      {all + "YWI= -1", {"line 257", "'-1'"}},
      {all + "YWI= 99999999999999999999", {"line 257", "'99999999999999999999'"}},
      {all + "YWI= 257", {"line 257", "rank 257", "257 tokens"}},
      {all + "YWI= 3", {"lines 4 and 257", "rank 3"}},
      {all + "YQ== 256", {"lines 98 and 257", "the same token"}},
      {all + std::string("\0\n", 2), {"line 257", "base64"}},
      {all + std::string(4000, 'A') + " 256", {"line 257", "3000 bytes", "at most 512"}},
      {"version https://git-lfs.github.com/spec/v1\n", {"line 1", "'version'"}},
  };
  for (const auto& [text, words] : cases)
    EXPECT_TRUE(throws_error([&, &t = text] { read_ranks(t, "x.tiktoken", false); }, {"x.tiktoken"}, ErrorCode::kFormat) &&
                std::all_of(words.begin(), words.end(),
                            [&, &t = text](std::string_view word) {
                              return throws_error([&] { read_ranks(t, "x.tiktoken", false); }, {word}, ErrorCode::kFormat);
                            }))
        << words[0];
  EXPECT_TRUE(throws_error([&] { read_ranks(all + "YWI= 257\nYWJj 256", "x", true); }, {"line 257", "rank 257 where 256"}));
}

TEST(Tiktoken, RefusesConfigsThatContradict) {
  const auto with = [&](const json& patch) {
    json config = json::parse(text_of(kRanks / "tokenizer_config.json"));
    config.merge_patch(patch);
    return [text = config.dump()] { tokenizer_of_ranks("tiktoken.model", ranks(), text, ""); };
  };
  const auto named = [&](const char* id, const char* content) {
    return with({{"added_tokens_decoder", {{id, {{"content", content}}}}}});
  };
  EXPECT_NO_THROW(named("540", "<|new|>")());
  EXPECT_TRUE(throws_error(named("526", "<|new|>"), {"'<|new|>' at 526", "527 to 782"}));
  EXPECT_TRUE(throws_error(named("783", "<|new|>"), {"'<|new|>' at 783"}));
  EXPECT_TRUE(throws_error(named("540", "[EOS]"), {"two control tokens", "'[EOS]'"}));
  EXPECT_TRUE(throws_error(named("540", "a"), {"'a'", "contradicts"}));
  EXPECT_TRUE(throws_error(with({{"eos_token", "</s>"}}), {"eos_token", "'</s>'"}));
  EXPECT_TRUE(throws_error(with({{"added_tokens_decoder", nullptr}}), {"bos_token", "'[BOS]'"}));
}

}  // namespace
}  // namespace dsmoe
