#include "train/data/documents.h"

#include <gtest/gtest.h>

#include "data_test_support.h"

namespace dsmoe::train {
namespace {

TEST(Documents, FoldersAreListedInOrder) {
  TestData t;
  for (const char* name : {"b/2.txt", "b/1.txt", "a/x/y.md", "c.py", ".hidden/z.txt", "b/.z.txt"}) t.file(name, "x");
  std::string all;
  for (const InputFile& file : list_inputs(t.options)) all += file.path.filename().string() + "=" + file.label + " ";
  EXPECT_EQ(all, "y.md=a 1.txt=b 2.txt=b c.py=data ");
  t.options.inputs = {(t.dir / "data/c.py").string(), (t.dir / "data/b/").string()};
  all.clear();
  for (const InputFile& file : list_inputs(t.options)) all += file.path.filename().string() + "=" + file.label + " ";
  EXPECT_EQ(all, "c.py=c 1.txt=b 2.txt=b ");
}

TEST(Documents, InputsThatCannotBe) {
  TestData t;
  const auto refused = [&](std::vector<std::string> inputs, ErrorCode code, std::initializer_list<std::string_view> parts) {
    t.options.inputs = std::move(inputs);
    EXPECT_TRUE(throws_error([&] { t.open(); }, parts, code));
  };
  refused({}, ErrorCode::kInvalidArgument, {"no data"});
  refused({(t.dir / "data").string()}, ErrorCode::kInvalidArgument, {"no files"});
  refused({(t.dir / "none.txt").string()}, ErrorCode::kIo, {"none.txt", "No such file"});
  t.file("x.ids", "1 2 3\n");
  refused({(t.dir / "data").string()}, ErrorCode::kInvalidArgument, {"x.ids", "alone"});
  refused({"builtin", (t.dir / "data").string()}, ErrorCode::kInvalidArgument, {"builtin", "alone"});
  refused({"/dev/null"}, ErrorCode::kInvalidArgument, {"/dev/null", "regular"});
}

TEST(Documents, JsonLines) {
  TestData t;
  t.file("x.jsonl", "{\"text\":\"ab\",\"domain\":\"d\"}\n\n{\"text\":\"c\",\"body\":\"zzz\"}\n");
  Data data = t.open();
  EXPECT_EQ(t.show(*data.training, 0), "<bos>ab<eos> -> ab<eos>.");
  EXPECT_EQ(data.report.documents, 2u);
  EXPECT_EQ(data.training->labels()[0], "d");
  EXPECT_EQ(data.training->labels()[1], "data") << "the folder of the file";
  EXPECT_EQ(data.report.bad_count, 0u);
  t.options.field = "body";
  data = t.open();
  EXPECT_EQ(data.report.bad_count, 1u);
  EXPECT_EQ(data.report.documents, 1u);
}

TEST(Documents, EmptyTextsLeaveNoTrace) {
  TestData t;
  t.file("a.txt", "");
  t.file("x.jsonl", "{\"text\":\"\"}\n{\"text\":\"abc\"}\n");
  EXPECT_EQ(t.open().report.tokens, 5u);
  EXPECT_EQ(t.open().report.bad_count, 0u);
}

TEST(Documents, BadLinesAreCountedWithTheirNumbers) {
  TestData t;
  t.file("x.jsonl",
         "{\"text\":\"abcdef\"}\n{\"text\":\n[1]\n{\"text\":7}\n{\"txt\":\"a\"}\n{\"messages\":{}}\n"
         "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]}\n{\"messages\":[{\"role\":\"assistant\"}]}\n"
         "{\"messages\":[{\"role\":\"user\",\"content\":\"bad\"},{\"role\":\"assistant\",\"content\":\"x\"}]}\n"
         "{\"text\":\"ghi\"}\n");
  t.file("y.bin", std::string("a\0b", 3));
  for (const bool built : {true, false}) {  // the cache remembers them
    const Data data = t.open();
    EXPECT_EQ(data.report.cache_built, built);
    EXPECT_EQ(data.report.documents, 2u);
    EXPECT_EQ(data.report.bad_count, 9u);
    ASSERT_EQ(data.report.bad.size(), 9u);
    const char* words[] = {":2:", ":3:", ":4:", ":5:", ":6:", ":7:", ":8:", ":9:", "y.bin"};
    for (std::size_t i = 0; i < 9; ++i)
      EXPECT_NE(data.report.bad[i].find(words[i]), std::string::npos) << words[i] << " in " << data.report.bad[i];
    EXPECT_NE(data.report.bad[7].find("refuses"), std::string::npos);
    EXPECT_EQ(t.show(*data.training, 0), "<bos>abc -> abcd") << "what is good is used";
    EXPECT_EQ(data.report.lines().size(), 11u);
  }
  t.options.strict = true;
  EXPECT_TRUE(throws_error([&] { t.open(); }, {"x.jsonl:2:"}, ErrorCode::kFormat));  // from the cache
  t.options.cache_folder = t.dir / "other";
  EXPECT_TRUE(throws_error([&] { t.open(); }, {"x.jsonl:2:"}, ErrorCode::kFormat));
  EXPECT_TRUE(std::filesystem::is_empty(t.dir / "other")) << "no half of a cache";
}

TEST(Documents, OnlyTheFirstBadLinesAreKept) {
  TestData t;
  std::string text;
  for (int i = 0; i < 100; ++i) text += "{\n";
  t.file("x.jsonl", text + "{\"text\":\"abcdef\"}\n");
  const Data data = t.open();
  EXPECT_EQ(data.report.bad_count, 100u);
  EXPECT_EQ(data.report.bad.size(), 20u);
  EXPECT_EQ(data.report.lines().back(), "  and 80 more");
}

TEST(Documents, OnlyAnswersOfAConversationAreTargets) {
  TestData t;
  t.file("x.jsonl", R"({"messages":[{"role":"user","content":"hi"},{"role":"assistant","content":"yo"},)"
                    R"({"role":"user","content":"so"},{"role":"assistant","content":"no"}]})");
  // <bos>Q:hi;A:yo<eos>Q:so;A:no<eos>
  t.options.sequence_length = 20;
  const Data data = t.open();
  EXPECT_EQ(data.report.tokens, 21u);
  EXPECT_EQ(t.show(*data.training, 0), "<bos>Q:hi;A:yo<eos>Q:so;A:no -> .......yo<eos>.......no<eos>");
}

TEST(Documents, NamesOfControlTokensInMessagesAreText) {
  TestData t;
  t.file("x.jsonl", R"({"messages":[{"role":"user","content":"<bos>"},{"role":"assistant","content":"a<eos>b"}]})");
  // <bos>Q:<bos>;A:a<eos>b<eos>, in which the second and the third are spelled out.
  t.options.sequence_length = 18;
  const Data data = t.open();
  EXPECT_EQ(data.report.tokens, 19u);
  const Batch batch = data.training->batch(0, 1);
  EXPECT_EQ(std::count(batch.ids.begin(), batch.ids.end(), kBos), 1) << "the template's";
  EXPECT_EQ(std::count(batch.targets.begin(), batch.targets.end(), kEos), 1) << "the template's, at the end of the answer";
  EXPECT_EQ(t.show(*data.training, 0), "<bos>Q:<bos>;A:a<eos>b -> ..........a<eos>b<eos>");
}

TEST(Documents, ZeroBytesAnywhereLeaveAFileOut) {
  TestData t;
  std::string late(std::size_t{3} << 20, 'a');
  for (std::size_t i = 99; i < late.size(); i += 100) late[i] = '\n';
  late[late.size() - 10] = '\0';
  t.file("late.txt", late);
  t.file("text.txt", "abcdef");
  const Data data = t.open();
  EXPECT_EQ(data.report.bad_count, 1u);
  ASSERT_EQ(data.report.bad.size(), 1u);
  EXPECT_NE(data.report.bad[0].find("late.txt: not a text file (it has zero bytes)"), std::string::npos);
  EXPECT_EQ(data.report.documents, 1u);
  EXPECT_EQ(data.report.tokens, 8u) << "nothing of the file was used";
}

TEST(Documents, AConversationThatEndsWithAQuestion) {
  TestData t;
  t.file("x.jsonl", R"({"messages":[{"role":"assistant","content":"yo"},{"role":"user","content":"so"}]})"
                    "\n"
                    R"({"text":"abc"})");
  // <bos>A:yo<eos>Q:so;<eos> then <bos>abc<eos>
  t.options.sequence_length = 15;
  const Data data = t.open();
  EXPECT_EQ(t.show(*data.training, 0), "<bos>A:yo<eos>Q:so;<eos><bos>ab -> ..yo<eos>.......abc");
}

TEST(Documents, ConversationsNeedATemplateThatCanBeFollowed) {
  TestData t;
  t.file("x.jsonl", R"({"messages":[{"role":"assistant","content":"abcdefgh"}]})");
  t.tokenizer = byte_tokenizer("");
  EXPECT_TRUE(throws_error([&] { t.open(); }, {"x.jsonl:1", "no chat template"}, ErrorCode::kUnsupported));
  t.tokenizer = byte_tokenizer("{% if add_generation_prompt %}ask:{% else %}{{ messages[0]['content'] }}{% endif %}");
  t.options.strict = true;
  EXPECT_TRUE(throws_error([&] { t.open(); }, {"x.jsonl:1", "answer"}, ErrorCode::kFormat));
}

TEST(Documents, TextsForAVocabulary) {
  TestData t;
  t.file("a.txt", "first\n");
  t.file("b.jsonl", R"({"text":"second"})"
                    "\n"
                    R"({"messages":[{"role":"user","content":"third"},{"role":"assistant","content":"fourth"}]})");
  std::string all;
  const DataReport report = for_each_text(t.options, 0, [&](std::string_view text) { all += std::string(text) + "|"; });
  EXPECT_EQ(all, "first\n|second||third|fourth|");
  EXPECT_EQ(report.documents, 3u);
  all.clear();
  for_each_text(t.options, 3, [&](std::string_view text) { all += text; });
  EXPECT_EQ(all, "first\n");
  std::size_t bytes = 0;
  for_each_text({}, 1000, [&](std::string_view text) { bytes += text.size(); });
  EXPECT_GE(bytes, 1000u);
  EXPECT_LT(bytes, 2000u);
}

}  // namespace
}  // namespace dsmoe::train
