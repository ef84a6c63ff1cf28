#include "serve/api.h"

#include <gtest/gtest.h>

#include <cstring>

#include "serve/bodies.h"
#include "serve/served.h"

namespace dsmoe {
namespace {

using nlohmann::json;
using test::Client;
using test::HttpAnswer;
using test::Served;

json completion(const std::string& prompt, int tokens = 8) {
  return {{"model", "small"}, {"prompt", prompt}, {"max_tokens", tokens}, {"seed", 3}, {"ignore_eos", true}};
}
json chat(const std::string& text, int tokens = 8) {
  json message = {{"role", "user"}, {"content", text}};
  return {{"messages", json::array({message})}, {"max_tokens", tokens}, {"seed", 3}, {"ignore_eos", true}};
}

// An error in OpenAI's form.
void expect_refused(const HttpAnswer& answer, int status, const std::string& param, const std::string& words) {
  EXPECT_EQ(answer.status, status) << answer.body;
  ASSERT_TRUE(answer.body.starts_with("{")) << answer.body;
  const json body = answer.json();
  const json& error = body.at("error");
  EXPECT_NE(error.at("message").get<std::string>().find(words), std::string::npos) << answer.body;
  EXPECT_EQ(error.at("param").is_null() ? "" : error.at("param").get<std::string>(), param);
  EXPECT_TRUE(error.at("type").is_string());
}

TEST(Api, AnswersWholeAndAsAStream) {
  Served s;
  for (const bool is_chat : {true, false}) {
    const std::string path = is_chat ? "/v1/chat/completions" : "/v1/completions";
    json body = is_chat ? chat("HELLO") : completion("HELLO");
    const HttpAnswer whole = s.post(path, body);
    ASSERT_EQ(whole.status, 200) << whole.body;
    const json choice = whole.json()["choices"][0];
    const std::string text = is_chat ? choice["message"]["content"] : choice["text"];
    EXPECT_EQ(text.size(), 8u);
    EXPECT_EQ(choice["finish_reason"], "length");
    EXPECT_EQ(whole.json()["object"], is_chat ? "chat.completion" : "text_completion");
    EXPECT_EQ(whole.json()["usage"]["prompt_tokens"], is_chat ? 6 : 5);
    EXPECT_EQ(whole.json()["usage"]["completion_tokens"], 8);

    body["stream"] = true;
    body["stream_options"]["include_usage"] = true;
    const HttpAnswer stream = s.post(path, body);
    EXPECT_EQ(stream.headers.at("content-type"), "text/event-stream");
    const std::vector<std::string> events = stream.events();
    ASSERT_GT(events.size(), 9u);
    EXPECT_EQ(events.back(), "[DONE]");
    std::string streamed;
    for (std::size_t i = 0; i + 2 < events.size(); ++i) {
      const json event = json::parse(events[i]);
      const json c = event["choices"][0];
      EXPECT_EQ(is_chat && i == 0, c.value("delta", json::object()).contains("role"));
      if (is_chat)
        streamed += c["delta"].value("content", "");
      else
        streamed += c["text"].get<std::string>();
      EXPECT_EQ(c["finish_reason"].is_null(), i + 3 < events.size());
    }
    EXPECT_EQ(streamed, text) << "the same seed, the same text";
    EXPECT_EQ(json::parse(events[events.size() - 2])["usage"]["completion_tokens"], 8);
  }
}

// The first event of a choice is made in another way than those that follow.
TEST(Api, EventsOfAStreamDifferInTheirTextAlone) {
  Served s({}, {}, {}, test::chat_tokenizer("\"\\/A\n"));
  for (const bool is_chat : {true, false}) {
    json body = is_chat ? chat("ACD") : completion("ACD");
    body["stream"] = true, body["n"] = 2, body["logit_bias"] = {{"0", 100}, {"2", 100}};
    const std::vector<std::string> events = s.post(is_chat ? "/v1/chat/completions" : "/v1/completions", body).events();
    ASSERT_GT(events.size(), 8u);
    std::map<int, std::vector<std::string>> parts;
    for (std::size_t i = 0; i + 1 < events.size(); ++i) {
      auto event = nlohmann::ordered_json::parse(events[i]);
      EXPECT_EQ(event.dump(), events[i]) << "as JSON is written";
      auto& choice = event["choices"][0];
      if (!choice["finish_reason"].is_null()) continue;
      (is_chat ? choice["delta"]["content"] : choice["text"]) = "";
      if (is_chat) choice["delta"].erase("role");
      parts[choice["index"]].push_back(event.dump());
    }
    ASSERT_EQ(parts.size(), 2u);
    for (const auto& [index, all] : parts)
      for (const std::string& part : all) EXPECT_EQ(part, all[0]) << index;
  }
}

TEST(Api, ChoicesStopsAndPromptsInOneRequest) {
  Served s;
  json body = completion("ABC");
  body["n"] = 3;
  body["prompt"] = json::array({"ABC", "DEF"});
  const json all = s.post("/v1/completions", body).json()["choices"];
  ASSERT_EQ(all.size(), 6u);
  EXPECT_NE(all[0]["text"], all[1]["text"]) << "seeds of their own";
  const json one = s.post("/v1/completions", completion("DEF")).json()["choices"];
  EXPECT_EQ(all[3]["text"], one[0]["text"]) << "the first choice has the request's seed";
  body = completion("DEF");
  body["stop"] = one[0]["text"].get<std::string>().substr(3, 2);
  const json stopped = s.post("/v1/completions", body).json()["choices"][0];
  EXPECT_EQ(stopped["finish_reason"], "stop");
  EXPECT_LE(stopped["text"].get<std::string>().size(), 3u);
  body = completion("DEF");
  body["prompt"] = json::array({3, 4, 5});
  EXPECT_EQ(s.post("/v1/completions", body).json()["choices"][0]["text"], one[0]["text"]) << "token ids";
}

TEST(Api, ChoicesShareTheirPrompt) {
  for (const int length : {5, 300}) {
    Served s;
    json body = completion("A", 8);
    body["prompt"] = std::string(static_cast<std::size_t>(length), 'C');
    body["n"] = 4;
    const json answer = s.post("/v1/completions", body).json();
    EXPECT_TRUE(s.metric_becomes("requests_running", 0));
    const double computed = s.metric("prompt_tokens_total") - s.metric("cached_tokens_total");
    EXPECT_EQ(computed, length + 3) << "once, and each its last token";
    EXPECT_EQ(s.metric("step_tokens_total"), computed + 4 * 7);
    EXPECT_EQ(answer["usage"]["prompt_tokens"], length);
    for (int i = 0; i < 4; ++i) {
      Served alone({}, {.no_prefix_cache = true});
      body["n"] = 1, body["seed"] = 3 + i;
      EXPECT_EQ(alone.post("/v1/completions", body).json()["choices"][0]["text"],
                answer["choices"][static_cast<std::size_t>(i)]["text"]);
    }
  }
  // A pool in which they do not all fit, and one without a cache, give the same.
  json body = completion("A", 300);
  body["n"] = 5;
  std::vector<json> texts;
  for (const EngineOptions& o :
       {EngineOptions{}, EngineOptions{.cache_tokens = 768}, EngineOptions{.no_prefix_cache = true}}) {
    Served s({}, o);
    texts.push_back(json::array());
    const json choices = s.post("/v1/completions", body).json()["choices"];
    for (const json& c : choices) texts.back().push_back(c["text"]);
    EXPECT_EQ(texts.back(), texts[0]);
  }
}

TEST(Api, LogprobsAndEcho) {
  Served s;
  json body = chat("HI", 4);
  body["logprobs"] = true, body["top_logprobs"] = 2, body["temperature"] = 0;
  const json content = s.post("/v1/chat/completions", body).json()["choices"][0]["logprobs"]["content"];
  ASSERT_EQ(content.size(), 4u);
  EXPECT_EQ(content[0]["top_logprobs"].size(), 2u);
  EXPECT_EQ(content[0]["top_logprobs"][0]["token"], content[0]["token"]) << "greedy";
  EXPECT_EQ(content[0]["bytes"][0], static_cast<int>(content[0]["token"].get<std::string>()[0]));

  body = completion("HELLO", 3);
  body["echo"] = true, body["logprobs"] = 1;
  const json choice = s.post("/v1/completions", body).json()["choices"][0];
  EXPECT_TRUE(choice["text"].get<std::string>().starts_with("HELLO"));
  EXPECT_EQ(choice["logprobs"]["tokens"].size(), 8u);
  EXPECT_TRUE(choice["logprobs"]["token_logprobs"][0].is_null());
  EXPECT_LT(choice["logprobs"]["token_logprobs"][1], 0.0);
  EXPECT_EQ(choice["logprobs"]["text_offset"][7], 7);
}

TEST(Api, OffsetsOfTokensAreCharactersOfTheText) {
  TokenizerParts parts;
  parts.vocab = {"A", "\u00c3", "\u00a9", "<s>"};  // the two bytes of an e with an accent are a token each
  parts.added_tokens = {{.id = 3, .content = "<s>", .special = true}};
  parts.pre_tokenizer = pre_tokenizer_json("gpt-2");
  const std::optional<Tokenizer> tokenizer = Tokenizer::from_parts(parts);
  std::vector<infer::TokenLogprobs> tokens;
  for (const int id : {3, 0, 1, 2, 0}) tokens.push_back({.token = {id, -1}, .top = {}});
  std::size_t offset = 0;
  const auto all = serve::text_logprobs(tokens, tokenizer, true, offset);
  EXPECT_EQ(all["text_offset"], (std::vector{0, 0, 1, 2, 2})) << "of A\u00e9A, which has no <s>";
  EXPECT_EQ(offset, 3u) << "where the next part of a stream begins";
}

TEST(Api, RoutingAndOverridesOfOneRequest) {
  Served s;
  json body = completion("HELLO", 4);
  body["routing"] = true, body["temperature"] = 0;
  const json plain = s.post("/v1/completions", body).json()["choices"][0];
  const json routing = plain["routing"];
  EXPECT_EQ(routing["tokens"], 5 + 3) << "all but the last token, which is not run";
  ASSERT_EQ(routing["layers"].size(), 2u);
  const json first = routing["layers"][0];
  EXPECT_EQ(first["experts"].size(), 8u);
  EXPECT_EQ(first["experts"][0].size(), 2u);
  const int favourite = first["experts"][0][0];
  body["overrides"]["disabled"] = json::array({json::array({first["layer"], favourite})});
  const json changed = s.post("/v1/completions", body).json()["choices"][0]["routing"]["layers"][0]["experts"];
  for (const json& row : changed)
    for (const json& e : row) EXPECT_NE(e, favourite);
  body["overrides"] = {{"skip_best", 8}};
  expect_refused(s.post("/v1/completions", body), 400, "", "experts");
  body["overrides"] = {{"skipbest", 1}};
  expect_refused(s.post("/v1/completions", body), 400, "overrides", "skipbest");
}

TEST(Api, Embeddings) {
  Served s;
  json body = {{"input", json::array({"HELLO", "WORLD"})}};
  const json floats = s.post("/v1/embeddings", body).json();
  ASSERT_EQ(floats["data"].size(), 2u);
  EXPECT_EQ(floats["data"][1]["index"], 1);
  const auto vector = floats["data"][0]["embedding"].get<std::vector<float>>();
  EXPECT_EQ(vector.size(), 32u);
  EXPECT_EQ(floats["usage"]["prompt_tokens"], 10);
  EXPECT_NE(floats["data"][0]["embedding"], floats["data"][1]["embedding"]);
  body["encoding_format"] = "base64";
  const std::string_view bytes(reinterpret_cast<const char*>(vector.data()), vector.size() * sizeof(float));
  EXPECT_EQ(s.post("/v1/embeddings", body).json()["data"][0]["embedding"], serve::base64(bytes));
  expect_refused(s.post("/v1/embeddings", {{"input", ""}}), 400, "input", "empty");
}

TEST(Api, Base64) {
  EXPECT_EQ(serve::base64(""), "");
  EXPECT_EQ(serve::base64("f"), "Zg==");
  EXPECT_EQ(serve::base64("fo"), "Zm8=");
  EXPECT_EQ(serve::base64("foobar"), "Zm9vYmFy");
}

TEST(Api, TheOtherPaths) {
  Served s;
  EXPECT_EQ(s.get("/health").json()["status"], "ok");
  EXPECT_EQ(s.get("/v1/models").json()["data"][0]["id"], "small");
  EXPECT_EQ(s.get("/v1/models").json()["data"][0]["max_model_len"], 768);
  EXPECT_EQ(s.post("/tokenize", {{"content", "ABC"}}).json()["tokens"], json::array({0, 1, 2}));
  EXPECT_EQ(s.post("/tokenize", {{"content", "B"}, {"with_pieces", true}}).json()["tokens"][0]["piece"], "B");
  EXPECT_EQ(s.post("/detokenize", {{"tokens", json::array({0, 1, 2})}}).json()["content"], "ABC");
  EXPECT_EQ(s.post("/apply-template", chat("HELLO")).json()["prompt"], "UHELLO");
  expect_refused(s.get("/nowhere"), 404, "", "/nowhere");
  expect_refused(s.get("/v1/completions"), 405, "", "GET");
  EXPECT_EQ(s.client().ask("OPTIONS", "/v1/completions").status, 405) << "CORS is off";
}

TEST(Api, OneModelByItsName) {
  Served s;
  EXPECT_EQ(s.get("/v1/models/small").json(), s.get("/v1/models").json()["data"][0]);
  EXPECT_EQ(s.get("/v1/models/sm%61ll").status, 200);
  expect_refused(s.get("/v1/models/sm%6"), 404, "model", "'sm%6'");
  expect_refused(s.get("/v1/models/"), 404, "model", "this server has 'small'");
  Served locked({}, {}, "secret");
  EXPECT_EQ(locked.get("/v1/models/small").status, 401);
}

TEST(Api, AMethodThatIsNotForAPathSaysWhichIs) {
  Served s;
  EXPECT_EQ(s.client().ask("DELETE", "/v1/models").headers.at("allow"), "GET, HEAD");
  EXPECT_EQ(s.client().ask("PUT", "/").headers.at("allow"), "GET, HEAD");
  const HttpAnswer answer = s.get("/v1/completions");
  EXPECT_EQ(answer.status, 405);
  EXPECT_EQ(answer.headers.at("allow"), "POST");
}

TEST(Api, MistakesAreNamed) {
  Served s({}, {.context = 20});
  const auto refused = [&](const json& change, int status, const std::string& param, const std::string& words) {
    json body = completion("HELLO");
    body.update(change);
    expect_refused(s.post("/v1/completions", body), status, param, words);
  };
  expect_refused(s.client().ask("POST", "/v1/completions", "{\"prompt\": "), 400, "", "line 1");
  expect_refused(s.client().ask("POST", "/v1/completions", "[]"), 400, "", "object");
  expect_refused(s.client().ask("POST", "/v1/completions", ""), 400, "", "empty");
  refused({{"model", "gpt-4"}}, 404, "model", "gpt-4");
  refused({{"temperature", "hot"}}, 400, "temperature", "number");
  refused({{"temperature", -1}}, 400, "temperature", "-1");
  refused({{"n", 0}}, 400, "n", "from 1");
  refused({{"max_tokens", 1.5}}, 400, "max_tokens", "whole number");
  refused({{"prompt", 7}}, 400, "prompt", "string");
  refused({{"prompt", json::array({50})}}, 400, "prompt", "50");
  refused({{"prompt", ""}}, 400, "prompt", "empty");
  refused({{"prompt", std::string(21, 'A')}}, 400, "", "context");
  refused({{"logit_bias", {{"x", 1}}}}, 400, "logit_bias", "token id");
  refused({{"logit_bias", {{"4", 101}}}}, 400, "logit_bias", "100");
  refused({{"stop", 4}}, 400, "stop", "string");
  refused({{"response_format", {{"type", "xml"}}}}, 400, "response_format", "json_schema");
  refused({{"response_format", {{"type", "json_schema"}}}}, 400, "response_format", "'schema'");
  refused({{"response_format", {{"type", "json_object"}, {"schema", {{"not", json::object()}}}}}}, 400, "response_format",
          "not");
  refused({{"grammar", "root ::= x"}}, 400, "grammar", "x");
  refused({{"grammar", "root ::= \"A\""}, {"json_schema", {{"type", "null"}}}}, 400, "json_schema", "exclude each other");
  refused({{"tools", json::array({json::object()})}}, 400, "tools", "/v1/chat/completions");
  refused({{"stream_options", json::object()}}, 400, "stream_options", "stream");
  refused({{"best_of", 3}}, 400, "best_of", "best_of");
  expect_refused(s.post("/v1/chat/completions", json::object()), 400, "messages", "messages");
  expect_refused(s.post("/v1/chat/completions", {{"messages", json::array({json::object()})}}), 400, "messages[0]", "role");
  EXPECT_EQ(s.post("/v1/completions", completion("HELLO")).status, 200) << "and goes on";
}

TEST(Api, AKeyIsAskedFor) {
  Served s({}, {}, "secret");
  expect_refused(s.get("/v1/models"), 401, "", "API key");
  expect_refused(s.client().ask("GET", "/v1/models", "", "Authorization: Bearer secreT\r\n"), 401, "", "API key");
  expect_refused(s.client().ask("GET", "/v1/models", "", "Authorization: Bearer \r\n"), 401, "", "API key");
  EXPECT_EQ(s.client().ask("GET", "/v1/models", "", "Authorization: Bearer secret\r\n").status, 200);
  EXPECT_EQ(s.get("/health").status, 200) << "for whoever watches the server";
  EXPECT_TRUE(serve::same_key("abc", "abc"));
  for (const char* wrong : {"", "ab", "abcd", "abd", "abcabc"}) EXPECT_FALSE(serve::same_key(wrong, "abc")) << wrong;
}

TEST(Api, CorsIfAskedFor) {
  Served s({.cors_origin = "https://example.org"});
  const HttpAnswer answer = s.client().ask("OPTIONS", "/v1/completions");
  EXPECT_EQ(answer.status, 204);
  EXPECT_EQ(answer.headers.at("access-control-allow-origin"), "https://example.org");
  EXPECT_EQ(s.get("/health").headers.at("access-control-allow-origin"), "https://example.org");
}

TEST(Api, TooManyRequestsAreToldToComeBack) {
  Served s({}, {.parallel = 1, .queue = 0});
  json endless = completion("A", 700);
  endless["stream"] = true;
  Client first = s.client();
  first.send(Client::request("POST", "/v1/completions", endless.dump()));
  first.peek(1);  // it runs
  const HttpAnswer answer = s.post("/v1/completions", completion("A"));
  expect_refused(answer, 429, "", "too many");
  EXPECT_EQ(answer.headers.at("retry-after"), "1");
  const HttpAnswer done = first.read();
  EXPECT_EQ(done.events().back(), "[DONE]");
}

}  // namespace
}  // namespace dsmoe
