// From what Beast reads to what the endpoints get, and what is refused before it gets there.
#pragma once

#include <fmt/format.h>

#include <boost/beast/core/string.hpp>
#include <boost/beast/http/error.hpp>
#include <boost/beast/http/message.hpp>
#include <boost/beast/http/string_body.hpp>
#include <optional>
#include <string>

#include "core/printable.h"
#include "serve/http_server.h"

namespace dsmoe::serve {

constexpr std::size_t kHeaderBytes = 16 << 10;

struct HttpRefusal {
  int status = 400;
  std::string message;
};

// Of bytes that are no request. Nothing: the client is gone, or was too slow.
inline std::optional<HttpRefusal> refusal_of(const boost::system::error_code& code, const HttpOptions& options) {
  using boost::beast::http::error;
  if (code == error::end_of_stream || code == error::partial_message ||
      code.category() != make_error_code(error::bad_method).category())
    return {};
  if (code == error::body_limit)
    return HttpRefusal{413, fmt::format("the body is over the limit of {} bytes", options.body_bytes)};
  if (code == error::header_limit || code == error::buffer_overflow)
    return HttpRefusal{431, fmt::format("the headers are over the limit of {} bytes", kHeaderBytes)};
  return HttpRefusal{400, "this is no HTTP request that the server understands: " + code.message()};
}

using BeastRequest = boost::beast::http::request<boost::beast::http::string_body>;

// Of a body that would be read as something else than it is: for a transfer encoding that nobody here knows, Beast takes it
// to be the next request.
inline std::optional<HttpRefusal> refusal_of(const BeastRequest& r) {
  using boost::beast::http::field;
  const auto transfer = r[field::transfer_encoding], content = r[field::content_encoding];
  const auto named = [](auto view) { return in_quotes({view.data(), view.size()}); };
  if (r.count(field::transfer_encoding) > 1 || (!transfer.empty() && !boost::beast::iequals(transfer, "chunked")))
    return HttpRefusal{501, fmt::format("the Transfer-Encoding {} is not supported; chunked alone is", named(transfer))};
  if (!content.empty() && !boost::beast::iequals(content, "identity"))
    return HttpRefusal{415,
                       fmt::format("the Content-Encoding {} is not supported; send the body as it is", named(content))};
  return {};
}

inline HttpRequest taken_from(BeastRequest request) {
  using boost::beast::http::field;
  const auto text = [](auto view) { return std::string(view.data(), view.size()); };
  HttpRequest out{.method = text(request.method_string()),
                  .path = text(request.target()),
                  .host = text(request[field::host]),
                  .authorization = text(request[field::authorization]),
                  .origin = text(request[field::origin]),
                  .if_none_match = text(request[field::if_none_match]),
                  .fetch_site = text(request["Sec-Fetch-Site"]),
                  .body = std::move(request.body())};
  if (request.count(field::host) > 1) out.host = "several, so none";
  // A target may be a whole address, which then has the host (RFC 9112, 3.2.2).
  for (const std::string_view scheme : {"http://", "https://"}) {
    if (!out.path.starts_with(scheme)) continue;
    const std::size_t slash = std::min(out.path.find('/', scheme.size()), out.path.size());
    out.host = out.path.substr(scheme.size(), slash - scheme.size());
    out.path = slash < out.path.size() ? out.path.substr(slash) : "/";
  }
  out.path.erase(std::min(out.path.find('?'), out.path.size()));
  return out;
}

}  // namespace dsmoe::serve
