// How the library raises an Error: fail(code, "...", args) always, require(condition, ...) for arguments.
#pragma once

#include <fmt/format.h>

#include <utility>

#include "dsmoe/error.h"
#include "dsmoe/tensor.h"

// Shapes are formatted only when a message is: "[3, 4]".
template <>
struct fmt::formatter<dsmoe::Shape> : fmt::formatter<std::string> {
  auto format(const dsmoe::Shape& shape, fmt::format_context& ctx) const {
    return fmt::formatter<std::string>::format(shape.str(), ctx);
  }
};

namespace dsmoe {

template <class... Args>
[[noreturn]] void fail(ErrorCode code, fmt::format_string<Args...> format, Args&&... args) {
  throw Error(code, fmt::format(format, std::forward<Args>(args)...));
}

// Checks what a caller passed. The message is only formatted when the check fails.
template <class... Args>
void require(bool condition, fmt::format_string<Args...> format, Args&&... args) {
  if (!condition) [[unlikely]]
    throw Error(ErrorCode::kInvalidArgument, fmt::format(format, std::forward<Args>(args)...));
}

// Checks our own invariants: a failure is a bug in this library, never the caller's mistake.
inline void invariant(bool condition, const char* what) {
  if (!condition) [[unlikely]]
    throw Error(ErrorCode::kInternal, fmt::format("internal error: {}", what));
}

}  // namespace dsmoe
