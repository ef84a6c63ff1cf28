#include "serve/api_error.h"

#include <nlohmann/json.hpp>

#include "core/utf8.h"

namespace dsmoe::serve {

namespace {

const char* type_of(int status) {
  switch (status) {
    case 401: return "authentication_error";
    case 403: return "permission_error";
    case 404: return "not_found_error";
    case 429: return "rate_limit_error";
    case 503: return "overloaded_error";
  }
  return status < 500 ? "invalid_request_error" : "server_error";
}

}  // namespace

std::string error_body(const ApiError& error) {
  const auto or_null = [](const std::string& text) { return text.empty() ? nlohmann::json() : nlohmann::json(text); };
  const nlohmann::ordered_json body = {{"error",
                                        {{"message", utf8::replace_invalid(error.what())},
                                         {"type", type_of(error.status)},
                                         {"param", or_null(error.param)},
                                         {"code", or_null(error.code)}}}};
  return body.dump();
}

std::vector<std::pair<std::string, std::string>> error_headers(const ApiError& error) {
  if (error.status == 429) return {{"Retry-After", "1"}};
  if (!error.allow.empty()) return {{"Allow", error.allow}};
  return {};
}

std::string error_body(int status, std::string_view message) { return error_body(ApiError(status, std::string(message))); }

}  // namespace dsmoe::serve
