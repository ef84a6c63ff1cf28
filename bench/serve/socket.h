// Connections to the server.
#pragma once

#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <string>
#include <utility>

#include "report.h"

namespace dsmoe::bench {

// -1: there is nobody.
inline int connect_to(const Options& o) {
  addrinfo wanted{}, *found = nullptr;
  wanted.ai_socktype = SOCK_STREAM;
  if (getaddrinfo(o.host.c_str(), std::to_string(o.port).c_str(), &wanted, &found) != 0) return -1;
  int fd = -1;
  for (const addrinfo* a = found; a && fd < 0; a = a->ai_next) {
    fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const int on = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    if (connect(fd, a->ai_addr, a->ai_addrlen) == 0) break;
    close(std::exchange(fd, -1));
  }
  freeaddrinfo(found);
  return fd;
}

inline std::string post_of(const Options& o, const std::string& body) {
  const char* const key = std::getenv("DSMOE_API_KEY");
  return fmt::format(
      "POST {} HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\n{}Connection: close\r\nContent-Length: "
      "{}\r\n\r\n{}",
      o.chat ? "/v1/chat/completions" : "/v1/completions", o.host,
      key && *key ? fmt::format("Authorization: Bearer {}\r\n", key) : "", body.size(), body);
}

}  // namespace dsmoe::bench
