// Documents name files and functions that exist.
#include <gtest/gtest.h>

#include <regex>
#include <set>

#include "repo/markdown.h"
#include "repo/tree.h"

namespace dsmoe::repo {
namespace {

// What can be named: files and folders, and under which names. Sources may be named from src/ and include/ on, as in
// an #include, and any file by its own name.
class Names {
 public:
  explicit Names(const std::vector<File>& files) {
    for (const File& file : files) {
      for (std::string path = file.path; !path.empty(); path = parent(path)) add(path);
      own_.insert(file.path.substr(file.path.rfind('/') + 1));
      if (file.is_source()) sources_.push_back(&file);
    }
  }
  bool has_path(std::string path) const {
    while (path.ends_with("/")) path.pop_back();
    return paths_.contains(path);
  }
  bool has_first(const std::string& path) const { return paths_.contains(path.substr(0, path.find('/'))); }
  bool has_own_name(const std::string& name) const { return own_.contains(name); }
  bool has_function(const std::string& name) const {
    return std::any_of(sources_.begin(), sources_.end(), [&](const File* f) {
      for (std::size_t at = f->text.find(name); at != std::string::npos; at = f->text.find(name, at + 1)) {
        const char before = at == 0 ? ' ' : f->text[at - 1],
                   after = f->text[std::min(at + name.size(), f->text.size() - 1)];
        if (!is_word(before) && (after == '(' || after == '<')) return true;
      }
      return false;
    });
  }

 private:
  static bool is_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_'; }
  static std::string parent(const std::string& path) {
    return path.find('/') == std::string::npos ? "" : path.substr(0, path.rfind('/'));
  }
  void add(const std::string& path) {
    paths_.insert(path);
    for (const std::string root : {"src/", "include/"})
      if (path.starts_with(root)) paths_.insert(path.substr(root.size()));
  }

  std::set<std::string> paths_, own_;
  std::vector<const File*> sources_;
};

// A path that is given from the document's own folder.
std::string beside(const File& document, const std::string& path) {
  return (fs::path(document.path).parent_path() / path).lexically_normal().generic_string();
}

// Of a document: paths and functions in backticks, and relative links, that lead nowhere.
std::vector<std::string> dead_names(const File& document, const Names& names) {
  static const std::regex path(R"([A-Za-z0-9_.][A-Za-z0-9_.+/-]*)");
  static const std::regex in_folder(R"(.*/(|[^/]*\.[a-z0-9]+))");  // ends in a slash or an extension
  static const std::regex own_name(R"([A-Za-z0-9_]+\.(cpp|h|cu|cuh|cmake|sh|py|md))");
  static const std::regex function(R"((?:[A-Za-z0-9_]+::)*([a-z][A-Za-z0-9_]*)\(\))");
  const Markdown parts = parse_markdown(document.text);
  std::vector<std::string> dead;
  for (const std::string& code : parts.code) {
    std::smatch match;
    const bool made_by_build = code.starts_with("build/");
    bool good = true;
    if (std::regex_match(code, match, function))
      good = names.has_function(match[1]);
    else if (std::regex_match(code, own_name))
      good = names.has_own_name(code);
    else if (std::regex_match(code, path) && code.find('/') != std::string::npos && !made_by_build &&
             (std::regex_match(code, in_folder) || names.has_first(code)))
      good = names.has_path(code.starts_with("./") ? code.substr(2) : code) || names.has_path(beside(document, code));
    if (!good) dead.push_back(document.path + " names `" + code + "`");
  }
  for (const std::string& link : parts.links) {
    if (link.starts_with("http") || link.starts_with("#")) continue;
    if (!names.has_path(beside(document, link.substr(0, link.find('#')))))
      dead.push_back(document.path + " links to " + link);
  }
  return dead;
}

TEST(RepoDocs, NameWhatExists) {
  const Names names(tree());
  int documents = 0;
  for (const File& file : tree()) {
    if (!file.ends_with(".md")) continue;
    ++documents;
    EXPECT_EQ(joined(dead_names(file, names)), "");
  }
  EXPECT_GT(documents, 5);
}

TEST(RepoDocs, TheTokensWayNamesItsFiles) {
  const Markdown way = parse_markdown(read_text(fs::path(DSMOE_SOURCE_DIR) / "docs/follow-a-token.md"));
  const std::set<std::string> named(way.code.begin(), way.code.end());
  for (const File& file : tree())
    if (file.in("src/moe") && file.ends_with(".cpp") && file.path != "src/moe/moe_config.cpp" &&
        file.path != "src/moe/segmentation.cpp") {
      EXPECT_TRUE(named.contains(file.path)) << file.path << " is on the way of a token";
    }
}

// Lines that give a measured speed or time where neither they nor the lines above them, back to the last heading, give the
// day on which it was measured.
std::vector<std::string> undated_figures(const File& document) {
  static const std::regex figure(R"([0-9] ?(µs|ms|GB/s|TB/s|GFLOP/s|TFLOP/s|tok/s|tokens/s)\b)");
  static const std::regex day(
      R"(20[0-9][0-9]-[0-9][0-9]-[0-9][0-9]|[0-9] (January|February|March|April|May|June|July|August|September|October|November|December) 20[0-9][0-9])");
  std::vector<std::string> findings;
  bool dated = false, fenced = false;
  for (const std::string& line : lines_of(document.text)) {
    if (line.starts_with("```")) fenced = !fenced;
    if (fenced) continue;
    if (line.starts_with("#")) dated = false;
    dated = dated || std::regex_search(line, day);
    if (!dated && std::regex_search(line, figure)) findings.push_back(document.path + ": " + line);
  }
  return findings;
}

TEST(RepoDocs, FiguresHaveTheirDay) {
  for (const File& file : tree())
    if (file.path == "README.md" || (file.in("docs") && file.ends_with(".md"))) {
      EXPECT_EQ(joined(undated_figures(file)), "");
    }
}

TEST(RepoDocs, TheCheckerOfDaysCanFail) {
  const auto count = [](const char* text) { return undated_figures({"docs/a.md", text}).size(); };
  EXPECT_EQ(count("# a\nMeasured on 2026-11-16:\n\n| 1 | 3 ms |\n"), 0u);
  EXPECT_EQ(count("# a\nOn 5 May 2026 it took 3 ms.\n"), 0u);
  EXPECT_EQ(count("# a\nOn 2026-11-16.\n## b\n| 1 | 44 GB/s |\n"), 1u) << "of another section";
  EXPECT_EQ(count("It takes 44.5 µs.\n```text\n3 ms\n```\n"), 1u);
}

TEST(RepoDocs, TheCheckerCanFail) {
  const std::vector<File> files = {{"src/moe/gate.cpp", "void gate_forward(int);"}, {"docs/a.md", ""}, {"test.sh", ""}};
  const Names names(files);
  const auto count = [&](const char* text) { return dead_names({"docs/b.md", text}, names).size(); };
  EXPECT_EQ(
      count(
          "`src/moe/gate.cpp` `moe/gate.cpp` `src/moe/` `./test.sh` `gate.cpp` `gate_forward()` [a](a.md) "
          "[t](../test.sh) `../test.sh` `../src/moe/gate.cpp` [w](https://example.org/x.md) `build/x/y.cpp` `a/b` `x < y`"),
      0u);
  for (const char* text : {"`src/moe/gate.h`", "`moe/none.cpp`", "`scr/moe/gate.cpp`", "`none.cpp`", "`gate_backward()`",
                           "`forward()`", "`src/none`", "`../src/gate.cpp`", "[a](none.md)", "[t](test.sh)"})
    EXPECT_EQ(count(text), 1u) << text;
}

}  // namespace
}  // namespace dsmoe::repo
