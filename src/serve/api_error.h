// Errors of the API, in OpenAI's form.
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace dsmoe::serve {

struct ApiError : std::runtime_error {
  // `param`: the field of the request that is wrong, "" for none. `code`: for programs, "" for none.
  ApiError(int status_code, const std::string& message, std::string param_name = {}, std::string code_name = {})
      : std::runtime_error(message), status(status_code), param(std::move(param_name)), code(std::move(code_name)) {}

  int status;
  std::string param, code;
  std::string allow;  // of a 405: the methods that the path is for
};

// {"error": {"message": ..., "type": ..., "param": ..., "code": ...}}
std::string error_body(const ApiError& error);
std::string error_body(int status, std::string_view message);
// Of the reply: when to try again.
std::vector<std::pair<std::string, std::string>> error_headers(const ApiError& error);

}  // namespace dsmoe::serve
