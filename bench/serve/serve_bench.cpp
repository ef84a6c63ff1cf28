// Load on a server with OpenAI's API: clients that each send one request after another to /v1/completions, as streams, and
// what they saw: tokens per second of all, time to the first token, time between tokens.
//
//   serve_bench --port 8080 --clients 16 --requests 64 --prompt-words 100 --max-tokens 128
#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "core/random.h"

namespace {

struct Options {
  std::string host = "127.0.0.1", model;
  int port = 8080, clients = 4, requests = 32, prompt_words = 100, max_tokens = 128, shared_words = 0;
  std::uint64_t seed = 1;
  bool json = false;
};

struct Seen {
  double first = 0, total = 0;  // seconds
  std::vector<double> between;
  int tokens = 0;
  bool failed = false;
};

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

// Common words: some have a token of their own, some not. Other words for every request, so that no cache helps, but for
// the first `shared_words`.
std::string prompt_of(const Options& o, int request) {
  static constexpr const char* kWords[] = {"the",   "river", "model", "of",     "number",  "green", "walk",  "seven",
                                           "paper", "light", "and",   "expert", "morning", "to",    "token", "stone"};
  const dsmoe::Philox mine(o.seed + 1 + static_cast<std::uint64_t>(request), 0), shared(o.seed, 0);
  std::string text;
  for (int i = 0; i < o.prompt_words; ++i)
    text += fmt::format("{} ", kWords[(i < o.shared_words ? shared : mine).below(static_cast<std::uint64_t>(i), 16)]);
  return text;
}

std::string request_of(const Options& o, int request) {
  nlohmann::json body = {{"prompt", prompt_of(o, request)},
                         {"max_tokens", o.max_tokens},
                         {"stream", true},
                         {"ignore_eos", true},
                         {"temperature", 0},
                         {"seed", 1},
                         {"stream_options", {{"include_usage", true}}}};
  if (!o.model.empty()) body["model"] = o.model;
  const std::string text = body.dump();
  return fmt::format(
      "POST /v1/completions HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length: "
      "{}\r\n\r\n{}",
      o.host, text.size(), text);
}

int connect_to(const Options& o) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(o.port));
  const int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  if (inet_pton(AF_INET, o.host.c_str(), &address.sin_addr) == 1 &&
      connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0)
    return fd;
  close(fd);
  return -1;
}

// An event with text is a token, but the server's own count is taken where it says one.
void take_event(const std::string& data, double start, double& last, Seen& seen) {
  const auto event = nlohmann::json::parse(data, nullptr, false);
  if (event.is_discarded()) return;
  if (event.contains("error")) seen.failed = true;
  if (event.contains("usage") && event["usage"].is_object())
    seen.tokens = event["usage"].value("completion_tokens", seen.tokens);
  const auto choices = event.find("choices");
  if (choices == event.end() || choices->empty() || (*choices)[0].value("text", "").empty()) return;
  const double time = now();
  if (seen.first == 0)
    seen.first = time - start;
  else
    seen.between.push_back(time - last);
  last = time;
}

Seen ask(const Options& o, int request) {
  Seen seen;
  const double start = now();
  double last = start;
  const int fd = connect_to(o);
  const std::string text = request_of(o, request);
  if (fd < 0 || send(fd, text.data(), text.size(), MSG_NOSIGNAL) != static_cast<ssize_t>(text.size())) seen.failed = true;
  std::string read;
  char buffer[1 << 14];
  bool done = false;
  for (ssize_t n = 0; !seen.failed && (n = recv(fd, buffer, sizeof buffer, 0)) > 0;) {
    read.append(buffer, static_cast<std::size_t>(n));
    for (std::size_t end = 0; (end = read.find("\n\n")) != std::string::npos; read.erase(0, end + 2)) {
      const std::size_t data = read.rfind("data: ", end);
      if (data == std::string::npos) continue;
      const std::string event = read.substr(data + 6, end - data - 6);
      done = done || event == "[DONE]";
      take_event(event, start, last, seen);
    }
  }
  if (fd >= 0) close(fd);
  seen.failed = seen.failed || !done;
  seen.total = now() - start;
  return seen;
}

double at(std::vector<double> values, double part) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  return values[std::min(values.size() - 1, static_cast<std::size_t>(part * static_cast<double>(values.size())))];
}

void run(const Options& o) {
  std::vector<Seen> all(static_cast<std::size_t>(o.requests));
  std::atomic<int> next = 0;
  std::vector<std::thread> clients;
  const double start = now();
  for (int c = 0; c < o.clients; ++c)
    clients.emplace_back([&] {
      for (int i = 0; (i = next++) < o.requests;) all[static_cast<std::size_t>(i)] = ask(o, i);
    });
  for (std::thread& t : clients) t.join();
  const double seconds = now() - start;
  std::vector<double> first, between, total;
  int tokens = 0, failed = 0;
  for (const Seen& s : all) {
    failed += s.failed;
    tokens += s.tokens;
    first.push_back(s.first), total.push_back(s.total);
    between.insert(between.end(), s.between.begin(), s.between.end());
  }
  const double rate = tokens / seconds;
  if (o.json) {
    const nlohmann::ordered_json result = {{"clients", o.clients},
                                           {"requests", o.requests},
                                           {"failed", failed},
                                           {"seconds", seconds},
                                           {"output_tokens", tokens},
                                           {"output_tokens_per_second", rate},
                                           {"first_token_p50", at(first, 0.5)},
                                           {"first_token_p95", at(first, 0.95)},
                                           {"between_tokens_p50", at(between, 0.5)},
                                           {"between_tokens_p95", at(between, 0.95)},
                                           {"request_p50", at(total, 0.5)}};
    fmt::print("{}\n", result.dump());
    return;
  }
  fmt::print("{} clients, {} requests ({} failed): {} tokens in {:.2f} s, {:.1f} tok/s\n", o.clients, o.requests, failed,
             tokens, seconds, rate);
  fmt::print("first token {:.3f} s (p95 {:.3f}), between tokens {:.1f} ms (p95 {:.1f})\n", at(first, 0.5), at(first, 0.95),
             1e3 * at(between, 0.5), 1e3 * at(between, 0.95));
}

}  // namespace

int main(int argc, char** argv) {
  Options o;
  CLI::App app("Load on a server with OpenAI's API");
  app.add_option("--host", o.host, "IP address");
  app.add_option("--port", o.port, "Port");
  app.add_option("--model", o.model, "Name of the model, for servers that want one");
  app.add_option("--clients", o.clients, "Clients at the same time")->check(CLI::Range(1, 10'000));
  app.add_option("--requests", o.requests, "Requests of all clients together")->check(CLI::Range(1, 10'000'000));
  app.add_option("--prompt-words", o.prompt_words, "Words of a prompt")->check(CLI::Range(1, 1'000'000));
  app.add_option("--shared-words", o.shared_words, "Words that all prompts begin with")->check(CLI::NonNegativeNumber);
  app.add_option("--max-tokens", o.max_tokens, "Tokens of an answer")->check(CLI::Range(1, 1'000'000));
  app.add_option("--seed", o.seed, "Seed of the prompts");
  app.add_flag("--json", o.json, "Print the result as JSON");
  CLI11_PARSE(app, argc, argv);
  run(o);
  return 0;
}
