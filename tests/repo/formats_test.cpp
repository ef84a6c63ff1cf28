// What kind of file a model is, is asked in src/formats alone (docs/design/formats.md).
#include <gtest/gtest.h>

#include <regex>

#include "repo/tree.h"

namespace dsmoe::repo {
namespace {

std::vector<std::string> questions(const std::vector<File>& files) {
  static const std::regex asked(R"(\bis_gguf\b)");
  std::vector<std::string> found;
  for (const File& file : files) {
    if (!file.is_source() || !(file.in("src") || file.in("cli") || file.in("include"))) continue;
    if (file.in("src/formats") || file.path == "src/io/gguf.h" || file.path == "src/io/gguf.cpp")
      continue;  // its definition
    for (const std::string& line : lines_of(file.text))
      if (std::regex_search(line, asked)) found.push_back(file.path + ": " + line);
  }
  return found;
}

TEST(RepoFormats, OnlyFormatsAskWhatKindOfFileItIs) { EXPECT_EQ(joined(questions(tree())), ""); }

TEST(RepoFormats, TheDoorAsksOnce) {
  int asked = 0;
  for (const File& file : tree())
    if (file.in("src/formats"))
      for (const std::string& line : lines_of(file.text)) asked += line.find("is_gguf(") != std::string::npos ? 1 : 0;
  EXPECT_EQ(asked, 1);
}

TEST(RepoFormats, TheCheckerCanFail) {
  EXPECT_EQ(questions({{"src/model/a.cpp", "if (io::GgufFile::is_gguf(path)) x();\n"}, {"cli/a.h", "is_gguf(p)\n"}}).size(),
            2u);
  EXPECT_EQ(questions({{"src/formats/a.cpp", "is_gguf(p)\n"},
                       {"src/io/gguf.h", "static bool is_gguf(int);\n"},
                       {"cli/a.cpp", "is_gguf_name(out)\n"},
                       {"docs/a.md", "is_gguf(p)\n"}})
                .size(),
            0u);
}

}  // namespace
}  // namespace dsmoe::repo
