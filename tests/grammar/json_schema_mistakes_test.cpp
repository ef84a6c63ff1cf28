// Formats and bounds in full, and what is said of schemas that cannot be followed.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "grammar/json_schema.h"
#include "grammar/support.h"
#include "support/expect_error.h"
#include "support/sanitized.h"

namespace dsmoe::grammar::testing {
namespace {

using dsmoe::testing::throws_error;

Matcher bytes_of(const std::string& schema) { return matcher_of(parse_json_schema(schema), vocabulary_of(byte_tokens())); }

void expect_format(const char* format, const std::vector<std::string>& good, const std::vector<std::string>& bad) {
  const Matcher m = bytes_of(std::string(R"({"type": "string", "format": ")") + format + "\"}");
  for (const std::string& text : good) EXPECT_TRUE(accepts(m, '"' + text + '"')) << format << " " << text;
  for (const std::string& text : bad) EXPECT_FALSE(accepts(m, '"' + text + '"')) << format << " " << text;
}

TEST(JsonFormats, TheCommonOnes) {
  expect_format("date", {"2024-02-29", "2000-02-29", "1999-12-31", "2023-04-30"},
                {"2023-02-29", "1900-02-29", "2023-04-31", "2023-13-01", "2023-00-10", "2023-1-1", "2023-01-32", ""});
  expect_format("time", {"12:00:00Z", "23:59:59.123+01:00", "00:00:00-23:59"},
                {"24:00:00Z", "12:60:00Z", "12:00:00", "12:00Z"});
  expect_format("date-time", {"2024-02-29T12:00:00Z", "1985-04-12T23:20:50.52-08:00"},
                {"2024-02-29 12:00:00Z", "2024-02-30T12:00:00Z"});
  expect_format("uuid", {"123e4567-e89b-12d3-a456-426614174000"},
                {"123e4567e89b12d3a456426614174000", "g23e4567-e89b-12d3-a456-426614174000"});
  expect_format("ipv4", {"0.0.0.0", "255.249.199.9"}, {"256.1.1.1", "1.2.3", "01.2.3.4"});
  expect_format("email", {"a@b.de", "ada.l+x@mail.example.org"}, {"a@b", "@b.de", "a b@c.de"});
}

// Every whole number near the bounds, with bounds of many shapes.
TEST(JsonNumbers, WholeNumbersWithinBoundsExactly) {
  const std::vector<std::pair<int, int>> bounds = {{0, 0},    {0, 9},       {-5, 5},    {10, 99},
                                                   {99, 101}, {-1000, -7},  {123, 987}, {-120, 2345},
                                                   {37, 37},  {1000, 1999}, {-9, 10},   {509, 5090}};
  for (const auto& bound : bounds) {
    const Matcher m = bytes_of("{\"type\": \"integer\", \"minimum\": " + std::to_string(bound.first) +
                               ", \"maximum\": " + std::to_string(bound.second) + "}");
    for (int i = -1500; i <= 6000; ++i)
      ASSERT_EQ(accepts(m, std::to_string(i)), bound.first <= i && i <= bound.second)
          << bound.first << " " << i << " " << bound.second;
  }
  const Matcher open = bytes_of(R"({"type": "integer", "minimum": 95})");
  for (int i = -200; i <= 12000; ++i) ASSERT_EQ(accepts(open, std::to_string(i)), i >= 95) << i;
}

// Every number of three digits behind the point near the bounds; also written with fewer and more digits.
TEST(JsonNumbers, DecimalsWithinBoundsExactly) {
  struct Bounds {
    const char *min, *max;
    bool open;
    int low, high;  // thousandths
  };
  const std::vector<Bounds> all = {{"0", "1", false, 0, 1000},           {"0", "1", true, 0, 1000},
                                   {"-1.5", "2.25", false, -1500, 2250}, {"-1.5", "2.25", true, -1500, 2250},
                                   {"0.125", "0.375", false, 125, 375},  {"1.05", "1.055", true, 1050, 1055},
                                   {"-3", "-2.5", true, -3000, -2500},   {"2.999", "3.001", false, 2999, 3001},
                                   {"-0.5", "0.5", true, -500, 500}};
  for (const Bounds& b : all) {
    const char* keys[] = {b.open ? "exclusiveMinimum" : "minimum", b.open ? "exclusiveMaximum" : "maximum"};
    const Matcher m =
        bytes_of(fmt::format("{{\"type\": \"number\", \"{}\": {}, \"{}\": {}}}", keys[0], b.min, keys[1], b.max));
    for (int i = -4000; i <= 4000; ++i) {
      const bool inside = b.open ? b.low < i && i < b.high : b.low <= i && i <= b.high;
      const std::string text = fmt::format("{}{}.{:03}", i < 0 ? "-" : "", std::abs(i) / 1000, std::abs(i) % 1000);
      ASSERT_EQ(accepts(m, text), inside) << b.min << " " << text << " " << b.max;
      ASSERT_EQ(accepts(m, text + "0"), inside) << b.min << " " << text << "0 " << b.max;
      if (i % 1000 == 0 && i != 0) {
        ASSERT_EQ(accepts(m, std::to_string(i / 1000)), inside) << i;
      }
      if (i % 100 == 0) {
        ASSERT_EQ(accepts(m, text.substr(0, text.size() - 2)), inside) << text;
      }
    }
  }
}

TEST(JsonSchemaMistakes, KeywordsThatAreNotSupportedAreRefusedByName) {
  const auto fails = [](const std::string& schema, std::initializer_list<std::string_view> words) {
    EXPECT_TRUE(throws_error([&] { bytes_of(schema); }, words)) << schema;
  };
  for (const char* keyword : {"not", "if", "patternProperties", "multipleOf", "contains", "propertyNames",
                              "dependentRequired", "minProperties", "nullable", "minLenght", "$dynamicRef"})
    fails(fmt::format(R"({{"properties": {{"a": {{"type": "object", "{}": {{"x": 1}}}}}}}})", keyword),
          {"schema: #/properties/a", "keyword", keyword, "not supported"});
  fails(R"({"type": "array", "uniqueItems": true})", {"'uniqueItems' is not supported"});
  fails(R"({"type": "string", "format": "iri"})", {"format \"iri\" is not supported"});
  fails(R"({"type": "strin"})", {"unknown type \"strin\""});
  fails(R"({"type": []})", {"unknown type"});
  fails(R"({"enum": 3})", {"'enum' must be an array"});
  fails(R"({"enum": []})", {"no text can ever match"});
  fails(R"({"minimum": "3"})", {"'minimum' must be a number"});
  fails(R"({"minimum": 1e300})", {"too many digits"});
  fails(R"({"maxLength": -1})", {"whole number"});
  fails(R"({"maxLength": 100000})", {"at most 10000"});
  fails(R"({"properties": []})", {"'properties' must be an object"});
  fails(R"({"required": "a"})", {"'required' must be an array of strings"});
  fails(R"({"properties": {"a": 3}})", {"#/properties/a", "must be an object, true or false"});
  fails(R"({"anyOf": []})", {"'anyOf' must be an array of schemas"});
  fails(R"({"$ref": "#/$defs/x"})", {"nothing is at the '$ref' '#/$defs/x'"});
  fails(R"({"$ref": "http://example.org/x"})", {"must point into this schema"});
  fails(R"({"$ref": "#"})", {"refers to itself"});
  fails(R"({"allOf": [{"$ref": "#"}]})", {"refers to itself"});
  fails(R"({"anyOf": [{"$ref": "#"}, {"type": "null"}]})", {"refers to itself"});
  fails(R"({"anyOf": [{"anyOf": [{"$ref": "#"}, true]}, {"type": "null"}]})", {"refers to itself"});
  fails(R"({"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]})", {"no text can ever match"});
  fails(R"({"oneOf": [{"type": "integer"}, {"type": "number"}]})", {"branch 1 and branch 2", "anyOf"});
  fails(R"({"type": "string", "pattern": "^a$", "minLength": 3})", {"put them into the pattern"});
  fails(R"({"type": "integer", "minimum": 5, "maximum": 4})", {"no text can ever match"});
  fails("[]", {"must be an object, true or false"});
  fails("{", {"schema"});
  fails(R"({"type": "null", "type": "string"})", {"schema"});
  fails("false", {"no text can ever match"});
}

TEST(JsonSchemaMistakes, Patterns) {
  const auto fails = [](const std::string& pattern, std::string_view words) {
    EXPECT_TRUE(throws_error([&] { bytes_of("{\"pattern\": \"" + pattern + "\"}"); }, {words})) << pattern;
  };
  fails("(a", "no ')'");
  fails("a)", "unexpected ')'");
  fails("[a", "no ']'");
  fails("*a", "nothing to repeat");
  fails("a**", "nothing to repeat");
  fails("a{3,2}", "exclude each other");
  fails("a{99999}", "more than 10000");
  fails("(?=a)", "'(?=' is not supported");
  fails("(?<!a)", "not supported");
  fails("\\\\bword", "'\\b' is not supported");
  fails("(a)\\\\1", "'\\1' is not supported");
  fails("\\\\p{L}", "'\\p' is not supported");
  fails("a^b", "at the beginning alone");
  fails("a$b", "at the end alone");
  fails("(a$)", "in a group");
  fails("\\\\uD83D", "half of a character");
  fails("[z-a]", "without order");
  fails("a\\\\", "backslash at the end");
  EXPECT_TRUE(accepts(bytes_of(R"({"pattern": "^\\S\\s\\W\\D$"})"), "\"a\xE2\x80\x83\xC3\xA9\\n\""));
  EXPECT_TRUE(accepts(bytes_of(R"({"pattern": "^(?<year>[0-9]{4})\\u002d\\x41{2}{x$"})"), R"("2024-AA{x")"));
}

// Too many sets of states: the automaton stays as it is, and the matcher is in many of them at once.
TEST(JsonSchemaMistakes, APatternThatCannotBeMadeDeterministic) {
  const Matcher m = bytes_of(R"x({"type": "string", "pattern": "(a|b)[^c]{100}(d|e)"})x");
  const std::string middle(100, 'a');
  EXPECT_TRUE(accepts(m, "\"xx" + middle.substr(1) + "aad--\""));
  EXPECT_FALSE(accepts(m, "\"xx" + middle + "--\""));
  EXPECT_FALSE(accepts(m, "\"xxa" + middle.substr(1) + "cd\""));
}

TEST(JsonSchemaMistakes, HostileSizes) {
  std::string deep, product = R"({"allOf": [)";
  for (int i = 0; i < 200; ++i) deep += R"({"items":)";
  EXPECT_TRUE(throws_error([&] { bytes_of(deep + "{}" + std::string(200, '}')); }, {"schema"}));
  // 2^40 combinations of branches.
  for (int i = 0; i < 40; ++i)
    product += fmt::format(R"({}{{"anyOf": [{{"required": ["a{}"]}}, {{"required": ["b{}"]}}]}})", i ? "," : "", i, i);
  EXPECT_TRUE(throws_error([&] { bytes_of(product + "]}"); }, {"too"}));
  EXPECT_TRUE(
      throws_error([&] { bytes_of(R"({"type": "string", "pattern": "^((a{1000}){1000}){1000}$"})"); }, {"too large"}));
  std::string many = R"({"type": "object", "properties": {)";
  const int last = test::kSanitized ? 59 : 299;
  for (int i = 0; i <= last; ++i) many += fmt::format(R"({}"property_{}": {{"type": "integer"}})", i ? "," : "", i);
  const Matcher m = bytes_of(many + "}}");  // none of them required
  EXPECT_TRUE(accepts(m, fmt::format(R"({{"property_7": 1, "property_{}": 2}})", last)));
  EXPECT_FALSE(accepts(m, R"({"property_8": 1, "property_7": 2})"));
}

}  // namespace
}  // namespace dsmoe::grammar::testing
