// While one of these lives, ctrl-C asks the work to stop instead of ending the program; a second ctrl-C ends it.
#pragma once

namespace dsmoe::cli {

class Interrupt {
 public:
  Interrupt();
  ~Interrupt();
  Interrupt(const Interrupt&) = delete;
  Interrupt& operator=(const Interrupt&) = delete;
  bool pending() const;
};

}  // namespace dsmoe::cli
