// The first lines of a reply, up to its body.
#pragma once

#include <fmt/format.h>

#include <optional>
#include <string>
#include <string_view>

#include "serve/http_server.h"

namespace dsmoe::serve {

struct HttpHead {
  int status = 200;
  std::string_view reason, type;
  std::optional<std::size_t> length;  // of the body; none: a stream
  bool chunked = false, keep_alive = true;

  std::string text(const HttpHeaders& own, const HttpHeaders& of_all) const {
    std::string out = fmt::format("HTTP/1.1 {} {}\r\nContent-Type: {}\r\n", status, reason, type);
    if (length && status != 204 && status != 304)  // those have no body
      out += fmt::format("Content-Length: {}\r\n", *length);
    else if (!length && chunked)
      out += "Transfer-Encoding: chunked\r\n";
    if (!keep_alive) out += "Connection: close\r\n";
    for (const HttpHeaders* all : {&own, &of_all})
      for (const auto& [name, value] : *all) out += fmt::format("{}: {}\r\n", name, value);
    return out + "\r\n";
  }
};

}  // namespace dsmoe::serve
