// Starts ranks with mpirun on this machine: more than it has processors, over shared memory, and without a network.
#pragma once

#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "support/temp_folder.h"

namespace dsmoe::testing {

inline bool have_mpirun() {
  static const bool have = std::system("mpirun --version >/dev/null 2>&1") == 0;
  return have;
}

struct RanksResult {
  int status = -1;
  std::string out, err;
  double seconds = 0;
  bool err_has(const std::string& text) const { return err.find(text) != std::string::npos; }
};

// A job that runs while the test looks at it.
class Ranks {
 public:
  explicit Ranks(int count, const std::vector<std::string>& command, const std::vector<std::string>& mpirun_options = {})
      : Ranks(with_count(count, command), mpirun_options) {}
  // Several programs side by side: what follows mpirun's options, with "-n N" and ":".
  Ranks(const std::vector<std::string>& commands, const std::vector<std::string>& mpirun_options) {
    std::vector<std::string> words = mpirun_here();
    words.insert(words.end(), mpirun_options.begin(), mpirun_options.end());
    words.insert(words.end(), commands.begin(), commands.end());
    std::vector<char*> argv;
    for (std::string& w : words) argv.push_back(w.data());
    argv.push_back(nullptr);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    const std::string out = (folder_ / "out").string(), err = (folder_ / "err").string();
    posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", 0, 0);
    posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, out.c_str(), 0101, 0600);  // O_WRONLY | O_CREAT
    posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, err.c_str(), 0101, 0600);
    if (posix_spawnp(&pid_, "mpirun", &actions, nullptr, argv.data(), environ) != 0) pid_ = -1;
    posix_spawn_file_actions_destroy(&actions);
  }
  ~Ranks() {
    if (pid_ > 0) wait();
  }

  static std::vector<std::string> mpirun_here() {
    std::vector<std::string> words = {"mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none"};
    // Shared memory alone; no look at other hosts. A container may forbid reading another process' memory.
    for (const char* option : {"btl=self,vader", "btl_vader_single_copy_mechanism=none", "plm=isolated",
                               "oob_tcp_if_include=lo", "orte_base_help_aggregate=1"}) {
      const std::string text = option;
      const std::size_t at = text.find('=');
      words.insert(words.end(), {"--mca", text.substr(0, at), text.substr(at + 1)});
    }
    return words;
  }

  static std::vector<std::string> with_count(int count, const std::vector<std::string>& command) {
    std::vector<std::string> words = {"-n", std::to_string(count)};
    words.insert(words.end(), command.begin(), command.end());
    return words;
  }

  RanksResult wait() {
    RanksResult result;
    if (pid_ > 0) {
      int status = 0;
      waitpid(pid_, &status, 0);
      result.status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    }
    pid_ = -1;
    result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - began_).count();
    result.out = text_of("out"), result.err = text_of("err");
    return result;
  }

  // The process of a rank: a child of mpirun that was told so; 0 when it is not there.
  pid_t process_of(int rank) const {
    const auto text = [](const std::filesystem::path& path) {
      std::ifstream file(path);
      std::stringstream all;
      all << file.rdbuf();
      return all.str();
    };
    const std::string wanted = "OMPI_COMM_WORLD_RANK=" + std::to_string(rank) + std::string(1, '\0');
    for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
      const std::string name = entry.path().filename().string();
      if (name.find_first_not_of("0123456789") != std::string::npos) continue;
      const std::string stat = text(entry.path() / "stat");
      const std::size_t end = stat.rfind(')');  // "PID (NAME) STATE PARENT ..."
      if (end == std::string::npos || std::atoi(stat.c_str() + end + 4) != pid_) continue;
      if (text(entry.path() / "environ").find(wanted) != std::string::npos) return std::atoi(name.c_str());
    }
    return 0;
  }

  std::string text_of(const std::string& name) const {
    std::ifstream file(folder_ / name);
    std::stringstream text;
    text << file.rdbuf();
    return text.str();
  }

  // Waits until `ready` says so; false after a minute, or when the job has ended.
  template <class Ready>
  bool wait_until(Ready ready) const {
    for (int i = 0; i < 1200; ++i) {
      siginfo_t end{};
      const bool over = pid_ > 0 && ::waitid(P_PID, static_cast<id_t>(pid_), &end, WEXITED | WNOHANG | WNOWAIT) == 0 &&
                        end.si_pid == pid_;
      if (ready()) return true;
      if (over) return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
    return false;
  }

 private:
  TempFolder folder_;
  pid_t pid_ = -1;
  std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();
};

inline RanksResult run_ranks(int count, const std::vector<std::string>& command) { return Ranks(count, command).wait(); }

// Of dsmoe serve with --port 0; 0 when it does not listen.
inline std::uint16_t port_of(const Ranks& ranks) {
  const std::string line = "listening at http://127.0.0.1:";
  const auto listens = [&] { return ranks.text_of("out").find(line) != std::string::npos; };
  if (!ranks.wait_until(listens)) return 0;
  const std::string out = ranks.text_of("out");
  return static_cast<std::uint16_t>(std::stoi(out.substr(out.find(line) + line.size())));
}

}  // namespace dsmoe::testing

#define SKIP_WITHOUT_MPIRUN() \
  if (!dsmoe::testing::have_mpirun()) GTEST_SKIP() << "there is no mpirun"
