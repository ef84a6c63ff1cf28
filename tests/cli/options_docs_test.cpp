// docs/options.md is what the program says of its options: written by `dsmoe info --options > docs/options.md`.
#include <fstream>
#include <iterator>
#include <regex>

#include "cli/run_program.h"

namespace dsmoe::testing {
namespace {

std::string committed() {
  std::ifstream file(DSMOE_SOURCE_DIR "/docs/options.md");
  return {std::istreambuf_iterator<char>(file), {}};
}

// Names in the first column of the table under a heading.
std::vector<std::string> names_under(const std::string& text, const std::string& heading) {
  const std::size_t begin = text.find("## " + heading + "\n");
  if (begin == std::string::npos) return {};
  const std::string part = text.substr(begin, text.find("\n## ", begin) - begin);
  static const std::regex row("\n\\| `([a-z0-9-]+)` \\|");
  std::vector<std::string> names;
  for (std::sregex_iterator it(part.begin(), part.end(), row), end; it != end; ++it) names.push_back((*it)[1]);
  return names;
}

std::vector<std::string> missing_flags(const std::vector<std::string>& names, const std::string& help) {
  std::vector<std::string> missing;
  for (const std::string& name : names)
    if (help.find("--" + name) == std::string::npos) missing.push_back(name);
  return missing;
}

TEST(OptionsDocs, AreWhatTheProgramPrints) {
  const ProgramResult printed = run_program({"info", "--options"});
  ASSERT_EQ(printed.status, 0) << printed.err;
  EXPECT_EQ(printed.out, committed()) << "run: dsmoe info --options > docs/options.md";
}

// Of an option that may stand alone, too, help shows what it is when it is not given.
TEST(OptionsDocs, HelpShowsDefaults) {
  EXPECT_TRUE(run_program({"train", "--help"}).out_has("--recompute none|moe|block [none]"));
  EXPECT_TRUE(run_program({"generate", "--help"}).out_has("--device auto|cpu|cuda [auto]"));
}

TEST(OptionsDocs, EveryOptionIsAFlagOfItsCommand) {
  const std::string text = committed();
  const auto check = [&](const char* heading, const char* command) {
    const std::vector<std::string> names = names_under(text, heading);
    EXPECT_FALSE(names.empty()) << heading;
    EXPECT_EQ(missing_flags(names, run_program({command, "--help"}).out), std::vector<std::string>()) << command;
  };
  check("Training", "train");
  check("Starting a training run", "train");
  check("Balancing experts", "train");
  check("Loading a model", "generate");
  check("Sessions", "generate");
  check("Generating", "generate");
  check("Sampling", "chat");
  check("Serving", "serve");
  check("Running many requests", "serve");
  check("Evaluating", "eval");
  check("Ablations", "eval");
}

TEST(OptionsDocs, TheCheckersCanFail) {
  const std::string page =
      "# x\n\n## Training\n\n| option | |\n|---|---|\n| `lr` | |\n| `clip` | |\n\n## Other\n| `z` | |\n";
  EXPECT_EQ(names_under(page, "Training"), (std::vector<std::string>{"lr", "clip"}));
  EXPECT_EQ(names_under(page, "None"), std::vector<std::string>());
  EXPECT_EQ(missing_flags({"lr", "clip"}, "  --lr FLOAT"), std::vector<std::string>{"clip"});
}

}  // namespace
}  // namespace dsmoe::testing
