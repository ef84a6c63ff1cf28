// The tokenizer in a GGUF file: alone with the format's own keys it cuts texts as the folder's does.
#include "formats/gguf_tokenizer.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <nlohmann/json.hpp>

#include "dsmoe/error.h"
#include "io/io_test_support.h"

namespace dsmoe {
namespace {

using io::GgufMetadata;
using io::GgufValue;
using testing::throws_error;
using Json = nlohmann::json;

const std::string kFolder = DSMOE_TEST_DATA "/tokenizer/data/deepseek-llm";
const std::vector<std::string> kTexts = {"Who are you?",
                                         "",
                                         "  two  spaces\n\nand a line\t\r\n",
                                         "schöne Grüße aus Köln, À bientôt!",
                                         "3.14159 = π, 1000000",
                                         "你好，世界 한국어 にほんご",
                                         "<｜begin▁of▁sentence｜>User: hi<｜end▁of▁sentence｜>",
                                         "emoji 🦙 and \xff broken"};

void expect_same(const Tokenizer& a, const Tokenizer& b) {
  for (const std::string& text : kTexts) {
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

TEST(GgufTokenizer, ToGgufAndBack) {
  const Tokenizer original = Tokenizer::load(kFolder);
  GgufMetadata m;
  put_tokenizer(original, 102400, m);
  EXPECT_EQ(m.text("tokenizer.ggml.model"), "gpt2");
  EXPECT_EQ(m.text("tokenizer.ggml.pre"), "deepseek-llm");
  const std::vector<std::string> tokens = m.texts("tokenizer.ggml.tokens");
  const std::vector<std::int64_t> types = m.integers("tokenizer.ggml.token_type");
  ASSERT_EQ(tokens.size(), 102400u) << "one for every row of the model's tables";
  ASSERT_EQ(types.size(), 102400u);
  EXPECT_EQ(tokens[100000], "<｜begin▁of▁sentence｜>");
  EXPECT_EQ(types[100000], 3);
  EXPECT_EQ(tokens[100003], "ö");
  EXPECT_EQ(types[100003], 4);
  EXPECT_EQ(types[100015], 5) << "an id without a token";
  EXPECT_EQ(m.texts("tokenizer.ggml.merges").size(), 99757u);
  EXPECT_TRUE(m.boolean("tokenizer.ggml.add_bos_token"));
  EXPECT_EQ(m.integer("tokenizer.ggml.bos_token_id"), 100000);

  const std::optional<Tokenizer> whole = tokenizer_from_gguf(m);
  ASSERT_TRUE(whole);
  EXPECT_EQ(whole->to_json(), original.to_json()) << "to the byte";
  EXPECT_EQ(whole->config_json(), original.config_json());
  // As in files of others, which have the format's own keys alone.
  m.remove("tokenizer.huggingface.json");
  m.remove("dsmoe.tokenizer_config_json");
  const std::optional<Tokenizer> parts = tokenizer_from_gguf(m);
  ASSERT_TRUE(parts);
  expect_same(*parts, original);
}

Json tiny_tokenizer() {
  return {{"version", "1.0"},
          {"added_tokens", Json::array()},
          {"normalizer", nullptr},
          {"pre_tokenizer", Json::parse(pre_tokenizer_json("deepseek-llm"))},
          {"post_processor", nullptr},
          {"decoder", {{"type", "ByteLevel"}}},
          {"model", {{"type", "BPE"}, {"vocab", {{"a", 0}, {"b", 1}, {"ab", 2}}}, {"merges", {"a b"}}}}};
}

// A small tokenizer with bos and eos, in files of its own.
struct Files {
  Json json, config;
  std::string jinja;

  GgufMetadata gguf() const {
    GgufMetadata m("x.gguf");
    put_tokenizer(Tokenizer::from_json(json.dump(), config.dump(), jinja), 8, m);
    m.set("dsmoe.config_json", GgufValue::string("{}"));
    return m;
  }
};

Files files() {
  const auto special = [](int id, const char* content) {
    return Json{{"id", id}, {"content", content}, {"special", true}};
  };
  Files f;
  f.json = tiny_tokenizer();
  f.json["added_tokens"] = {special(3, "<s>"), special(4, "</s>"), special(5, "<|end|>")};
  f.config = {{"tokenizer_class", "LlamaTokenizerFast"}, {"bos_token", "<s>"}, {"eos_token", "</s>"}};
  return f;
}

TEST(GgufTokenizer, CarriesChatTemplateJinja) {
  Files f = files();
  f.config["chat_template"] = "old";
  f.jinja = "{{ 'new' }}\n";
  GgufMetadata m = f.gguf();
  EXPECT_EQ(m.text("tokenizer.chat_template"), f.jinja);
  const testing::TempFolder dir;
  tokenizer_from_gguf(m)->save(dir.path());
  const Tokenizer back = Tokenizer::load(dir.path());
  EXPECT_EQ(back.chat_template(), f.jinja);
  EXPECT_EQ(back.config_json(), f.config.dump()) << "with its own template, as it was";
  m.set("tokenizer.chat_template", GgufValue::string("edited"));
  EXPECT_EQ(tokenizer_from_gguf(m)->chat_template(), "edited");
  f.jinja.clear();
  std::filesystem::remove(dir / "chat_template.jinja");
  tokenizer_from_gguf(f.gguf())->save(dir.path());
  EXPECT_FALSE(std::filesystem::exists(dir / "chat_template.jinja")) << "where there was none";
}

// A name alone says whether texts are brought into NFC; the code of Hunyuan's tokenizer does.
TEST(GgufTokenizer, NamesThatMeanNfc) {
  for (const auto& [pre, nfc] :
       {std::pair{"qwen2", true}, {"hunyuan", true}, {"olmo", true}, {"glm4", false}, {"minimax-m2", false}}) {
    GgufMetadata m = files().gguf();
    m.remove("tokenizer.huggingface.json");
    m.set("tokenizer.ggml.pre", GgufValue::string(pre));
    EXPECT_EQ(tokenizer_from_gguf(m)->to_json().find("\"NFC\"") != std::string::npos, nfc) << pre;
  }
}

TEST(GgufTokenizer, EditedKeysWin) {
  using Ids = std::vector<std::int32_t>;
  Files f = files();
  const auto edited = [&](const char* key, const GgufValue& value) {
    GgufMetadata m = f.gguf();
    m.set(key, value);
    return *tokenizer_from_gguf(m);
  };
  const auto bos = [&](bool add) { return edited("tokenizer.ggml.add_bos_token", GgufValue::boolean(add)).encode("a"); };
  const auto eos = [&](bool add) { return edited("tokenizer.ggml.add_eos_token", GgufValue::boolean(add)).encode("a"); };
  EXPECT_EQ(bos(true), (Ids{3, 0}));
  EXPECT_EQ(bos(false), (Ids{0}));
  EXPECT_EQ(eos(true), (Ids{3, 0, 4}));
  // The same where tokenizer.json itself says what stands around a text.
  f.config["tokenizer_class"] = "PreTrainedTokenizerFast";
  f.json["post_processor"] = {
      {"type", "TemplateProcessing"},
      {"single", {{{"SpecialToken", {{"id", "<s>"}, {"type_id", 0}}}}, {{"Sequence", {{"id", "A"}, {"type_id", 0}}}}}},
      {"pair", Json::array()},
      {"special_tokens", {{"<s>", {{"id", "<s>"}, {"ids", {3}}, {"tokens", {"<s>"}}}}}}};
  EXPECT_EQ(bos(true), (Ids{3, 0}));
  EXPECT_EQ(bos(false), (Ids{0}));
  EXPECT_EQ(eos(true), (Ids{3, 0, 4}));
  EXPECT_EQ(edited("tokenizer.ggml.eos_token_id", GgufValue::u32(5)).eos_id(), 5);
  EXPECT_EQ(edited("tokenizer.ggml.bos_token_id", GgufValue::u32(5)).bos_id(), 5);
  EXPECT_EQ(edited("tokenizer.ggml.padding_token_id", GgufValue::u32(5)).pad_id(), 5);
  EXPECT_TRUE(throws_error([&] { edited("tokenizer.ggml.eos_token_id", GgufValue::u32(9)); },
                           {"x.gguf", "tokenizer.ggml.eos_token_id is 9", "6 tokens"}, ErrorCode::kFormat));
  std::vector<std::string> tokens = f.gguf().texts("tokenizer.ggml.tokens");
  tokens[5] = "<|other|>";
  const Tokenizer renamed = edited("tokenizer.ggml.tokens", GgufValue::strings(tokens));
  EXPECT_EQ(renamed.id_of("<|other|>"), 5);
  EXPECT_EQ(renamed.encode("<|other|>a", {.add_bos = false}), (Ids{5, 0}));
  EXPECT_EQ(edited("tokenizer.ggml.merges", GgufValue::strings({})).encode("ab"), (Ids{3, 0, 1}));
  EXPECT_EQ(edited("tokenizer.ggml.merges", GgufValue::strings(std::vector<std::string>{"a b"})).encode("ab"), (Ids{3, 2}));
  EXPECT_EQ(pre_tokenizer_name(edited("tokenizer.ggml.pre", GgufValue::string("gpt-2")).pre_tokenizer()), "gpt-2");
  EXPECT_TRUE(throws_error([&] { edited("tokenizer.ggml.pre", GgufValue::string("tekken")); }, {"x.gguf", "tekken"},
                           ErrorCode::kUnsupported));
  const auto with_type = [&](std::size_t id, std::int32_t type) {
    std::vector<std::int32_t> types;
    for (const std::int64_t t : f.gguf().integers("tokenizer.ggml.token_type"))
      types.push_back(static_cast<std::int32_t>(t));
    types[id] = type;
    return edited("tokenizer.ggml.token_type", GgufValue::i32s(types));
  };
  EXPECT_TRUE(throws_error([&] { with_type(2, 3); }, {"x.gguf", "merge 0"}, ErrorCode::kFormat))
      << "a control token is no result of a merge";
  EXPECT_FALSE(with_type(5, 4).is_special(5));
  EXPECT_EQ(tokenizer_from_gguf(f.gguf())->to_json(), f.json.dump()) << "the negative control: nothing was edited";
}

TEST(GgufTokenizer, NoneAndUnknownOnes) {
  GgufMetadata m("x.gguf");
  EXPECT_FALSE(tokenizer_from_gguf(m));
  put_no_tokenizer(m);
  EXPECT_FALSE(tokenizer_from_gguf(m));
  m.set("tokenizer.ggml.model", GgufValue::string("bert"));
  EXPECT_TRUE(
      throws_error([&] { tokenizer_from_gguf(m); }, {"x.gguf", "'bert'", "gpt2", "llama"}, ErrorCode::kUnsupported));
  m.set("tokenizer.ggml.model", GgufValue::string("gpt2"));
  EXPECT_TRUE(throws_error([&] { tokenizer_from_gguf(m); }, {"x.gguf", "tokenizer.ggml.pre"}, ErrorCode::kFormat));
  m.set("tokenizer.ggml.pre", GgufValue::string("tekken"));
  EXPECT_TRUE(throws_error([&] { tokenizer_from_gguf(m); }, {"x.gguf", "tekken"}, ErrorCode::kUnsupported));
  m.set("tokenizer.ggml.pre", GgufValue::string("gpt-2"));
  m.set("tokenizer.ggml.tokens", GgufValue::strings(std::vector<std::string>{"a", "b"}));
  EXPECT_TRUE(throws_error([&] { tokenizer_from_gguf(m); }, {"x.gguf", "merges"}, ErrorCode::kFormat));
  m.set("tokenizer.ggml.merges", GgufValue::strings({}));
  EXPECT_TRUE(tokenizer_from_gguf(m));
  m.set("tokenizer.ggml.bos_token_id", GgufValue::u32(2));
  EXPECT_TRUE(throws_error([&] { tokenizer_from_gguf(m); }, {"bos_token_id is 2", "2 tokens"}, ErrorCode::kFormat));
  m.remove("tokenizer.ggml.bos_token_id");
  m.set("tokenizer.ggml.token_type", GgufValue::i32s(std::vector<std::int32_t>{1}));
  EXPECT_TRUE(throws_error([&] { tokenizer_from_gguf(m); }, {"2 tokens", "1 token types"}, ErrorCode::kFormat));
}

TEST(GgufTokenizer, APipelineWithoutANameIsRefused) {
  const auto put = [](const Json& json) {
    GgufMetadata m;
    put_tokenizer(Tokenizer::from_json(json.dump()), 8, m);
    return m.text("tokenizer.ggml.pre");
  };
  const auto refused = [&](std::initializer_list<std::string_view> parts, auto change) {
    Json json = tiny_tokenizer();
    change(json);
    EXPECT_TRUE(throws_error([&] { put(json); }, parts, ErrorCode::kUnsupported));
  };
  EXPECT_EQ(put(tiny_tokenizer()), "deepseek-llm");
  for (const char* name : {"deepseek-coder", "deepseek-v3", "gpt-2"}) {
    Json json = tiny_tokenizer();
    json["pre_tokenizer"] = Json::parse(pre_tokenizer_json(name));
    EXPECT_EQ(put(json), name);
  }
  refused({"pre_tokenizer", "tokenizer.json out of the folder"},
          [](Json& j) { j["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = "[\r]"; });
  refused({"pre_tokenizer"}, [](Json& j) { j["pre_tokenizer"]["pretokenizers"][1]["behavior"] = "Removed"; });
  refused({"pre_tokenizer"}, [](Json& j) { j["pre_tokenizer"]["pretokenizers"].erase(2); });
  refused({"normalizer"}, [](Json& j) { j["normalizer"] = {{"type", "NFC"}}; });
  refused({"ignore_merges"}, [](Json& j) { j["model"]["ignore_merges"] = true; });
  EXPECT_TRUE(throws_error(
      [] {
        GgufMetadata m;
        put_tokenizer(Tokenizer::from_json(tiny_tokenizer().dump()), 2, m);
      },
      {"token 2", "vocabulary of 2"}, ErrorCode::kUnsupported));
}

// 400 kB of brackets in either of the two texts that a file may carry.
TEST(GgufTokenizer, JsonNestedDeeplyIsRefused) {
  GgufMetadata m;
  put_tokenizer(Tokenizer::from_json(tiny_tokenizer().dump()), 3, m);
  EXPECT_NO_THROW(tokenizer_from_gguf(m));
  const std::string deep = "{\"a\": " + std::string(200'000, '[') + std::string(200'000, ']') + "}";
  GgufMetadata config = m;
  m.set("tokenizer.huggingface.json", GgufValue::string(deep));
  EXPECT_TRUE(throws_error([&] { tokenizer_from_gguf(m); }, {"tokenizer.json", "nested deeper"}, ErrorCode::kFormat));
  config.set("dsmoe.tokenizer_config_json", GgufValue::string(deep));
  EXPECT_TRUE(
      throws_error([&] { tokenizer_from_gguf(config); }, {"tokenizer_config.json", "nested deeper"}, ErrorCode::kFormat));
}

// A vocabulary of characters is "llama" there, with a score for every token instead of merges.
GgufMetadata characters() {
  GgufMetadata m("x.gguf");
  put_tokenizer(Tokenizer::load(DSMOE_TEST_DATA "/tokenizer/data/characters"), 700, m);
  return m;
}

void remove_json(GgufMetadata& m) {
  m.remove("tokenizer.huggingface.json");
  m.remove("dsmoe.tokenizer_config_json");
}

TEST(GgufTokenizer, CharactersToGgufAndBack) {
  const Tokenizer original = Tokenizer::load(DSMOE_TEST_DATA "/tokenizer/data/characters");
  GgufMetadata m = characters();
  m.set("dsmoe.config_json", GgufValue::string("{}"));
  EXPECT_EQ(m.text("tokenizer.ggml.model"), "llama");
  EXPECT_TRUE(m.boolean("tokenizer.ggml.add_space_prefix"));
  EXPECT_EQ(m.integer("tokenizer.ggml.unknown_token_id"), 0);
  const std::vector<std::int64_t> types = m.integers("tokenizer.ggml.token_type");
  EXPECT_EQ(std::vector(types.begin(), types.begin() + 4), (std::vector<std::int64_t>{2, 3, 3, 6}));
  EXPECT_EQ(types[699], 5) << "an id without a token";
  EXPECT_EQ(m.numbers("tokenizer.ggml.scores").size(), 700u);
  EXPECT_EQ(tokenizer_from_gguf(m)->to_json(), original.to_json()) << "to the byte";
  remove_json(m);
  expect_same(*tokenizer_from_gguf(m), original);
  m.set("tokenizer.ggml.add_space_prefix", GgufValue::boolean(false));
  const Tokenizer bare = *tokenizer_from_gguf(m);
  EXPECT_EQ(bare.decode(bare.encode(" a", {.add_bos = false})), " a");
  EXPECT_NE(bare.encode("the"), original.encode("the"));
}

TEST(GgufTokenizer, TheUnknownTokenMayBeTheLastOne) {
  GgufMetadata m = characters();
  remove_json(m);
  std::vector<std::string> texts = m.texts("tokenizer.ggml.tokens");
  const std::vector<std::int64_t> were = m.integers("tokenizer.ggml.token_type");
  std::vector<std::int32_t> types(were.begin(), were.end());
  std::swap(texts[0], texts[699]);
  std::swap(types[0], types[699]);
  m.set("tokenizer.ggml.tokens", GgufValue::strings(texts));
  m.set("tokenizer.ggml.token_type", GgufValue::i32s(types));
  m.set("tokenizer.ggml.unknown_token_id", GgufValue::u32(699));
  const std::optional<Tokenizer> t = tokenizer_from_gguf(m);
  EXPECT_EQ(t->vocab_size(), 700);
  EXPECT_EQ(t->encode("the cat"), Tokenizer::load(DSMOE_TEST_DATA "/tokenizer/data/characters").encode("the cat"));
}

TEST(GgufTokenizer, EditedScoresWin) {
  GgufMetadata m = characters();
  m.set("dsmoe.config_json", GgufValue::string("{}"));
  const std::vector<double> was = m.numbers("tokenizer.ggml.scores");
  std::vector<float> scores(was.begin(), was.end());
  std::reverse(scores.begin(), scores.end());
  m.set("tokenizer.ggml.scores", GgufValue::f32s(scores));
  const std::string json = Tokenizer::load(DSMOE_TEST_DATA "/tokenizer/data/characters").to_json();
  EXPECT_NE(tokenizer_from_gguf(m)->to_json(), json);
}

TEST(GgufTokenizer, EditedKeysOfCharactersWin) {
  const auto edited = [](const char* key, std::uint32_t id) {
    GgufMetadata m = characters();
    m.set(key, GgufValue::u32(id));
    return *tokenizer_from_gguf(m);
  };
  const std::vector<std::string> texts = characters().texts("tokenizer.ggml.tokens");
  const auto marked =
      std::find_if(texts.begin() + 300, texts.end(), [](const std::string& t) { return t.starts_with("▁"); });
  const auto word = static_cast<std::uint32_t>(marked - texts.begin());
  ASSERT_LT(word, 700u);
  for (const std::uint32_t id : {3u + '\n', word}) {  // a byte, which stands for a line's end, and a word with its space
    EXPECT_EQ(edited("tokenizer.ggml.eos_token_id", id).eos_id(), static_cast<std::int32_t>(id)) << texts[id];
    EXPECT_EQ(edited("tokenizer.ggml.padding_token_id", id).pad_id(), static_cast<std::int32_t>(id)) << texts[id];
  }
}

// As small as they are, such vocabularies have hundreds of megabytes of pairs.
TEST(GgufTokenizer, SumsInTooManyWaysAreRefused) {
  const auto refused = [](const std::vector<std::string>& tokens, const char* words) {
    GgufMetadata m = characters();
    remove_json(m);
    m.set("tokenizer.ggml.tokens", GgufValue::strings(tokens));
    m.set("tokenizer.ggml.scores", GgufValue::f32s(std::vector<float>(tokens.size(), 1)));
    m.set("tokenizer.ggml.token_type", GgufValue::i32s(std::vector<std::int32_t>(tokens.size(), 1)));
    return throws_error([&] { tokenizer_from_gguf(m); }, {words}, ErrorCode::kUnsupported) ||
           throws_error([&] { tokenizer_from_gguf(m); }, {words}, ErrorCode::kFormat);
  };
  std::vector<std::string> tokens;
  for (std::size_t length = 1; length <= 1024; ++length) tokens.emplace_back(length, 'a');
  EXPECT_TRUE(refused(tokens, "too many ways"));
  tokens.resize(20);
  tokens.push_back(tokens[9]);
  EXPECT_TRUE(refused(tokens, "two tokens are 'aaaaaaaaaa'"));
}

TEST(GgufTokenizer, HostileScoresAreRefused) {
  const auto refused = [](const std::function<void(GgufMetadata&)>& change, const char* words) {
    GgufMetadata m = characters();
    remove_json(m);
    change(m);
    return throws_error([&] { tokenizer_from_gguf(m); }, {words}, ErrorCode::kFormat) ||
           throws_error([&] { tokenizer_from_gguf(m); }, {words}, ErrorCode::kInvalidArgument) ||
           throws_error([&] { tokenizer_from_gguf(m); }, {words}, ErrorCode::kUnsupported);
  };
  const auto scores = [](std::vector<float> values) {
    return [values](GgufMetadata& m) { m.set("tokenizer.ggml.scores", GgufValue::f32s(values)); };
  };
  EXPECT_TRUE(refused([](GgufMetadata& m) { m.remove("tokenizer.ggml.scores"); }, "scores"));
  EXPECT_TRUE(refused(scores(std::vector<float>(3)), "700 tokens but 3 scores"));
  EXPECT_TRUE(refused(scores(std::vector<float>(700, -1000.0f)), "all scores are -1000")) << "as placeholders say";
  EXPECT_TRUE(refused(scores(std::vector<float>(700, std::nanf(""))), "not a number"));
  EXPECT_TRUE(refused([](GgufMetadata& m) { m.set("tokenizer.ggml.scores", GgufValue::f32(1)); }, "scores"));
  const auto first = [](std::string text) {
    return [text](GgufMetadata& m) {
      std::vector<std::string> tokens = m.texts("tokenizer.ggml.tokens");
      tokens[300] = text;
      m.set("tokenizer.ggml.tokens", GgufValue::strings(tokens));
    };
  };
  EXPECT_TRUE(refused(first(std::string(5000, 'x')), "5000 bytes"));
  EXPECT_TRUE(refused(first("<0x41>"), "<0x41>"));
}

}  // namespace
}  // namespace dsmoe
