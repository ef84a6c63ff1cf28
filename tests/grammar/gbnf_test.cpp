// The notation: what it means, and what is said of mistakes.
#include "grammar/gbnf.h"

#include <gtest/gtest.h>

#include "grammar/support.h"
#include "support/expect_error.h"

namespace dsmoe::grammar::testing {
namespace {

using dsmoe::testing::error_of;
using dsmoe::testing::throws_error;

Matcher gbnf_matcher(std::string_view text) { return matcher_of(parse_gbnf(text), vocabulary_of(byte_tokens())); }

void expect(std::string_view grammar, const std::vector<std::string>& good, const std::vector<std::string>& bad) {
  const Matcher m = gbnf_matcher(grammar);
  for (const std::string& text : good) EXPECT_TRUE(accepts(m, text)) << grammar << ": " << text;
  for (const std::string& text : bad) EXPECT_FALSE(accepts(m, text)) << grammar << ": " << text;
}

TEST(Gbnf, LiteralsAndEscapes) {
  expect(R"(root ::= "a\"\\\n\r\t\[\]" "\x41\u00e9\U0001F600")", {"a\"\\\n\r\t[]A\xC3\xA9\xF0\x9F\x98\x80"}, {"a", ""});
  expect("root ::= \"\xC3\xA9\"", {"\xC3\xA9"}, {"\xC3", "e"});
  expect("root ::= \"\"", {""}, {"a"});
}

TEST(Gbnf, Classes) {
  expect("root ::= [a-cx]", {"a", "b", "c", "x"}, {"d", "", "ab"});
  expect("root ::= [^a-c]", {"d", "\n", "\xC3\xA9", "\xF0\x9F\x98\x80"}, {"a", "\xC3", "\xED\xA0\x80", "\xC0\x80", "\xFF"});
  expect("root ::= [\\x30-\\u0039\\-\\]\\^]", {"0", "9", "-", "]", "^"}, {":", "a"});
  expect("root ::= [a-]", {"a", "-"}, {"b"});
  expect("root ::= [\xD0\xB0-\xD1\x8F]+", {"\xD0\xB6\xD1\x8F"}, {"\xD0", "\xD1\x90"});
  expect("root ::= .", {"a", "\n", "\xE2\x82\xAC"}, {"", "ab"});
  expect("root ::= \"a\" | []", {"a"}, {""});
}

TEST(Gbnf, Repetitions) {
  expect("root ::= \"a\"*", {"", "a", "aaaa"}, {"b"});
  expect("root ::= \"ab\"+", {"ab", "abab"}, {"", "aba"});
  expect("root ::= \"a\"?", {"", "a"}, {"aa"});
  expect("root ::= \"a\"{2}", {"aa"}, {"a", "aaa"});
  expect("root ::= \"a\"{2,}", {"aa", "aaaaa"}, {"a"});
  expect("root ::= \"a\"{,2}", {"", "a", "aa"}, {"aaa"});
  expect("root ::= \"a\"{ 1 , 3 }", {"a", "aaa"}, {"", "aaaa"});
  expect("root ::= (\"a\" | \"b\"){2}", {"ab", "ba"}, {"a"});
  expect("root ::= \"a\"{0} \"b\"", {"b"}, {"ab"});
  expect("root ::= \"a\"?*", {"", "aaa"}, {"b"});
}

TEST(Gbnf, RulesLinesAndComments) {
  expect(
      "# a comment\nroot ::= x # more\n\n  | y\nx ::=\n  \"x\" (\n \"1\" # in here\n | \"2\"\n )\ny ::= \"y\" |\n \"z\" "
      "x\n",
      {"x1", "x2", "y", "zx1"}, {"x", "z"});
  expect("root::=a-b|\"\"\r\na-b::=\"q\"\r\n", {"q", ""}, {"a"});
  expect("root ::= \"a\" |", {"a", ""}, {"b"});
  expect("root ::= x y |\n  x ::=\ny ::= \"b\"", {"b", ""}, {"x"});  // rules that end with nothing
  expect("root ::= expr\nexpr ::= term ([-+*/] term)*\nterm ::= [0-9]+ | \"(\" expr \")\"", {"1+(2*3)", "((4))"},
         {"(1", "1+"});
}

TEST(Gbnf, TheExampleOfLlamaCpp) {
  expect(R"(root   ::= object
value  ::= object | array | string | number | ("true" | "false" | "null") ws

object ::=
  "{" ws (
            string ":" ws value
    ("," ws string ":" ws value)*
  )? "}" ws

array  ::=
  "[" ws (
            value
    ("," ws value)*
  )? "]" ws

string ::=
  "\"" (
    [^"\\\x7F\x00-\x1F] |
    "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}) # escapes
  )* "\"" ws

number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9] [1-9]{0,15})? ws

# Optional space: by convention, applied in this grammar after literal chars when allowed
ws ::= | " " | "\n" [ \t]{0,20}
)",
         {R"({"a": [1, 2.5, {"b": null}], "c":"\u00e9\n"})", "{}"}, {R"({"a": [1, 2})", "[]", R"({"a" 1})"});
}

TEST(Gbnf, MistakesAreNamedWithTheirPlace) {
  const auto fails = [](std::string_view text, std::initializer_list<std::string_view> words) {
    EXPECT_TRUE(throws_error([&] { gbnf_matcher(text); }, words)) << text;
  };
  fails("", {"no rule 'root'"});
  fails("a ::= \"b\"", {"no rule 'root'"});
  fails("root ::= \"a", {"grammar: line 1, column 10: a text in quotes has no end"});
  fails("root ::= x\n\n", {"line 1, column 10", "'x' is not defined"});
  fails("root ::= \"a\"\nroot ::= \"b\"", {"line 2, column 1", "'root' is defined twice"});
  fails("root ::= [a", {"column 10", "brackets"});
  fails("root ::= [b-a]", {"column 11", "first is above its last"});
  fails("root ::= (\"a\"", {"expected ')', found the end of the text"});
  fails("root ::= \"a\")", {"expected the end of the rule, found ')'"});
  fails("root ::= \"\\q\"", {"column 11", "backslash before 'q'"});
  fails("root ::= \"\\xg0\"", {"2 hexadecimal digits"});
  fails("root ::= \"\\uD800\"", {"U+D800 is no character"});
  fails("root ::= \"\\U00110000\"", {"U+110000"});
  fails("root ::= \"a\"{3,2}", {"exclude each other"});
  fails("root ::= \"a\"{99999}", {"more than 10000 repetitions"});
  fails("root ::= \"a\"{}", {"expected a number of repetitions, found '}'"});
  fails("root ::= <think>", {"not supported"});
  fails("root = \"a\"", {"expected '::='"});
  fails("root ::= \"a\" b ::= \"c\"", {"a rule begins on a line of its own"});
  fails("root ::= *", {"expected the end of the rule, found '*'"});
  fails("root ::= \"\xFF\"", {"column 11", "not UTF-8"});
  fails(std::string_view("root ::= \"a\0\"", 13), {"zero byte"});
  fails("root ::= root \"a\" | \"b\"", {"left recursion: 'root'", "itself"});
  fails("root ::= a\na ::= b? c\nb ::= \"x\"\nc ::= a", {"left recursion", "each other", "'a'", "'c'"});
  fails("root ::= \"a\" root", {"no text can ever match 'root'"});
  fails("root ::= \"a\" x\nx ::= []", {"no text can ever match"});
}

TEST(Gbnf, HostileSizesAreRefused) {
  std::string deep = "root ::= ", nested = "root ::= \"a\"";
  for (int i = 0; i < 200; ++i) deep += "(";
  EXPECT_TRUE(throws_error([&] { gbnf_matcher(deep); }, {"nested more than 100 deep"}));
  for (int i = 0; i < 200; ++i) nested += "*";
  EXPECT_TRUE(throws_error([&] { gbnf_matcher(nested); }, {"too many repetitions"}));
  EXPECT_TRUE(throws_error([&] { gbnf_matcher("root ::= ((\"a\"{1000}){1000}){1000}"); }, {"too large"}));
  EXPECT_TRUE(throws_error([&] { gbnf_matcher("root ::= ((\"a\"?){9000}){100}"); }, {"too"}));
  EXPECT_TRUE(throws_error([&] { gbnf_matcher(std::string(2'000'000, ' ')); }, {"at most 1048576"}));
  std::string chain = "root ::= r0\n", last;
  for (int i = 0; i < 20'000; ++i) chain += "r" + std::to_string(i) + " ::= r" + std::to_string(i + 1) + " \"a\"\n";
  chain += "r20000 ::= \"b\"\n";
  EXPECT_FALSE(error_of([&] { gbnf_matcher(chain); }).find("internal") != std::string::npos);
}

TEST(Gbnf, UnusedRulesThatNeverEndDoNoHarm) {
  expect("root ::= \"a\" | x\nx ::= \"b\" x\ny ::= \"c\" y", {"a"}, {"b", "bb"});
}

}  // namespace
}  // namespace dsmoe::grammar::testing
