// Schemas: documents that are valid are accepted, others are not, and whatever is generated is valid.
#include "grammar/json_schema.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "grammar/support.h"
#include "grammar/validator.h"
#include "support/expect_error.h"

namespace dsmoe::grammar::testing {
namespace {

using dsmoe::testing::throws_error;
using Json = nlohmann::json;

// Bytes, and pieces that go across the parts of JSON.
std::shared_ptr<const Vocabulary> json_vocabulary() {
  static const std::shared_ptr<const Vocabulary> vocabulary = [] {
    std::vector<std::string> tokens = byte_tokens();
    for (const char* token :
         {"\": ", "\":", "\", \"", "\",\"",  "{\"",       "\"}",      "\"]",    "\"},",   "}]",    "]}",
          "[]",   "{}",  "[{\"",   "}, {\"", "], [",      "\n  ",     "  ",     "true",   "false", "null",
          "12",   "345", "00",     "0.",     ".5",        "-1",       "e+",     "1}",     "2, ",   "3]",
          "name", "age", "ab",     "abc",    "\xC3\xA9t", "t\xC3",    "\xA9\"", "\\n",    "\\u",   "\\\"",
          "a\"",  "-0",  "2024-",  "T12:",   "value",     "children", "\": [",  "\": {\""})
      tokens.push_back(token);
    return vocabulary_of(tokens);
  }();
  return vocabulary;
}

Matcher schema_matcher(const std::string& schema) { return matcher_of(parse_json_schema(schema), json_vocabulary()); }

// By the longest token that is allowed at each place.
bool accepts_by_tokens(Matcher m, std::string_view text) {
  while (!text.empty()) {
    std::string_view best;
    std::int32_t best_id = -1;
    for (const std::int32_t id : allowed(m)) {
      const std::string_view bytes = m.grammar().vocabulary().bytes(id);
      if (!bytes.empty() && bytes.size() > best.size() && text.starts_with(bytes)) best = bytes, best_id = id;
    }
    if (best_id < 0 || !m.accept(best_id)) return false;
    text.remove_prefix(best.size());
  }
  return m.can_end();
}

struct Case {
  const char* schema;
  std::vector<std::string> good, bad;
};

const std::vector<Case> kCases = {
    {R"({"type": "object"})",
     {"{}", "{ }", R"({"a":1})", R"({"a": {"b": [1, 2.5e3, "x", null, true]}, "c":-0.5})", "{\n  \"a\": 1,\n  \"b\": []\n}",
      R"({"\u00e9\ud83d\ude00\n": "é"})"},
     {"[]", "1", "{", R"({"a"})", R"({"a":1,})", R"({a:1})", R"({"a":01})", R"({"a":"\ud800"})", R"({"a":.5})",
      R"({"a":"\x"})", "{\"a\":\"\n\"}", R"({"a":+1})", R"({"a":tru})", R"({"a":1} x)", R"({"a":1)"}},
    {"true", {"1", "null", "[1, {}]", R"("x")"}, {"", "x"}},
    {R"({"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"}}, "required": ["name"],
          "additionalProperties": false})",
     {R"({"name": "Ada"})", R"({"name":"Ada","age":36})"},
     {"{}", R"({"age":1})", R"({"name":"A","x":1})", R"({"name":1})"}},
    {R"({"type": "object", "properties": {"a": {"type": "null"}, "b": {"type": "null"}, "c": {"type": "null"}},
          "additionalProperties": false})",
     {"{}", R"({"a":null})", R"({"b":null})", R"({"c":null})", R"({"a":null,"c":null})", R"({"b":null,"c":null})",
      R"({"a":null,"b":null,"c":null})"},
     {R"({"d":null})", R"({,"a":null})", R"({"a":null,})", R"({"a":1})"}},
    {R"({"type": "object", "properties": {"a": {"type": "null"}, "ab": {"type": "null"}, "é\"": {"type": "null"}},
          "additionalProperties": {"type": "integer"}, "required": ["ab"]})",
     {R"({"ab":null})", R"({"a":null,"ab":null,"abc":1})", R"({"ab":null,"":1,"b":2,"é":3,"\n":4})"},
     {R"({"ab":null,"a":1})", R"({"ab":null,"b":null})", R"({"ab":null,"ab":1})", R"({"ab":null,"é\"":1})", R"({"x":1})"}},
    {R"({"type": "object", "properties": {"a": true}, "required": ["z", "a"]})",
     {R"({"a":1,"z":2})"},
     {R"({"a":1})", R"({"z":1})"}},
    {R"({"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 3})",
     {"[true]", "[true, false]", "[true,true,false]"},
     {"[]", "[true,true,true,true]", "[1]", "[true,]"}},
    {R"({"type": "array", "minItems": 2})", {"[1,2]", "[1,2,3]"}, {"[]", "[1]"}},
    {R"({"type": "array", "maxItems": 0})", {"[]", "[ ]"}, {"[1]"}},
    {R"({"type": "array", "prefixItems": [{"type": "string"}, {"type": "integer"}], "items": {"type": "null"}, "maxItems": 4})",
     {"[]", R"(["a"])", R"(["a",1])", R"(["a",1,null])", R"(["a",1,null,null])"},
     {"[1]", R"(["a",null])", R"(["a",1,2])", R"(["a",1,null,null,null])"}},
    {R"({"type": "array", "prefixItems": [{"type": "string"}, {"type": "integer"}], "items": false, "minItems": 2})",
     {R"(["a",1])"},
     {"[]", R"(["a"])", R"(["a",1,2])"}},
    {R"({"type": "string", "minLength": 2, "maxLength": 3})",
     {R"("ab")", R"("éé")", R"("a\n\u0041")", R"("\ud83d\ude00é")"},
     {R"("")", R"("é")", R"("abcd")"}},
    {R"({"type": "string", "pattern": "^[a-c]+(x|yz)?$"})",
     {R"("a")", R"("abcx")", R"("cyz")"},
     {R"("")", R"("x")", R"("ay")", R"("ad")"}},
    {R"({"type": "string", "pattern": "b{2,3}\\d"})",
     {R"("abb1")", R"("bbb2zz")", R"("bbbbbb0")"},
     {R"("b1")", R"("bb")", R"("bbx1")"}},
    {R"({"type": "string", "pattern": "^a|b$"})",
     {R"("a")", R"("axx")", R"("xxb")", R"("b")"},
     {R"("xa")", R"("bx")", R"("")"}},
    {R"({"type": "string", "pattern": "^[^a\"]\\\\\"$"})",
     {R"("b\\\"")", R"("\n\\\"")", R"("\u0001\\\"")"},
     {R"("a\\\"")", R"("\"\\\"")"}},
    {R"({"type": "string", "pattern": "^(?:\\w+ ?)*?[.]$"})", {R"("ab c.")", R"(".")"}, {R"("ab")", R"("a-.")"}},
    {R"({"enum": ["red", "gr\u00fcn", 3, null, {"a": [1, "x"]}, []]})",
     {R"("red")", R"("grün")", "3", "null", R"({"a":[1,"x"]})", R"({ "a": [ 1, "x" ] })", "[]"},
     {R"("blue")", R"("re")", "4", "{}", R"({"a":[1]})", "true"}},
    {R"({"enum": [1, "a", 2.5, true], "type": ["number", "boolean"]})", {"1", "2.5", "true"}, {R"("a")", "2", "false"}},
    {R"({"const": "x", "minLength": 1})", {R"("x")"}, {R"("")", R"("y")"}},
    {R"({"type": "integer"})",
     {"0", "-1", "12345", "9223372036854775807", "-9223372036854775808"},
     {"1.5", "01", "-", "1e400", R"("1")"}},
    {R"({"type": "integer", "minimum": -12, "exclusiveMaximum": 105})",
     {"-12", "-9", "-1", "0", "5", "99", "100", "104"},
     {"-13", "105", "999", "-100", "1000"}},
    {R"({"type": "integer", "minimum": 17, "maximum": 3456})",
     {"17", "18", "99", "100", "3456", "3399"},
     {"16", "3457", "1", "4000", "34560"}},
    {R"({"type": "integer", "exclusiveMinimum": -7.5, "maximum": -3.2})", {"-7", "-5", "-4"}, {"-8", "-3", "0", "4"}},
    {R"({"type": "integer", "minimum": 5, "maximum": 5})", {"5"}, {"4", "6", "55"}},
    {R"({"type": "number"})", {"0", "-0.5", "1e10", "12.25E-3", "123456"}, {"1.", ".5", "1e", "--1", "01"}},
    {R"({"type": "number", "minimum": 0, "maximum": 1})",
     {"0", "0.0", "0.5", "1", "1.0", "1.000", "0.999"},
     {"-0.1", "1.01", "2", "1.0001", "-1"}},
    {R"({"type": "number", "exclusiveMinimum": 1.25, "exclusiveMaximum": 3.5})",
     {"1.26", "1.251", "1.3", "2", "2.0", "3", "3.4", "3.4999", "3.0"},
     {"1.25", "1.250", "1.2", "1", "3.5", "3.50", "3.51", "4", "0.5"}},
    {R"({"type": "number", "minimum": -2.75, "maximum": -0.5})",
     {"-2.75", "-2.7", "-1", "-0.5", "-0.50", "-0.51"},
     {"-2.76", "-3", "-0.4", "0", "1", "-2.751"}},
    {R"({"type": "number", "minimum": 10.5, "maximum": 10.75})",
     {"10.5", "10.6", "10.75", "10.750"},
     {"10", "10.4", "10.76", "10.751", "11"}},
    {R"({"type": "number", "exclusiveMinimum": 0})", {"0.1", "0.0001", "1", "10", "123.5"}, {"0", "0.0", "-1", "-0.1"}},
    {R"({"type": ["string", "null"]})", {R"("a")", "null"}, {"1", "{}"}},
    {R"({"anyOf": [{"type": "integer"}, {"type": "string", "maxLength": 1}]})",
     {"1", R"("a")"},
     {R"("ab")", "1.5", "null"}},
    {R"({"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}, "additionalProperties": false,
          "anyOf": [{"required": ["a"]}, {"required": ["b"]}]})",
     {R"({"a":1})", R"({"b":1})", R"({"a":1,"b":2})"},
     {"{}"}},
    {R"({"oneOf": [{"type": "object", "properties": {"kind": {"const": "a"}, "x": {"type": "integer"}}, "required": ["kind", "x"]},
                     {"type": "object", "properties": {"kind": {"const": "b"}, "y": {"type": "string"}}, "required": ["kind", "y"]}]})",
     {R"({"kind":"a","x":1})", R"({"kind":"b","y":"s"})"},
     {R"({"kind":"a","y":"s"})", R"({"kind":"c"})"}},
    {R"({"allOf": [{"type": "object", "properties": {"a": {"type": "integer", "minimum": 3}}, "required": ["a"]},
                     {"properties": {"a": {"maximum": 5}, "b": {"type": "null"}}, "required": ["b"]}]})",
     {R"({"a":3,"b":null})", R"({"a":5,"b":null})"},
     {R"({"a":2,"b":null})", R"({"a":6,"b":null})", R"({"a":3})"}},
    {R"({"$ref": "#/$defs/node", "$defs": {"node": {"type": "object", "properties": {"value": {"type": "integer"},
          "children": {"type": "array", "items": {"$ref": "#/$defs/node"}}}, "required": ["value"], "additionalProperties": false}}})",
     {R"({"value":1})", R"({"value":1,"children":[{"value":2,"children":[]},{"value":3}]})"},
     {R"({"value":1,"children":[{}]})", R"({"children":[]})", R"({"value":1,"children":[1]})"}},
    {R"({"type": "object", "properties": {"next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}}, "required": ["next"]})",
     {R"({"next":null})", R"({"next":{"next":{"next":null}}})"},
     {"{}", R"({"next":{}})"}},
    {R"({"properties": {"a/b~c": {"type": "integer"}, "d": {"$ref": "#/properties/a~1b~0c"}}, "required": ["d"]})",
     {R"({"d":1})"},
     {R"({"d":"x"})"}},
    {R"({"type": "object", "properties": {"a": false, "b": {"type": "integer"}}})", {"{}", R"({"b":1})"}, {R"({"a":1})"}},
};

TEST(JsonSchema, ValidDocumentsAreAcceptedAndOthersNot) {
  for (const Case& c : kCases) {
    const Matcher m = schema_matcher(c.schema);
    const Validator validator(Json::parse(c.schema));
    for (const std::string& text : c.good) {
      EXPECT_TRUE(accepts(m, text)) << c.schema << "\n" << text;
      EXPECT_TRUE(accepts_by_tokens(m, text)) << c.schema << "\n" << text;
      EXPECT_TRUE(validator.valid(Json::parse(text))) << c.schema << "\n" << text;
    }
    for (const std::string& text : c.bad) EXPECT_FALSE(accepts(m, text)) << c.schema << "\n" << text;
  }
}

// Documents of one case are judged by the other cases' schemas too: the grammar never accepts what is invalid.
TEST(JsonSchema, NothingInvalidIsAcceptedAcrossCases) {
  std::vector<std::string> texts;
  for (const Case& c : kCases) {
    texts.insert(texts.end(), c.good.begin(), c.good.end());
    for (const std::string& text : c.bad)
      if (Json::accept(text)) texts.push_back(text);
  }
  int accepted = 0, invalid = 0;
  for (const Case& c : kCases) {
    const Matcher m = schema_matcher(c.schema);
    const Validator validator(Json::parse(c.schema));
    for (const std::string& text : texts) {
      const bool valid = validator.valid(Json::parse(text));
      const bool taken = accepts(m, text);
      EXPECT_FALSE(taken && !valid) << c.schema << "\n" << text;
      accepted += taken, invalid += !valid;
    }
  }
  EXPECT_GT(accepted, 200);
  EXPECT_GT(invalid, 2000);
}

// A random text by the masks alone. From some length on, what ends parts comes first.
std::string generated(Matcher m, Draw& draw) {
  std::string text;
  const Vocabulary& v = m.grammar().vocabulary();
  const auto end = static_cast<std::int32_t>(v.size() - 1);
  for (int step = 0; step < 3000 && !m.ended(); ++step) {
    const std::vector<std::int32_t> ids = allowed(m);
    EXPECT_FALSE(ids.empty()) << text;
    if (ids.empty()) break;
    const auto has = [&](std::int32_t id) { return std::binary_search(ids.begin(), ids.end(), id); };
    std::int32_t id = draw.of(ids);
    if (step > 40 || draw.one_in(3)) {
      const bool in_string = has('q');
      if (in_string && !has('"')) id = "b1."[draw.below(3)];  // what a pattern of the cases may wait for
      for (const std::int32_t other : {std::int32_t{'"'}, std::int32_t{']'}, std::int32_t{'}'}, end})
        if (has(other) && (other != '"' || in_string) && (!in_string || other == '"')) id = other;
    }
    if (!has(id)) id = draw.of(ids);
    EXPECT_TRUE(m.accept(id));
    text += v.bytes(id);
  }
  EXPECT_TRUE(m.ended()) << text;
  return text;
}

void expect_generated_valid(const std::string& schema, int texts, std::uint64_t seed) {
  const Matcher m = schema_matcher(schema);
  const Validator validator(Json::parse(schema));
  Draw draw(seed);
  for (int i = 0; i < texts; ++i) {
    const std::string text = generated(m, draw);
    const Json value = Json::parse(text, nullptr, false);
    ASSERT_FALSE(value.is_discarded()) << schema << "\nis no JSON: " << text;
    ASSERT_TRUE(validator.valid(value)) << schema << "\nis not valid: " << text;
  }
}

TEST(JsonSchema, WhateverIsGeneratedIsValid) {
  std::uint64_t seed = 0;
  for (const Case& c : kCases) expect_generated_valid(c.schema, 12, ++seed);
}

// Random schemas.
class RandomSchema {
 public:
  explicit RandomSchema(Draw& draw) : draw_(draw) {}
  Json make(int depth = 0) {
    switch (draw_.below(depth < 3 ? 9 : 5)) {
      case 0: return {{"type", draw_.of(std::vector<std::string>{"null", "boolean", "string"})}};
      case 1: return number("integer");
      case 2: return number("number");
      case 3: return {{"enum", Json::array({"ab", 12, nullptr, "abc", true})}};
      case 4: {
        const auto least = draw_.below(4);
        return {{"type", "string"}, {"minLength", least}, {"maxLength", least + draw_.below(5)}};
      }
      case 5: {
        Json s = {{"type", "array"}, {"items", make(depth + 1)}, {"minItems", draw_.below(3)}};
        if (draw_.one_in(2)) s["maxItems"] = s["minItems"].get<int>() + static_cast<int>(draw_.below(3));
        if (draw_.one_in(3)) s["prefixItems"] = Json::array({make(depth + 1), make(depth + 1)});
        return s;
      }
      case 6: return {{"anyOf", Json::array({make(depth + 1), make(depth + 1)})}};
      case 7: return {{"allOf", Json::array({object(depth), object(depth)})}};
      default: return object(depth);
    }
  }

 private:
  Json number(const char* type) {
    Json s = {{"type", type}};
    const int low = static_cast<int>(draw_.below(400)) - 200;
    const double scale = draw_.one_in(2) ? 1 : 0.125;
    if (draw_.one_in(2)) s[draw_.one_in(2) ? "minimum" : "exclusiveMinimum"] = low * scale;
    if (draw_.one_in(2))
      s[draw_.one_in(2) ? "maximum" : "exclusiveMaximum"] = (low + 5 + static_cast<int>(draw_.below(2000))) * scale;
    return s;
  }
  Json object(int depth) {
    Json s = {{"type", "object"}, {"properties", Json::object()}};
    Json required = Json::array();
    for (const char* name : {"a", "ab", "name", "x\"y"}) {
      if (draw_.one_in(2)) s["properties"][name] = make(depth + 1);
      if (draw_.one_in(4)) required.push_back(name);
    }
    s["required"] = required;
    if (draw_.one_in(3)) s["additionalProperties"] = make(depth + 1);
    return s;
  }
  Draw& draw_;
};

TEST(JsonSchema, RandomSchemasGenerateValidDocuments) {
  int made = 0;
  for (std::uint64_t seed = 0; seed < 150 && !HasFatalFailure(); ++seed) {
    Draw draw(seed + 500);
    const std::string schema = RandomSchema(draw).make().dump();
    try {
      expect_generated_valid(schema, 4, seed);
      ++made;
    } catch (const Error& e) {  // parts that exclude each other
      EXPECT_NE(std::string(e.what()).find("no text can ever match"), std::string::npos) << schema << "\n" << e.what();
    }
  }
  EXPECT_GT(made, 100);
}

TEST(JsonSchema, TheValidatorCanFail) {
  const auto valid = [](const char* schema, const char* value) {
    return Validator(Json::parse(schema)).valid(Json::parse(value));
  };
  EXPECT_FALSE(valid(R"({"type": "integer", "minimum": 3})", "2"));
  EXPECT_FALSE(valid(R"({"oneOf": [{"type": "integer"}, {"type": "number"}]})", "2"));
  EXPECT_FALSE(valid(R"({"required": ["a"]})", "{}"));
  EXPECT_FALSE(valid(R"({"items": {"type": "null"}})", "[1]"));
  EXPECT_FALSE(valid(R"({"maxLength": 1})", R"("éa")"));
  EXPECT_TRUE(valid(R"({"maxLength": 1})", R"("é")"));
}

}  // namespace
}  // namespace dsmoe::grammar::testing
