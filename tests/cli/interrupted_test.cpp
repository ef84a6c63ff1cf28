// Commands that a signal ends leave no hidden file of gigabytes behind.
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <filesystem>
#include <thread>

#include "cli/run_program.h"
#include "support/temp_folder.h"

namespace dsmoe::testing {
namespace {

namespace fs = std::filesystem;

// Files of at least so many bytes.
std::size_t files_below(const fs::path& folder, std::uintmax_t bytes = 0) {
  constexpr auto kNone = static_cast<std::uintmax_t>(-1);  // what file_size() says on an error
  std::size_t count = 0;
  std::error_code ignored;  // a folder or a file may vanish meanwhile
  for (fs::recursive_directory_iterator at(folder, ignored), end; at != end; at.increment(ignored))
    if (const std::uintmax_t size = at->is_regular_file(ignored) ? at->file_size(ignored) : kNone; size != kNone)
      count += size >= bytes;
  return count;
}

// Runs until it has written into a file, and returns the signal that ended it.
int ended_by(int signal, std::vector<std::string> arguments, const fs::path& folder) {
  arguments.insert(arguments.begin(), DSMOE_PROGRAM);
  std::vector<char*> argv;
  for (std::string& a : arguments) argv.push_back(a.data());
  argv.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
  pid_t pid = 0;
  EXPECT_EQ(posix_spawn(&pid, DSMOE_PROGRAM, &actions, nullptr, argv.data(), environ), 0);
  posix_spawn_file_actions_destroy(&actions);
  for (int i = 0; i < 3000 && files_below(folder, 1) == 0; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_GT(files_below(folder, 1), 0u);
  kill(pid, signal);
  int status = 0;
  waitpid(pid, &status, 0);
  return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

TEST(Interrupted, AModelThatIsBeingWrittenIsRemoved) {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP})
    for (const char* out : {"m", "m.gguf"}) {
      const TempFolder dir;
      EXPECT_EQ(ended_by(signal, {"init", "--preset", "paper-2b", "-t", "1", "-o", (dir / out).string()}, dir.path()),
                signal);
      EXPECT_EQ(files_below(dir.path()), 0u) << out;
    }
}

TEST(Interrupted, TheCheckSeesWhatIsLeft) {
  const TempFolder dir;
  EXPECT_EQ(ended_by(SIGKILL, {"init", "--preset", "paper-2b", "-t", "1", "-o", (dir / "m.gguf").string()}, dir.path()),
            SIGKILL);
  EXPECT_EQ(files_below(dir.path()), 1u);
}

}  // namespace
}  // namespace dsmoe::testing
