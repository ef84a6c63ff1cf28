// Rules of the code that a compiler does not know.
#include <gtest/gtest.h>

#include <map>
#include <regex>

#include "repo/cpp_text.h"
#include "repo/tree.h"

namespace dsmoe::repo {
namespace {

// Messages of the library name options; dashes belong to the command line. "--word", "(-c)" or " -c ".
std::vector<std::string> flag_names(const std::vector<File>& files, const std::map<std::string, std::string>& allowed) {
  static const std::regex shell("ulimit -[a-z]");
  static const std::regex flag(R"((^|[^-\w])--([a-z][a-z-]*|\{\})|(^|[\s(`'])-[a-zA-Z]($|[\s),;:.`'=]))");
  std::vector<std::string> found;
  for (const File& file : files) {
    if (!file.in("src") || !file.is_source() || allowed.contains(file.path)) continue;
    for (const Literal& literal : read_cpp(file.text).literals)
      if (std::regex_search(std::regex_replace(literal.text, shell, "ulimit"), flag))
        found.push_back(file.path + ":" + std::to_string(literal.line) + ": \"" + literal.text + "\"");
  }
  return found;
}

// Every text of JSON goes through the strict reader: depth, keys that stand twice and the rest are checked there alone.
std::vector<std::string> other_json_readers(const std::vector<File>& files) {
  static const std::regex reader(R"(\b\w*[Jj]son(<[^>]*>)?::(parse|accept|sax_parse)\()");
  std::vector<std::string> found;
  for (const File& file : files) {
    if (!(file.in("src") || file.in("cli") || file.in("include")) || !file.is_source() ||
        file.path == "src/core/json_read.cpp")
      continue;
    const std::string code = read_cpp(file.text).code;
    for (std::sregex_iterator it(code.begin(), code.end(), reader), end; it != end; ++it)
      found.push_back(file.path + ": " + it->str());
  }
  return found;
}

const std::map<std::string, std::string> kFlagsAllowed = {{"src/study/svg_plot.cpp", "variables of CSS, not flags"}};

TEST(RepoCode, TheLibraryNamesNoFlags) { EXPECT_EQ(joined(flag_names(tree(), kFlagsAllowed)), ""); }

TEST(RepoCode, OneReaderOfJson) { EXPECT_EQ(joined(other_json_readers(tree())), ""); }

TEST(RepoCode, TheCheckersCanFail) {
  const auto flags = [](const std::string& text) { return flag_names({{"src/a.cpp", text}}, {}).size(); };
  for (const std::string text :
       {"use --batch-size", "a larger one (-c)", "-m is missing", "--{} is {}", "with `-o`", "a --x"}) {
    EXPECT_EQ(flags("fail(\"" + text + "\");"), 1u) << text;
    EXPECT_EQ(flags("fail(R\"(" + text + ")\");"), 1u) << text;
    EXPECT_EQ(flags("// \"" + text + "\"\n/* \"" + text + "\" */"), 0u) << text;
  }
  for (const char* text : {"\"a - b, 1e-3, x-y, --, a -> b, -1\"", "#include \"a --b.h\"\n", "\"batch-size\"",
                           "\"(ulimit -n)\"", "x = a --b;", "\"<!-- note -->\""})
    EXPECT_EQ(flags(text), 0u) << text;
  EXPECT_EQ(flag_names({{"cli/a.cpp", "\"--x\""}, {"src/b.cpp", "\"--x\""}}, {{"src/b.cpp", "because"}}).size(), 0u);

  const auto readers = [](const char* path, const char* text) { return other_json_readers({{path, text}}).size(); };
  EXPECT_EQ(readers("src/a.cpp", "auto j = nlohmann::json::parse(text);"), 1u);
  EXPECT_EQ(readers("cli/a.cpp", "auto j = Json::parse(text); ordered_json::accept(x);"), 2u);
  EXPECT_EQ(readers("src/a.cpp", "nlohmann::basic_json<>::sax_parse(a, b, &c);"), 1u);
  EXPECT_EQ(readers("src/a.cpp", "json_read::parse(text, where);  // not Json::parse(text)"), 0u);
  EXPECT_EQ(readers("tests/a.cpp", "Json::parse(text)"), 0u);
}

TEST(RepoCode, TheReaderKnowsCommentsAndTexts) {
  const CppText t =
      read_cpp("a /* \"x\" */ \"s\\\"t\" '\"' 1'000 R\"q(raw \")q\" // \"y\"\n#define X \"no\" \\\n  \"no\"\nb");
  ASSERT_EQ(t.literals.size(), 2u);
  EXPECT_EQ(t.literals[0].text, "s\\\"t");
  EXPECT_EQ(t.literals[1].text, "raw \"");
  EXPECT_EQ(t.literals[1].line, 1u);
  EXPECT_EQ(std::count(t.code.begin(), t.code.end(), '\n'), 3);
  EXPECT_EQ(t.code.back(), 'b');
  EXPECT_EQ(t.code.find("no"), std::string::npos);
}

}  // namespace
}  // namespace dsmoe::repo
