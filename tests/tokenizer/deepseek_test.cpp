// The real 100k vocabulary and pipeline.
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <sstream>
#include <thread>

#include "support/files.h"
#include "support/temp_folder.h"
#include "tokenizer/support.h"

namespace dsmoe {
namespace {

using test::deepseek;
using Ids = std::vector<std::int32_t>;
constexpr EncodeOptions kPlain{.add_bos = false, .parse_special = true};

std::string read(const std::string& name) { return testing::read_bytes(test::kDeepSeek + "/" + name); }

// cases.inp: texts that end with a line of their own; cases.out: a line of ids for each.
TEST(DeepSeek, PublicCases) {
  const std::string separator = "\n__ggml_vocab_test__\n", all = read("cases.inp");
  std::istringstream expected(read("cases.out"));
  int cases = 0;
  for (std::size_t at = 0, end; (end = all.find(separator, at)) != std::string::npos; at = end + separator.size()) {
    const std::string text = all.substr(at, end - at);
    std::string line;
    ASSERT_TRUE(std::getline(expected, line));
    std::istringstream numbers(line);
    const Ids want((std::istream_iterator<std::int32_t>(numbers)), {});
    EXPECT_EQ(deepseek().encode(text, kPlain), want) << text;
    EXPECT_EQ(deepseek().decode(want), text);
    ++cases;
  }
  EXPECT_EQ(cases, 46);
  std::string rest;
  EXPECT_FALSE(std::getline(expected, rest)) << rest;
}

TEST(DeepSeek, SpecialTokens) {
  EXPECT_EQ(deepseek().vocab_size(), 100015);
  EXPECT_EQ(deepseek().bos_id(), 100000);
  EXPECT_EQ(deepseek().eos_id(), 100001);
  EXPECT_EQ(deepseek().pad_id(), 100001);
  EXPECT_TRUE(deepseek().is_special(100000));
  EXPECT_FALSE(deepseek().is_special(100002));
  EXPECT_EQ(deepseek().id_of("<｜end▁of▁sentence｜>"), 100001);
  EXPECT_EQ(deepseek().id_of("ĠHello"), 37727);
  EXPECT_EQ(deepseek().id_of("no such token"), std::nullopt);
}

TEST(DeepSeek, BosAsTheConfigSays) {
  EXPECT_EQ(deepseek().encode("Hello"), (Ids{100000, 17464}));
  EXPECT_EQ(deepseek().encode("Hello", {.add_bos = false}), (Ids{17464}));
  EXPECT_EQ(deepseek().encode("Hello", {.add_eos = true}), (Ids{100000, 17464, 100001}));
  EXPECT_EQ(deepseek().encode(""), (Ids{100000}));
  EXPECT_EQ(deepseek().encode("", kPlain), Ids{});
}

TEST(DeepSeek, SpecialTextIsParsedOrNot) {
  const std::string text = "a<｜end▁of▁sentence｜>b";
  EXPECT_EQ(deepseek().encode(text, kPlain), (Ids{64, 100001, 65}));
  const Ids ids = deepseek().encode(text, {.add_bos = false, .parse_special = false});
  EXPECT_EQ(std::count(ids.begin(), ids.end(), 100001), 0);
  EXPECT_EQ(deepseek().decode(ids), text);
  EXPECT_EQ(deepseek().decode(Ids{64, 100001, 65}, {.skip_special = true}), "ab");
  EXPECT_EQ(deepseek().decode(Ids{64, 100001, 65}), text);
}

// The 13 characters of the byte-level alphabet whose bytes no UTF-8 text has are tokens of their own: found in the
// text like Hugging Face does, and given back as the character, which Hugging Face does not.
TEST(DeepSeek, AddedCharactersComeBack) {
  const char* const characters[] = {"ø", "ö", "ú", "ÿ", "õ", "÷", "û", "ý", "À", "ù", "Á", "þ", "ü"};
  for (std::int32_t i = 0; i < 13; ++i) {
    EXPECT_EQ(deepseek().encode(characters[i], kPlain), (Ids{100002 + i}));
    EXPECT_EQ(deepseek().decode(Ids{100002 + i}), characters[i]);
    EXPECT_EQ(deepseek().piece(100002 + i), characters[i]);
  }
  EXPECT_EQ(deepseek().decode(deepseek().encode("schön", kPlain)), "schön");
}

TEST(DeepSeek, EveryTextComesBack) {
  for (std::uint64_t seed = 0; seed < 2000; ++seed) {
    const std::string text = test::random_text(seed, seed % 60);
    ASSERT_EQ(utf8::valid_prefix(text), text.size());
    const Ids ids = deepseek().encode(text, kPlain);
    ASSERT_EQ(deepseek().decode(ids), text) << seed;
    ASSERT_EQ(deepseek().decode(deepseek().encode(text, {.add_bos = false, .parse_special = false})), text) << seed;
  }
}

// A negative control for the test above: ids that lack one do not come back.
TEST(DeepSeek, AMissingIdIsNoticed) {
  Ids ids = deepseek().encode("The text.", kPlain);
  ids.erase(ids.begin());
  EXPECT_NE(deepseek().decode(ids), "The text.");
}

TEST(DeepSeek, InvalidTextIsReplaced) {
  EXPECT_EQ(deepseek().encode("a\xFF\xE4\xBD"
                              "b",
                              kPlain),
            deepseek().encode("a\uFFFD\uFFFDb", kPlain));
  const Philox random(3, 0);
  for (std::uint64_t i = 0; i < 500; ++i) {
    std::string bytes;
    for (std::uint64_t j = 0; j < i % 50; ++j) bytes += static_cast<char>(random.below(i * 64 + j, 256));
    ASSERT_EQ(deepseek().decode(deepseek().encode(bytes, kPlain)), utf8::replace_invalid(bytes));
  }
}

// In any order of ids: the stream gives the same text as decode, and never part of a character.
TEST(DeepSeek, StreamNeverEndsInsideOfACharacter) {
  const Philox random(5, 0);
  for (std::uint64_t seed = 0; seed < 500; ++seed) {
    Ids ids;
    if (seed % 2 == 0) {
      ids = deepseek().encode(test::random_text(seed, 20));
    } else {
      // Bytes alone make the most broken characters: ids 0 to 242 are single bytes.
      for (std::uint64_t i = 0; i < 30; ++i) ids.push_back(static_cast<std::int32_t>(random.below(seed * 32 + i, 243)));
    }
    const DecodeOptions options{.skip_special = seed % 4 < 2};
    StreamDecoder stream(deepseek(), options);
    std::string text;
    for (const std::int32_t id : ids) {
      const std::string part = stream.push(id);
      ASSERT_EQ(utf8::valid_prefix(part), part.size());
      text += part;
    }
    text += stream.finish();
    ASSERT_EQ(text, deepseek().decode(ids, options)) << seed;
    ASSERT_EQ(stream.finish(), "");
  }
}

TEST(DeepSeek, StreamWaitsForTheWholeCharacter) {
  const Ids ids = deepseek().encode("🦙", kPlain);
  ASSERT_EQ(ids.size(), 3u);
  StreamDecoder stream(deepseek());
  EXPECT_EQ(stream.push(ids[0]), "");
  EXPECT_EQ(stream.push(ids[1]), "");
  EXPECT_EQ(stream.push(ids[2]), "🦙");
  EXPECT_EQ(stream.push(ids[0]), "");
  EXPECT_EQ(stream.finish(), "\uFFFD");
}

TEST(DeepSeek, PiecesForDisplay) {
  EXPECT_EQ(deepseek().piece(37727), " Hello");
  const Ids ids = deepseek().encode("🦙", kPlain);
  EXPECT_EQ(deepseek().piece(ids[0]) + deepseek().piece(ids[1]) + deepseek().piece(ids[2]), "<0xF0><0x9F><0xA6><0x99>");
  EXPECT_EQ(deepseek().piece(-1), "");
  EXPECT_EQ(deepseek().piece(102399), "");  // a row of padding in the model's table
  EXPECT_EQ(deepseek().decode(Ids{-5, 102399, 2147483647, 64}), "a");
}

// Words from the cache, and words that collide in it, have the ids that a fresh tokenizer gives them.
TEST(DeepSeek, TheCacheChangesNothing) {
  std::string text;
  for (std::uint64_t seed = 0; seed < 200; ++seed) text += test::random_text(seed, 30) + " the same words again, \n\n";
  const Ids once = deepseek().encode(text, kPlain);
  EXPECT_EQ(deepseek().encode(text, kPlain), once);
  EXPECT_EQ(Tokenizer::load(test::kDeepSeek).encode(text, kPlain), once);
}

TEST(DeepSeek, ManyThreadsAtOnce) {
  const std::string text = test::random_text(1, 2000);
  const Ids want = deepseek().encode(text, kPlain);
  std::vector<Ids> got(4);
  std::vector<std::thread> threads;
  for (Ids& ids : got)
    threads.emplace_back([&] {
      for (int i = 0; i < 5; ++i) ids = deepseek().encode(text, kPlain);
    });
  for (std::thread& thread : threads) thread.join();
  for (const Ids& ids : got) EXPECT_EQ(ids, want);
}

// One piece of 200 kB: a letter run for the merges, a run of spaces for the patterns.
TEST(DeepSeek, LongRunsTakeNoMoreThanLinearTime) {
  std::string letters;
  const Philox random(9, 0);
  for (std::uint64_t i = 0; i < 200'000; ++i) letters += static_cast<char>('a' + random.below(i, 26));
  EXPECT_EQ(deepseek().decode(deepseek().encode(letters, kPlain)), letters);
  const std::string spaces = std::string(200'000, ' ') + "1";
  EXPECT_EQ(deepseek().decode(deepseek().encode(spaces, kPlain)), spaces);
}

// What GGUF files carry makes the same tokenizer, with the pipeline known by name.
TEST(DeepSeek, FromItsParts) {
  const auto file = nlohmann::json::parse(deepseek().to_json());
  TokenizerParts parts;
  parts.vocab.resize(102400);
  for (const auto& [token, id] : file["model"]["vocab"].items()) parts.vocab[id] = token;
  for (const auto& merge : file["model"]["merges"]) parts.merges.push_back(merge);
  for (const auto& token : file["added_tokens"])
    parts.added_tokens.push_back(
        {.id = token["id"], .content = token["content"], .normalized = token["normalized"], .special = token["special"]});
  parts.pre_tokenizer = pre_tokenizer_json("deepseek-llm");
  parts.bos_token = "<｜begin▁of▁sentence｜>";
  parts.eos_token = parts.pad_token = "<｜end▁of▁sentence｜>";
  parts.add_bos = true;
  const Tokenizer made = Tokenizer::from_parts(parts);
  const Tokenizer again = Tokenizer::from_json(made.to_json(), made.config_json());
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    const std::string text = test::random_text(seed, 40);
    ASSERT_EQ(made.encode(text), deepseek().encode(text)) << seed;
    ASSERT_EQ(again.encode(text), deepseek().encode(text)) << seed;
  }
  // Every character on its own, so that each of the 87 ranges counts.
  std::string all;
  for (char32_t c = 1; c < 0x20000; ++c)
    if (c < 0xD800 || c > 0xDFFF) utf8::append(all, c), all += c % 3 ? "" : " a";
  EXPECT_EQ(made.encode(all), deepseek().encode(all));
}

TEST(DeepSeek, SavedAsItWas) {
  const testing::TempFolder folder;
  deepseek().save(folder.path());
  EXPECT_EQ(testing::read_bytes(folder / "tokenizer.json"), read("tokenizer.json"));
  EXPECT_EQ(testing::read_bytes(folder / "tokenizer_config.json"), read("tokenizer_config.json"));
  EXPECT_EQ(Tokenizer::load(folder / "tokenizer.json").encode("Hello"), (Ids{100000, 17464}));
}

}  // namespace
}  // namespace dsmoe
