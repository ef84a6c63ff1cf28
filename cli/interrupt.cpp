#include "cli/interrupt.h"

#include <signal.h>

#include <array>

#include "io/temporary_files.h"

namespace dsmoe::cli {

namespace {

struct Asking {
  int signal;
  const char* name;
  struct sigaction before;
};

volatile sig_atomic_t asked = 0;
std::array<Asking, 3> asking = {{{SIGINT, "SIGINT", {}}, {SIGTERM, "SIGTERM", {}}, {SIGHUP, "SIGHUP", {}}}};
struct sigaction pipe_before;
bool unattended = false;

// What the signal always does, without files that are half written.
void end_by(int signal) {
  io::remove_temporary_files();
  ::signal(signal, SIG_DFL);
  ::raise(signal);
}

// The second one, whichever it is, ends the program.
void on_signal(int signal) {
  if (asked != 0) end_by(signal);
  asked = signal;
}

}  // namespace

void remove_files_on_signals() {
  for (const Asking& a : asking) {
    struct sigaction action {};
    sigaction(a.signal, nullptr, &action);
    if (action.sa_handler == SIG_IGN) continue;  // nohup
    action.sa_handler = end_by;
    sigaction(a.signal, &action, nullptr);
  }
}

Interrupt::Interrupt(Work work) {
  asked = 0;
  unattended = work == Work::kUnattended;
  for (Asking& a : asking) {
    sigaction(a.signal, nullptr, &a.before);
    if (a.signal != SIGINT && !unattended) continue;
    if (a.signal == SIGHUP && a.before.sa_handler == SIG_IGN) continue;
    struct sigaction action {};
    action.sa_handler = on_signal;
    action.sa_flags = SA_RESTART;  // files are written meanwhile
    sigaction(a.signal, &action, nullptr);
  }
  sigaction(SIGPIPE, nullptr, &pipe_before);
  if (unattended) ::signal(SIGPIPE, SIG_IGN);
}

Interrupt::~Interrupt() {
  for (const Asking& a : asking) sigaction(a.signal, &a.before, nullptr);
  sigaction(SIGPIPE, &pipe_before, nullptr);
}

bool Interrupt::pending() const { return asked != 0; }

const char* Interrupt::signal_name() const {
  for (const Asking& a : asking)
    if (a.signal == asked) return a.name;
  return "";
}

}  // namespace dsmoe::cli
