// What clients saw, and how it is printed.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace dsmoe::bench {

struct Options {
  std::string host = "127.0.0.1", model;
  int port = 8080, clients = 4, requests = 32, prompt_words = 100, max_tokens = 128, shared_words = 0;
  std::uint64_t seed = 1;
  bool json = false, chat = false;
  // The engine in this process instead of a server:
  std::string preset, path, device = "cpu", dtype;
  int prompt = 128, layers = 0, step_tokens = 0, threads = 0;
  float temperature = 0;
  bool wait = false;     // never a step ahead
  bool session = false;  // one client, in turns with a bare session
  // Clients of all kinds:
  int hostile = 0, streams = 1000, pid = 0;
};

// One request.
struct Seen {
  double first = 0, total = 0;  // seconds
  std::vector<double> between;
  int tokens = 0;
  bool failed = false;
};

inline double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

inline double at(std::vector<double> values, double part) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  return values[std::min(values.size() - 1, static_cast<std::size_t>(part * static_cast<double>(values.size())))];
}

// `more` is added to the JSON.
inline void print_report(const Options& o, const std::vector<Seen>& all, double seconds, nlohmann::ordered_json more = {}) {
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
    nlohmann::ordered_json result = {{"clients", o.clients},
                                     {"requests", all.size()},
                                     {"failed", failed},
                                     {"seconds", seconds},
                                     {"output_tokens", tokens},
                                     {"output_tokens_per_second", rate},
                                     {"first_token_p50", at(first, 0.5)},
                                     {"first_token_p95", at(first, 0.95)},
                                     {"between_tokens_p50", at(between, 0.5)},
                                     {"between_tokens_p95", at(between, 0.95)},
                                     {"between_tokens_p99", at(between, 0.99)},
                                     {"request_p50", at(total, 0.5)}};
    for (const auto& [key, value] : more.items()) result[key] = value;
    fmt::print("{}\n", result.dump());
    return;
  }
  fmt::print("{} clients, {} requests ({} failed): {} tokens in {:.2f} s, {:.1f} tok/s\n", o.clients, all.size(), failed,
             tokens, seconds, rate);
  fmt::print("first token {:.3f} s (p95 {:.3f}), between tokens {:.1f} ms (p95 {:.1f}, p99 {:.1f})\n", at(first, 0.5),
             at(first, 0.95), 1e3 * at(between, 0.5), 1e3 * at(between, 0.95), 1e3 * at(between, 0.99));
}

void http_load(const Options& options);
void engine_load(const Options& options);
void one_client(const Options& options);
bool hostile_load(const Options& options);  // false: something was wrong, which is said

}  // namespace dsmoe::bench
