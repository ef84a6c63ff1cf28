// The parts of the pipeline that DeepSeek's own tokenizer does not use, and what is refused.
#include "dsmoe/tokenizer.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <fstream>

#include "support/temp_folder.h"
#include "tokenizer/support.h"

namespace dsmoe {
namespace {

using nlohmann::json;
using test::small;
using test::small_json;
using testing::error_of;
using testing::throws_error;
using Ids = std::vector<std::int32_t>;

// Ids of the small vocabulary are bytes where nothing merges.
Ids bytes(std::string_view text) {
  Ids out;
  for (const char c : text) out.push_back(static_cast<unsigned char>(c));
  return out;
}

Ids operator+(Ids a, const Ids& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

json added(std::vector<json> extra) {
  json file = small_json();
  int id = 260;
  for (json& token : extra) {
    token["id"] = id++;
    file["added_tokens"].push_back(token);
  }
  return {{"added_tokens", file["added_tokens"]}};
}

TEST(Tokenizer, WithoutAConfigNothingIsAdded) {
  EXPECT_EQ(small().encode("hex t"), (Ids{256, 'x', 257}));
  EXPECT_EQ(small().bos_id(), std::nullopt);
  EXPECT_EQ(small().chat_template(), "");
  EXPECT_EQ(error_of([] { small().encode("a", {.add_bos = true}); }),
            "encode: add_bos was asked for, but this tokenizer has no bos token");
}

TEST(Tokenizer, AddedTokenFlags) {
  EXPECT_EQ(
      small(added({{{"content", "cat"}, {"single_word", true}, {"normalized", false}}})).encode("cat bobcat cat-cats"),
      (Ids{260} + bytes(" bobcat ") + Ids{260} + bytes("-cats")));
  const json strips = added({{{"content", "<l>"}, {"lstrip", true}, {"normalized", false}},
                             {{"content", "<r>"}, {"rstrip", true}, {"normalized", false}}});
  EXPECT_EQ(small(strips).encode("a \n<l> b \u3000<r> \u2028c"), (Ids{'a', 260} + bytes(" b \u3000") + Ids{261, 'c'}));
  // White space between two tokens goes to the first one that asks for it.
  EXPECT_EQ(small(strips).encode("<r> <l> <l>"), (Ids{261, 260, 260}));
}

TEST(Tokenizer, TheLongestAddedTokenWins) {
  const auto t = small(added({{{"content", "ab"}}, {{"content", "abcd"}}, {{"content", "bc"}}}));
  EXPECT_EQ(t.encode("abc"), (Ids{260, 'c'}));
  EXPECT_EQ(t.encode("abcd"), (Ids{261}));
  EXPECT_EQ(t.encode("xbcd"), (Ids{'x', 262, 'd'}));
}

TEST(Tokenizer, NormalizersAndNormalizedTokens) {
  json patch = added({{{"content", "big cat"}, {"normalized", true}}, {{"content", "raw cat"}, {"normalized", false}}});
  patch["normalizer"] = json::parse(R"({"type": "Sequence", "normalizers": [
    {"type": "Strip", "strip_left": true, "strip_right": true},
    {"type": "Replace", "pattern": {"Regex": " +"}, "content": "_"},
    {"type": "Replace", "pattern": {"String": "."}, "content": "$1"},
    {"type": "Prepend", "prepend": ">"}]})");
  const auto t = small(patch);
  EXPECT_EQ(t.encode("  a  b.  "), bytes(">a_b$1"));
  EXPECT_EQ(t.encode("raw cat"), (Ids{261}));
  EXPECT_EQ(t.encode("x raw cat y"), (bytes(">x") + Ids{261} + bytes(">y")));
  // The token's own text is normalized as well, ">" included.
  EXPECT_EQ(t.encode("big    cat!"), (Ids{260, '!'}));
}

TEST(Tokenizer, PrefixSpace) {
  const json patch = {{"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", true}, {"use_regex", false}}}};
  EXPECT_EQ(small(patch).encode("to"), (Ids{257, 'o'}));
  EXPECT_EQ(small(patch).encode(" to"), (Ids{257, 'o'}));
  EXPECT_EQ(small(patch).encode("<s>to"), (Ids{258, 257, 'o'}));
  EXPECT_EQ(small(patch).encode(""), Ids{});
}

TEST(Tokenizer, TemplateProcessing) {
  const json patch = json::parse(R"({"post_processor": {"type": "Sequence", "processors": [{"type": "ByteLevel"},
    {"type": "TemplateProcessing",
     "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}},
                {"SpecialToken": {"id": "</s>", "type_id": 0}}],
     "pair": [], "special_tokens": {"<s>": {"id": "<s>", "ids": [258], "tokens": ["<s>"]},
                                    "</s>": {"id": "</s>", "ids": [259], "tokens": ["</s>"]}}}]}})");
  EXPECT_EQ(small(patch).encode("a"), (Ids{258, 'a', 259}));
  EXPECT_EQ(small(patch).encode("a", {.add_bos = false}), (Ids{'a', 259}));
  // A Llama class overrides it; another class does not.
  const json config = {{"bos_token", "<s>"}, {"add_bos_token", false}};
  EXPECT_EQ(small(patch, config).encode("a"), (Ids{258, 'a', 259}));
  json llama = config;
  llama["tokenizer_class"] = "LlamaTokenizerFast";
  EXPECT_EQ(small(patch, llama).encode("a"), (Ids{'a'}));
}

TEST(Tokenizer, ConfigDecidesAboutBosAndEos) {
  const auto with = [](const char* config) { return small(json::object(), json::parse(config)); };
  EXPECT_EQ(with(R"({"tokenizer_class": "LlamaTokenizerFast", "bos_token": "<s>", "eos_token": "</s>"})").encode("a"),
            (Ids{258, 'a'}));
  EXPECT_EQ(with(R"({"bos_token": "<s>", "eos_token": "</s>"})").encode("a"), (Ids{'a'}));
  EXPECT_EQ(with(R"({"bos_token": {"content": "<s>"}, "eos_token": "</s>", "add_bos_token": true, "add_eos_token": true})")
                .encode("a"),
            (Ids{258, 'a', 259}));
  EXPECT_TRUE(throws_error([&] { with(R"({"add_bos_token": true})"); }, {"add_bos_token"}));
  EXPECT_TRUE(throws_error([&] { with(R"({"bos_token": "<bos>"})"); }, {"bos_token '<bos>'"}));
  EXPECT_TRUE(throws_error([&] { with(R"({"bos_token": 3})"); }, {"bos_token"}));
}

TEST(Tokenizer, ConfigAddsTokens) {
  const auto t = small(json::object(), json::parse(R"({"pad_token": "[PAD]", "eos_token": "he",
    "added_tokens_decoder": {"300": {"content": "[PAD]", "special": true}, "258": {"content": "<s>", "special": true}}})"));
  EXPECT_EQ(t.pad_id(), 300);
  EXPECT_EQ(t.vocab_size(), 301);
  EXPECT_EQ(t.encode("[PAD]!"), (Ids{300, '!'}));
  // A named token is special even if the vocabulary has it as an ordinary one.
  EXPECT_TRUE(t.is_special(256));
  EXPECT_EQ(t.decode(t.encode("t[PAD]he"), {.skip_special = true}), "t");
}

TEST(Tokenizer, ChatTemplateInItsThreePlaces) {
  const auto with = [](const json& config) { return small(json::object(), config).chat_template(); };
  EXPECT_EQ(with({{"chat_template", "one"}}), "one");
  EXPECT_EQ(
      with(json::parse(R"({"chat_template": [{"name": "tool", "template": "t"}, {"name": "default", "template": "d"}]})")),
      "d");
  const testing::TempFolder folder;
  small(json::object(), {{"chat_template", "one"}}).save(folder.path());
  EXPECT_EQ(Tokenizer::load(folder.path()).chat_template(), "one");
  std::ofstream(folder / "chat_template.jinja") << "two";
  EXPECT_EQ(Tokenizer::load(folder.path()).chat_template(), "two");
  Tokenizer::load(folder.path()).save(folder / "copy");
  EXPECT_EQ(Tokenizer::load(folder / "copy").chat_template(), "two");
}

// The rest of a copy that failed: without its config a tokenizer puts other tokens around a text.
TEST(Tokenizer, AnEmptyFileIsNotNoFile) {
  const testing::TempFolder folder;
  small(json::object(), {{"chat_template", "one"}}).save(folder.path());
  for (const char* name : {"tokenizer_config.json", "chat_template.jinja", "tokenizer.json"}) {
    std::ofstream(folder / name, std::ios::trunc).flush();
    const std::string error = error_of([&] { Tokenizer::load(folder.path()); });
    EXPECT_NE(error.find(name), std::string::npos) << error;
    small(json::object(), {{"chat_template", "one"}}).save(folder.path());
    EXPECT_EQ(error_of([&] { Tokenizer::load(folder.path()); }), "");
  }
}

TEST(Tokenizer, SavesOverItsOwnFilesAlone) {
  const testing::TempFolder folder;
  std::ofstream(folder / "tokenizer.json.tmp") << "mine";
  small(json::object(), {{"chat_template", "one"}}).save(folder.path());
  std::string left;
  std::getline(std::ifstream(folder / "tokenizer.json.tmp"), left);
  EXPECT_EQ(left, "mine");
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), std::filesystem::directory_iterator()), 3);
}

TEST(Tokenizer, ComposesTextsIntoNfc) {
  const Tokenizer nfc = small({{"normalizer", {{"type", "NFC"}}}}), plain = small();
  const auto same = [&](std::string_view text, std::string_view composed) {
    EXPECT_EQ(nfc.encode(text), plain.encode(composed)) << text;
    EXPECT_EQ(nfc.encode(composed), plain.encode(composed)) << text;
  };
  same("", "");
  same("plain ASCII, nothing else", "plain ASCII, nothing else");
  same("e\u0301te\u0301", "\u00e9t\u00e9");
  same("\u00e9", "\u00e9");
  same("a\u0323\u0302b", "\u1eadb");  // in either order
  same("a\u0302\u0323b", "\u1eadb");
  same("q\u0307\u0323", "q\u0323\u0307");  // ordered, although nothing composes
  same("\u1112\u1161\u11ab", "\ud55c");    // Hangul
  same("\uac00\u11a8", "\uac01");
  same("\u212b \u2126", "\u00c5 \u03a9");  // singletons
  same("\u0958", "\u0915\u093c");          // excluded from composition
  same("\ufb01 \u00b2", "\ufb01 \u00b2");  // NFC is not NFKC
  same("\u304b\u3099", "\u304c");
  same("\u4f60\u597d", "\u4f60\u597d");
  same("x\u0301", "x\u0301");
  EXPECT_EQ(nfc.encode("\xff"
                       "e\u0301"),
            plain.encode("\ufffd\u00e9"))
      << "ill-formed bytes are replaced before";
}

// What a message wrote stays the message's: composing must not make a control token of it, nor lose a template's own.
TEST(Tokenizer, ComposingKeepsWhoWroteIt) {
  json file = added({{{"content", "<\u00e9>"}, {"special", true}, {"normalized", true}}});
  file["normalizer"] = {{"type", "NFC"}};
  const Tokenizer t = small(file);
  const std::string text = "<e\u0301><e\u0301>";  // the first from a message
  EXPECT_EQ(t.encode(text).size(), 2u);
  const TextRange first[] = {{0, 5}};
  const Ids ids = t.encode(text, {.plain = first});
  EXPECT_EQ(ids, (bytes("<\u00e9>") + Ids{260}));
}

TEST(Tokenizer, RefusesByName) {
  const auto error = [](const char* patch) { return error_of([&] { small(json::parse(patch)); }); };
  EXPECT_EQ(error("{}"), "");
  for (const auto& [patch, words] : std::vector<std::pair<const char*, const char*>>{
           {R"({"normalizer": {"type": "NFKC"}})", "normalizer 'NFKC'"},
           {R"({"normalizer": {"type": "Lowercase"}})", "normalizer 'Lowercase'"},
           {R"({"normalizer": 3})", "normalizer"},
           {R"({"pre_tokenizer": {"type": "Metaspace"}})", "pre_tokenizer 'Metaspace'"},
           {R"({"pre_tokenizer": null})", "ByteLevel"},
           {R"({"post_processor": {"type": "BertProcessing"}})", "post_processor 'BertProcessing'"},
           {R"({"decoder": {"type": "Metaspace"}})", "decoder 'Metaspace'"},
           {R"({"decoder": null})", "decoder"},
           {R"({"model": {"type": "Unigram"}})", "'Unigram'"},
           {R"({"model": null})", "'model' is missing"},
           {R"({"added_tokens": [{"content": "x"}]})", "added token"},
           {R"({"added_tokens": [{"id": 3, "content": "new"}]})", "id 3"},
           {R"({"added_tokens": [{"id": 900, "content": "he"}]})", "id 900"},
           {R"({"added_tokens": [{"id": 99999999, "content": "new"}]})", "99999999"}})
    EXPECT_NE(error(patch).find(words), std::string::npos) << patch << ": " << error(patch);
  EXPECT_TRUE(throws_error([] { Tokenizer::from_json("{"); }, {"not valid JSON"}));
  EXPECT_TRUE(throws_error([] { Tokenizer::from_json("[]"); }, {"expected a JSON object"}));
  EXPECT_TRUE(throws_error([] { Tokenizer::load("/nonexistent"); }, {"/nonexistent"}));
}

// 400 kB of brackets overflowed the stack, wherever they stand.
TEST(Tokenizer, JsonNestedDeeplyIsRefused) {
  const std::string deep = std::string(200'000, '[') + std::string(200'000, ']'), file = small_json().dump();
  for (const char* key : {"unknown", "pre_tokenizer", "normalizer", "post_processor", "added_tokens", "model", "decoder"}) {
    const std::string text = fmt::format("{{\"{}\": {}}}", key, deep);
    EXPECT_TRUE(throws_error([&] { Tokenizer::from_json(text); }, {"tokenizer.json", "nested deeper"})) << key;
    EXPECT_TRUE(throws_error([&] { Tokenizer::from_json(file, text); }, {"tokenizer_config.json", "nested deeper"})) << key;
  }
  EXPECT_TRUE(throws_error([&] { Tokenizer::from_json(deep); }, {"nested deeper"}));
}

TEST(Tokenizer, PartsAreChecked) {
  TokenizerParts parts;
  parts.pre_tokenizer = pre_tokenizer_json("gpt-2");
  parts.vocab = {"a", "b", "ab", "", "</s>"};
  parts.merges = {"a b"};
  parts.added_tokens = {{.id = 4, .content = "</s>", .special = true}, {.id = 7, .content = "<x>"}};
  parts.eos_token = "</s>";
  const auto t = Tokenizer::from_parts(parts);
  EXPECT_EQ(t.encode("ab</s><x>", {.add_eos = true}), (Ids{2, 4, 7, 4}));
  EXPECT_EQ(t.vocab_size(), 8);
  const auto error = [&](auto&& change) {
    TokenizerParts broken = parts;
    change(broken);
    return error_of([&] { Tokenizer::from_parts(broken); });
  };
  EXPECT_EQ(error([](TokenizerParts&) {}), "");
  EXPECT_NE(error([](TokenizerParts& p) { p.vocab[1] = "\xFF"; }).find("UTF-8"), std::string::npos);
  EXPECT_NE(error([](TokenizerParts& p) { p.vocab[1] = "a"; }).find("twice"), std::string::npos);
  EXPECT_NE(error([](TokenizerParts& p) { p.added_tokens[1].id = 4; }).find("id 4"), std::string::npos);
  EXPECT_NE(error([](TokenizerParts& p) { p.added_tokens[1].id = 0; }).find("id 0"), std::string::npos);
  EXPECT_NE(error([](TokenizerParts& p) { p.added_tokens[1].id = -1; }).find("id -1"), std::string::npos);
  EXPECT_NE(error([](TokenizerParts& p) { p.pre_tokenizer = "nonsense"; }).find("pre_tokenizer"), std::string::npos);
  EXPECT_NE(error([](TokenizerParts& p) { p.add_bos = true; }).find("add_bos_token"), std::string::npos);
}

// Bytes of a valid file changed at random: it loads or it is refused, and what loads can encode.
TEST(Tokenizer, HostileFiles) {
  const std::string good = small_json().dump();
  const Philox random(11, 0);
  const std::string pieces[] = {"null",
                                "-1",
                                "{}",
                                "[]",
                                "1e9",
                                "\"\"",
                                "\\u0000",
                                "ByteLevel",
                                "Split",
                                "(",
                                "a{9}",
                                "\xFF",
                                "99999999999999999999"};
  int loaded = 0, refused = 0;
  for (std::uint64_t i = 0; i < 1500; ++i) {
    std::string text = good;
    for (std::uint64_t change = 0; change <= i % 3; ++change) {
      // Half of the changes hit the part behind the long list of bytes.
      const std::uint64_t n = i * 16 + change * 4, size = text.size(), low = random.below(n, 2) ? size - size / 8 : 0;
      const std::size_t at = low + random.below(n + 1, size - low);
      text.replace(at, random.below(n + 2, 12), pieces[random.below(n + 3, std::size(pieces))]);
    }
    try {
      const Tokenizer t = Tokenizer::from_json(text);
      ++loaded;
      t.decode(t.encode("the héllo <s> 12"));
    } catch (const Error&) {
      ++refused;
    }
  }
  EXPECT_GT(loaded, 20);
  EXPECT_GT(refused, 20);
}

}  // namespace
}  // namespace dsmoe
