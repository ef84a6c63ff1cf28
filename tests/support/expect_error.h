// The message of the Error that a call must throw, checked for the words it must contain.
#pragma once

#include <gtest/gtest.h>

#include <initializer_list>
#include <string>

#include "dsmoe/error.h"

namespace dsmoe::testing {

template <class Call>
::testing::AssertionResult throws_error(Call&& call, std::initializer_list<const char*> words) {
  try {
    call();
  } catch (const Error& error) {
    const std::string message = error.what();
    if (message.find('\n') != std::string::npos) return ::testing::AssertionFailure() << "more than one line: " << message;
    for (const char* word : words)
      if (message.find(word) == std::string::npos)
        return ::testing::AssertionFailure() << "no \"" << word << "\" in: " << message;
    return ::testing::AssertionSuccess();
  }
  return ::testing::AssertionFailure() << "nothing was thrown";
}

}  // namespace dsmoe::testing
