#include "serve/host_check.h"

#include <arpa/inet.h>

#include <algorithm>

#include "core/fail.h"
#include "core/printable.h"

namespace dsmoe::serve {

namespace {

std::string small(std::string_view text) {
  std::string out(text);
  for (char& c : out)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return out;
}

bool is_address(const std::string& host) {
  unsigned char bytes[sizeof(in6_addr)];
  return inet_pton(AF_INET, host.c_str(), bytes) == 1 || inet_pton(AF_INET6, host.c_str(), bytes) == 1;
}

bool is_loopback(const std::string& host) {
  in_addr four{};
  in6_addr six{};
  if (inet_pton(AF_INET, host.c_str(), &four) == 1) return ntohl(four.s_addr) >> 24 == 127;
  return host == "localhost" || (inet_pton(AF_INET6, host.c_str(), &six) == 1 && IN6_IS_ADDR_LOOPBACK(&six));
}

bool is_name(std::string_view host) {
  return !host.empty() && std::all_of(host.begin(), host.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '.' || c == '_';
  });
}

// Without the port, the brackets of an IPv6 address and the dot that may end a name.
std::string without_port(std::string_view host) {
  const std::size_t bracket = host.find(']');
  if (host.starts_with('[') && bracket != std::string_view::npos) return std::string(host.substr(1, bracket - 1));
  host = host.substr(0, host.find(':'));
  if (host.ends_with('.')) host.remove_suffix(1);
  return small(host);
}

}  // namespace

HostCheck::HostCheck(const std::string& listens_on, const std::vector<std::string>& allowed)
    : checks_(is_loopback(listens_on) || !allowed.empty()) {
  for (const std::string& name : allowed) {
    if (name == "*") checks_ = false;  // and it is no name of this server
    require(name == "*" || is_name(name),
            "allowed-host {} is no host name; give it without http:// and port, or * for any name", in_quotes(name));
    if (name != "*") allowed_.push_back(without_port(name));
  }
}

bool HostCheck::allows(std::string_view host) const {
  if (!checks_ || host.empty()) return true;
  const std::string name = without_port(host);
  return is_address(name) || name == "localhost" || name.ends_with(".localhost") ||
         std::find(allowed_.begin(), allowed_.end(), name) != allowed_.end();
}

bool HostCheck::is_own(std::string_view origin, std::string_view host) const {
  const std::size_t scheme = origin.find("://");
  if (scheme == std::string_view::npos) return false;  // "null": a page of a file, or one in a sandbox
  origin.remove_prefix(scheme + 3);
  return small(origin) == small(host) ||
         std::find(allowed_.begin(), allowed_.end(), without_port(origin)) != allowed_.end();
}

}  // namespace dsmoe::serve
