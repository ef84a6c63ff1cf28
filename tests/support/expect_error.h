// The Error that a call must throw: its message on one line, with the words and the code that it must have.
#pragma once

#include <gtest/gtest.h>

#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>

#include "dsmoe/error.h"

namespace dsmoe::testing {

template <class Call>
::testing::AssertionResult throws_error(Call&& call, std::initializer_list<std::string_view> words,
                                        std::optional<ErrorCode> code = std::nullopt) {
  try {
    call();
  } catch (const Error& error) {
    const std::string message = error.what();
    if (message.find('\n') != std::string::npos) return ::testing::AssertionFailure() << "more than one line: " << message;
    for (const std::string_view word : words)
      if (message.find(word) == std::string::npos)
        return ::testing::AssertionFailure() << "no \"" << word << "\" in: " << message;
    if (code && error.code() != *code)
      return ::testing::AssertionFailure()
             << "an error of \"" << to_string(error.code()) << "\", expected \"" << to_string(*code) << "\": " << message;
    return ::testing::AssertionSuccess();
  }
  return ::testing::AssertionFailure() << "nothing was thrown";
}

// The whole message, "" when nothing is thrown.
template <class Call>
std::string error_of(Call&& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

}  // namespace dsmoe::testing
