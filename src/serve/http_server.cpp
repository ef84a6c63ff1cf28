#include "serve/http_server.h"

#include <fmt/format.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/read.hpp>
#include <optional>
#include <set>

#include "core/fail.h"
#include "serve/http_head.h"
#include "serve/http_request.h"
#include "serve/http_stream.h"
#include "serve/inbox.h"

namespace dsmoe::serve {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using Tcp = asio::ip::tcp;
using Code = boost::system::error_code;

namespace {

// What a client may send while it waits for a reply: the beginning of its next request.
constexpr std::size_t kAheadBytes = 64 << 10;

class Connection;

}  // namespace

struct HttpServer::Impl {
  Impl(const HttpOptions& o, HttpHandler h, HttpErrorBody e)
      : options(o), handler(std::move(h)), error_body(std::move(e)), acceptor(io), signals(io), pause(io) {
    require(o.certificate.empty() == o.key.empty(), "ssl-cert-file and ssl-key-file go together");
    if (!o.certificate.empty()) tls.emplace(o.certificate, o.key);
  }

  void listen();
  void accept();
  void wait_for_signals();
  void drain();
  void end_if_drained();

  HttpOptions options;
  HttpHandler handler;
  HttpErrorBody error_body;
  std::optional<TlsContext> tls;
  std::set<Connection*> connections;  // outlives io, whose handlers hold them
  asio::io_context io{1};
  Inbox inbox{io};
  Tcp::acceptor acceptor;
  asio::signal_set signals;
  asio::steady_timer pause;
  std::function<void(int)> on_signal;
  std::uint16_t port = 0;
  std::size_t active = 0;  // requests without an end of their reply
  bool draining = false;
};

namespace {

// One connection: reads a request, hands it on, writes the reply, reads the next. While a reply is being made it goes on
// reading, to notice when the client goes away.
class Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(HttpServer::Impl& server, Tcp::socket socket)
      : server_(server), stream_(std::move(socket), server.tls ? &*server.tls : nullptr) {
    server_.connections.insert(this);
  }
  ~Connection() { server_.connections.erase(this); }

  void start() {
    stream_.start(duration(server_.options.idle_seconds),
                  [self = shared_from_this()](const Code& code) { code ? self->close() : self->read_request(); });
  }
  void read_request();
  void close_if_idle() {
    if (!reply_ && !ended_) close();
  }
  void abandon();

 private:
  class Reply;

  void on_headers(const Code& code);
  void read_body();
  void on_body(const Code& code);
  void refuse(const std::optional<HttpRefusal>& refusal);
  void drop();
  void handle();
  void watch();
  void put(std::string_view text);
  void flush();
  void end_reply();
  void after_reply();
  void lost();
  void close();
  std::string head(int status, std::string_view type, const HttpHeaders& headers, std::optional<std::size_t> length) const;

  HttpServer::Impl& server_;
  HttpStream stream_;
  beast::flat_buffer buffer_{kHeaderBytes + kAheadBytes + (1 << 16)};
  std::optional<http::request_parser<http::string_body>> parser_;
  std::shared_ptr<Reply> reply_;  // while there is one to make
  std::string pending_, writing_;
  bool keep_alive_ = false, chunked_ = false, without_body_ = false;
  bool watching_ = false, ended_ = false, closed_ = false, refused_ = false;
};

class Connection::Reply : public HttpReply {
 public:
  explicit Reply(std::shared_ptr<Connection> connection) : connection_(std::move(connection)) {}

  void send(int status, std::string_view type, std::string_view body, const HttpHeaders& headers) override {
    if (!connection_) return;
    connection_->put(connection_->head(status, type, headers, body.size()));
    if (!connection_->without_body_) connection_->put(body);
    finish();
  }
  void start(std::string_view type) override {
    if (!connection_) return;
    streams_ = true;
    connection_->put(connection_->head(200, type, {{"Cache-Control", "no-cache"}}, {}));
    connection_->flush();
  }
  void write(std::string_view part) override {
    if (!connection_ || part.empty()) return;
    if (connection_->chunked_) connection_->put(fmt::format("{:x}\r\n", part.size()));
    connection_->put(part);
    if (connection_->chunked_) connection_->put("\r\n");
    connection_->flush();
  }
  void finish() override {
    if (!connection_) return;
    if (streams_ && connection_->chunked_) connection_->put("0\r\n\r\n");
    const std::shared_ptr<Connection> c = std::exchange(connection_, nullptr);
    gone_call_ = {};
    c->end_reply();
  }
  bool gone() const override { return !connection_; }
  void on_gone(std::function<void()> call) override {
    if (connection_) gone_call_ = std::move(call);
  }

  void lose() {
    const auto call = std::exchange(gone_call_, {});
    abandon();
    if (call) call();
  }
  void abandon() {
    connection_.reset();
    gone_call_ = {};  // it may hold whoever holds this
  }

 private:
  std::shared_ptr<Connection> connection_;  // until the reply has ended
  std::function<void()> gone_call_;
  bool streams_ = false;
};

std::string Connection::head(int status, std::string_view type, const HttpHeaders& headers,
                             std::optional<std::size_t> length) const {
  const auto reason = http::obsolete_reason(static_cast<http::status>(status));
  return HttpHead{status, {reason.data(), reason.size()}, type, length, chunked_, keep_alive_}.text(
      headers, server_.options.headers);
}

void Connection::read_request() {
  parser_.emplace();
  parser_->header_limit(kHeaderBytes);
  parser_->body_limit(server_.options.body_bytes);
  stream_.expires_after(duration(server_.options.idle_seconds));
  http::async_read_header(stream_, buffer_, *parser_,
                          [self = shared_from_this()](const Code& code, std::size_t) { self->on_headers(code); });
}

void Connection::on_headers(const Code& code) {
  if (code) return refuse(refusal_of(code, server_.options));
  const auto& request = parser_->get();
  if (const auto refusal = refusal_of(request)) return refuse(refusal);
  if (!beast::iequals(request[http::field::expect], "100-continue") || parser_->is_done()) return read_body();
  writing_ = "HTTP/1.1 100 Continue\r\n\r\n";
  asio::async_write(stream_, asio::buffer(writing_), [self = shared_from_this()](const Code& c, std::size_t) {
    self->writing_.clear();
    if (!c) self->read_body();
  });
}

void Connection::read_body() {
  stream_.expires_after(duration(server_.options.body_seconds));
  http::async_read(stream_, buffer_, *parser_,
                   [self = shared_from_this()](const Code& code, std::size_t) { self->on_body(code); });
}

void Connection::on_body(const Code& code) { code ? refuse(refusal_of(code, server_.options)) : handle(); }

// What is no proper request gets a reply if the client may still be there to read it.
void Connection::refuse(const std::optional<HttpRefusal>& refusal) {
  if (!refusal) return close();
  keep_alive_ = without_body_ = false;
  refused_ = true;
  reply_ = std::make_shared<Reply>(shared_from_this());
  ++server_.active;
  reply_->send(refusal->status, "application/json", server_.error_body(refusal->status, refusal->message), {});
}

void Connection::handle() {
  const auto& request = parser_->get();
  keep_alive_ = request.keep_alive() && !server_.draining;
  without_body_ = request.method() == http::verb::head;
  chunked_ = request.version() >= 11;
  if (!chunked_) keep_alive_ = false;  // the end of a stream is the end of the connection
  ended_ = false;
  reply_ = std::make_shared<Reply>(shared_from_this());
  ++server_.active;
  watch();
  server_.handler(taken_from(parser_->release()), reply_);
}

void Connection::watch() {
  if (watching_ || buffer_.size() >= kAheadBytes) return;
  watching_ = true;
  stream_.expires_never();
  stream_.async_read_some(buffer_.prepare(4096), [self = shared_from_this()](const Code& code, std::size_t bytes) {
    self->watching_ = false;
    self->buffer_.commit(bytes);
    if (self->closed_) return;
    if (!self->reply_ && self->writing_.empty()) return self->read_request();  // after_reply() waits for this
    if (code) return self->lost();
    self->watch();
  });
}

void Connection::put(std::string_view text) { pending_ += text; }

void Connection::flush() {
  if (!writing_.empty() || pending_.empty() || closed_) return;
  pending_.erase(0, stream_.write_now(pending_));
  if (pending_.empty()) return ended_ ? after_reply() : void();
  writing_.swap(pending_);
  stream_.expires_after(duration(server_.options.write_seconds));
  asio::async_write(stream_, asio::buffer(writing_), [self = shared_from_this()](const Code& code, std::size_t) {
    self->writing_.clear();
    if (code) return self->lost();
    if (!self->pending_.empty()) return self->flush();
    if (self->ended_) self->after_reply();
  });
}

void Connection::end_reply() {
  ended_ = true;
  reply_.reset();
  if (writing_.empty() && pending_.empty()) return after_reply();
  flush();
}

void Connection::abandon() {
  closed_ = true;
  if (reply_) reply_->abandon();
}

void Connection::after_reply() {
  ended_ = false;
  --server_.active;
  server_.end_if_drained();
  if (refused_ && !server_.draining) {
    stream_.expires_after(duration(std::min(server_.options.body_seconds, 5.0)));
    stream_.end_sending();
    return drop();
  }
  if (!keep_alive_ || server_.draining) return close();
  if (watching_)
    stream_.cancel();  // its handler reads the next request
  else
    read_request();
}

// A client that is still sending looks at the reply afterwards: to close at once would tear the connection from under it.
void Connection::drop() {
  buffer_.consume(buffer_.size());
  stream_.async_read_some(buffer_.prepare(1 << 16), [self = shared_from_this()](const Code& code, std::size_t) {
    code || self->closed_ ? self->close() : self->drop();
  });
}

void Connection::lost() {
  const bool counted = reply_ || ended_;
  close();
  if (const auto reply = std::exchange(reply_, nullptr)) reply->lose();
  if (!counted) return;
  ended_ = false;
  --server_.active;
  server_.end_if_drained();
}

void Connection::close() {
  if (std::exchange(closed_, true)) return;
  stream_.close(shared_from_this());
}

}  // namespace

void HttpServer::Impl::listen() {
  Code code;
  const auto address = asio::ip::make_address(options.host == "localhost" ? "127.0.0.1" : options.host, code);
  if (code) fail(ErrorCode::kInvalidArgument, "host '{}' is no IP address; use 127.0.0.1, 0.0.0.0 or ::1", options.host);
  const Tcp::endpoint endpoint(address, options.port);
  const auto check = [&](const char* what) {
    if (code) fail(ErrorCode::kIo, "cannot {} {}:{}: {}", what, options.host, options.port, code.message());
  };
  acceptor.open(endpoint.protocol(), code);
  check("open");
  acceptor.set_option(Tcp::acceptor::reuse_address(true), code);
  acceptor.bind(endpoint, code);
  check("listen on");
  acceptor.listen(4096, code);
  check("listen on");
  port = acceptor.local_endpoint().port();
  accept();
}

void HttpServer::Impl::accept() {
  acceptor.async_accept([this](const Code& code, Tcp::socket socket) {
    if (!acceptor.is_open()) return;
    if (code) {  // too many open files: wait for some to be closed
      pause.expires_after(std::chrono::milliseconds(50));
      pause.async_wait([this](const Code& c) {
        if (!c) accept();
      });
      return;
    }
    Code ignored;
    socket.set_option(Tcp::no_delay(true), ignored);
    if (connections.size() < options.connections) std::make_shared<Connection>(*this, std::move(socket))->start();
    accept();
  });
}

void HttpServer::Impl::wait_for_signals() {
  signals.async_wait([this](const Code& code, int number) {
    if (code) return;
    wait_for_signals();
    on_signal(number);
  });
}

void HttpServer::Impl::drain() {
  if (std::exchange(draining, true)) return;
  Code ignored;
  acceptor.close(ignored);
  pause.cancel();
  const std::vector<Connection*> all(connections.begin(), connections.end());
  for (Connection* c : all) c->close_if_idle();
  end_if_drained();
}

void HttpServer::Impl::end_if_drained() {
  if (draining && active == 0) asio::post(io, [this] { io.stop(); });
}

HttpServer::HttpServer(const HttpOptions& options, HttpHandler handler, HttpErrorBody error_body)
    : impl_(std::make_unique<Impl>(options, std::move(handler), std::move(error_body))) {
  impl_->listen();
}

// Replies that somebody still makes are cut off: a connection cannot outlive io.
HttpServer::~HttpServer() {
  for (Connection* c : impl_->connections) c->abandon();
}

std::uint16_t HttpServer::port() const { return impl_->port; }
void HttpServer::run() { impl_->io.run(); }
void HttpServer::post(std::function<void()> call) { impl_->inbox.add(std::move(call)); }
void HttpServer::drain() {
  asio::post(impl_->io, [impl = impl_.get()] { impl->drain(); });
}
void HttpServer::stop() { impl_->io.stop(); }
std::size_t HttpServer::connections() const { return impl_->connections.size(); }

void HttpServer::on_signal(std::function<void(int)> call) {
  impl_->on_signal = std::move(call);
  impl_->signals.add(SIGINT);
  impl_->signals.add(SIGTERM);
  impl_->wait_for_signals();
}

}  // namespace dsmoe::serve
