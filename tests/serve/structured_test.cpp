// Answers within a grammar or a JSON schema.
#include <gtest/gtest.h>

#include <chrono>

#include "serve/served.h"

namespace dsmoe {
namespace {

using nlohmann::json;
using test::chat_tokenizer;
using test::HttpAnswer;
using test::Served;

json completion(const json& change) {
  json body = {{"prompt", "A"}, {"max_tokens", 60}, {"temperature", 2}};
  body.update(change);
  return body;
}

// The second ends a text, and is the only one that JSON has no use for.
const std::string kJsonCharacters = "{B}\":,[]0123456789-.aefilnrstuAOK";

TEST(Structured, AnswersMatchTheGrammar) {
  Served s;
  bool yes = false, no = false;
  for (int seed = 0; seed < 20; ++seed) {
    json body = completion({{"grammar", "root ::= \"YES\" | \"NO\""}, {"seed", seed}});
    const json whole = s.post("/v1/completions", body).json()["choices"][0];
    const std::string text = whole["text"];
    EXPECT_TRUE(text == "YES" || text == "NO") << text;
    EXPECT_EQ(whole["finish_reason"], "stop");
    yes = yes || text == "YES", no = no || text == "NO";

    body["stream"] = true;
    std::string streamed;
    for (const std::string& event : s.post("/v1/completions", body).events())
      if (event != "[DONE]") streamed += json::parse(event)["choices"][0]["text"].get<std::string>();
    EXPECT_EQ(streamed, text) << "the same seed, the same text";
  }
  EXPECT_TRUE(yes && no);
}

TEST(Structured, EveryChoiceHasItsOwnPlace) {
  Served s;
  const json body = completion({{"grammar", "root ::= [A-F]{3} \"X\""}, {"n", 4}, {"prompt", {"A", "C"}}, {"seed", 1}});
  const json choices = s.post("/v1/completions", body).json()["choices"];
  ASSERT_EQ(choices.size(), 8u);
  for (const json& c : choices) {
    const std::string text = c["text"];
    ASSERT_EQ(text.size(), 4u) << text;
    EXPECT_EQ(text.find_first_not_of("ACDEF"), 3u) << text;  // token B ends a text
    EXPECT_EQ(text[3], 'X');
  }
}

TEST(Structured, SchemasInTheFormsOfClients) {
  Served s({}, {}, {}, chat_tokenizer(kJsonCharacters));
  const json schema = {
      {"type", "object"},
      {"properties", {{"a", {{"type", "integer"}, {"minimum", 0}, {"maximum", 99}}}, {"is", {{"enum", {"OK", "fine"}}}}}},
      {"required", {"a", "is"}},
      {"additionalProperties", false}};
  const json named = {{"name", "answer"}, {"strict", true}, {"schema", schema}};
  const std::vector<json> forms = {{{"response_format", {{"type", "json_schema"}, {"json_schema", named}}}},
                                   {{"response_format", {{"type", "json_object"}, {"schema", schema}}}},
                                   {{"json_schema", schema}}};
  for (int seed = 0; seed < 5; ++seed)
    for (const json& form : forms) {
      json body = completion(form);
      body["seed"] = seed;
      const HttpAnswer answer = s.post("/v1/completions", body);
      ASSERT_EQ(answer.status, 200) << answer.body;
      const std::string text = answer.json()["choices"][0]["text"];
      const json value = json::parse(text, nullptr, false);
      ASSERT_TRUE(value.is_object()) << text;
      EXPECT_TRUE(value["a"].is_number_integer() && value["a"] >= 0 && value["a"] <= 99) << text;
      EXPECT_TRUE(value["is"] == "OK" || value["is"] == "fine") << text;
    }
}

TEST(Structured, AnyObject) {
  Served s({}, {}, {}, chat_tokenizer(kJsonCharacters));
  const json body = completion({{"response_format", {{"type", "json_object"}}}, {"seed", 4}, {"max_tokens", 200}});
  const json choice = s.post("/v1/completions", body).json()["choices"][0];
  EXPECT_EQ(choice["text"].get<std::string>().find_first_not_of(" \n\t\r"), choice["text"].get<std::string>().find('{'));
  if (choice["finish_reason"] == "stop") {
    EXPECT_TRUE(json::accept(choice["text"].get<std::string>())) << choice;
  }
}

// Half a million states take a second or more to compile, on the worker's thread: others are answered meanwhile.
TEST(Structured, ASlowGrammarHoldsUpNobody) {
  Served s;
  test::Client slow = s.client();
  const json large = completion({{"grammar", "root ::= ([A-F]{0,400} [G-K]){1,500}"}, {"max_tokens", 2}});
  const auto begin = std::chrono::steady_clock::now();
  slow.send(test::Client::request("POST", "/v1/completions", large.dump()));
  int answered = 0;
  while (!slow.has_answer()) {
    const auto asked = std::chrono::steady_clock::now();
    ASSERT_EQ(s.post("/v1/completions", completion({{"max_tokens", 2}})).status, 200);
    ++answered;
    const auto whole = std::chrono::steady_clock::now() - begin;
    if (std::chrono::steady_clock::now() - asked > whole / 2 && answered > 3) break;  // it waited for the grammar
  }
  const HttpAnswer last = slow.read();
  EXPECT_TRUE(last.status == 200 || last.status == 400) << last.body;
  EXPECT_GT(answered, 5) << "none of them waited for the grammar";
}

}  // namespace
}  // namespace dsmoe
