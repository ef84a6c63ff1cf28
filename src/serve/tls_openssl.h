// TLS by OpenSSL: a server's certificate, and a connection under it. tls_none.h is the same for builds without.
#pragma once

#include <unistd.h>

#include <boost/asio/ssl/context.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <cerrno>
#include <string>
#include <utility>

#include "core/fail.h"
#include "core/printable.h"

namespace dsmoe::serve {

class TlsContext {
 public:
  TlsContext(const std::string& certificate, const std::string& key) {
    namespace ssl = boost::asio::ssl;
    boost::system::error_code code;
    const auto check = [&](const char* option, const std::string& file) {
      if (code && ::access(file.c_str(), R_OK) != 0) code.assign(errno, boost::system::generic_category());
      if (code) fail(ErrorCode::kIo, "{} {}: {}", option, in_quotes(file), code.message());
    };
    context.set_options(ssl::context::default_workarounds | ssl::context::no_sslv2 | ssl::context::no_sslv3 |
                        ssl::context::no_tlsv1 | ssl::context::no_tlsv1_1);
    // Instead of a question on the terminal.
    context.set_password_callback([](std::size_t, ssl::context::password_purpose) { return std::string(); });
    context.use_certificate_chain_file(certificate, code);
    check("ssl-cert-file", certificate);
    context.use_private_key_file(key, ssl::context::pem, code);
    check("ssl-key-file", key);
  }
  boost::asio::ssl::context context{boost::asio::ssl::context::tls_server};
};

class TlsStream {
 public:
  TlsStream(boost::beast::tcp_stream& tcp, TlsContext& tls) : stream_(tcp, tls.context) {}

  template <class Handler>
  void async_handshake(Handler&& handler) {
    stream_.async_handshake(boost::asio::ssl::stream_base::server, std::forward<Handler>(handler));
  }
  template <class Buffers, class Handler>
  auto async_read_some(const Buffers& buffers, Handler&& handler) {
    return stream_.async_read_some(buffers, std::forward<Handler>(handler));
  }
  template <class Buffers, class Handler>
  auto async_write_some(const Buffers& buffers, Handler&& handler) {
    return stream_.async_write_some(buffers, std::forward<Handler>(handler));
  }
  template <class Handler>
  void async_shutdown(Handler&& handler) {
    stream_.async_shutdown(std::forward<Handler>(handler));
  }

 private:
  boost::asio::ssl::stream<boost::beast::tcp_stream&> stream_;
};

}  // namespace dsmoe::serve
