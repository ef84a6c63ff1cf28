#include <sstream>

#include "cli/run_program.h"

namespace dsmoe::testing {
namespace {

TEST(Program, HelpAndVersionSucceed) {
  const ProgramResult help = run_program({"--help"});
  EXPECT_EQ(help.status, 0);
  EXPECT_TRUE(help.out_has("info") && help.out_has("plan") && help.out_has("Example")) << help.out;
  EXPECT_EQ(help.err, "");
  EXPECT_EQ(run_program({"--version"}).out.rfind("dsmoe ", 0), 0u);
  std::istringstream lines(help.out.substr(help.out.find("Subcommands:\n") + 13));
  int commands = 0;
  for (std::string line; std::getline(lines, line) && (line.empty() || line.starts_with("  "));) {
    if (line.empty()) continue;
    const std::string command = line.substr(2, line.find(' ', 2) - 2);
    ++commands;
    const ProgramResult of_command = run_program({command, "--help"});
    EXPECT_EQ(of_command.status, 0) << command;
    EXPECT_TRUE(of_command.out_has("Usage: dsmoe " + command)) << of_command.out;
    EXPECT_TRUE(of_command.out_has("Example")) << of_command.out;
    EXPECT_FALSE(of_command.out_has("Needs:")) << of_command.out;
  }
  EXPECT_GE(commands, 17) << help.out;
}

TEST(Program, BadUsageIsTwo) {
  EXPECT_TRUE(fails(run_program({}), 2, {"no command", "dsmoe --help"}));
  EXPECT_TRUE(fails(run_program({"bogus"}), 2, {"no command \"bogus\"", "dsmoe --help"}));
  EXPECT_TRUE(fails(run_program({""}), 2, {"no command \"\""}));
  EXPECT_TRUE(fails(run_program({"--bogus"}), 2, {"--bogus"}));
  EXPECT_TRUE(fails(run_program({"info", "--bogus"}), 2, {"--bogus", "dsmoe info --help"}));
  EXPECT_TRUE(fails(run_program({"info", "model", "extra\nline"}), 2, {"extra\\x0aline"}))
      << "one line, whatever was passed";
}

TEST(Program, LostOutputIsAnError) {
  EXPECT_TRUE(fails(run_program({"info"}, "/dev/full"), 1, {"standard output", "No space left"}));
  EXPECT_TRUE(fails(run_program({"info"}, "-"), 1, {"standard output"}));
  EXPECT_TRUE(fails(run_program({"--help"}, "/dev/full"), 1, {"standard output"}));
  EXPECT_EQ(run_program({"info"}, "/dev/null").status, 0);
}

TEST(Program, TheCheckerCanFail) {
  EXPECT_FALSE(fails(run_program({"info"}), 0, {}));
  EXPECT_FALSE(fails(run_program({"bogus"}), 1, {}));
  EXPECT_FALSE(fails(run_program({"bogus"}), 2, {"no such words"}));
}

}  // namespace
}  // namespace dsmoe::testing
