// While one of these lives, ctrl-C asks the work to stop instead of ending the program; a second one ends it.
#pragma once

namespace dsmoe::cli {

enum class Work {
  kAttended,  // somebody watches: SIGINT only
  // May run for hours with nobody there. SIGTERM (a scheduler, a shutdown) and SIGHUP (the terminal is gone, or the shell
  // that started a job ended while it was paused) ask to stop too, and a reader of its output that goes away does not
  // matter (SIGPIPE). SIGHUP stays ignored under nohup.
  kUnattended,
};

// From here on, what ends the program by a signal (SIGINT, SIGTERM, SIGHUP) takes the files with it that are not complete.
void remove_files_on_signals();

class Interrupt {
 public:
  explicit Interrupt(Work work = Work::kAttended);
  ~Interrupt();
  Interrupt(const Interrupt&) = delete;
  Interrupt& operator=(const Interrupt&) = delete;
  bool pending() const;
  const char* signal_name() const;  // of the signal that asked, "SIGTERM"; "" when none did
};

}  // namespace dsmoe::cli
