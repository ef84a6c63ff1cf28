// Where a GPU's time goes. Code that launches work says what kind of work follows; as long as a Timeline lives, the times
// of these marks are kept. Without one a mark costs a look at a pointer.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "dsmoe/context.h"

namespace dsmoe {

class Timeline {
 public:
  Timeline();  // one at a time
  ~Timeline();
  Timeline(const Timeline&) = delete;
  Timeline& operator=(const Timeline&) = delete;

  // Waits, and returns the seconds of each kind since the last call, in the order in which the kinds first came.
  std::vector<std::pair<std::string, double>> seconds();

 private:
  friend void mark(const Context& ctx, const char* kind);
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// What is launched from here on, until the next mark, is work of this kind: a string literal.
void mark(const Context& ctx, const char* kind);

}  // namespace dsmoe
