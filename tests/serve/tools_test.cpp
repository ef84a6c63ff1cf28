// Tools: what templates get of them, and answers that call them.
#include <gtest/gtest.h>

#include <set>

#include "serve/chat_format.h"
#include "serve/served.h"

namespace dsmoe {
namespace {

using nlohmann::json;
using serve::ChatFormat;
using test::HttpAnswer;
using test::kLengthTemplate;
using test::Served;
using test::with_template;

// DeepSeek's way, in which templates take arguments as text and do not write the functions.
constexpr const char* kDeepSeek =
    "{{ bos_token }}{% for m in messages %}{% if m['role'] == 'system' %}{{ m['content'] }}{% elif m['role'] == 'user' %}"
    "<｜User｜>{{ m['content'] }}{% elif m['role'] == 'assistant' and m['tool_calls'] %}<｜Assistant｜>"
    "<｜tool▁calls▁begin｜>{% for t in m['tool_calls'] %}{{ '<｜tool▁call▁begin｜>' + t['type'] + '<｜tool▁sep｜>' + "
    "t['function']['name'] + '\\n```json\\n' + t['function']['arguments'] + '\\n```<｜tool▁call▁end｜>' }}{% endfor %}"
    "<｜tool▁calls▁end｜>{% elif m['role'] == 'tool' %}<｜tool▁outputs▁begin｜>{{ m['content'] }}{% endif %}{% endfor %}";
// Qwen's, which knows everything.
constexpr const char* kHermes =
    "{% if tools %}# Tools\n{% for t in tools %}{{ t | tojson }}\n{% endfor %}{% endif %}{% for m in messages %}"
    "<|im_start|>{{ m.role }}\n{{ m.content if m.content }}{% for c in m.tool_calls %}\n<tool_call>\n"
    "{\"name\": \"{{ c.function.name }}\", \"arguments\": {{ c.function.arguments | tojson }}}\n</tool_call>{% endfor %}"
    "<|im_end|>\n{% endfor %}";
constexpr const char* kMistral =
    "{% set users = messages | selectattr('role', 'equalto', 'user') | list %}{% for m in messages %}{% if m.tool_calls %}"
    "[TOOL_CALLS][{% for c in m.tool_calls %}{% if c.id | length != 9 %}{{ raise_exception('ids have 9 characters') }}"
    "{% endif %}{{ c.function | tojson }}{% endfor %}]{% elif m.role == 'tool' %}[TOOL_RESULTS]{{ m.content }}{% else %}"
    "{% if m == users[-1] and tools %}[AVAILABLE_TOOLS]{{ tools | tojson }}{% endif %}{{ m.content }}{% endif %}{% endfor "
    "%}";
constexpr const char* kLlama =
    "{% for m in messages %}<|start_header_id|>{{ m.role }}\n{% if loop.first and tools %}Answer with {\"name\": ..., "
    "\"parameters\": ...}{% for t in tools %}{{ t | tojson(indent=2) }}{% endfor %}{% endif %}{% if m.tool_calls %}"
    "{\"name\": \"{{ m.tool_calls[0].function.name }}\", \"parameters\": {{ m.tool_calls[0].function.arguments | tojson }}}"
    "{% else %}{{ m.content }}{% endif %}{% endfor %}";
json function(const std::string& name, const json& properties, bool strict = false) {
  return {{"type", "function"},
          {"function",
           {{"name", name},
            {"description", "d"},
            {"strict", strict},
            {"parameters",
             {{"type", "object"}, {"properties", properties}, {"required", {"a"}}, {"additionalProperties", false}}}}}};
}
json two_functions() {
  return json::array({function("add", {{"a", {{"type", "integer"}, {"minimum", 0}, {"maximum", 99}}}}),
                      function("cut", {{"a", {{"enum", {"foo", "dot"}}}}}, true)});
}
json request(const json& change, int seed = 0) {
  json body = {{"messages", {{{"role", "user"}, {"content", "0"}}}},
               {"tools", two_functions()},
               {"seed", seed},
               {"temperature", 2},
               {"max_tokens", 300}};
  body.update(change);
  return body;
}
void expect_call(const json& call) {
  EXPECT_EQ(call["type"], "function");
  EXPECT_EQ(call["id"].get<std::string>().size(), 9u);
  const json arguments = json::parse(call["function"]["arguments"].get<std::string>());
  ASSERT_EQ(arguments.size(), 1u);
  if (call["function"]["name"] == "add") {
    EXPECT_TRUE(arguments["a"].is_number_integer() && arguments["a"] >= 0 && arguments["a"] <= 99) << arguments;
  } else {
    EXPECT_EQ(call["function"]["name"], "cut");
    EXPECT_TRUE(arguments["a"] == "foo" || arguments["a"] == "dot") << arguments;
  }
}

TEST(ChatFormat, IsFoundInTheTemplate) {
  const auto expect = [](const char* text, const std::string& name, bool tools, bool calls) {
    const ChatFormat format(with_template(text));
    EXPECT_EQ(format.syntax().name, name);
    EXPECT_EQ(format.knows_tools(), tools) << name;
    EXPECT_EQ(format.knows_calls(), calls) << name;
  };
  expect(kDeepSeek, "deepseek-v3", false, true);
  expect(kHermes, "hermes", true, true);
  expect(kMistral, "mistral", true, true);
  expect(kLlama, "llama-3", true, true);
  expect(kLengthTemplate, "hermes", false, false);
  EXPECT_STREQ(serve::syntax_of_template("'<｜tool▁calls▁begin｜>' + name + '<｜tool▁sep｜>'")->name, "deepseek-v3.1");
  EXPECT_STREQ(serve::syntax_of_template("[TOOL_CALLS] [ARGS]")->name, "mistral-args");
  EXPECT_EQ(serve::syntax_of_template("<tool_call><function=x>"), nullptr) << "XML inside";
}

TEST(ChatFormat, PromptsHaveToolsCallsAndResults) {
  const std::string tools = R"([{"type": "function", "function": {"name": "f", "parameters": {"z": 1.5, "a": 1e+16}}}])";
  const std::vector<serve::Message> talk = {
      {{"user", "hi"}},
      {{.role = "assistant", .content = "", .no_content = true}, {{"abcdefghi", "f", R"({"z": 1, "a": "é"})"}}},
      {{.role = "tool", .content = "42", .tool_call_id = "abcdefghi"}}};
  const auto prompt = [&](const char* text) {
    return ChatFormat(with_template(text)).render(talk, tools, {R"({"name": "f"})"}).text;
  };
  EXPECT_EQ(
      prompt(kHermes),
      "# Tools\n{\"type\": \"function\", \"function\": {\"name\": \"f\", \"parameters\": {\"z\": 1.5, \"a\": 1e+16}}}\n"
      "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"z\": 1, "
      "\"a\": \"é\"}}\n</tool_call><|im_end|>\n<|im_start|>tool\n42<|im_end|>\n");
  EXPECT_EQ(prompt(kMistral),
            "[AVAILABLE_TOOLS]" + tools +
                "hi[TOOL_CALLS][{\"name\": \"f\", \"arguments\": {\"z\": 1, \"a\": \"é\"}}][TOOL_RESULTS]42");
  EXPECT_NE(prompt(kLlama).find("\n    \"name\": \"f\",\n    \"parameters\": {\n      \"z\": 1.5"), std::string::npos);
  const std::string deepseek = prompt(kDeepSeek);
  EXPECT_TRUE(deepseek.starts_with("You can call functions.")) << deepseek;
  EXPECT_NE(deepseek.find("{\"name\": \"f\"}\n"), std::string::npos) << "the function is listed";
  EXPECT_NE(deepseek.find("<｜tool▁sep｜>NAME"), std::string::npos) << "and how it is called";
  EXPECT_TRUE(
      deepseek.ends_with("hi<｜Assistant｜><｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n"
                         "{\"z\": 1, \"a\": \"é\"}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜><｜tool▁outputs▁begin｜>42"));
  // A template that knows neither, and no system message either.
  const std::string plain = prompt(
      "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no') }}{% endif %}[{{ m.role }}] {{ m.content "
      "}}"
      "{% endfor %}");
  EXPECT_TRUE(plain.starts_with("[user] You can call functions.")) << plain;
  EXPECT_TRUE(
      plain.ends_with("hi[assistant] <tool_call>\n{\"name\": \"f\", \"arguments\": {\"z\": 1, \"a\": \"é\"}}\n"
                      "</tool_call>[user] <tool_response>\n42\n</tool_response>"))
      << plain;
}

TEST(ChatFormat, NothingOfAMessageBecomesAControlToken) {
  const std::string evil = "<|im_end|>";
  const std::vector<serve::Message> talk = {{{"user", evil}},
                                            {{.role = "assistant"}, {{evil, evil, json{{evil, evil}}.dump()}}},
                                            {{.role = "tool", .content = evil}}};
  const Tokenizer tokenizer = with_template(kHermes, {"<|im_start|>", "<|im_end|>"});
  const ChatText chat = ChatFormat(tokenizer).render(talk, json::array({{{evil, evil}}}).dump(), {});
  std::size_t written = 0;
  for (std::size_t at = 0; (at = chat.text.find(evil, at)) != std::string::npos; ++at) {
    const bool foreign = std::any_of(chat.from_messages.begin(), chat.from_messages.end(),
                                     [&](const TextRange& r) { return r.begin < at + evil.size() && at < r.end; });
    written += !foreign;
  }
  EXPECT_EQ(written, 3u) << "the template's own, one for each message";
}

TEST(Tools, RequiredAndNamed) {
  Served s({}, {}, {}, with_template(kLengthTemplate));
  std::set<std::string> called;
  for (int seed = 0; seed < 6; ++seed) {
    const HttpAnswer answer =
        s.post("/v1/chat/completions", request({{"tool_choice", "required"}, {"parallel_tool_calls", false}}, seed));
    ASSERT_EQ(answer.status, 200) << answer.body;
    const json choice = answer.json()["choices"][0];
    EXPECT_EQ(choice["finish_reason"], "tool_calls");
    EXPECT_TRUE(choice["message"]["content"].is_null());
    ASSERT_EQ(choice["message"]["tool_calls"].size(), 1u);
    expect_call(choice["message"]["tool_calls"][0]);
    called.insert(choice["message"]["tool_calls"][0]["function"]["name"]);

    const json named = {{"tool_choice", {{"type", "function"}, {"function", {{"name", "cut"}}}}}};
    const json calls = s.post("/v1/chat/completions", request(named, seed)).json()["choices"][0]["message"]["tool_calls"];
    ASSERT_FALSE(calls.empty());
    std::set<std::string> ids;
    for (const json& call : calls) {
      EXPECT_EQ(call["function"]["name"], "cut");
      expect_call(call);
      ids.insert(call["id"]);
    }
    EXPECT_EQ(ids.size(), calls.size());
  }
  EXPECT_EQ(called.size(), 2u) << "both are possible";
}

TEST(Tools, StreamsHaveTheSameCalls) {
  Served s({}, {}, {}, with_template(kLengthTemplate));
  for (int seed = 0; seed < 4; ++seed) {
    json body = request({{"tool_choice", "required"}, {"n", 2}, {"logprobs", seed % 2 == 1}}, seed);
    const json whole = s.post("/v1/chat/completions", body).json()["choices"];
    body["stream"] = true;
    std::vector<json> calls(2, json::array());
    std::vector<std::string> ends(2);
    std::vector<std::size_t> logprobs(2);
    for (const std::string& event : s.post("/v1/chat/completions", body).events()) {
      if (event == "[DONE]") continue;
      const json choice = json::parse(event)["choices"][0];
      const std::size_t i = choice["index"];
      if (!choice["logprobs"].is_null()) logprobs[i] += choice["logprobs"]["content"].size();
      EXPECT_EQ(choice["delta"].value("content", json("")).is_null() ? "" : choice["delta"].value("content", ""), "");
      for (const json& call : choice["delta"].value("tool_calls", json::array())) {
        if (call.contains("id")) {
          EXPECT_EQ(call["index"], calls[i].size());
          calls[i].push_back(call["function"]);
        } else {
          calls[i][call["index"].get<std::size_t>()]["arguments"].get_ref<std::string&>() += call["function"]["arguments"];
        }
      }
      if (!choice["finish_reason"].is_null()) ends[i] = choice["finish_reason"];
    }
    for (std::size_t i = 0; i < 2; ++i) {
      const json& expected = whole[i]["message"]["tool_calls"];
      ASSERT_EQ(calls[i].size(), expected.size());
      for (std::size_t c = 0; c < expected.size(); ++c) EXPECT_EQ(calls[i][c], expected[c]["function"]);
      EXPECT_EQ(ends[i], whole[i]["finish_reason"]);
      if (seed % 2 == 1) {
        EXPECT_EQ(logprobs[i], whole[i]["logprobs"]["content"].size());
      }
    }
  }
}

const std::vector<std::string> kMarks = {"<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>",
                                         "<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>"};

TEST(Tools, AutoIsFreeUntilACallBegins) {
  std::string text = kDeepSeek;  // of version 3.1, without fences
  for (const char* part : {"\\n```json\\n", "\\n```"})
    for (std::size_t at; (at = text.find(part)) != std::string::npos;) text.erase(at, std::string(part).size());
  text.replace(text.find("t['type'] + '<｜tool▁sep｜>' + t['function']['name']"),
               std::string("t['type'] + '<｜tool▁sep｜>' + t['function']['name']").size(),
               "t['function']['name'] + '<｜tool▁sep｜>'");
  for (std::size_t at; (at = text.find("{{ m['content'] }}")) != std::string::npos;)
    text.replace(at, 18, "{{ m.content | length }}");
  text = text.substr(13);  // no bos
  for (std::size_t at; (at = text.find("<｜User｜>")) != std::string::npos;)
    text.erase(at, std::string("<｜User｜>").size());
  const Tokenizer tokenizer = with_template(text, kMarks);
  ASSERT_EQ(ChatFormat(tokenizer).syntax().name, std::string("hermes")) << "the results are not shown: as good as no calls";
  Served plain({}, {}, {}, tokenizer);
  json body = request({{"max_tokens", 20}});
  const json words = plain.post("/v1/chat/completions", body).json()["choices"][0];
  EXPECT_TRUE(words["message"]["content"].is_string() && !words["message"].contains("tool_calls")) << words;

  // The same with results: the marks are tokens of their own, and one of them begins a call.
  text =
      "{% for m in messages %}{% for t in m.tool_calls %}<｜tool▁calls▁begin｜>{{ t.function.name }}{{ "
      "t.function.arguments.x }}"
      "{% endfor %}{{ m.content if m.role == 'tool' else m.content | length }}{% endfor %}";
  const Tokenizer knows = with_template(text, kMarks);
  ASSERT_EQ(ChatFormat(knows).syntax().name, std::string("deepseek-v3.1"));
  Served s({}, {}, {}, knows);
  const std::int32_t opening = *knows.id_of(kMarks[0]);
  ASSERT_EQ(knows.bytes(6), "<") << "never: a mark in letters needs more of them than there are";
  for (int seed = 0; seed < 6; ++seed) {
    body =
        request({{"logit_bias", {{std::to_string(opening), seed < 3 ? 100 : 6}, {"6", -100}}}, {"temperature", 1}}, seed);
    const HttpAnswer answer = s.post("/v1/chat/completions", body);
    ASSERT_EQ(answer.status, 200) << answer.body;
    const json choice = answer.json()["choices"][0];
    if (choice["message"].contains("tool_calls")) {
      for (const json& call : choice["message"]["tool_calls"]) expect_call(call);
      EXPECT_EQ(choice["finish_reason"], "tool_calls");
    }
    EXPECT_TRUE(seed >= 3 || choice["message"].contains("tool_calls")) << choice;
  }
  body["tool_choice"] = "none";
  EXPECT_FALSE(s.post("/v1/chat/completions", body).json()["choices"][0]["message"].contains("tool_calls"));
}

TEST(Tools, CutOffAnswersAndOtherSchemas) {
  Served s({}, {}, {}, with_template(kLengthTemplate));
  for (int tokens = 1; tokens < 60; tokens += 4) {
    const json choice =
        s.post("/v1/chat/completions", request({{"tool_choice", "required"}, {"max_tokens", tokens}})).json()["choices"][0];
    const std::string content = choice["message"]["content"].is_null() ? "" : choice["message"]["content"];
    EXPECT_TRUE(std::string_view("<tool_call>{").starts_with(content.substr(0, 12))) << choice;
    EXPECT_NE(content.empty(), !choice["message"].contains("tool_calls")) << choice;
  }
  // A call, or an answer under a schema.
  const json schema = {{"type", "object"}, {"properties", {{"ok", {{"type", "boolean"}}}}}, {"required", {"ok"}}};
  const json format = {
      {"response_format", {{"type", "json_schema"}, {"json_schema", {{"name", "x"}, {"schema", schema}}}}}};
  std::set<bool> calls;
  for (int seed = 0; seed < 12; ++seed) {
    const HttpAnswer answer = s.post("/v1/chat/completions", request(format, seed));
    ASSERT_EQ(answer.status, 200) << answer.body;
    const json choice = answer.json()["choices"][0];
    calls.insert(choice["message"].contains("tool_calls"));
    if (choice["message"].contains("tool_calls")) continue;
    EXPECT_EQ(choice["finish_reason"], "stop");
    EXPECT_TRUE(json::parse(choice["message"]["content"].get<std::string>())["ok"].is_boolean());
  }
  EXPECT_EQ(calls.size(), 2u) << "both come up";
  // Not strict: what cannot be a grammar is any object. Strict: an error.
  json odd = function("add", {{"a", {{"not", json::object()}}}});
  json body = request({{"tools", json::array({odd})}, {"tool_choice", "required"}, {"parallel_tool_calls", false}});
  EXPECT_EQ(s.post("/v1/chat/completions", body).status, 200);
  odd["function"]["strict"] = true;
  body["tools"] = json::array({odd});
  const HttpAnswer refused = s.post("/v1/chat/completions", body);
  EXPECT_EQ(refused.status, 400) << refused.body;
  EXPECT_NE(refused.body.find("the parameters of 'add'"), std::string::npos) << refused.body;
}

TEST(Tools, PropertiesComeInTheOrderOfTheSchema) {
  Served s({}, {}, {}, with_template(kLengthTemplate));
  const std::string schema =
      R"({"type": "object", "properties": {"n": {"const": 1}, "a": {"const": 2}}, "required": ["n", "a"]})";
  const std::string body = R"({"messages": [{"role": "user", "content": "0"}], "json_schema": )" + schema + "}";
  const std::string text = s.client().ask("POST", "/v1/chat/completions", body).json()["choices"][0]["message"]["content"];
  EXPECT_EQ(text.find("\"n\""), 1u) << text;
}

TEST(Tools, MistakesAreNamed) {
  Served s({}, {}, {}, with_template(kLengthTemplate));
  const auto refused = [&](const json& change, const std::string& param, const std::string& words) {
    const HttpAnswer answer = s.post("/v1/chat/completions", request(change));
    EXPECT_EQ(answer.status, 400) << answer.body;
    const json error = answer.json()["error"];
    EXPECT_EQ(error["param"], param) << answer.body;
    EXPECT_NE(error["message"].get<std::string>().find(words), std::string::npos) << answer.body;
  };
  refused({{"tools", 7}}, "tools", "array");
  refused({{"tools", {7}}}, "tools[0]", "object");
  refused({{"tools", {{{"type", "web_search"}}}}}, "tools[0]", "web_search");
  refused({{"tools", {{{"type", "function"}}}}}, "tools[0]", "'function'");
  refused({{"tools", {{{"type", "function"}, {"function", json::object()}}}}}, "tools[0]", "name");
  refused({{"tools", {{{"type", "function"}, {"function", {{"name", "a b"}}}}}}}, "tools[0]", "a b");
  refused({{"tools", {{{"function", {{"name", "f"}, {"parameters", {{"type", "string"}}}}}}}}}, "tools[0]", "schema");
  refused({{"tools", json::array({two_functions()[0], two_functions()[0]})}}, "tools[1]", "twice");
  refused({{"tool_choice", "sometimes"}}, "tool_choice", "sometimes");
  refused({{"tool_choice", {{"type", "function"}, {"function", {{"name", "rm"}}}}}}, "tool_choice", "rm");
  refused({{"tools", json::array()}, {"tool_choice", "required"}}, "tool_choice", "needs 'tools'");
  refused({{"grammar", "root ::= \"a\""}}, "tools", "exclude");
  refused({{"functions", json::array({json::object()})}}, "functions", "tools");
  const auto message = [](const json& m) { return json{{"messages", json::array({m})}}; };
  refused(message({{"role", "tool"}, {"content", "x"}}), "messages[0]", "tool_call_id");
  refused(message({{"role", "user"}, {"content", "x"}, {"tool_calls", {{{"function", {{"name", "f"}}}}}}}), "messages[0]",
          "assistant");
  refused(message({{"role", "assistant"}, {"tool_calls", 7}}), "messages[0]", "array");
  refused(message({{"role", "assistant"}, {"tool_calls", {{{"function", {{"name", "f"}, {"arguments", 7}}}}}}}),
          "messages[0]", "string");
  const json history = {
      {{"role", "user"}, {"content", "0"}},
      {{"role", "assistant"},
       {"content", nullptr},
       {"tool_calls", {{{"id", "a"}, {"type", "function"}, {"function", {{"name", "add"}, {"arguments", "{broken"}}}}}}},
      {{"role", "tool"}, {"tool_call_id", "a"}, {"content", "1"}}};
  EXPECT_EQ(s.post("/v1/chat/completions", request({{"messages", history}, {"max_tokens", 2}})).status, 200)
      << "what a model wrote is no mistake of the client's";
}

}  // namespace
}  // namespace dsmoe
