#include "cli/interrupt.h"

#include <signal.h>

namespace dsmoe::cli {

namespace {

volatile sig_atomic_t asked = 0;
struct sigaction before;

}  // namespace

Interrupt::Interrupt() {
  asked = 0;
  struct sigaction action {};
  action.sa_handler = [](int) { asked = 1; };
  action.sa_flags = SA_RESETHAND;  // the second one does what it always does
  sigaction(SIGINT, &action, &before);
}

Interrupt::~Interrupt() { sigaction(SIGINT, &before, nullptr); }

bool Interrupt::pending() const { return asked != 0; }

}  // namespace dsmoe::cli
