#include "serve/metrics.h"

#include <fmt/format.h>

#include <numeric>

namespace dsmoe::serve {

namespace {

void begin(std::string& out, const char* name, const char* type, const char* help) {
  out += fmt::format("# HELP dsmoe_{} {}\n# TYPE dsmoe_{} {}\n", name, help, name, type);
}

template <class T>
void one(std::string& out, const char* name, const char* type, const char* help, T value) {
  begin(out, name, type, help);
  out += fmt::format("dsmoe_{} {}\n", name, value);
}

void histogram(std::string& out, const char* name, const char* help, const infer::Histogram& h) {
  begin(out, name, "histogram", help);
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < h.kBounds.size(); ++i) {
    sum += h.counts[i];
    out += fmt::format("dsmoe_{}_bucket{{le=\"{}\"}} {}\n", name, h.kBounds[i], sum);
  }
  out += fmt::format("dsmoe_{0}_bucket{{le=\"+Inf\"}} {1}\ndsmoe_{0}_sum {2}\ndsmoe_{0}_count {1}\n", name, h.count, h.sum);
}

void load(std::string& out, const infer::EngineStats& s) {
  if (s.load.empty()) return;
  begin(out, "expert_tokens_total", "counter", "Tokens that chose an expert; not counted on a GPU");
  for (std::size_t l = 0; l < s.load.size(); ++l)
    for (std::size_t e = 0; e < s.load[l].size(); ++e)
      out += fmt::format("dsmoe_expert_tokens_total{{layer=\"{}\",expert=\"{}\"}} {}\n", l, e, s.load[l][e]);
  begin(out, "expert_imbalance", "gauge", "Tokens of the busiest expert of a layer over the mean of its experts");
  for (std::size_t l = 0; l < s.load.size(); ++l) {
    const double sum = static_cast<double>(std::accumulate(s.load[l].begin(), s.load[l].end(), std::uint64_t{0}));
    if (sum == 0) continue;
    const auto most = static_cast<double>(*std::max_element(s.load[l].begin(), s.load[l].end()));
    out +=
        fmt::format("dsmoe_expert_imbalance{{layer=\"{}\"}} {}\n", l, most * static_cast<double>(s.load[l].size()) / sum);
  }
}

}  // namespace

std::string metrics_text(const infer::EngineStats& s) {
  std::string out;
  one(out, "requests_running", "gauge", "Requests that run", s.running);
  one(out, "requests_waiting", "gauge", "Requests that wait for their turn", s.waiting);
  one(out, "requests_submitted_total", "counter", "Requests taken", s.submitted);
  one(out, "requests_refused_total", "counter", "Requests refused because the queue was full", s.refused);
  begin(out, "requests_ended_total", "counter", "Requests that ended, by reason");
  for (std::size_t i = 0; i < s.ended.size(); ++i)
    out +=
        fmt::format("dsmoe_requests_ended_total{{reason=\"{}\"}} {}\n", to_string(static_cast<infer::End>(i)), s.ended[i]);
  one(out, "prompt_tokens_total", "counter", "Tokens of prompts, with those of the prefix cache", s.prompt_tokens);
  one(out, "cached_tokens_total", "counter", "Tokens of prompts that the prefix cache had", s.cached_tokens);
  one(out, "generated_tokens_total", "counter", "Tokens generated", s.generated_tokens);
  one(out, "steps_total", "counter", "Steps of the engine", s.steps);
  one(out, "step_tokens_total", "counter", "Tokens computed in them, also those computed again", s.step_tokens);
  one(out, "preemptions_total", "counter", "Requests that gave their memory back for others", s.preemptions);
  one(out, "kv_pages", "gauge", "Pages of the KV cache, of 256 tokens each", s.pages);
  one(out, "kv_pages_free", "gauge", "Pages that hold nothing", s.free_pages);
  one(out, "kv_pages_cached", "gauge", "Pages in the prefix cache; running requests may use them", s.cached_pages);
  histogram(out, "time_to_first_token_seconds", "From a request to its first token", s.first_token);
  histogram(out, "time_between_tokens_seconds", "From one token of a request to the next", s.between_tokens);
  histogram(out, "request_seconds", "From a request to its end", s.request);
  load(out, s);
  return out;
}

}  // namespace dsmoe::serve
