// Clients over HTTP that each send one request after another, as streams.
#include <atomic>
#include <thread>

#include "core/random.h"
#include "report.h"
#include "socket.h"

namespace dsmoe::bench {

namespace {

// Common words: some have a token of their own, some not. Other words for every request, so that no cache helps, but for
// the first `shared_words`.
std::string prompt_of(const Options& o, int request) {
  static constexpr const char* kWords[] = {"the",   "river", "model", "of",     "number",  "green", "walk",  "seven",
                                           "paper", "light", "and",   "expert", "morning", "to",    "token", "stone"};
  const Philox mine(o.seed + 1 + static_cast<std::uint64_t>(request), 0), shared(o.seed, 0);
  std::string text;
  for (int i = 0; i < o.prompt_words; ++i)
    text += fmt::format("{} ", kWords[(i < o.shared_words ? shared : mine).below(static_cast<std::uint64_t>(i), 16)]);
  return text;
}

std::string request_of(const Options& o, int request) {
  nlohmann::json body = {{"max_tokens", o.max_tokens}, {"stream", true}, {"ignore_eos", true},
                         {"temperature", 0},           {"seed", 1},      {"stream_options", {{"include_usage", true}}}};
  if (!o.model.empty()) body["model"] = o.model;
  if (o.chat)
    body["messages"] = nlohmann::json::array({{{"role", "user"}, {"content", prompt_of(o, request)}}});
  else
    body["prompt"] = prompt_of(o, request);
  return post_of(o, body.dump());
}

// Whether an event is surely a part of a text and nothing else. Parsing each of them would take this machine's time from
// the server.
bool is_only_text(std::string_view data) {
  std::size_t text = data.find("\"text\":\"");
  if (text == std::string_view::npos) text = data.find("\"content\":\"");
  if (text == std::string_view::npos) return false;
  text = data.find(":\"", text) + 2;
  return text < data.size() && data[text] != '"' && data.find("\"error\"") == std::string_view::npos &&
         data.find("\"usage\":{") == std::string_view::npos;
}

void take_text(double start, double& last, Seen& seen) {
  const double time = now();
  if (seen.first == 0)
    seen.first = time - start;
  else
    seen.between.push_back(time - last);
  last = time;
}

// Tokens are counted as the server says; one that does not say it is taken to send each in an event.
void take_event(const std::string& data, double start, double& last, Seen& seen) {
  if (is_only_text(data)) return take_text(start, last, seen);
  const auto event = nlohmann::json::parse(data, nullptr, false);
  if (event.is_discarded()) return;
  if (event.contains("error")) seen.failed = true;
  if (event.contains("usage") && event["usage"].is_object())
    seen.tokens = event["usage"].value("completion_tokens", seen.tokens);
  const auto choices = event.find("choices");
  if (choices == event.end() || choices->empty()) return;
  const nlohmann::json& choice = (*choices)[0];
  const nlohmann::json& part = choice.contains("delta") ? choice["delta"] : choice;
  for (const char* name : {"text", "content", "reasoning_content"})  // what servers call it that tell thoughts from answers
    if (part.contains(name) && part[name].is_string() && !part[name].get_ref<const std::string&>().empty())
      return take_text(start, last, seen);
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
  if (seen.tokens == 0 && seen.first > 0) seen.tokens = 1 + static_cast<int>(seen.between.size());
  seen.total = now() - start;
  return seen;
}

}  // namespace

void http_load(const Options& o) {
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
  print_report(o, all, seconds);
}

}  // namespace dsmoe::bench
