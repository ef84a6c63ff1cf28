// What a command of the shell prints.
#pragma once

#include <sys/wait.h>

#include <cstdio>
#include <string>

namespace dsmoe::repo {

struct CommandResult {
  int status = -1;  // of its exit; -1 where it could not be started or was killed
  std::string output;
};

inline CommandResult run_command(const std::string& line) {
  CommandResult result;
  std::FILE* pipe = popen(line.c_str(), "r");
  if (pipe == nullptr) return result;
  char buffer[4096];
  for (std::size_t n = 0; (n = std::fread(buffer, 1, sizeof buffer, pipe)) > 0;) result.output.append(buffer, n);
  const int ended = pclose(pipe);
  if (WIFEXITED(ended)) result.status = WEXITSTATUS(ended);
  return result;
}

}  // namespace dsmoe::repo
