#include "io/text_data.h"

#include <gtest/gtest.h>

#include <sstream>

#include "io_test_support.h"

namespace dsmoe::io {
namespace {

template <class Reader, class Item>
std::vector<Item> all_of(Reader&& reader) {
  std::vector<Item> items;
  for (Item item; reader.next(item);) items.push_back(item);
  Item again;
  EXPECT_FALSE(reader.next(again)) << "the end stays the end";
  return items;
}

using Ids = std::vector<std::vector<std::int32_t>>;

Ids ids_in(const std::string& text, Index vocab = 100) {
  TempFolder dir;
  write_bytes(dir / "x.ids", text);
  return all_of<IdsReader, std::vector<std::int32_t>>(IdsReader(dir / "x.ids", vocab));
}

TEST(IdsReader, ReadsOneSequencePerLine) {
  EXPECT_EQ(ids_in(""), Ids{});
  EXPECT_EQ(ids_in("1 2 3\n4\n"), (Ids{{1, 2, 3}, {4}}));
  EXPECT_EQ(ids_in("  1\t2  \r\n99"), (Ids{{1, 2}, {99}}));
  EXPECT_EQ(ids_in("2147483646", 2147483647), (Ids{{2147483646}}));
}

TEST(IdsReader, ErrorsNameLineAndColumn) {
  const auto refused = [](const std::string& text, std::initializer_list<std::string_view> parts) {
    EXPECT_TRUE(throws_error([&] { ids_in(text); }, parts, ErrorCode::kFormat));
  };
  refused("1 2\n3 x 4\n", {"x.ids:2:3:", "'x'"});
  refused("1 2a", {"x.ids:1:3:", "'2a'"});
  refused("1,2", {"x.ids:1:1:", "'1,2'"});
  refused("1.5", {"x.ids:1:1:", "'1.5'"});
  refused("+1", {"x.ids:1:1:", "'+1'"});
  refused("1\n\n2", {"x.ids:2:", "without token ids"});
  refused("5 100", {"x.ids:1:3:", "100", "0 to 99"});
  refused("5\n -1", {"x.ids:2:2:", "-1", "0 to 99"});
  refused("99999999999999999999999", {"x.ids:1:1:", "99999999999999999999999", "0 to 99"});
  refused(std::string("1 \0 2", 5), {"x.ids:1:3:", "\\x00"});
  EXPECT_TRUE(throws_error([] { ids_in("", 0); }, {"0 tokens"}, ErrorCode::kInvalidArgument));
  EXPECT_TRUE(throws_error([] { IdsReader("none.ids", 5); }, {"none.ids", "No such file"}, ErrorCode::kIo));
  EXPECT_TRUE(throws_error(
      [] {
        TempFolder dir;
        std::vector<std::int32_t> ids;
        IdsReader(dir.path(), 5).next(ids);
      },
      {"cannot read", "directory"}, ErrorCode::kIo));
}

TEST(LineReader, LinesLongerThanItsReads) {
  TempFolder dir;
  std::vector<std::string> lines;
  std::string text;
  for (std::size_t length : {65535u, 65536u, 0u, 300000u, 1u, 65537u}) {
    lines.push_back(std::string(length, static_cast<char>('a' + lines.size())));
    text += lines.back() + (lines.size() % 2 == 0 ? "\r\n" : "\n");
  }
  write_bytes(dir / "x", text);
  LineReader reader(dir / "x");
  std::string_view line;
  for (std::size_t i = 0; i < lines.size(); ++i) {
    ASSERT_TRUE(reader.next(line));
    EXPECT_TRUE(line == lines[i]) << i;
    EXPECT_EQ(reader.line(), i + 1);
  }
  EXPECT_FALSE(reader.next(line));
}

TEST(LineReader, RefusesALineWithoutEnd) {
  // Sparse: the file takes no space on the disk.
  TempFolder dir;
  write_bytes(dir / "x", "first\n");
  std::filesystem::resize_file(dir / "x", LineReader::kMaxLine + 100);
  LineReader reader(dir / "x");
  std::string_view line;
  EXPECT_TRUE(reader.next(line));
  EXPECT_TRUE(throws_error([&] { reader.next(line); }, {"x:2:", "64 MB"}, ErrorCode::kFormat));
}

std::vector<std::string> text_in(const std::string& text, std::size_t max_bytes) {
  TempFolder dir;
  write_bytes(dir / "x.txt", text);
  return all_of<TextReader, std::string>(TextReader(dir / "x.txt", max_bytes));
}

TEST(ReadText, AnErrorIsNotTheEnd) {
  TempFolder dir;
  const std::string text = std::string(3'000'000, 'x') + "end";  // longer than its reads
  write_bytes(dir / "x.txt", text);
  EXPECT_EQ(read_text((dir / "x.txt").string()), text);
  std::istringstream stream(text);
  EXPECT_EQ(read_text(stream, "a stream"), text);
  EXPECT_TRUE(throws_error([] { read_text("/proc/self/mem"); }, {"/proc/self/mem", "Input/output error"}, ErrorCode::kIo));
  EXPECT_TRUE(throws_error([] { read_text("/dev/zero"); }, {"/dev/zero is a device"}, ErrorCode::kIo));
}

TEST(TextReader, KeepsLinesWhole) {
  using Parts = std::vector<std::string>;
  EXPECT_EQ(text_in("", 10), Parts{});
  EXPECT_EQ(text_in("one\ntwo\r\n", 100), Parts{"one\ntwo\r\n"});
  EXPECT_EQ(text_in("one\ntwo\nthree", 9), (Parts{"one\ntwo\n", "three"}));
  EXPECT_EQ(text_in("one\ntwo\n", 4), (Parts{"one\n", "two\n"}));
  EXPECT_EQ(text_in("one\ntwo\n", 8), Parts{"one\ntwo\n"});
  EXPECT_EQ(text_in("abcdefg", 3), (Parts{"abc", "def", "g"}));
  EXPECT_EQ(text_in("ab\xc3\xa4"
                    "cd",
                    3),
            (Parts{"ab",
                   "\xc3\xa4"
                   "c",
                   "d"}))
      << "not inside a character";
  EXPECT_EQ(text_in("\xf0\x9f\x98\x80\xf0\x9f\x98\x80", 7), (Parts{"\xf0\x9f\x98\x80", "\xf0\x9f\x98\x80"}));
  EXPECT_EQ(text_in(std::string(9, '\x80'), 4), (Parts{"\x80\x80\x80\x80", "\x80\x80\x80\x80", "\x80"}));
  EXPECT_EQ(text_in("\xc3\xa4", 1), (Parts{"\xc3", "\xa4"})) << "a limit below one character must still end";
}

TEST(TextReader, GivesEveryByteOnce) {
  std::string text;
  for (int i = 0; i < 60000; ++i) text += std::to_string(i) + (i % 7 == 0 ? "\n" : " \xe2\x82\xac ");
  for (const std::size_t max_bytes : {1u, 5u, 100u, 65536u, 1u << 20}) {
    std::string joined;
    for (const auto& part : text_in(text, max_bytes)) {
      EXPECT_LE(part.size(), max_bytes);
      joined += part;
    }
    EXPECT_TRUE(joined == text) << max_bytes;
  }
}

std::vector<std::string> jsonl_in(const std::string& text, const std::string& field = "text") {
  TempFolder dir;
  write_bytes(dir / "x.jsonl", text);
  return all_of<JsonlReader, std::string>(JsonlReader(dir / "x.jsonl", field));
}

TEST(JsonlReader, ReadsTheField) {
  using Texts = std::vector<std::string>;
  EXPECT_EQ(jsonl_in(""), Texts{});
  EXPECT_EQ(jsonl_in("{\"text\":\"a\\nb\",\"n\":1}\r\n\n{\"n\":{},\"text\":\"\"}"), (Texts{"a\nb", ""}));
  EXPECT_EQ(jsonl_in(R"({"content":"\u00e4"})", "content"), Texts{"\xc3\xa4"});
}

TEST(JsonlReader, ErrorsNameTheLine) {
  const auto refused = [](const std::string& text, std::initializer_list<std::string_view> parts) {
    EXPECT_TRUE(throws_error([&] { jsonl_in(text); }, parts, ErrorCode::kFormat));
  };
  refused("{\"text\":\"a\"}\n\n{\"text\":", {"x.jsonl:3:", "JSON"});
  refused("{\"text\":\"a\"}\n{\"txt\":\"a\"}", {"x.jsonl:2:", "'text'"});
  refused("[1]", {"x.jsonl:1:", "'text'"});
  refused("{\"text\":7}", {"x.jsonl:1:", "'text'", "a string, found 7"});
  refused("{\"text\":\"a\",\"text\":\"b\"}", {"x.jsonl:1:", "'text'", "twice"});
}

}  // namespace
}  // namespace dsmoe::io
