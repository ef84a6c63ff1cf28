// Clients of all kinds at once: every answer is the one that the same request gets alone, and nothing is left over.
#include <gtest/gtest.h>

#include <mutex>

#include "serve/served.h"

namespace dsmoe {
namespace {

using nlohmann::json;
using test::Client;
using test::HttpAnswer;
using test::Served;

std::string text_of(const HttpAnswer& answer, bool stream) {
  if (!stream) return answer.json()["choices"][0]["text"];
  std::string text;
  for (const std::string& event : answer.events())
    if (event != "[DONE]") text += json::parse(event)["choices"][0]["text"].get<std::string>();
  return text;
}

json random_body(test::Draw& draw) {
  std::string prompt;
  for (Index n = draw.between(1, draw(4) == 0 ? 400 : 30); n > 0; --n) prompt += static_cast<char>('A' + draw(26));
  if (draw(2)) prompt = std::string(200, 'Q') + prompt;  // a beginning in common
  return {{"prompt", prompt}, {"max_tokens", draw.between(1, 30)}, {"seed", draw(1000)}, {"ignore_eos", draw(2) == 0}};
}

void misbehave(Served& s, test::Draw& draw) {
  Client c = s.client();
  const std::string request = Client::request("POST", "/v1/completions", random_body(draw).dump());
  switch (draw(4)) {
    case 0: c.send(request.substr(0, static_cast<std::size_t>(draw(static_cast<Index>(request.size()))))); break;
    case 1: c.send(request); break;  // goes away before the answer
    case 2:
      c.send(request);
      c.peek(1);
      break;
    case 3: c.send("\x16\x03\x01 garbage {]\r\n\r\n\r\n"); break;
  }
}

TEST(ServeLoad, EveryAnswerIsTheOneThatTheRequestGetsAlone) {
  Served s({}, {.cache_tokens = 1024, .parallel = 8, .step_tokens = 64});
  struct Done {
    json body;
    std::string text;
  };
  std::mutex mutex;
  std::vector<Done> done;
  std::vector<std::thread> clients;
  for (int i = 0; i < 6; ++i) {
    clients.emplace_back([&, i] {
      test::Draw draw(static_cast<std::uint64_t>(100 + i));
      for (int n = 0; n < 20; ++n) {
        if (draw(4) == 0) {
          misbehave(s, draw);
          continue;
        }
        json body = random_body(draw);
        const bool stream = draw(2) == 0;
        body["stream"] = stream;
        const HttpAnswer answer = s.post("/v1/completions", body);
        ASSERT_EQ(answer.status, 200) << answer.body;
        body["stream"] = false;
        const std::lock_guard lock(mutex);
        done.push_back({body, text_of(answer, stream)});
      }
    });
  }
  for (std::thread& t : clients) t.join();
  EXPECT_TRUE(s.metric_becomes("requests_running", 0));
  EXPECT_TRUE(s.metric_becomes("requests_waiting", 0));
  EXPECT_EQ(s.metric("kv_pages_free") + s.metric("kv_pages_cached"), s.metric("kv_pages"));
  Served fresh({}, {.no_prefix_cache = true});
  for (const Done& d : done) EXPECT_EQ(d.text, text_of(fresh.post("/v1/completions", d.body), false)) << d.body;
}

}  // namespace
}  // namespace dsmoe
