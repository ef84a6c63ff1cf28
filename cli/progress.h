// How far long work has come, on standard error: a bar that redraws itself on a terminal, a line now and then when
// piped. Standard output stays free for results.
#pragma once

#include <cstdint>
#include <cstdio>
#include <functional>
#include <string>
#include <string_view>

namespace dsmoe::cli {

struct ProgressOutput {
  std::FILE* file = stderr;  // null: nothing is shown
  bool terminal = false;
  int columns = 80;
  std::function<double()> seconds;  // a clock that does not jump

  static ProgressOutput standard();          // standard error as it is
  static ProgressOutput unless(bool quiet);  // standard(), or nothing at all
  static void silence();                     // nothing from here on, in this process
};

class Progress {
 public:
  // total 0: unknown, so no share and no time left. start: what was done before, when work resumes.
  Progress(std::string label, std::int64_t total, std::string unit, std::int64_t start = 0,
           ProgressOutput output = ProgressOutput::standard());
  ~Progress();  // leaves what was last drawn in place
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void update(std::int64_t done, std::string_view note = {});  // cheap when called often
  void line(std::string_view text);                            // a line of its own, above the bar
  void finish();                                               // draws the last state and ends the line

 private:
  std::string state(double now) const;  // "120/1,000 steps (12%), 3.20 steps/s, 4:35 left"
  void draw(double now);

  std::string label_;
  std::int64_t total_;
  std::string unit_;
  std::int64_t start_;
  ProgressOutput output_;
  std::int64_t done_;
  std::string note_;
  double began_;
  double drawn_;
  bool line_open_ = false;
  bool finished_ = false;
};

}  // namespace dsmoe::cli
