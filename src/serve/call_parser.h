// Finds calls of functions in an answer as it comes. The text is the model's: anything may be in it, cut off anywhere. What
// is no call of a function that the client has is text.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "serve/call_syntax.h"

namespace dsmoe::serve {

struct CallEvent {
  enum class Kind { kText, kCall, kArguments };  // kCall begins one, with its name; kArguments goes on with the last
  Kind kind = Kind::kText;
  std::string text;
};

// Where a value of JSON ends, byte by byte: brackets and strings are counted, the rest is not looked at.
class JsonExtent {
 public:
  // How many of these bytes belong to the value.
  std::size_t take(std::string_view text);
  bool begun() const { return begun_; }
  bool done() const { return done_; }

 private:
  std::size_t depth_ = 0;
  bool begun_ = false, in_string_ = false, escaped_ = false, done_ = false;
};

class CallParser {
 public:
  CallParser(const CallSyntax& syntax, std::vector<std::string> functions);

  // The events that are certain now. Arguments come as they are written; together they are those of the call.
  std::vector<CallEvent> push(std::string_view text);
  std::vector<CallEvent> finish();
  std::size_t calls() const { return calls_; }

 private:
  enum class State {
    kText,
    kMarks,  // the texts before or behind a call, of which marks_ are left; then comes after_
    kName,   // of a function, without quotes
    kOpen,   // the brace of a call in JSON
    kKey,
    kColon,
    kValue,   // of the key
    kBefore,  // the arguments
    kArguments,
    kMember,  // a comma, or the brace at the end
    kNext,    // behind a call
  };
  enum class Step { kGoOn, kWait, kFail };

  Step step();
  Step text();
  Step marks();
  Step bare_name();
  Step key();
  Step value();
  Step before_arguments();
  Step arguments();
  Step member();
  Step next();
  Step literal(char c, State then);
  std::size_t call_at(bool& wait) const;
  void begin_body(const std::string& before);
  bool begin_call(const std::string& name);
  void give_up();
  void expect(std::string_view all, State then);
  void consume(std::size_t bytes);
  void skip_white();
  std::optional<std::string> quoted(bool& bad);
  void emit(CallEvent::Kind kind, std::string text);

  const CallSyntax& syntax_;
  std::vector<std::string> functions_;
  std::string opening_;
  State state_ = State::kText, after_ = State::kText;
  std::string rest_;      // not understood yet
  std::string consumed_;  // of a call that has no name yet: text, if it turns out to be none
  std::vector<std::string> marks_;
  std::string key_;
  JsonExtent extent_;
  std::string held_;    // arguments that came before the name, or as a string
  bool begun_ = false;  // the call has its name
  bool string_arguments_ = false, had_arguments_ = false;
  bool at_start_ = true;  // of the answer
  bool last_ = false;     // no more text comes
  std::size_t calls_ = 0;
  std::vector<CallEvent> events_;
};

}  // namespace dsmoe::serve
