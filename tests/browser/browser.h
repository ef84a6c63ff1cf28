// A headless browser, driven over the pipe of its debugging protocol: what a page does when people look at it.
#pragma once

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

namespace dsmoe::testing {

// The path of chromium, or "" where there is none.
inline std::string find_chromium() {
  const char* path = std::getenv("PATH");
  std::string folders = path ? path : "";
  for (const char* name : {"chromium", "chromium-browser", "google-chrome"}) {
    for (std::size_t at = 0; at <= folders.size();) {
      const std::size_t end = std::min(folders.find(':', at), folders.size());
      const std::string file = folders.substr(at, end - at) + "/" + name;
      if (access(file.c_str(), X_OK) == 0) return file;
      at = end + 1;
    }
  }
  return "";
}

class Browser {
 public:
  using Json = nlohmann::json;

  Browser(const std::string& program, const std::filesystem::path& profile) {
    int to[2], from[2];
    if (pipe(to) != 0 || pipe(from) != 0) throw std::runtime_error("pipe");
    pid_ = fork();
    if (pid_ == 0) {
      // The protocol's commands come on descriptor 3 and its answers go to 4.
      const int in = fcntl(to[0], F_DUPFD, 10), out = fcntl(from[1], F_DUPFD, 10), null = ::open("/dev/null", O_RDWR);
      for (int fd : {0, 1, 2}) dup2(null, fd);
      dup2(in, 3);
      dup2(out, 4);
      const std::string user = "--user-data-dir=" + profile.string();
      execl(program.c_str(), program.c_str(), "--headless=new", "--remote-debugging-pipe", "--no-sandbox", "--disable-gpu",
            "--disable-dev-shm-usage", "--no-first-run", "--disable-extensions", "--hide-scrollbars", user.c_str(),
            "about:blank", nullptr);
      _exit(127);
    }
    close(to[0]);
    close(from[1]);
    in_ = from[0];
    out_ = to[1];
    signal(SIGPIPE, SIG_IGN);
    const std::string target = call("Target.createTarget", {{"url", "about:blank"}})["targetId"];
    session_ = call("Target.attachToTarget", {{"targetId", target}, {"flatten", true}})["sessionId"];
    for (const char* domain : {"Page.enable", "Runtime.enable", "Log.enable", "Network.enable"})
      call(domain, Json::object());
  }
  ~Browser() {
    close(in_);
    close(out_);
    kill(pid_, SIGTERM);
    waitpid(pid_, nullptr, 0);
  }
  Browser(const Browser&) = delete;
  Browser& operator=(const Browser&) = delete;

  Json call(const std::string& method, Json parameters) {
    Json message = {{"id", ++id_}, {"method", method}, {"params", std::move(parameters)}};
    if (!session_.empty()) message["sessionId"] = session_;
    const std::string text = message.dump();
    if (write(out_, text.c_str(), text.size() + 1) != static_cast<ssize_t>(text.size() + 1))
      throw std::runtime_error("the browser is gone");
    for (;;) {
      const Json answer = read_message();
      if (answer.value("id", -1) == id_) {
        if (answer.contains("error")) throw std::runtime_error(method + ": " + answer["error"].dump());
        return answer["result"];
      }
      events_.push_back(answer);
    }
  }

  void open(const std::filesystem::path& file, int width, int height, bool dark) {
    go("file://" + file.string(), width, height, dark);
  }
  void go(const std::string& url, int width, int height, bool dark) {
    call("Emulation.setDeviceMetricsOverride",
         {{"width", width}, {"height", height}, {"deviceScaleFactor", 1}, {"mobile", false}});
    call("Emulation.setEmulatedMedia",
         {{"features", {{{"name", "prefers-color-scheme"}, {"value", dark ? "dark" : "light"}}}}});
    const std::size_t before = events_.size();
    call("Page.navigate", {{"url", url}});
    wait_for("Page.loadEventFired", before);
  }

  // The value of an expression in the page.
  Json evaluate(const std::string& expression) {
    const Json result =
        call("Runtime.evaluate", {{"expression", expression}, {"returnByValue", true}, {"awaitPromise", true}});
    if (result.contains("exceptionDetails")) throw std::runtime_error(result["exceptionDetails"].dump());
    return result["result"].value("value", Json());
  }

  // Whether an expression becomes true within twenty seconds.
  bool becomes(const std::string& expression) {
    for (int i = 0; i < 400; ++i) {
      if (evaluate("!!(" + expression + ")") == true) return true;
      evaluate("new Promise(done => setTimeout(done, 50))");
    }
    return false;
  }

  // Moves the pointer, as a hand would, to the middle of the first element of a selector.
  // Pages draw some of them a moment after what asked for them.
  void hover(const std::string& selector) {
    becomes("document.querySelector(" + Json(selector).dump() + ")");
    mouse("mouseMoved", selector);
  }
  void click(const std::string& selector) {
    hover(selector);
    mouse("mousePressed", selector);
    mouse("mouseReleased", selector);
  }
  void point(double x, double y) {
    call("Input.dispatchMouseEvent", {{"type", "mouseMoved"}, {"x", x}, {"y", y}, {"button", "none"}});
  }
  void press(const std::string& key) {
    for (const char* type : {"keyDown", "keyUp"})
      call("Input.dispatchKeyEvent", {{"type", type}, {"key", key}, {"code", key}});
  }
  void shift_enter() {
    for (const char* type : {"keyDown", "keyUp"})
      call("Input.dispatchKeyEvent", {{"type", type},
                                      {"key", "Enter"},
                                      {"code", "Enter"},
                                      {"modifiers", 8},
                                      {"windowsVirtualKeyCode", 13},
                                      {"text", "\r"}});
  }
  void type(const std::string& text) { call("Input.insertText", {{"text", text}}); }

  std::string screenshot(bool whole_page) {  // PNG
    const std::string data =
        call("Page.captureScreenshot", {{"format", "png"}, {"captureBeyondViewport", whole_page}})["data"];
    return decode_base64(data);
  }

  // What a developer would see in the console, and requests that left the page, or the server that it is from.
  std::vector<std::string> complaints(const std::string& own = "file:") {
    std::vector<std::string> out;
    for (const Json& e : events_) {
      const std::string method = e.value("method", "");
      if (method == "Runtime.exceptionThrown" || method == "Log.entryAdded") out.push_back(e["params"].dump());
      if (method == "Runtime.consoleAPICalled" && (e["params"]["type"] == "error" || e["params"]["type"] == "warning"))
        out.push_back(e["params"].dump());
      if (method == "Network.requestWillBeSent") {
        const std::string url = e["params"]["request"]["url"];
        if (!url.starts_with(own) && !url.starts_with("data:") && !url.starts_with("about:"))
          out.push_back("request of " + url);
      }
      if (method == "Page.javascriptDialogOpening") out.push_back("a dialog");
    }
    return out;
  }

 private:
  static constexpr int kWaitMs = 120'000;  // a loaded machine starts a browser slowly

  void mouse(const char* type, const std::string& selector) {
    const Json box = evaluate("(() => { const e = document.querySelector(" + Json(selector).dump() +
                              "); e.scrollIntoView({block: 'center', behavior: 'instant'}); const b = "
                              "e.getBoundingClientRect(); return [b.left + b.width / 2, b.top + b.height / 2]; })()");
    call("Input.dispatchMouseEvent", {{"type", type},
                                      {"x", box[0]},
                                      {"y", box[1]},
                                      {"button", std::string(type) == "mouseMoved" ? "none" : "left"},
                                      {"clickCount", 1}});
  }

  // An event after the first `from`, those that came while a call was answered among them.
  void wait_for(const std::string& method, std::size_t from) {
    for (;; ++from) {
      if (from == events_.size()) events_.push_back(read_message());
      if (events_[from].value("method", "") == method) return;
    }
  }

  Json read_message() {
    for (;;) {
      const std::size_t end = held_.find('\0');
      if (end != std::string::npos) {
        Json message = Json::parse(held_.substr(0, end));
        held_.erase(0, end + 1);
        return message;
      }
      pollfd wait{in_, POLLIN, 0};
      char buffer[65536];
      if (poll(&wait, 1, kWaitMs) != 1) throw std::runtime_error("the browser does not answer");
      const ssize_t n = read(in_, buffer, sizeof buffer);
      if (n <= 0) throw std::runtime_error("the browser ended");
      held_.append(buffer, static_cast<std::size_t>(n));
    }
  }

  static std::string decode_base64(const std::string& text) {
    const std::string digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    std::string out;
    unsigned held = 0;
    int bits = 0;
    for (const char c : text) {
      const std::size_t digit = digits.find(c);
      if (digit == std::string::npos) continue;
      held = (held << 6) | static_cast<unsigned>(digit);
      if ((bits += 6) >= 8) out.push_back(static_cast<char>(held >> (bits -= 8)));
    }
    return out;
  }

  pid_t pid_ = -1;
  int in_ = -1, out_ = -1, id_ = 0;
  std::string session_, held_;
  std::vector<Json> events_;
};

}  // namespace dsmoe::testing
