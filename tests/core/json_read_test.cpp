#include "core/json_read.h"

#include <gtest/gtest.h>

#include "support/expect_error.h"

namespace dsmoe::json_read {
namespace {

using testing::throws_error;

auto refused(const std::string& text, std::initializer_list<std::string_view> words) {
  const auto as_json = throws_error([&] { parse(text, "x.json"); }, words, ErrorCode::kFormat);
  return as_json ? throws_error([&] { parse<OrderedJson>(text, "x.json"); }, words, ErrorCode::kFormat) : as_json;
}

std::string nested(int depth, const std::string& open, const std::string& close) {
  std::string text;
  for (int i = 0; i < depth; ++i) text += open;
  for (int i = 0; i < depth; ++i) text += close;
  return text;
}

TEST(JsonRead, ReadsWhatTheLibraryReads) {
  for (const std::string text :
       {R"({"b": [1, -2, 3.5, 1e3, true, false, null, "x\n\u00e9", {}, []], "a": {"c": {"d": [[], [0]]}}})", "[]", "7",
        R"("alone")", "null", " {} \n", "[[1, [2]], {\"k\": [3]}]", "18446744073709551615", "-9223372036854775808"}) {
    EXPECT_EQ(parse(text, "x"), Json::parse(text)) << text;
    EXPECT_EQ(parse<OrderedJson>(text, "x").dump(), OrderedJson::parse(text).dump()) << text;
  }
}

TEST(JsonRead, RefusesWhatALenientReaderPassesOver) {
  EXPECT_TRUE(refused("", {"x.json: not valid JSON at line 1, column 1", "end of input"}));
  EXPECT_TRUE(refused("{\"a\": 1}\n x", {"x.json", "line 2, column 2", "last read"}));
  EXPECT_TRUE(refused("{} {}", {"line 1, column 4"}));
  EXPECT_TRUE(refused(std::string("{}\0{}", 5), {"a zero byte at line 1, column 3"}));
  EXPECT_TRUE(refused("{\"a\": 1,\n\"b\": 2, \"a\": 3}", {"'a'", "twice", "line 2"}));
  EXPECT_TRUE(refused(R"([{"a": {"k": 1, "k": 2}}])", {"'k'", "twice"}));
  EXPECT_TRUE(refused("[1, \"a\xFF\"]", {"UTF-8", "column 7", "\\xff"}));
  EXPECT_TRUE(refused("\"\xED\xA0\x80\"", {"UTF-8"}));
  EXPECT_TRUE(refused(R"("\ud800")", {"surrogate"}));
  EXPECT_TRUE(refused("\"a\nb\"", {"control character"}));
  for (const char* text : {"NaN", "[Infinity]", "-Infinity", "[1,]", "{\"a\":1,}", "{'a':1}", "// c\n1", "01", "+1",
                           "{1:2}", "[1 2]", "tru", "\"open", "[", "{\"a\"", "{\"a\":"})
    EXPECT_TRUE(refused(text, {"not valid JSON at line"})) << text;
  EXPECT_TRUE(refused("[1e999]", {"not valid JSON at line 1, column 6", "1e999"}));
  EXPECT_TRUE(refused("\"" + std::string(5000, 'n'), {"nnn..."}));
}

// A tree as deep as the text would overflow the stack where it is copied, compared or written.
TEST(JsonRead, LimitsDepthKeysAndBytes) {
  EXPECT_NO_THROW(parse(nested(kMaxDepth, "[", "]"), "x"));
  EXPECT_TRUE(refused(nested(kMaxDepth + 1, "[", "]"), {"deeper than 100", "line 1, column 101"}));
  EXPECT_TRUE(refused(nested(200'000, "[", "]"), {"deeper than 100"}));
  EXPECT_TRUE(refused(nested(200'000, "{\"a\":", "}"), {"deeper than 100"}));
  EXPECT_TRUE(refused(std::string(1'000'000, '['), {"deeper than 100"}));
  std::string many = "{";
  for (std::size_t i = 0; i <= kMaxOrderedKeys; ++i) many += fmt::format("{}\"{}\":0", i == 0 ? "" : ",", i);
  many += "}";
  EXPECT_EQ(parse(many, "x").size(), kMaxOrderedKeys + 1);
  EXPECT_TRUE(throws_error([&] { parse<OrderedJson>(many, "x"); }, {"more than 10000 keys"}));
  std::string objects = "[{\"a\":0}";
  for (std::size_t i = 0; i < 2 * kMaxOrderedKeys; ++i) objects += ",{\"a\":0,\"b\":0}";
  EXPECT_EQ(parse<OrderedJson>(objects + "]", "x").size(), 2 * kMaxOrderedKeys + 1) << "small ones are quick, however many";
  EXPECT_TRUE(refused(std::string(kMaxBytes + 1, ' '), {"100000001 bytes"}));
}

TEST(JsonRead, MembersHaveTheirTypes) {
  const Json j = parse(R"({"s": "a", "b": true, "i": -3, "u": 18446744073709551615, "f": 1.5, "n": null, "a": [1, 2],
                           "p": [["x", 1]], "o": {}})",
                       "x");
  EXPECT_EQ(get<std::string>(j, "s", "x"), "a");
  EXPECT_TRUE(get<bool>(j, "b", "x"));
  EXPECT_EQ(get<std::int64_t>(j, "i", "x"), -3);
  EXPECT_EQ(get<std::uint64_t>(j, "u", "x"), std::numeric_limits<std::uint64_t>::max());
  EXPECT_EQ(get<double>(j, "f", "x"), 1.5);
  EXPECT_EQ(get<double>(j, "i", "x"), -3);
  EXPECT_EQ(get<std::vector<int>>(j, "a", "x"), (std::vector<int>{1, 2}));
  EXPECT_EQ((get<std::vector<std::pair<std::string, double>>>(j, "p", "x")),
            (std::vector<std::pair<std::string, double>>{{"x", 1}}));
  EXPECT_EQ(get_or(j, "none", 7, "x"), 7);
  EXPECT_EQ(get_or(j, "n", true, "x"), true);
  EXPECT_EQ(get_or(j, "b", false, "x"), true);
  EXPECT_EQ(array(j, "a", "x").size(), 2u);
  EXPECT_TRUE(object(j, "o", "x").empty());

  const auto wrong = [&](auto call, std::initializer_list<std::string_view> words) {
    return throws_error(call, words, ErrorCode::kFormat);
  };
  EXPECT_TRUE(wrong([&] { get<std::string>(j, "none", "x.json"); }, {"x.json: 'none' is missing"}));
  EXPECT_TRUE(wrong([&] { get<std::string>(j, "n", "x.json"); }, {"'n' is missing"}));
  EXPECT_TRUE(wrong([&] { get<std::string>(j, "i", "x.json"); }, {"x.json: 'i' must be a string, found -3"}));
  EXPECT_TRUE(wrong([&] { get<bool>(j, "i", "x"); }, {"true or false"}));
  EXPECT_TRUE(wrong([&] { get<int>(j, "f", "x"); }, {"a whole number, found 1.5"}));
  EXPECT_TRUE(wrong([&] { get<std::int64_t>(j, "u", "x"); }, {"18446744073709551615"}));
  EXPECT_TRUE(wrong([&] { get<std::uint64_t>(j, "i", "x"); }, {"at least 0, found -3"}));
  EXPECT_TRUE(wrong([&] { get<std::int8_t>(parse("{\"i\": 200}", "x"), "i", "x"); }, {"200"}));
  EXPECT_TRUE(wrong([&] { get<double>(j, "s", "x"); }, {"a number, found \"a\""}));
  EXPECT_TRUE(wrong([&] { get<std::vector<std::string>>(j, "a", "x"); }, {"an array, each element a string"}));
  EXPECT_TRUE(wrong([&] { (get<std::pair<int, int>>(j, "p", "x")); }, {"a pair"}));
  EXPECT_TRUE(wrong([&] { get_or(j, "s", 7, "x"); }, {"'s'", "a whole number"}));
  EXPECT_TRUE(wrong([&] { array(j, "o", "x"); }, {"'o' must be an array, found {}"}));
  EXPECT_TRUE(wrong([&] { object(j, "a", "x"); }, {"'a' must be an object, found [1,2]"}));
  EXPECT_TRUE(wrong([&] { get<int>(j["a"], "k", "x"); }, {"expected an object with 'k', found [1,2]"}));
  EXPECT_TRUE(wrong([&] { parse_object("[1]", "x.json"); }, {"x.json: expected a JSON object, found [1]"}));
}

}  // namespace
}  // namespace dsmoe::json_read
