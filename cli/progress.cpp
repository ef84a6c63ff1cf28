#include "cli/progress.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>

#include "cli/format.h"
#include "core/printable.h"

namespace dsmoe::cli {

namespace {
constexpr double kRedrawSeconds = 0.1;  // on a terminal
constexpr double kLineSeconds = 10;     // when piped
constexpr int kMostBar = 30;
constexpr int kLeastBar = 10;

// The work goes on when nobody can see how far it is; fmt::print would throw.
bool silent = false;
void put(std::FILE* file, const std::string& text) {
  if (file != nullptr && !silent) static_cast<void>(std::fwrite(text.data(), 1, text.size(), file));
}
}  // namespace

void ProgressOutput::silence() { silent = true; }

ProgressOutput ProgressOutput::standard() {
  ProgressOutput out;
  out.terminal = isatty(STDERR_FILENO) == 1;
  winsize size{};
  if (ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) out.columns = size.ws_col;
  out.seconds = [] { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); };
  return out;
}

ProgressOutput ProgressOutput::unless(bool quiet) {
  ProgressOutput out = standard();
  if (quiet) out.file = nullptr;
  return out;
}

Progress::Progress(std::string label, std::int64_t total, std::string unit, std::int64_t start, ProgressOutput output)
    : label_(std::move(label)),
      total_(total),
      unit_(std::move(unit)),
      start_(start),
      output_(std::move(output)),
      done_(start),
      began_(output_.seconds()),
      drawn_(began_) {}

Progress::~Progress() {
  if (line_open_) put(output_.file, "\n");
}

void Progress::update(std::int64_t done, std::string_view note) {
  done_ = done;
  note_ = note;
  const double now = output_.seconds();
  if (now - drawn_ >= (output_.terminal ? kRedrawSeconds : kLineSeconds)) draw(now);
}

void Progress::line(std::string_view text) {
  put(output_.file, fmt::format("{}{}\n", line_open_ ? "\r\x1b[K" : "", printable(text, text.size())));
  if (line_open_) draw(output_.seconds());
}

void Progress::finish() {
  if (finished_) return;
  finished_ = true;
  draw(output_.seconds());
  if (line_open_) put(output_.file, "\n");
  line_open_ = false;
}

std::string Progress::state(double now) const {
  const double elapsed = now - began_;
  const double rate = elapsed > 0 ? static_cast<double>(done_ - start_) / elapsed : 0;
  std::string text = thousands(done_);
  if (total_ > 0) text += fmt::format("/{}", thousands(total_));
  text += " " + unit_;
  if (total_ > 0) text += fmt::format(" ({:.0f}%)", 100.0 * static_cast<double>(done_) / static_cast<double>(total_));
  if (rate > 0)
    text += fmt::format(", {} {}/s", rate < 1000 ? fmt::format("{:.3g}", rate) : thousands(std::llround(rate)), unit_);
  if (finished_) {
    text += ", took " + human_duration(elapsed);
  } else if (rate > 0 && total_ > done_) {
    text += ", " + human_duration(static_cast<double>(total_ - done_) / rate) + " left";
  }
  if (!note_.empty()) text += ", " + note_;
  return text;
}

void Progress::draw(double now) {
  drawn_ = now;
  const std::string text = state(now);
  if (!output_.terminal) {
    put(output_.file, fmt::format("{}: {}\n", label_, text));
  } else {
    const int room = output_.columns - 1 - static_cast<int>(label_.size() + text.size()) - 4;  // " [", "] "
    std::string line = label_ + " ";
    if (total_ > 0 && room >= kLeastBar) {
      const int bar = std::min(room, kMostBar);
      const double share = std::clamp(static_cast<double>(done_) / static_cast<double>(total_), 0.0, 1.0);
      const auto full = static_cast<std::size_t>(share * bar);
      line.append("[").append(full, '#').append(static_cast<std::size_t>(bar) - full, '.').append("] ");
    }
    line += text;
    const auto most = static_cast<std::size_t>(std::max(output_.columns - 1, 0));
    if (line.size() > most) line.resize(most);  // a longer line would wrap, and \r goes back one row only
    put(output_.file, fmt::format("\r{}\x1b[K", line));
    line_open_ = true;
  }
  if (output_.file != nullptr) std::fflush(output_.file);
}

}  // namespace dsmoe::cli
