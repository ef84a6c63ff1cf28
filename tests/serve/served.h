// A server with the small model of the engine's tests, on a thread of its own.
#pragma once

#include <thread>

#include "infer/engine_support.h"
#include "serve/client.h"
#include "serve/server.h"

namespace dsmoe::test {

// A token for each of 50 characters, these first; the second ends a text.
inline Tokenizer chat_tokenizer(std::string characters = {}) {
  for (char c = 'A'; characters.size() < 50; ++c)
    if (characters.find(c) == std::string::npos) characters += c;
  TokenizerParts parts;
  for (const char c : characters) parts.vocab.push_back(std::string(1, c));
  parts.pre_tokenizer = pre_tokenizer_json("gpt-2");
  parts.chat_template = "{% for m in messages %}U{{ m['content'] }}{% endfor %}";
  return Tokenizer::from_parts(parts);
}

// Shows no more of a message than its length: the small model has few letters.
inline constexpr const char* kLengthTemplate = "{% for m in messages %}{{ m['content'] | length }}{% endfor %}";

// What JSON and calls of functions need, in words of few letters; the second token ends a text.
inline Tokenizer with_template(const std::string& text, const std::vector<std::string>& special = {}) {
  TokenizerParts parts;
  for (const char* token : {"{", "B", "}", "\"", ":", ",", "<", ">", "/", "_"}) parts.vocab.emplace_back(token);
  for (const char c : std::string("0123456789-tolcanmergusdfpjk`")) parts.vocab.emplace_back(1, c);
  for (const std::string& token : special) {
    parts.added_tokens.push_back({.id = static_cast<std::int32_t>(parts.vocab.size()), .content = token, .special = true});
    parts.vocab.emplace_back(token);
  }
  while (parts.vocab.size() < 50) parts.vocab.push_back(std::string(1, static_cast<char>('C' + parts.vocab.size() - 36)));
  parts.pre_tokenizer = pre_tokenizer_json("gpt-2");
  parts.chat_template = text;
  return Tokenizer::from_parts(parts);
}

class Served {
 public:
  explicit Served(ServeOptions options = {}, EngineOptions engine = {}, const std::string& key = {},
                  const Tokenizer& tokenizer = chat_tokenizer())
      : model_(engine_model()),
        server_(served(model_, tokenizer), on_free_port(std::move(options)), on_one_thread(engine), key) {
    runs_ = std::thread([this] { server_.run(); });
  }
  ~Served() {
    server_.stop();
    if (runs_.joinable()) runs_.join();
  }

  Client client() { return Client(server_.port()); }
  HttpAnswer post(const std::string& path, const nlohmann::json& body) { return client().post(path, body); }
  HttpAnswer get(const std::string& path) { return client().ask("GET", path); }
  serve::Server& server() { return server_; }
  const Transformer& model() const { return model_; }
  void join() { runs_.join(); }
  double metric(const std::string& name) {
    const std::string text = "\n" + get("/metrics").body;
    const std::size_t at = text.find("\ndsmoe_" + name + " ");
    return at == std::string::npos ? -1 : std::stod(text.substr(at + name.size() + 8));
  }
  // Whether a metric gets to a value within ten seconds.
  bool metric_becomes(const std::string& name, double value) {
    for (int i = 0; i < 1000; ++i) {
      if (metric(name) == value) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return false;
  }

 private:
  static ServeOptions on_free_port(ServeOptions o) {
    o.port = 0;
    return o;
  }
  static EngineOptions on_one_thread(EngineOptions o) {
    o.threads = 1;
    return o;
  }
  static serve::ServedModel served(const Transformer& model, const Tokenizer& tokenizer) {
    return {.name = "small", .transformer = &model, .tokenizer = tokenizer, .end_tokens = {1}};
  }

  Transformer model_;
  serve::Server server_;
  std::thread runs_;
};

}  // namespace dsmoe::test
