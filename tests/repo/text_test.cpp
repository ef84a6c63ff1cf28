// What no text file of the repository may hold.
#include <gtest/gtest.h>

#include "repo/tree.h"

namespace dsmoe::repo {
namespace {

// Written in two parts, so that this file does not hold them.
const std::vector<std::string> kForbidden = {
    std::string("/ho") + "me/",         std::string("/ro") + "ot/",   std::string("/wo") + "rk/",  // folders of one machine
    std::string("<<<<") + "<<< ",       std::string(">>>>") + ">>> ",                              // unfinished merges
    std::string("-----BEGIN ") + "PRI",                                                            // keys
};
constexpr std::size_t kLargest = 8u << 20;  // bytes: golden files are small, the largest file is a real vocabulary

bool is_text(const File& file) { return file.text.find('\0') == std::string::npos; }

std::vector<std::string> findings(const std::vector<File>& files) {
  std::vector<std::string> found;
  for (const File& file : files) {
    if (file.text.size() > kLargest) found.push_back(file.path + " is larger than 8 MiB");
    if (!is_text(file) || file.in("tests/fuzz/corpus")) continue;
    for (const std::string& word : kForbidden)
      if (file.text.find(word) != std::string::npos) found.push_back(file.path + " holds " + word);
    const bool prose_or_code = file.is_source() || file.ends_with(".md") || file.ends_with(".sh") || file.ends_with(".txt");
    if (!prose_or_code) continue;
    if (file.text.find('\r') != std::string::npos) found.push_back(file.path + " has carriage returns");
    if (file.text.find(" \n") != std::string::npos) found.push_back(file.path + " has spaces at the end of a line");
    if (!file.text.empty() && file.text.back() != '\n') found.push_back(file.path + " does not end with a newline");
  }
  return found;
}

// Tests run at the same time as others, and as tests of other checkouts: a name of its own comes from TempFolder alone.
const std::vector<std::string> kOwnFolders = {
    std::string("testing::Temp") + "Dir(",
    std::string("\"/t") + "mp",
    std::string("get") + "pid",
    std::string("temp_directory") + "_path",
    std::string("mk") + "dtemp",
    std::string("mks") + "temp",
    std::string("tmp") + "nam",
};

std::vector<std::string> own_folders(const std::vector<File>& files) {
  std::vector<std::string> found;
  for (const File& file : files) {
    if (!file.in("tests") || !file.is_source() || file.path == "tests/support/temp_folder.h") continue;
    for (const std::string& word : kOwnFolders)
      if (file.text.find(word) != std::string::npos)
        found.push_back(file.path + " holds " + word + "; use TempFolder of tests/support/temp_folder.h");
  }
  return found;
}

TEST(RepoText, TestsShareNoTemporaryFile) { EXPECT_EQ(joined(own_folders(tree())), ""); }

TEST(RepoText, TheCheckerOfTemporaryFilesCanFail) {
  for (const std::string& word : kOwnFolders) {
    EXPECT_EQ(own_folders({{"tests/io/a_test.cpp", "x(" + word + "x\n"}}).size(), 1u) << word;
    EXPECT_EQ(own_folders({{"src/io/a.cpp", word}, {"tests/support/temp_folder.h", word}, {"tests/a.md", word}}).size(),
              0u);
  }
}

TEST(RepoText, HoldsNothingForbidden) { EXPECT_EQ(joined(findings(tree())), ""); }

TEST(RepoText, TheCheckerCanFail) {
  EXPECT_EQ(findings({{"a.md", "fine\n"}, {"b.bin", std::string("\0 \n", 3)}}).size(), 0u);
  for (const std::string& word : kForbidden) EXPECT_EQ(findings({{"a.cpp", "// " + word + "x\n"}}).size(), 1u) << word;
  EXPECT_EQ(findings({{"a.cpp", "x\r\n"}, {"b.h", "x \n"}, {"c.md", "x"}}).size(), 3u);
  EXPECT_EQ(findings({{"large", std::string(kLargest + 1, 'x')}}).size(), 1u);
}

}  // namespace
}  // namespace dsmoe::repo
