// Which names clients may call this server by. A page of an attacker's site can have its name resolve to 127.0.0.1 (DNS
// rebinding): then it is of the same origin as this server for a browser, and could read all answers. But its requests
// still carry the site's name in the Host header.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace dsmoe::serve {

class HostCheck {
 public:
  // With nothing allowed, names are checked only if the server listens on a loopback address: others are for a network,
  // whose names for this machine nobody here knows. "*" allows any.
  HostCheck(const std::string& listens_on, const std::vector<std::string>& allowed);

  // `host` as in the header, with or without a port. An address passes, since there is no name that could be rebound; so
  // do localhost and names below it, and no header at all, which no browser sends.
  bool allows(std::string_view host) const;
  // Whether a page of this origin ("http://name:port") is the server's own, for browsers that do not say: it has the name
  // and port that the request was sent to, or, behind a proxy that changes Host, one of the allowed names.
  bool is_own(std::string_view origin, std::string_view host) const;

 private:
  bool checks_ = true;
  std::vector<std::string> allowed_;  // in small letters
};

}  // namespace dsmoe::serve
