// Every source is as clang-format 14 leaves it. Other versions format otherwise, so elsewhere this is skipped.
#include <gtest/gtest.h>

#include "repo/command.h"
#include "repo/tree.h"
#include "support/files.h"
#include "support/temp_folder.h"

namespace dsmoe::repo {
namespace {

std::string clang_format_14() {
  for (const std::string name : {"clang-format-14", "clang-format"}) {
    const CommandResult version = run_command(name + " --version 2>/dev/null");
    if (version.status == 0 && version.output.find("version 14.") != std::string::npos) return name;
  }
  return "";
}

// The paths of those that are formatted otherwise, one a line.
std::string misformatted(const std::string& program, const fs::path& root, const std::vector<std::string>& paths) {
  std::string findings;
  constexpr std::size_t kAtOnce = 100;
  for (std::size_t first = 0; first < paths.size(); first += kAtOnce) {
    std::string command = "cd '" + root.string() + "' && " + program + " --dry-run --ferror-limit=1";
    for (std::size_t i = first; i < std::min(first + kAtOnce, paths.size()); ++i) command += " '" + paths[i] + "'";
    const CommandResult result = run_command(command + " 2>&1");
    for (const std::string& line : lines_of(result.output))
      if (const std::size_t at = line.find(": warning: "); at != std::string::npos && line.find(':') != at) {
        const std::string path = line.substr(0, line.find(':'));
        if (findings.find(path + "\n") == std::string::npos) findings += path + "\n";
      }
    EXPECT_EQ(result.status, 0) << command;
  }
  return findings;
}

TEST(RepoFormat, SourcesAreFormatted) {
  const std::string program = clang_format_14();
  if (program.empty()) GTEST_SKIP() << "no clang-format of version 14 here";
  std::vector<std::string> paths;
  for (const File& file : tree())
    if (file.is_source()) paths.push_back(file.path);
  EXPECT_GT(paths.size(), 100u);
  EXPECT_EQ(misformatted(program, DSMOE_SOURCE_DIR, paths), "") << "run " << program << " -i on these";
}

TEST(RepoFormat, TheCheckerCanFail) {
  const std::string program = clang_format_14();
  if (program.empty()) GTEST_SKIP() << "no clang-format of version 14 here";
  const testing::TempFolder folder;
  fs::copy_file(fs::path(DSMOE_SOURCE_DIR) / ".clang-format", folder / ".clang-format");
  testing::write_bytes(folder / "good.cpp", "int f() { return 1; }\n");
  testing::write_bytes(folder / "bad.cpp", "int f() {return 1;}\nint *g() {return 0;}\n");
  EXPECT_EQ(misformatted(program, folder.path(), {"good.cpp", "bad.cpp"}), "bad.cpp\n");
}

}  // namespace
}  // namespace dsmoe::repo
