// Messages typed at a terminal, with editing and history.
#pragma once

#include <memory>
#include <optional>
#include <string>

namespace dsmoe::cli {

// A text that is pasted is one message, whatever lines it has, where the terminal says that it is pasted; Alt-Enter begins
// a new line too.
class LineEditor {
 public:
  LineEditor();
  ~LineEditor();

  // Nothing at the end of the input (ctrl-D), and after ctrl-C; then interrupted() is true.
  std::optional<std::string> read(const char* prompt);
  bool interrupted() const { return interrupted_; }
  void remember(const std::string& message);  // for the arrow keys

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
  bool interrupted_ = false;
};

}  // namespace dsmoe::cli
