// The bytes of a connection, plain or encrypted: a stream as Asio and Beast want it.
#pragma once

#include <algorithm>
#include <boost/asio/ip/tcp.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <chrono>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>

#include DSMOE_TLS_HEADER  // serve/tls_openssl.h or serve/tls_none.h

namespace dsmoe::serve {

inline std::chrono::milliseconds duration(double seconds) {
  return std::chrono::milliseconds(static_cast<long>(seconds * 1000));
}

class HttpStream {
 public:
  using Code = boost::system::error_code;
  using executor_type = boost::beast::tcp_stream::executor_type;

  // `tls`: null for plain bytes.
  HttpStream(boost::asio::ip::tcp::socket socket, TlsContext* tls) : tcp_(std::move(socket)) {
    Code ignored;
    if (tls)
      tls_.emplace(tcp_, *tls);
    else
      tcp_.socket().non_blocking(true, ignored);  // for write_now()
  }

  executor_type get_executor() { return tcp_.get_executor(); }
  // Of what begins from here on.
  void expires_after(std::chrono::milliseconds time) { tcp_.expires_after(time); }
  void expires_never() { tcp_.expires_never(); }
  void cancel() { tcp_.cancel(); }

  // Calls `then` with an error code when bytes can flow; at once if they are plain.
  template <class Then>
  void start(std::chrono::milliseconds most, Then then) {
    if (!tls_) return then(Code());
    tcp_.expires_after(std::min<std::chrono::milliseconds>(most, kHandshake));
    tls_->async_handshake([this, then = std::move(then)](const Code& code) mutable {
      encrypts_ = !code;
      then(code);
    });
  }
  template <class Buffers, class Handler>
  auto async_read_some(const Buffers& buffers, Handler&& handler) {
    if (tls_) return tls_->async_read_some(buffers, std::forward<Handler>(handler));
    return tcp_.async_read_some(buffers, std::forward<Handler>(handler));
  }
  template <class Buffers, class Handler>
  auto async_write_some(const Buffers& buffers, Handler&& handler) {
    if (tls_) return tls_->async_write_some(buffers, std::forward<Handler>(handler));
    return tcp_.async_write_some(buffers, std::forward<Handler>(handler));
  }
  // Sends what the system takes without waiting, and returns how much that was: for a client that keeps up it is all, at a
  // fraction of the cost of async_write_some(). What is left, errors among it, is for that.
  std::size_t write_now(std::string_view bytes) {
    if (tls_) return 0;
    Code code;
    const std::size_t sent = tcp_.socket().write_some(boost::asio::buffer(bytes.data(), bytes.size()), code);
    return code ? 0 : sent;
  }
  void end_sending() {
    Code ignored;
    if (!tls_) tcp_.socket().shutdown(boost::asio::ip::tcp::socket::shutdown_send, ignored);
  }
  // With TLS the client is told, so that it can tell the end from an attack; `owner` stays until then.
  void close(std::shared_ptr<void> owner) {
    if (!encrypts_) return end();
    tcp_.cancel();
    tcp_.expires_after(kGoodbye);
    tls_->async_shutdown([this, owner = std::move(owner)](const Code&) { end(); });
  }

 private:
  static constexpr std::chrono::milliseconds kHandshake{10'000}, kGoodbye{1'000};

  void end() {
    Code ignored;
    tcp_.socket().shutdown(boost::asio::ip::tcp::socket::shutdown_both, ignored);
    tcp_.close();
  }

  boost::beast::tcp_stream tcp_;
  std::optional<TlsStream> tls_;
  bool encrypts_ = false;  // the handshake is done
};

}  // namespace dsmoe::serve
