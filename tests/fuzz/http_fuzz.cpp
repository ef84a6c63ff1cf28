// Any bytes on a connection to the HTTP server, by a client that sends them, ends its side and reads: every request has its
// reply, and the connection ends.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "fuzz/check_io.h"
#include "serve/http_server.h"

namespace {

using namespace dsmoe;

std::atomic<int> handled = 0, refused = 0;

// Replies of both kinds, at once.
void reply_to(const serve::HttpRequest& r, const std::shared_ptr<serve::HttpReply>& reply) {
  ++handled;
  io::must(!r.method.empty() && r.path.find('?') == std::string::npos, "a request without a method, or with a query");
  io::must(r.body.size() <= 10'000, "a body over the limit");
  if (r.path.size() % 2 == 0) return reply->send(200, "text/plain", r.method == "HEAD" ? "" : "whole");
  reply->start("text/plain");
  reply->write("a part");
  reply->finish();
}

struct Running {
  serve::HttpServer server{
      {.port = 0, .body_bytes = 10'000, .idle_seconds = 5, .body_seconds = 5},
      [](const serve::HttpRequest& r, const std::shared_ptr<serve::HttpReply>& reply) { reply_to(r, reply); },
      [](int, std::string_view message) {
        ++refused;
        io::must(message.find('\n') == std::string_view::npos && message.size() < 1000, "a long message");
        return std::string("{}");
      }};
  std::thread thread{[this] { server.run(); }};
  ~Running() {
    server.stop();
    thread.join();
  }
};

int connected(std::uint16_t port) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  io::must(connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0, "nobody listens");
  const linger at_once{1, 0};  // no ports that wait for minutes
  setsockopt(fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
  return fd;
}

int count_of(std::string_view text, std::string_view part) {
  int count = 0;
  for (std::size_t at = 0; (at = text.find(part, at)) != std::string_view::npos; at += part.size()) ++count;
  return count;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static Running running;
  handled = refused = 0;
  const int fd = connected(running.server.port());
  bool sent = true;
  for (std::size_t at = 0; sent && at < size;) {
    const ssize_t n = send(fd, data + at, size - at, MSG_NOSIGNAL);
    sent = n > 0;
    at += sent ? static_cast<std::size_t>(n) : 0;
  }
  shutdown(fd, SHUT_WR);
  std::string read;
  char buffer[1 << 14];
  ssize_t n = 0;
  while ((n = recv(fd, buffer, sizeof buffer, 0)) > 0) read.append(buffer, static_cast<std::size_t>(n));
  close(fd);
  io::must(refused <= 1, "a connection goes on after what was no request");
  if (n < 0) return 0;  // it sent more than anyone read
  const int replies = count_of(read, "HTTP/1.1 ") - count_of(read, "HTTP/1.1 100 ");
  io::must(replies == handled + refused, "a request without its reply");
  io::must(read.empty() || read.starts_with("HTTP/1.1 "), "a reply that is none");
  return 0;
}
