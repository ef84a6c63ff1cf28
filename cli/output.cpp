#include "cli/output.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <functional>
#include <set>
#include <string>

#include "core/fail.h"
#include "core/log.h"
#include "core/printable.h"

namespace dsmoe::cli {

void reserve_standard_files() {
  // The first two are opened the wrong way round, so that reading and writing still fail, and are reported.
  constexpr int kModes[] = {O_WRONLY, O_RDONLY, O_WRONLY};
  for (int fd = 0; fd <= 2; ++fd)
    if (fcntl(fd, F_GETFD) == -1 && errno == EBADF) static_cast<void>(open("/dev/null", kModes[fd]));
}

namespace {
bool quiet = false;
}

void be_quiet() { quiet = true; }

void print(std::string_view text) {
  if (quiet) return;
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size())
    fail(ErrorCode::kIo, "cannot write to standard output: {}", std::strerror(errno));
}

void print_json(const nlohmann::ordered_json& value) {
  // A path need not be UTF-8, JSON must be.
  print(value.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n");
}

void flush_output() {
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0)
    fail(ErrorCode::kIo, "cannot write to standard output: {}", std::strerror(errno));
}

namespace {

// Where standard error cannot be written there is nobody to tell; fmt::print would throw.
void put_error(const std::string& text) { static_cast<void>(std::fwrite(text.data(), 1, text.size(), stderr)); }

// A path may hold anything; this is one line.
void print_line(std::string_view begin, std::string_view message) {
  static_cast<void>(std::fflush(stdout));  // what was printed before comes first, where both go to one file
  put_error(fmt::format("{}{}\n", begin, printable(message, message.size())));
}

}  // namespace

void print_error(std::string_view message) { print_line("dsmoe: ", message); }

void print_note(std::string_view message) {
  if (!quiet) print_line("", message);
}

void log_to_stderr() {
  set_log_sink([said = std::set<std::string, std::less<>>()](std::string_view topic, std::string_view line) mutable {
    if (quiet) return;
    if (topic != kNoteTopic) return put_error(fmt::format("[{}] {}\n", topic, line));
    if (said.emplace(line).second) print_line("note: ", line);  // once, however often a file is read
  });
}

}  // namespace dsmoe::cli
