// In the place of tls_openssl.h, where the build has no OpenSSL.
#pragma once

#include <boost/beast/core/tcp_stream.hpp>
#include <string>
#include <utility>

#include "core/fail.h"

namespace dsmoe::serve {

class TlsContext {
 public:
  TlsContext(const std::string&, const std::string&) {
    fail(ErrorCode::kUnsupported,
         "ssl-cert-file: this build has no TLS; install OpenSSL's headers (libssl-dev) and build with -DDSMOE_TLS=ON");
  }
};

class TlsStream {  // never made
 public:
  TlsStream(boost::beast::tcp_stream& tcp, TlsContext&) : tcp_(tcp) {}

  template <class Handler>
  void async_handshake(Handler&&) {}
  template <class Buffers, class Handler>
  auto async_read_some(const Buffers& buffers, Handler&& handler) {
    return tcp_.async_read_some(buffers, std::forward<Handler>(handler));
  }
  template <class Buffers, class Handler>
  auto async_write_some(const Buffers& buffers, Handler&& handler) {
    return tcp_.async_write_some(buffers, std::forward<Handler>(handler));
  }
  template <class Handler>
  void async_shutdown(Handler&&) {}

 private:
  boost::beast::tcp_stream& tcp_;
};

}  // namespace dsmoe::serve
