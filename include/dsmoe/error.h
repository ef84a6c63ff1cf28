// The one exception type of the library. The library never prints, aborts or exits.
#pragma once

#include <stdexcept>
#include <string>

namespace dsmoe {

enum class ErrorCode {
  kInvalidArgument,  // the caller passed something that cannot work
  kUnsupported,      // valid, but this build or this machine cannot do it
  kIo,               // the operating system refused
  kFormat,           // a file or message is malformed
  kNumeric,          // NaN or infinity where a number is needed
  kInternal,         // our own bug
};

const char* to_string(ErrorCode code);

class Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const std::string& message) : std::runtime_error(message), code_(code) {}
  ErrorCode code() const { return code_; }

 private:
  ErrorCode code_;
};

}  // namespace dsmoe
