// What README.md shows is what happens: its commands run with the output shown, and its examples are the compiled ones.
//
// ```console blocks are run: lines "$ command" and the output under them, where a line "..." stands for any lines.
// ```text blocks are not: output that depends on the machine or takes long.
#include <gtest/gtest.h>

#include "repo/command.h"
#include "repo/markdown.h"
#include "repo/tree.h"

namespace dsmoe::repo {
namespace {

struct Command {
  std::string line;
  std::vector<std::string> output;
};

std::vector<Command> commands_of(const std::string& markdown) {
  std::vector<Command> commands;
  for (const Fence& fence : parse_markdown(markdown).fences) {
    if (fence.language != "console") continue;
    bool first = true;
    for (const std::string& line : fence.lines) {
      if (line.starts_with("$ ")) {
        commands.push_back({line.substr(2), {}});
      } else if (!first) {
        commands.back().output.push_back(line);
      }
      first = false;
    }
  }
  return commands;
}

// Standard output of a command that must succeed, in the repository's root; the program is the one of this build.
::testing::AssertionResult run(std::string line, std::string& output) {
  const std::string shown = "build/release/bin/dsmoe", built = DSMOE_PROGRAM;
  for (std::size_t at = 0; (at = line.find(shown, at)) != std::string::npos; at += built.size())
    line.replace(at, shown.size(), built);
  const CommandResult result = run_command("cd '" DSMOE_SOURCE_DIR "' && " + line);
  output = result.output;
  if (result.status != 0) return ::testing::AssertionFailure() << line << " failed: " << output;
  return ::testing::AssertionSuccess();
}

// Lines are equal; "..." matches any number of them.
bool matches(const std::vector<std::string>& want, const std::vector<std::string>& got, std::size_t w = 0,
             std::size_t g = 0) {
  if (w == want.size()) return g == got.size();
  if (want[w] == "...") {
    for (std::size_t next = g; next <= got.size(); ++next)
      if (matches(want, got, w + 1, next)) return true;
    return false;
  }
  return g < got.size() && want[w] == got[g] && matches(want, got, w + 1, g + 1);
}

std::string readme() { return read_text(fs::path(DSMOE_SOURCE_DIR) / "README.md"); }

TEST(RepoReadme, CommandsPrintWhatItShows) {
  if (std::string(DSMOE_PROGRAM).empty()) GTEST_SKIP() << "the program is not part of this build (DSMOE_BUILD_CLI)";
  const std::vector<Command> commands = commands_of(readme());
  EXPECT_GE(commands.size(), 2u);
  for (const Command& command : commands) {
    std::string output;
    ASSERT_TRUE(run(command.line, output));
    EXPECT_TRUE(matches(command.output, lines_of(output))) << "$ " << command.line << "\n" << output;
  }
}

TEST(RepoReadme, ExamplesAreTheCompiledOnes) {
  const std::vector<std::string> files = {"generate_text.cpp", "many_texts.cpp", "fine_tune.cpp", "moe_layer.cpp",
                                          "moe_layer_cuda.cpp"};
  std::size_t found = 0;
  for (const Fence& fence : parse_markdown(readme()).fences) {
    if (fence.language != "cpp") continue;
    ASSERT_LT(found, files.size());
    const fs::path file = fs::path(DSMOE_SOURCE_DIR) / "examples" / files[found++];
    EXPECT_TRUE(matches(fence.lines, lines_of(read_text(file)))) << file;
  }
  EXPECT_EQ(found, files.size());
}

TEST(RepoReadme, TheCheckerCanFail) {
  const auto commands = commands_of("```console\n$ a b\nout\n\n$ c\n```\n```text\n$ not run\n```\n");
  ASSERT_EQ(commands.size(), 2u);
  EXPECT_EQ(commands[0].line, "a b");
  EXPECT_EQ(commands[0].output, (std::vector<std::string>{"out", ""}));
  std::string output;
  EXPECT_TRUE(run("echo one; echo two", output));
  EXPECT_EQ(output, "one\ntwo\n");
  EXPECT_FALSE(run("echo one; exit 3", output));
  const std::vector<std::string> got = {"a", "b", "c"};
  EXPECT_TRUE(matches({"a", "b", "c"}, got) && matches({"a", "..."}, got) && matches({"...", "c"}, got));
  EXPECT_FALSE(matches({"a", "b"}, got) || matches({"...", "b"}, got) || matches({"a", "b", "c", "d"}, got));
}

}  // namespace
}  // namespace dsmoe::repo
