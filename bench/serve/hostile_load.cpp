// Clients of all kinds on a server: some check that their answer is the one the same request got alone, others vanish, send
// garbage, half a request or a byte at a time, while many streams are open. In the end nothing must be left over.
#include <dirent.h>
#include <poll.h>

#include <atomic>
#include <fstream>
#include <map>
#include <mutex>
#include <thread>

#include "core/random.h"
#include "report.h"
#include "socket.h"

namespace dsmoe::bench {

namespace {

using nlohmann::json;

struct Case {
  json body;
  std::string answer;  // when it was asked alone
};

class Draws {
 public:
  explicit Draws(std::uint64_t seed) : random_(seed, 77) {}
  int operator()(int below) { return static_cast<int>(random_.below(next_++, static_cast<std::uint64_t>(below))); }

 private:
  Philox random_;
  std::uint64_t next_ = 0;
};

json random_body(Draws& draw) {
  // Letters and two signs, which any vocabulary has.
  static constexpr const char* kWords[] = {"the.", "river,", "model.", "of,", "number.", "green,", "walk.", "seven"};
  std::string prompt = draw(3) == 0 ? "Once.upon.a.time.there.was.a.model." : "";
  for (int n = 1 + draw(draw(5) == 0 ? 80 : 20); n > 0; --n) prompt += kWords[draw(8)];
  json body = {{"prompt", prompt}, {"max_tokens", 1 + draw(40)}, {"seed", draw(1000)}, {"ignore_eos", draw(2) == 0}};
  body["temperature"] = draw(3) == 0 ? 0.0 : 0.5 + 0.25 * draw(4);
  if (draw(4) == 0) body["frequency_penalty"] = 0.5;
  if (draw(6) == 0) body["logit_bias"] = {{"5", 2.0}};
  if (draw(8) == 0) body["response_format"] = {{"type", "json_object"}};
  return body;
}

// What a request was answered; status 0: the connection ended without a whole answer.
struct Reply {
  int status = 0;
  std::string text;
};

Reply reply_of(const std::string& bytes) {
  Reply out;
  const std::size_t head = bytes.find("\r\n\r\n");
  if (head == std::string::npos || bytes.size() < 12) return out;
  const int status = std::atoi(bytes.c_str() + 9);
  if (bytes.find("text/event-stream") > head) {
    const json body = json::parse(bytes.substr(head + 4), nullptr, false);
    if (body.is_discarded()) return out;
    out.text = status == 200 ? body["choices"][0]["text"].get<std::string>() : body.dump();
    out.status = status;
    return out;
  }
  for (std::size_t at = head; (at = bytes.find("data: ", at)) != std::string::npos;) {
    const std::size_t end = bytes.find("\n\n", at);
    if (end == std::string::npos) break;
    const std::string data = bytes.substr(at + 6, end - at - 6);
    at = end;
    if (data == "[DONE]") out.status = status;
    const json event = json::parse(data, nullptr, false);
    if (event.is_discarded() || event.contains("error") || event["choices"].empty()) continue;
    out.text += event["choices"][0].value("text", "");
  }
  return out;
}

bool send_all(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (n <= 0) return false;
    bytes.remove_prefix(static_cast<std::size_t>(n));
  }
  return true;
}

std::string read_all(int fd) {
  std::string out;
  char buffer[1 << 14];
  for (ssize_t n = 0; (n = recv(fd, buffer, sizeof buffer, 0)) > 0;) out.append(buffer, static_cast<std::size_t>(n));
  return out;
}

std::string answer_to(const Options& o, const std::string& request) {
  const int fd = connect_to(o);
  if (fd < 0) return {};
  std::string out;
  if (send_all(fd, request)) out = read_all(fd);
  close(fd);
  return out;
}

// Again as long as there are too many requests.
Reply ask(const Options& o, const json& body) {
  for (;;) {
    Reply r = reply_of(answer_to(o, post_of(o, body.dump())));
    if (r.status != 429) return r;
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
}

double metric(const Options& o, const std::string& name) {
  const std::string text = answer_to(o, "GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n");
  const std::size_t at = text.find("\ndsmoe_" + name + " ");
  return at == std::string::npos ? -1 : std::atof(text.c_str() + at + name.size() + 8);
}

struct Process {
  int files = 0;
  double megabytes = 0;
};

Process look_at(int pid) {
  Process out;
  if (pid <= 0) return out;
  if (DIR* const folder = opendir(fmt::format("/proc/{}/fd", pid).c_str())) {
    while (readdir(folder)) ++out.files;
    closedir(folder);
  }
  std::ifstream status(fmt::format("/proc/{}/status", pid));
  for (std::string line; std::getline(status, line);)
    if (line.starts_with("VmRSS:")) out.megabytes = std::atof(line.c_str() + 6) / 1024;
  return out;
}

class Hostile {
 public:
  explicit Hostile(const Options& o) : o_(o) {}

  bool run() {
    ask_alone();
    if (wrong_ > 0) return finish();
    std::vector<int> open = open_streams();
    std::thread slow([this] { send_slowly(); });
    std::thread streams([this, &open] { read_streams(open); });
    const double start = now();
    clients(o_.hostile / 2, 1);
    streams.join();
    half_ = look_at(o_.pid);
    clients(o_.hostile - o_.hostile / 2, 2);
    seconds_ = now() - start;
    stop_ = true;
    slow.join();
    return finish();
  }

 private:
  void wrong(const std::string& what) {
    if (++wrong_ <= 20) fmt::print(stderr, "{}\n", what);
  }

  void ask_alone() {
    Draws draw(o_.seed);
    const int count = std::max(1, std::min(200, o_.hostile / 5));
    for (int i = 0; i < count; ++i) {
      Case c{random_body(draw), {}};
      const Reply r = ask(o_, c.body);
      if (r.status != 200) wrong(fmt::format("alone, a request was answered {} {}: {}", r.status, r.text, c.body.dump()));
      c.answer = r.text;
      cases_.push_back(std::move(c));
    }
    before_ = look_at(o_.pid);
  }

  const Case& any(Draws& draw) { return cases_[static_cast<std::size_t>(draw(static_cast<int>(cases_.size())))]; }

  void check(const Case& c, const Reply& r) {
    if (r.status != 200) return wrong(fmt::format("a request was answered {} {}: {}", r.status, r.text, c.body.dump()));
    if (r.text == c.answer)
      ++right_;
    else
      wrong(fmt::format("the answer is '{}', and '{}' alone: {}", r.text, c.answer, c.body.dump()));
  }

  std::vector<int> open_streams() {
    std::vector<int> open;
    for (int i = 0; i < o_.streams; ++i) {
      json body = cases_[static_cast<std::size_t>(i) % cases_.size()].body;
      body["stream"] = true;
      const int fd = connect_to(o_);
      if (fd < 0 || !send_all(fd, post_of(o_, body.dump()))) wrong(fmt::format("stream {} cannot be opened", i));
      open.push_back(fd);
    }
    return open;
  }

  // All are open before the first is read, and each until it has ended.
  void read_streams(const std::vector<int>& open) {
    for (std::size_t i = 0; i < open.size(); ++i) {
      if (open[i] < 0) continue;
      const Case& c = cases_[i % cases_.size()];
      const Reply r = reply_of(read_all(open[i]));
      close(open[i]);
      r.status == 429 ? static_cast<void>(++refused_) : check(c, r);
    }
  }

  // Some connections that send a byte a second, as long as the rest goes on. The server ends them.
  void send_slowly() {
    const std::string request = post_of(o_, cases_[0].body.dump());
    std::vector<int> open;
    for (int i = 0; i < 8; ++i) open.push_back(connect_to(o_));
    for (std::size_t at = 0; !stop_; ++at) {
      for (int& fd : open) {
        if (fd >= 0 && send_all(fd, request.substr(at % request.size(), 1))) continue;
        if (fd >= 0) close(fd);
        fd = -1;
      }
      std::this_thread::sleep_for(std::chrono::seconds(1));
    }
    for (const int fd : open)
      if (fd >= 0) close(fd);
  }

  void misbehave(Draws& draw) {
    const std::string request = post_of(o_, any(draw).body.dump());
    const int fd = connect_to(o_);
    if (fd < 0) return wrong("nobody listens");
    char byte[64];
    switch (draw(5)) {
      case 0: send_all(fd, request.substr(0, static_cast<std::size_t>(draw(static_cast<int>(request.size()))))); break;
      case 1: send_all(fd, request); break;  // vanishes before the answer
      case 2:
        if (send_all(fd, request)) recv(fd, byte, sizeof byte, 0);  // in the middle of it
        break;
      case 3: {
        std::string garbage(static_cast<std::size_t>(1 + draw(400)), ' ');
        for (char& c : garbage) c = static_cast<char>(draw(256));
        send_all(fd, garbage);
        break;
      }
      case 4: {
        const std::string broken = post_of(o_, "{\"prompt\": [1, {]");
        if (send_all(fd, broken) && reply_of(read_all(fd)).status != 400) wrong("broken JSON is not answered with 400");
        break;
      }
    }
    close(fd);
  }

  void clients(int requests, std::uint64_t part) {
    std::atomic<int> next = 0;
    std::vector<std::thread> all;
    for (int c = 0; c < o_.clients; ++c)
      all.emplace_back([&, c] {
        Draws draw(o_.seed + 1000 * part + static_cast<std::uint64_t>(c));
        while (next++ < requests) {
          if (draw(4) == 0) {
            ++misbehaved_;
            misbehave(draw);
            continue;
          }
          const Case& wanted = any(draw);
          json body = wanted.body;
          body["stream"] = draw(2) == 0;
          check(wanted, ask(o_, body));
        }
      });
    for (std::thread& t : all) t.join();
  }

  bool finish() {
    double running = -1, waiting = -1;
    for (int i = 0; i < 300 && (running != 0 || waiting != 0); ++i) {
      if (i > 0) std::this_thread::sleep_for(std::chrono::milliseconds(100));
      running = metric(o_, "requests_running"), waiting = metric(o_, "requests_waiting");
    }
    if (running != 0 || waiting != 0) wrong(fmt::format("{} requests still run, {} wait", running, waiting));
    const double pages = metric(o_, "kv_pages"), left = metric(o_, "kv_pages_free") + metric(o_, "kv_pages_cached");
    if (pages != left) wrong(fmt::format("{} of {} pages are left", left, pages));
    Process after = look_at(o_.pid);
    for (int i = 0; i < 100 && after.files > before_.files; ++i) {  // the server may not have closed the last ones yet
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      after = look_at(o_.pid);
    }
    if (after.files > before_.files) wrong(fmt::format("{} open files, {} before", after.files, before_.files));
    constexpr double kSlack = 32;  // MB between the half and the end: the heap is not compact
    if (o_.pid > 0 && half_.megabytes > 0 && after.megabytes > half_.megabytes * 1.05 + kSlack)
      wrong(fmt::format("{:.0f} MB, {:.0f} at half", after.megabytes, half_.megabytes));
    fmt::print("{}\n", nlohmann::ordered_json{{"wrong", wrong_.load()},
                                              {"right", right_.load()},
                                              {"misbehaved", misbehaved_.load()},
                                              {"streams", o_.streams},
                                              {"streams_refused", refused_.load()},
                                              {"distinct_requests", cases_.size()},
                                              {"seconds", seconds_},
                                              {"pages", pages},
                                              {"files_before", before_.files},
                                              {"files_after", after.files},
                                              {"mb_before", before_.megabytes},
                                              {"mb_half", half_.megabytes},
                                              {"mb_after", after.megabytes}}
                           .dump());
    return wrong_ == 0;
  }

  const Options& o_;
  std::vector<Case> cases_;
  std::atomic<int> wrong_ = 0, right_ = 0, misbehaved_ = 0, refused_ = 0;
  std::atomic<bool> stop_ = false;
  Process before_, half_;
  double seconds_ = 0;
};

}  // namespace

bool hostile_load(const Options& options) { return Hostile(options).run(); }

}  // namespace dsmoe::bench
