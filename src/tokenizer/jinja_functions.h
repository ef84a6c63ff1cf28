// What a template can call by name, and the limits it runs under.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/jinja_parser.h"

namespace dsmoe::jinja {

// A template from a stranger must end, and must not fill the memory.
class Budget {
 public:
  void step(Position at) {
    if (++steps_ > kMaxSteps) fail_at(ErrorCode::kUnsupported, at, "more than {} steps", kMaxSteps);
  }
  // Before something of that size is made.
  void bytes(Position at, std::size_t n) {
    if (n > kMaxBytes || (bytes_ += n) > kMaxBytes)
      fail_at(ErrorCode::kUnsupported, at, "more than {} bytes of text", kMaxBytes);
  }

 private:
  static constexpr std::size_t kMaxSteps = 1'000'000;
  static constexpr std::size_t kMaxBytes = std::size_t{128} << 20;
  std::size_t steps_ = 0, bytes_ = 0;
};

struct Arguments {
  Position at;
  std::string_view name;  // of what is called
  List values;
  std::vector<std::string> names;  // "" for a positional one
  Budget& budget;
};

Value call_function(Arguments& arguments);
Value call_filter(const Value& subject, Arguments& arguments);
Value call_method(const Value& subject, Arguments& arguments);
bool run_test(const Value& subject, std::string_view name);

// As {{ }} writes it.
Text to_text(const Value& value, Position at);

}  // namespace dsmoe::jinja
