// A server with the real page, and answers that a test writes token by token.
#pragma once

#include <gtest/gtest.h>

#include <condition_variable>
#include <deque>
#include <mutex>
#include <nlohmann/json.hpp>
#include <thread>

#include "serve/http_server.h"
#include "serve/page.h"

namespace dsmoe::testing {

// Two MoE layers (1 and 2) of eight experts, two per token.
class ScriptedServer {
 public:
  using Json = nlohmann::json;

  explicit ScriptedServer(std::string key = {}, bool chat = true)
      : key_(std::move(key)),
        chat_(chat),
        http_(
            {.port = 0}, [this](auto request, auto reply) { handle(request, reply); },
            [](int, auto) { return std::string("{}"); }) {
    runs_ = std::thread([this] { http_.run(); });
  }
  ~ScriptedServer() {
    http_.stop();
    runs_.join();
  }

  std::string address() const { return "http://127.0.0.1:" + std::to_string(http_.port()) + "/"; }

  // Waits for the next request for an answer: its body, with its path as "path".
  Json next() {
    std::unique_lock lock(mutex_);
    if (!wake_.wait_for(lock, std::chrono::seconds(20), [&] { return !asked_.empty(); })) {
      ADD_FAILURE() << "the page asked for nothing";
      return {};
    }
    Json body = std::move(asked_.front().first);
    const std::shared_ptr<serve::HttpReply> reply = asked_.front().second;
    asked_.pop_front();
    position_ = kPrompt;
    begun_ = false;
    gone_ = false;
    on_thread(
        [&, reply] {
          reply_ = reply;
          reply_->on_gone([this] {
            const std::lock_guard guard(mutex_);
            gone_ = true;
            wake_.notify_all();
          });
        },
        lock);
    return body;
  }
  bool asked() {
    const std::lock_guard lock(mutex_);
    return !asked_.empty();
  }

  // One token of the answer. The experts are those of the token before it: expert `expert` in layer 1 and the next in layer
  // 2, with the weight .5, and expert 7 (or 6) with .25. With the first token come those of the prompt, all of them 0
  // and 7.
  void token(const std::string& text, int expert = 0, bool routing = true) {
    Json choice = {{"index", 0}, {"finish_reason", nullptr}, {"delta", {{"content", text}}}, {"text", text}};
    if (routing) choice["routing"] = std::exchange(begun_, true) ? rows(position_++, 1, expert) : rows(0, kPrompt, 0);
    event({{"choices", Json::array({choice})}});
  }
  // Some words as tokens, with one expert for each.
  void tokens(const std::vector<std::string>& texts, const std::vector<int>& experts = {}) {
    for (std::size_t i = 0; i < texts.size(); ++i) token(texts[i], i > 0 && i <= experts.size() ? experts[i - 1] : 0);
  }
  void end(const std::string& reason = "stop", int tokens = 3) {
    event({{"choices", Json::array({{{"index", 0}, {"delta", Json::object()}, {"text", ""}, {"finish_reason", reason}}})}});
    event({{"choices", Json::array()}, {"usage", {{"prompt_tokens", kPrompt}, {"completion_tokens", tokens}}}});
    raw("data: [DONE]\n\n");
    finish();
  }
  void event(const Json& json) { raw("data: " + json.dump() + "\n\n"); }
  void raw(const std::string& text) {
    http_.post([this, text] {
      if (!std::exchange(started_, true)) reply_->start("text/event-stream");
      reply_->write(text);
    });
  }
  void finish() {
    http_.post([this] {
      reply_->finish();
      started_ = false;
    });
  }
  void fail(int status, const std::string& message) {
    http_.post([this, status, message] {
      reply_->send(status, "application/json", Json({{"error", {{"message", message}}}}).dump());
    });
  }
  // Whether the page closes its request within twenty seconds.
  bool gone() {
    std::unique_lock lock(mutex_);
    const bool is = wake_.wait_for(lock, std::chrono::seconds(20), [&] { return gone_; });
    on_thread([this] { started_ = false; }, lock);
    return is;
  }

  static constexpr int kPrompt = 3;

 private:
  static Json rows(int first, int count, int expert) {
    Json layers = Json::array();
    for (int l = 0; l < 2; ++l) {
      const int chosen = (expert + l) % 8, other = chosen == 7 ? 6 : 7;
      Json experts = Json::array(), weights = Json::array();
      for (int i = 0; i < count; ++i) experts.push_back({chosen, other}), weights.push_back({0.5, 0.25});
      layers.push_back({{"layer", l + 1}, {"experts", experts}, {"weights", weights}});
    }
    return {{"first", first}, {"tokens", count}, {"layers", layers}};
  }

  void handle(const serve::HttpRequest& request, const std::shared_ptr<serve::HttpReply>& reply) {
    if (const serve::PageFile* file = serve::find_page_file(request.path))
      return serve::send_page_file(*file, request, *reply);
    if (!key_.empty() && request.authorization != "Bearer " + key_)
      return reply->send(401, "application/json", R"({"error": {"message": "the API key is missing or wrong"}})");
    if (request.path == "/props") {
      const Json moe = {{"layers", {1, 2}}, {"experts", 8}, {"experts_per_token", 2}, {"shared_experts", 1}};
      const Json settings = {{"n_ctx", 100}, {"params", {{"temperature", 0.8}}}};
      return reply->send(200, "application/json",
                         Json({{"model_alias", "scripted"},
                               {"chat_template", chat_ ? "x" : ""},
                               {"default_generation_settings", settings},
                               {"moe", moe}})
                             .dump());
    }
    if (request.method != "POST") return reply->send(404, "application/json", "{}");
    Json body = Json::parse(request.body);
    body["path"] = request.path;
    const std::lock_guard lock(mutex_);
    asked_.emplace_back(std::move(body), reply);
    wake_.notify_all();
  }
  // Runs a call on the server's thread, and waits for it.
  template <class Call>
  void on_thread(Call call, std::unique_lock<std::mutex>& lock) {
    bool done = false;
    http_.post([&] {
      call();
      const std::lock_guard guard(mutex_);
      done = true;
      wake_.notify_all();
    });
    wake_.wait(lock, [&] { return done; });
  }

  std::string key_;
  bool chat_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::pair<Json, std::shared_ptr<serve::HttpReply>>> asked_;
  bool gone_ = false;
  std::shared_ptr<serve::HttpReply> reply_;  // of the server's thread, like started_
  bool started_ = false, begun_ = false;
  int position_ = kPrompt;
  serve::HttpServer http_;
  std::thread runs_;
};

}  // namespace dsmoe::testing
