// HTTP/1.1 on one thread, for any number of connections: no stack and no thread for each of them. It knows requests and
// replies, and nothing of what is asked. Everything but post(), drain() and stop() is called by the thread that runs it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace dsmoe::serve {

struct HttpOptions {
  std::string host = "127.0.0.1";
  std::uint16_t port = 8080;                                      // 0: a free one
  std::size_t body_bytes = 16 << 20;                              // of a request
  std::size_t connections = 10'000;                               // more are closed at once
  double idle_seconds = 75;                                       // until a connection's next request has its headers
  double body_seconds = 60;                                       // until a body is there
  double write_seconds = 60;                                      // until a client has taken what was written
  std::vector<std::pair<std::string, std::string>> headers = {};  // of every reply
  std::string certificate = {}, key = {};                         // files in PEM; "": no TLS
};

using HttpHeaders = std::vector<std::pair<std::string, std::string>>;

struct HttpRequest {
  std::string method, path;  // without a query
  // Headers; "" for one that is not there.
  std::string host, authorization, origin, if_none_match, fetch_site;
  std::string body;
};

// The reply to one request: send(), or start(), write() any number of times, and finish(). A client that goes away is
// no error: what is written to it is dropped, and on_gone() says so. To HEAD, send() sends all but the body.
class HttpReply {
 public:
  virtual ~HttpReply() = default;
  virtual void send(int status, std::string_view type, std::string_view body, const HttpHeaders& headers = {}) = 0;
  virtual void start(std::string_view type) = 0;
  virtual void write(std::string_view part) = 0;
  virtual void finish() = 0;
  virtual bool gone() const = 0;
  virtual void on_gone(std::function<void()> call) = 0;  // at most once, and not after the end of the reply
};

using HttpHandler = std::function<void(HttpRequest, std::shared_ptr<HttpReply>)>;
// The body of a reply to what is no proper request, as JSON.
using HttpErrorBody = std::function<std::string(int status, std::string_view message)>;

class HttpServer {
 public:
  // Listens from here on; an Error when it cannot.
  HttpServer(const HttpOptions& options, HttpHandler handler, HttpErrorBody error_body);
  ~HttpServer();

  std::uint16_t port() const;
  void run();
  // From any thread:
  void post(std::function<void()> call);  // to be called by the thread that runs the server
  void drain();                           // takes no new connections; run() returns when every request has its reply
  void stop();                            // run() returns

  // Called for each SIGINT and SIGTERM while the server runs, instead of what they do otherwise.
  void on_signal(std::function<void(int signal)> call);
  std::size_t connections() const;  // open now

  struct Impl;  // the server's own

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace dsmoe::serve
