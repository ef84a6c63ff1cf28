// Options of the HTTP server (dsmoe serve). Those of the engine behind it are in engine_options.h.
#pragma once

#include <string>
#include <vector>

#include "dsmoe/options.h"
#include "dsmoe/tensor.h"

namespace dsmoe {

struct ServeOptions {
  std::string host = "127.0.0.1";
  int port = 8080;
  std::string alias;
  std::string api_key_file;
  std::string cors_origin;
  std::vector<std::string> allowed_hosts;
  bool no_page = false;
  std::string ssl_cert_file;
  std::string ssl_key_file;
  Index body_bytes = 16 << 20;
  Index connections = 10'000;
  double idle_seconds = 75;
  double body_seconds = 60;
  double write_seconds = 60;

  void validate() const;

  template <class Self, class Visitor>
  static void visit(Self& o, Visitor&& v) {
    v(o.host, {"host", "IP address to listen on (0.0.0.0: all of this machine's)"});
    v(o.port, {"port", "Port to listen on (0: a free one, which is printed)", at_least(0).at_most(65535)});
    v(o.alias, {"alias", "Name of the model in the API (default: the name of its folder or file)"});
    v(o.api_key_file, {"api-key-file",
                       "File whose first line is the API key that clients must send (default: the "
                       "environment variable DSMOE_API_KEY; without either, none)"});
    v(o.cors_origin, {"cors-origin", "Origin of web pages elsewhere that may use the API (*: any; default: none)"});
    v(o.allowed_hosts,
      {"allowed-host",
       "Name of this server that clients may use in the Host header, beside addresses and localhost; repeatable "
       "(*: any; default: any if host is not a loopback address)"});
    v(o.no_page, {"no-page", "Do not serve the chat page at /"});
    v(o.ssl_cert_file, {"ssl-cert-file", "File with the certificate (and its chain) in PEM: speak HTTPS instead of HTTP"});
    v(o.ssl_key_file, {"ssl-key-file", "File with the certificate's private key in PEM, without a passphrase"});
    v(o.body_bytes, {"body-bytes", "Largest body of a request", at_least(1024)});
    v(o.connections, {"connections", "Open connections at most; more are closed at once", at_least(1)});
    v(o.idle_seconds, {"idle-seconds", "Close a connection that sends no request for so long", over(0)});
    v(o.body_seconds, {"body-seconds", "Close a connection whose request takes longer to arrive", over(0)});
    v(o.write_seconds, {"write-seconds", "Close a connection that takes nothing of its answer for so long", over(0)});
  }
};

}  // namespace dsmoe
