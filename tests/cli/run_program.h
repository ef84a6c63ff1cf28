// Runs the built program and keeps what it wrote.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace dsmoe::testing {

inline const std::string kTokenizer = DSMOE_TEST_DATA "/tokenizer/data/deepseek-llm";
// The first tokens of that one, which takes seconds to load with sanitizers. Models that have it are of kSmallVocab tokens.
inline const std::string kSmallTokenizer = DSMOE_TEST_DATA "/cli/data/tokenizer";
inline constexpr int kSmallVocab = 1024, kSmallBos = 1000, kSmallEos = 1001;

struct ProgramResult {
  int status = -1;  // exit status, or 128 + the signal that ended it
  std::string out;
  std::string err;

  // One line "dsmoe: ..." on standard error and nothing on standard output.
  bool is_one_error_line() const {
    return out.empty() && err.rfind("dsmoe: ", 0) == 0 && std::count(err.begin(), err.end(), '\n') == 1 &&
           err.back() == '\n';
  }
  bool out_has(const std::string& text) const { return out.find(text) != std::string::npos; }
  bool err_has(const std::string& text) const { return err.find(text) != std::string::npos; }
  nlohmann::json json() const { return nlohmann::json::parse(out); }
};

// out_path: where standard output goes instead of being kept; "-" closes it. input: what standard input holds.
inline ProgramResult run_program(std::vector<std::string> arguments, const std::string& out_path = "",
                                 const std::string& input = "") {
  const auto read_all = [](std::FILE* file) {
    std::string text;
    std::rewind(file);
    char buffer[4096];
    for (std::size_t n = 0; (n = std::fread(buffer, 1, sizeof buffer, file)) > 0;) text.append(buffer, n);
    std::fclose(file);
    return text;
  };
  std::FILE* out = std::tmpfile();
  std::FILE* err = std::tmpfile();
  std::FILE* in = std::tmpfile();
  std::fwrite(input.data(), 1, input.size(), in);
  std::fflush(in);
  std::rewind(in);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, fileno(in), STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, fileno(out), STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, fileno(err), STDERR_FILENO);
  if (out_path == "-") {
    posix_spawn_file_actions_addclose(&actions, STDOUT_FILENO);
  } else if (!out_path.empty()) {
    posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, out_path.c_str(), O_WRONLY, 0);
  }
  std::vector<char*> argv;
  arguments.insert(arguments.begin(), DSMOE_PROGRAM);
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  ProgramResult result;
  pid_t pid = 0;
  if (posix_spawn(&pid, DSMOE_PROGRAM, &actions, nullptr, argv.data(), environ) == 0) {
    int status = 0;
    waitpid(pid, &status, 0);
    result.status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }
  posix_spawn_file_actions_destroy(&actions);
  std::fclose(in);
  result.out = read_all(out);
  result.err = read_all(err);
  return result;
}

inline ::testing::AssertionResult fails(const ProgramResult& result, int status,
                                        std::initializer_list<std::string_view> words) {
  if (result.status != status)
    return ::testing::AssertionFailure() << "exit status " << result.status << ": " << result.err;
  if (!result.is_one_error_line())
    return ::testing::AssertionFailure() << "not one line of error; out: " << result.out << " err: " << result.err;
  for (const std::string_view word : words)
    if (!result.err_has(std::string(word)))
      return ::testing::AssertionFailure() << "no \"" << word << "\" in: " << result.err;
  return ::testing::AssertionSuccess();
}

}  // namespace dsmoe::testing
