// Clients that are slow, vanish, or speak something else.
#include <gtest/gtest.h>

#include "serve/http_server.h"
#include "serve/served.h"

namespace dsmoe {
namespace {

using nlohmann::json;
using test::Client;
using test::HttpAnswer;
using test::Served;

std::string endless() {
  return json{{"prompt", "ABC"}, {"max_tokens", 760}, {"stream", true}, {"ignore_eos", true}}.dump();
}

TEST(Http, KeepsConnectionsAndTakesRequestsThatCameEarly) {
  Served s;
  Client c = s.client();
  for (int i = 0; i < 3; ++i) EXPECT_EQ(c.ask("GET", "/health").status, 200);
  const std::string body = json{{"prompt", "ABC"}, {"max_tokens", 20}}.dump();
  c.send(Client::request("POST", "/v1/completions", body) + Client::request("GET", "/health") +
         Client::request("GET", "/v1/models"));
  EXPECT_EQ(c.read().json()["object"], "text_completion");
  EXPECT_EQ(c.read().json()["status"], "ok");
  EXPECT_EQ(c.read().json()["object"], "list");
}

TEST(Http, OldAndClosingClientsGetTheEndOfTheConnection) {
  Served s;
  Client old = s.client();
  const std::string body = json{{"prompt", "ABC"}, {"max_tokens", 4}, {"stream", true}}.dump();
  old.send("POST /v1/completions HTTP/1.0\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body);
  const HttpAnswer answer = old.read();
  EXPECT_EQ(answer.status, 200);
  EXPECT_FALSE(answer.headers.contains("transfer-encoding"));
  EXPECT_EQ(answer.events().back(), "[DONE]");
  Client closing = s.client();
  EXPECT_EQ(closing.ask("GET", "/health", "", "Connection: close\r\n").headers.at("connection"), "close");
  EXPECT_TRUE(closing.closed_by_server(5000));
}

TEST(Http, WhatIsNoRequestIsRefused) {
  Served s({.body_bytes = 2000});
  const auto status = [&](const std::string& bytes) {
    Client c = s.client();
    c.send(bytes);
    return c.read().status;
  };
  EXPECT_EQ(status("hello there\r\n\r\n"), 400);
  EXPECT_EQ(status(std::string(100, '\0') + "\r\n\r\n"), 400);
  EXPECT_EQ(status("GET / HTTP/1.1\r\nContent-Length: -1\r\n\r\n"), 400);
  EXPECT_EQ(status("GET / HTTP/1.1\r\nContent-Length: 99999999999999999999999\r\n\r\n"), 400);
  EXPECT_EQ(status("GET /health HTTP/1.1\r\nX: " + std::string(20'000, 'x') + "\r\n\r\n"), 431);
  EXPECT_EQ(status(Client::request("POST", "/tokenize", std::string(2001, 'x'))), 413);
  EXPECT_EQ(status("POST /tokenize HTTP/1.1\r\nTransfer-Encoding: "
                   "chunked\r\n\r\n5\r\n{\"con\r\n9\r\ntent\":\"A\"\r\n1\r\n}\r\n0\r\n\r\n"),
            200);
  EXPECT_EQ(s.get("/health").status, 200);
}

TEST(Http, BodiesThatWouldBeReadAsSomethingElseAreRefused) {
  Served s;
  const std::string body = R"({"content":"A"})", chunked = "f\r\n" + body + "\r\n0\r\n\r\n";
  const auto answer_to = [&](const std::string& lines, const std::string& rest) {
    Client c = s.client();
    c.send("POST /tokenize HTTP/1.1\r\n" + lines + "\r\n" + rest);
    HttpAnswer out = c.read();
    if (out.status != 200) EXPECT_TRUE(c.closed_by_server(5000)) << "what follows is no request";
    EXPECT_EQ(c.read().status, 0) << "one reply";
    return out;
  };
  const HttpAnswer zipped = answer_to("Content-Encoding: gzip\r\nContent-Length: 15\r\n", body);
  EXPECT_EQ(zipped.status, 415);
  EXPECT_NE(zipped.body.find("'gzip'"), std::string::npos) << zipped.body;
  for (const char* encoding : {"foo", "gzip, chunked", "chunked, foo", "identity"})
    EXPECT_EQ(answer_to("Transfer-Encoding: " + std::string(encoding) + "\r\n", chunked).status, 501) << encoding;
  Client good = s.client();
  good.send("POST /tokenize HTTP/1.1\r\nContent-Encoding: identity\r\nTransfer-Encoding: Chunked\r\n\r\n" + chunked);
  EXPECT_EQ(good.read().status, 200);
}

TEST(Http, AClientThatSendsTooMuchGetsToReadWhy) {
  Served s({.body_bytes = 2000});
  Client c = s.client();
  ASSERT_TRUE(c.send(Client::request("POST", "/tokenize", std::string(20 << 20, 'x')))) << "all of it, before it reads";
  EXPECT_EQ(c.read().status, 413);
  EXPECT_TRUE(c.closed_by_server(10'000));
}

TEST(Http, AnAddressAsTarget) {
  Served s;
  const auto status = [&](const std::string& target, const std::string& host) {
    Client c = s.client();
    c.send("GET " + target + " HTTP/1.1\r\nHost: " + host + "\r\n\r\n");
    return c.read().status;
  };
  EXPECT_EQ(status("http://localhost:80/health?x=1", "localhost"), 200);
  EXPECT_EQ(status("http://localhost", "localhost"), 200) << "the page";
  EXPECT_EQ(status("http://evil.example/health", "localhost"), 403) << "the address counts, not the header";
  EXPECT_EQ(status("ftp://localhost/health", "localhost"), 404);
}

TEST(Http, ExpectContinue) {
  Served s;
  Client c = s.client();
  const std::string body = R"({"content":"ABC"})";
  c.send("POST /tokenize HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n");
  EXPECT_TRUE(c.peek(12).starts_with("HTTP/1.1 100"));
  c.read();
  c.send(body);
  EXPECT_EQ(c.read().status, 200);
}

TEST(Http, SlowClientsAreClosed) {
  Served s({.idle_seconds = 0.2, .body_seconds = 0.2});
  Client idle = s.client(), half = s.client(), slow = s.client();
  half.send("POST /tokenize HTTP/1.1\r\nContent-Length: 100\r\n\r\n{\"content\":");
  const std::string request = Client::request("GET", "/health");
  for (std::size_t i = 0; i < 10; ++i) {  // a byte every 50 ms
    slow.send(request.substr(i, 1));
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  EXPECT_TRUE(idle.closed_by_server(5000));
  EXPECT_TRUE(half.closed_by_server(5000));
  EXPECT_TRUE(slow.closed_by_server(5000));
  EXPECT_EQ(s.get("/health").status, 200);
}

TEST(Http, AnAnswerForNobodyIsCancelled) {
  Served s;
  {
    Client c = s.client();
    c.send(Client::request("POST", "/v1/completions", endless()));
    c.peek(200);
  }
  EXPECT_TRUE(s.metric_becomes("requests_running", 0));
  EXPECT_LT(s.metric("generated_tokens_total"), 700);
  EXPECT_TRUE(s.metric_becomes("requests_ended_total{reason=\"cancelled\"}", 1));
}

TEST(Http, DrainingEndsWhatRunsAndRefusesWhatIsNew) {
  Served s;
  Client running = s.client(), idle = s.client();
  EXPECT_EQ(idle.ask("GET", "/health").status, 200);
  running.send(Client::request("POST", "/v1/completions", endless()));
  running.peek(1);
  s.server().drain();
  const HttpAnswer answer = running.read();
  EXPECT_EQ(answer.status, 200);
  EXPECT_EQ(answer.events().back(), "[DONE]");
  EXPECT_TRUE(idle.closed_by_server(5000));
  s.join();
  EXPECT_EQ(s.client().ask("GET", "/health").status, 0);
}

TEST(Http, StoppingCutsEverythingOff) {
  auto s = std::make_unique<Served>();
  Client c = s->client();
  c.send(Client::request("POST", "/v1/completions", endless()));
  c.peek(1);
  s.reset();
  EXPECT_TRUE(c.closed_by_server(5000));
}

TEST(Http, APortInUseIsAnError) {
  Served s;
  const Transformer model = test::engine_model();
  EXPECT_THROW(serve::Server({.name = "x", .transformer = &model}, {.port = s.server().port()}, {}), Error);
  EXPECT_THROW(serve::Server({.name = "x", .transformer = &model}, {.host = "nowhere"}, {}), Error);
}

TEST(Http, AThousandOpenStreams) {
  Served s;
  std::vector<Client> all;
  for (int i = 0; i < 1000; ++i) {
    all.push_back(s.client());
    if (!all.back().connected()) GTEST_SKIP() << "this machine gives a process no more than " << i << " files";
  }
  const std::string body = json{{"prompt", "ABC"}, {"max_tokens", 4}, {"stream", true}, {"ignore_eos", true}}.dump();
  for (Client& c : all) ASSERT_TRUE(c.send(Client::request("POST", "/v1/completions", body)));
  EXPECT_EQ(s.get("/health").status, 200) << "beside them";
  for (Client& c : all) {
    const HttpAnswer answer = c.read();
    ASSERT_EQ(answer.status, 200) << answer.body;
    EXPECT_EQ(answer.events().back(), "[DONE]");
  }
}

}  // namespace
}  // namespace dsmoe
