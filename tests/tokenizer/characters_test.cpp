// Vocabularies of characters with byte_fallback, as SentencePiece's become: a mark for every space, a byte where nothing
// else.
#include <gtest/gtest.h>

#include <fstream>

#include "support.h"

namespace dsmoe {
namespace {

using json = nlohmann::json;
using Ids = std::vector<std::int32_t>;

const std::string kFolder = DSMOE_TEST_DATA "/tokenizer/data/characters";

json own_file(const char* name) { return json::parse(std::ifstream(kFolder + "/" + name)); }

Tokenizer patched(const json& patch) {
  json file = own_file("tokenizer.json");
  file.merge_patch(patch);
  return Tokenizer::from_json(file.dump());
}

TEST(Characters, IdsOfHuggingFace) {
  const Tokenizer t = Tokenizer::load(kFolder);
  const json cases = own_file("cases.json");
  ASSERT_GT(cases.size(), 50u);
  for (const json& c : cases) {
    const std::string text = c["text"];
    EXPECT_EQ(t.encode(text, {.add_bos = false}), c["ids"].get<Ids>()) << text;
    EXPECT_EQ(t.decode(c["ids"].get<Ids>()), c["decoded"].get<std::string>()) << text;
  }
}

// Also of what no text has: bytes that are no character, tokens in any order.
TEST(Characters, StreamsWhatDecodeGives) {
  const Tokenizer t = Tokenizer::load(kFolder);
  const Philox random(7, 1);
  for (std::uint64_t round = 0; round < 300; ++round) {
    Ids ids;
    for (std::uint64_t i = 0; i < 12; ++i)
      ids.push_back(static_cast<std::int32_t>(random.below(20 * round + i, static_cast<std::uint64_t>(t.vocab_size()))));
    for (const bool continues : {false, true}) {
      const DecodeOptions options{.skip_special = round % 2 == 0, .continues = continues};
      StreamDecoder stream(t, options);
      std::string all;
      for (const std::int32_t id : ids) {
        all += stream.push(id);
        EXPECT_EQ(utf8::valid_prefix(all), all.size());
      }
      all += stream.finish();
      EXPECT_EQ(all, t.decode(ids, options));
    }
  }
}

TEST(Characters, ACharacterOfBytesComesWhenItIsWhole) {
  const Tokenizer t = Tokenizer::load(kFolder);
  StreamDecoder stream(t);
  std::vector<std::string> parts;
  for (const std::int32_t id : {3 + 0xF0, 3 + 0x9F, 3 + 0xA6, 3 + 0x99, 3 + '!'}) parts.push_back(stream.push(id));
  EXPECT_EQ(parts, (std::vector<std::string>{"", "", "", "🦙", "!"}));
  EXPECT_EQ(stream.push(3 + 0xE4), "");
  EXPECT_EQ(stream.finish(), "\uFFFD");
}

TEST(Characters, TheFirstSpaceIsTheTokenizersOwn) {
  const Tokenizer t = Tokenizer::load(kFolder);
  const Ids the = t.encode("the", {.add_bos = false});
  EXPECT_EQ(t.bytes(the[0]), " the");
  EXPECT_EQ(t.decode(the), "the");
  EXPECT_EQ(t.decode(the, {.continues = true}), " the") << "after other words it is a space of the text";
  for (const std::string& text : {std::string(" the"), std::string("the  the "), test::random_text(3, 40)})
    if (text.find("<") == std::string::npos) EXPECT_EQ(t.decode(t.encode(text, {.add_bos = false})), text);
}

TEST(Characters, MarksAfterControlTokens) {
  const auto with = [](const char* scheme) {
    return patched(
        {{"normalizer", nullptr},
         {"pre_tokenizer", {{"type", "Metaspace"}, {"replacement", "▁"}, {"prepend_scheme", scheme}, {"split", false}}}});
  };
  const auto pieces = [](const Tokenizer& t, const char* text) {
    std::string out;
    for (const std::int32_t id : t.encode(text)) out += t.piece(id) + "|";
    return out;
  };
  const Tokenizer legacy = Tokenizer::from_json(own_file("tokenizer.json").dump());
  EXPECT_EQ(pieces(legacy, "the<s>the"), " the|<s>| the|");
  EXPECT_EQ(pieces(with("always"), "the<s>the"), " the|<s>| the|");
  EXPECT_EQ(pieces(with("first"), "the<s>the"), " the|<s>|t|he|");
  EXPECT_EQ(pieces(with("never"), "the<s>the"), "t|he|<s>|t|he|");
  EXPECT_EQ(pieces(legacy, " the"), " | the|") << "two marks";
  EXPECT_EQ(pieces(with("always"), " the"), " the|") << "one is there";
}

TEST(Characters, ControlTokensOfAMessageAreText) {
  const Tokenizer t = Tokenizer::load(kFolder);
  for (const std::int32_t id : t.encode("a<s>b", {.add_bos = false, .parse_special = false})) EXPECT_NE(id, 1);
  const TextRange message{1, 4};
  for (const std::int32_t id : t.encode("a<s>b", {.add_bos = false, .plain = {&message, 1}})) EXPECT_NE(id, 1);
}

TEST(Characters, PartsMakeTheSameTokenizer) {
  const Tokenizer t = Tokenizer::load(kFolder);
  const json file = own_file("tokenizer.json");
  TokenizerParts parts{.byte_fallback = true, .prefix_space = true};
  for (const auto& [token, id] : file["model"]["vocab"].items()) {
    parts.vocab.resize(std::max(parts.vocab.size(), id.get<std::size_t>() + 1));
    parts.vocab[id.get<std::size_t>()] = token;
  }
  for (const json& merge : file["model"]["merges"])
    parts.merges.push_back(merge[0].get<std::string>() + " " + merge[1].get<std::string>());
  parts.added_tokens = {{.id = 0, .content = "<unk>", .special = true},
                        {.id = 1, .content = "<s>", .special = true},
                        {.id = 2, .content = "</s>", .special = true}};
  parts.unk_token = "<unk>", parts.bos_token = "<s>", parts.eos_token = "</s>", parts.add_bos = true;
  const Tokenizer made = Tokenizer::from_parts(parts);
  for (const char* text : {"", " a", "the other and\n\t", "你好 🦙", "<s>the</s> </s>"}) {
    EXPECT_EQ(made.encode(text), t.encode(text)) << text;
    EXPECT_EQ(made.decode(made.encode(text)), t.decode(t.encode(text)));
  }
}

TEST(Characters, RefusesByName) {
  const json strip = {{"type", "Strip"}, {"content", " "}, {"start", 2}, {"stop", 0}};
  const auto decoder = [](const json& steps) { return json{{"decoder", {{"type", "Sequence"}, {"decoders", steps}}}}; };
  const json bytes = {{"type", "ByteFallback"}}, fuse = {{"type", "Fuse"}};
  const json metaspace = {{"type", "Metaspace"}, {"replacement", "▁"}};
  const auto stages = [](const json& all) {
    return json{{"pre_tokenizer", {{"type", "Sequence"}, {"pretokenizers", all}}}};
  };
  json scheme = metaspace, two = metaspace, prefix = metaspace;
  scheme["prepend_scheme"] = "last", two["replacement"] = "▁▁", prefix["add_prefix_space"] = false;
  const std::vector<std::pair<json, const char*>> cases = {
      {{{"model", {{"vocab", {{"<0x41>", nullptr}}}}}}, "<0x41>"},
      {{{"model", {{"byte_fallback", false}}}}, "byte_fallback is false"},
      {{{"decoder", {{"type", "ByteLevel"}}}}, "byte_fallback is true"},
      {decoder(json::array({fuse})), "without ByteFallback"},
      {decoder({bytes, fuse, strip}), "Strip"},
      {decoder({bytes, {{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}}}), "Strip"},
      {decoder({fuse, bytes}), "'ByteFallback'"},
      {decoder({{{"type", "WordPiece"}}}), "'WordPiece'"},
      {decoder({{{"type", "Replace"}, {"pattern", {{"String", ""}}}, {"content", " "}}, bytes}), "Replace of nothing"},
      {decoder({{{"type", "Replace"}, {"pattern", {{"String", "a"}}}, {"content", "bb"}}, bytes}), "something longer"},
      {decoder({{{"type", "Replace"}, {"pattern", {{"Regex", "x"}}}, {"content", " "}}, bytes}), "String"},
      {{{"normalizer", {{"type", "Precompiled"}, {"pattern", nullptr}, {"normalizers", nullptr}}}}, "'Precompiled'"},
      {{{"pre_tokenizer", {{"type", "ByteLevel"}}}}, "ByteLevel does not go with byte_fallback"},
      {stages({{{"type", "WhitespaceSplit"}}, metaspace}), "behind other stages"},
      {stages({metaspace, metaspace}), "behind other stages"},
      {{{"pre_tokenizer", scheme}}, "'last'"},
      {{{"pre_tokenizer", two}}, "one character"},
      {{{"pre_tokenizer", prefix}}, "add_prefix_space"}};
  for (const auto& [patch, words] : cases)
    EXPECT_TRUE(testing::throws_error([&, p = patch] { patched(p); }, {words})) << patch.dump();
}

}  // namespace
}  // namespace dsmoe
