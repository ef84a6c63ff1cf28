// The direction of dependence: every #include of src/ and cli/ obeys the table of docs/design/layers.md, and python/ sees
// the public headers alone.
#include <gtest/gtest.h>

#include <map>
#include <regex>
#include <set>

#include "repo/tree.h"

namespace dsmoe::repo {
namespace {

using Table = std::map<std::string, std::set<std::string>>;

// Rows "| `moe` | `ops`, `parallel` | ..." of a markdown table: the folder, then what it may include.
Table parse_table(const std::string& markdown) {
  static const std::regex row(R"(^\| `([a-z]+)` \|([^|]*)\|.*)"), name("`([a-z]+)`");
  Table table;
  for (const std::string& line : lines_of(markdown)) {
    std::smatch match;
    if (!std::regex_match(line, match, row)) continue;
    const std::string list = match[2];
    auto& allowed = table[match[1]];
    for (std::sregex_iterator it(list.begin(), list.end(), name), end; it != end; ++it) allowed.insert((*it)[1]);
  }
  return table;
}

// A folder may also include what those that it depends on depend on.
std::set<std::string> reach(const Table& table, const std::string& folder, std::set<std::string> seen = {}) {
  if (!seen.insert(folder).second || !table.contains(folder)) return seen;
  for (const std::string& next : table.at(folder)) seen = reach(table, next, seen);
  return seen;
}

std::vector<std::string> folders_without_row(const Table& table, const std::vector<File>& files) {
  std::set<std::string> missing;
  for (const File& file : files)
    if (file.in("src") && file.is_source() && !table.contains(file.path.substr(4, file.path.find('/', 4) - 4)))
      missing.insert(file.path);
  return {missing.begin(), missing.end()};
}

std::vector<std::string> wrong_includes(const Table& table, const std::vector<File>& files) {
  static const std::regex include(R"(^\s*#\s*include\s*(["<])([^">]+)[">].*)");
  std::vector<std::string> wrong;
  for (const File& file : files) {
    const bool is_public = file.in("include");
    const bool is_client = file.in("python");  // of the public headers alone, as a foreign program is
    if (!file.is_source() || !(is_public || is_client || file.in("src") || file.in("cli"))) continue;
    const std::string folder = file.in("src") ? file.path.substr(4, file.path.find('/', 4) - 4) : "cli";
    const std::set<std::string> allowed = is_client ? std::set<std::string>() : reach(table, folder);
    for (const std::string& line : lines_of(file.text)) {
      std::smatch match;
      if (!std::regex_match(line, match, include)) continue;
      const std::string path = match[2], first = path.substr(0, path.find('/'));
      const bool quoted = match[1] == "\"", in_folder = path.find('/') != std::string::npos;
      bool good = true;
      if (is_public)  // the standard library has no dots and no folders in its names
        good = quoted ? first == "dsmoe" : path.find_first_of("./") == std::string::npos;
      else if (quoted && in_folder)
        good = first == "dsmoe" || allowed.contains(first);
      if (!good) wrong.push_back(file.path + ": " + line);
    }
  }
  return wrong;
}

Table table() { return parse_table(read_text(fs::path(DSMOE_SOURCE_DIR) / "docs/design/layers.md")); }

TEST(RepoLayers, EveryIncludeGoesDownwards) { EXPECT_EQ(joined(wrong_includes(table(), tree())), ""); }

TEST(RepoLayers, EveryFolderIsInTheTable) { EXPECT_EQ(joined(folders_without_row(table(), tree())), ""); }

TEST(RepoLayers, TheTableHasNoCycle) {
  const Table rows = table();
  EXPECT_GT(rows.size(), 5u);
  for (const auto& [folder, allowed] : rows)
    for (const std::string& next : allowed) {
      EXPECT_TRUE(rows.contains(next)) << folder << " depends on " << next << ", which has no row";
      EXPECT_FALSE(reach(rows, next).contains(folder)) << folder << " and " << next << " depend on each other";
    }
}

TEST(RepoLayers, TheCheckerCanFail) {
  const Table rows =
      parse_table("| `core` | | x |\n| `ops` | `core` | x |\n| `moe` | `ops` | x |\n| `cli` | `moe` | x |\n");
  EXPECT_EQ(rows.at("moe"), std::set<std::string>{"ops"});
  const auto count = [&](const char* path, const char* text) { return wrong_includes(rows, {{path, text}}).size(); };
  EXPECT_EQ(count("src/moe/a.cpp", "#include \"core/fail.h\"\n#include \"ops/linear.h\"\n#include <vector>\n"), 0u);
  EXPECT_EQ(count("src/ops/a.cpp", "#include \"moe/gate.h\"\n"), 1u);
  EXPECT_EQ(count("src/core/a.cuh", "  # include \"ops/linear.h\" // why\n"), 1u);
  EXPECT_EQ(count("src/moe/a.cpp", "#include \"unknown/gate.h\"\n"), 1u);
  EXPECT_EQ(count("include/dsmoe/a.h", "#include <vector>\n#include \"dsmoe/tensor.h\"\n"), 0u);
  EXPECT_EQ(count("include/dsmoe/a.h", "#include <fmt/format.h>\n#include \"core/fail.h\"\n"), 2u);
  EXPECT_EQ(count("python/src/a.cpp", "#include \"dsmoe/moe.h\"\n#include \"options.h\"\n#include <nanobind/ndarray.h>\n"),
            0u);
  EXPECT_EQ(count("python/src/a.cpp", "#include \"core/fail.h\"\n"), 1u);
  EXPECT_EQ(folders_without_row(rows, {{"src/new/a.cpp", ""}, {"src/moe/a.cpp", ""}}).size(), 1u);
}

}  // namespace
}  // namespace dsmoe::repo
