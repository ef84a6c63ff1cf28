// A small HTTP client that can also misbehave: it sends bytes, whatever they are, and reads replies.
#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

namespace dsmoe::test {

struct HttpAnswer {
  int status = 0;                              // 0: the connection was closed
  std::map<std::string, std::string> headers;  // names in small letters
  std::string body;

  nlohmann::json json() const { return nlohmann::json::parse(body); }
  // The data of a stream of events.
  std::vector<std::string> events() const {
    std::vector<std::string> out;
    for (std::size_t at = 0; at < body.size();) {
      const std::size_t end = body.find("\n\n", at);
      EXPECT_EQ(body.substr(at, 6), "data: ");
      out.push_back(body.substr(at + 6, end - at - 6));
      at = end == std::string::npos ? body.size() : end + 2;
    }
    return out;
  }
};

class Client {
 public:
  explicit Client(std::uint16_t port) : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (::connect(socket_, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) close();
  }
  ~Client() { close(); }
  Client(Client&& other) noexcept : socket_(std::exchange(other.socket_, -1)), read_(std::move(other.read_)) {}

  bool connected() const { return socket_ >= 0; }
  int descriptor() const { return socket_; }
  void close() {
    if (socket_ >= 0) ::close(std::exchange(socket_, -1));
  }
  bool send(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t n = ::send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (n <= 0) return false;
      bytes.remove_prefix(static_cast<std::size_t>(n));
    }
    return true;
  }
  static std::string request(const std::string& method, const std::string& path, const std::string& body = {},
                             const std::string& headers = {}) {
    return method + " " + path + " HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: " + std::to_string(body.size()) + "\r\n" +
           headers + "\r\n" + body;
  }
  HttpAnswer ask(const std::string& method, const std::string& path, const std::string& body = {},
                 const std::string& headers = {}) {
    send(request(method, path, body, headers));
    return read(method == "HEAD");
  }
  HttpAnswer post(const std::string& path, const nlohmann::json& body) { return ask("POST", path, body.dump()); }

  HttpAnswer read(bool without_body = false) {
    HttpAnswer out;
    const std::string head = take_until("\r\n\r\n");
    if (head.size() < 12) return out;
    out.status = std::stoi(head.substr(9, 3));
    for (std::size_t at = head.find("\r\n") + 2; at < head.size();) {
      const std::size_t end = std::min(head.find("\r\n", at), head.size()), colon = head.find(": ", at);
      std::string name = head.substr(at, colon - at);
      std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::tolower(c); });
      if (colon < end) out.headers[name] = head.substr(colon + 2, end - colon - 2);
      at = end + 2;
    }
    if (without_body || out.status == 100 || out.status == 204 || out.status == 304) return out;
    if (out.headers.contains("content-length")) {
      out.body = take(std::stoul(out.headers["content-length"]));
    } else if (out.headers.contains("transfer-encoding")) {
      for (;;) {
        const std::string size = take_until("\r\n");
        if (size.empty()) {
          out.status = 0;  // cut off
          break;
        }
        const std::size_t n = std::stoul(size, nullptr, 16);
        out.body += take(n);
        take(2);
        if (n == 0) break;
      }
    } else {
      while (fill()) {
      }
      out.body = std::exchange(read_, {});
    }
    return out;
  }
  // What has come after `bytes` bytes at least, or all when the connection ends.
  std::string peek(std::size_t bytes) {
    while (read_.size() < bytes && fill()) {
    }
    return read_;
  }
  bool has_answer() const {  // some of it
    pollfd p{socket_, POLLIN, 0};
    return !read_.empty() || ::poll(&p, 1, 0) > 0;
  }
  bool closed_by_server(int milliseconds) {
    pollfd p{socket_, POLLIN, 0};
    for (;;) {
      if (::poll(&p, 1, milliseconds) <= 0) return false;
      if (!fill()) return true;
    }
  }

 private:
  bool fill() {
    char buffer[1 << 14];
    const ssize_t n = ::recv(socket_, buffer, sizeof buffer, 0);
    if (n > 0) read_.append(buffer, static_cast<std::size_t>(n));
    return n > 0;
  }
  std::string take(std::size_t bytes) {
    while (read_.size() < bytes && fill()) {
    }
    std::string out = read_.substr(0, bytes);
    read_.erase(0, bytes);
    return out;
  }
  std::string take_until(std::string_view end) {
    std::size_t at = 0;
    while ((at = read_.find(end)) == std::string::npos)
      if (!fill()) return {};
    std::string out = read_.substr(0, at);
    read_.erase(0, at + end.size());
    return out;
  }

  int socket_;
  std::string read_;
};

}  // namespace dsmoe::test
