// Messages of the library name options ("batch-size"), never flags ("--batch-size", "-c"): dashes are the command line's.
#include <gtest/gtest.h>

#include <regex>

#include "repo/tree.h"

namespace dsmoe::repo {
namespace {

// String literals of src/ and include/ that hold "--word" or "(-x)". Style sheets have variables that begin so.
std::vector<std::string> flags_in_literals(const std::vector<File>& files) {
  static const std::regex literal(R"re("(?:[^"\\\n]|\\.)*")re"), flag(R"((^|[^-\w(])--[a-z][a-z0-9-]+|\(-[a-z]\))");
  std::vector<std::string> found;
  for (const File& file : files) {
    if (!file.is_source() || !(file.in("src") || file.in("include"))) continue;
    for (const std::string& line : lines_of(file.text)) {
      const std::size_t comment = line.find("//");
      const std::string code = line.substr(0, comment);
      for (std::sregex_iterator it(code.begin(), code.end(), literal), end; it != end; ++it) {
        const std::string text = it->str();
        if (std::regex_search(text, flag)) found.push_back(file.path + ": " + text);
      }
    }
  }
  return found;
}

TEST(RepoFlags, MessagesNameOptions) { EXPECT_EQ(joined(flags_in_literals(tree())), ""); }

TEST(RepoFlags, TheCheckerCanFail) {
  const auto count = [](const char* path, const char* text) { return flags_in_literals({{path, text}}).size(); };
  EXPECT_EQ(count("src/train/a.cpp", "fail(\"give more --steps\");\n"), 1u);
  EXPECT_EQ(count("src/train/a.cpp", "fail(\"--steps is {}\");\n"), 1u);
  EXPECT_EQ(count("src/infer/a.cpp", "fail(\"a larger context (-c)\");\n"), 1u);
  EXPECT_EQ(count("src/study/a.cpp", "R\"(fill:var(--plot-bg))\"; i--; x = \"a-b\"; // --steps\n"), 0u);
  EXPECT_EQ(count("cli/a.cpp", "\"--steps\"\n"), 0u);
}

}  // namespace
}  // namespace dsmoe::repo
