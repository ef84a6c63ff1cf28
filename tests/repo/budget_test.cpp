// Files and functions stay short enough to be read at once: 400 lines, 80, and 150 for a CUDA kernel.
#include <gtest/gtest.h>

#include <map>
#include <regex>

#include "repo/cpp_text.h"
#include "repo/tree.h"

namespace dsmoe::repo {
namespace {

constexpr std::size_t kFileLines = 400, kFunctionLines = 80, kKernelLines = 150;

// Longer files, each with the reason why it is not two.
const std::map<std::string, std::string> kLongFiles = {
    {"src/ops/cpu/kernels_impl.h", "all kernels that are compiled once per instruction set, inside its namespace"},
    {"src/ops/cuda/hopper_gemm.cuh", "one pipeline: loads, matrix instructions and scheduler know each other's barriers"},
    {"src/tokenizer/jinja_functions.cpp", "one table of filters, tests and methods with their implementations"},
    {"src/tokenizer/jinja_parser.cpp", "one recursive-descent parser; its rules call each other"},
    {"tests/ops/attention_test.cpp", "one op: forward, backward and slices of it share their cases"},
    {"tests/formats/gguf_model_test.cpp", "one format: metadata, layout, export and golden files"},
};

struct Function {
  std::size_t first_line = 0, lines = 0;
  std::string header;  // what stands before the brace, white space folded
};

std::string folded(const std::string& text) {
  static const std::regex space(R"(\s+)");
  const std::string one = std::regex_replace(text, space, " ");
  return one.starts_with(" ") ? one.substr(1) : one;
}

// Counts braces: what has parentheses before its brace and is no scope is a function, with all lambdas in it.
std::vector<Function> functions_of(const std::string& text) {
  static const std::regex scope(R"((template ?<.*> ?)?(inline )?(class|struct|union|enum|namespace|extern)\b.*)");
  const std::string code = read_cpp(text).code;
  std::vector<Function> found;
  std::size_t header = 0, line = 1, header_line = 0;  // where the header begins, and its first line with text
  int inside = 0;                                     // braces open in the function that is being counted
  for (std::size_t i = 0; i < code.size(); ++i) {
    const char c = code[i];
    if (c == '\n') ++line;
    if (inside > 0) {
      inside += c == '{' ? 1 : c == '}' ? -1 : 0;
      if (inside == 0) {
        found.back().lines = line - found.back().first_line + 1;
        header = i + 1, header_line = 0;
      }
    } else if (c == '{') {
      const std::string before = folded(code.substr(header, i - header));
      const bool initializer = before.ends_with("= ") || before.ends_with("=");
      if (!initializer && before.find('(') != std::string::npos && !std::regex_match(before, scope)) {
        found.push_back({header_line, 0, before});
        inside = 1;
      }
      if (inside == 0) header = i + 1, header_line = 0;
    } else if (c == ';' || c == '}') {
      header = i + 1, header_line = 0;
    } else if (header_line == 0 && !std::isspace(static_cast<unsigned char>(c))) {
      header_line = line;
    }
  }
  return found;
}

std::vector<std::string> over_budget(const std::vector<File>& files, const std::map<std::string, std::string>& long_files) {
  std::vector<std::string> over;
  for (const File& file : files) {
    if (!file.is_source() && !file.ends_with(".py") && !file.ends_with(".sh") && !file.ends_with(".js")) continue;
    const std::size_t lines = lines_of(file.text).size();
    if (lines > kFileLines && !long_files.contains(file.path))
      over.push_back(file.path + " has " + std::to_string(lines) + " lines; split it, or say in this test why not");
    if (!file.is_source()) continue;
    for (const Function& f : functions_of(file.text)) {
      const std::size_t most = f.header.find("__global__") != std::string::npos ? kKernelLines : kFunctionLines;
      if (f.lines > most)
        over.push_back(file.path + ":" + std::to_string(f.first_line) + ": a function of " + std::to_string(f.lines) +
                       " lines: " + f.header.substr(0, 80));
    }
  }
  for (const auto& excepted : long_files) {
    const std::string& path = excepted.first;
    const auto file = std::find_if(files.begin(), files.end(), [&](const File& f) { return f.path == path; });
    if (file == files.end() || lines_of(file->text).size() <= kFileLines)
      over.push_back(path + " is excepted without need");
  }
  return over;
}

TEST(RepoBudget, FilesAndFunctionsAreShort) { EXPECT_EQ(joined(over_budget(tree(), kLongFiles)), ""); }

std::string repeated(const std::string& line, std::size_t count) {
  std::string text;
  for (std::size_t i = 0; i < count; ++i) text += line;
  return text;
}

TEST(RepoBudget, TheCheckerCanFail) {
  const auto count = [](const std::string& path, const std::string& text) {
    return over_budget({{path, text}}, {}).size();
  };
  EXPECT_EQ(count("src/a.cpp", repeated("int x;\n", 400)), 0u);
  EXPECT_EQ(count("src/a.cpp", repeated("int x;\n", 401)), 1u);
  EXPECT_EQ(count("a.py", repeated("x = 1\n", 401)), 1u);
  EXPECT_EQ(count("docs/a.md", repeated("text\n", 1000)), 0u);
  EXPECT_EQ(over_budget({{"src/a.cpp", repeated("int x;\n", 401)}}, {{"src/a.cpp", "because"}}).size(), 0u);
  EXPECT_EQ(over_budget({{"src/a.cpp", "int x;\n"}}, {{"src/a.cpp", "because"}, {"src/gone.cpp", "because"}}).size(), 2u);

  const std::string body = repeated("  x();\n", 78), one_more = repeated("  x();\n", 79);
  EXPECT_EQ(count("a.cpp", "void f() {\n" + body + "}\n"), 0u);
  EXPECT_EQ(count("a.cpp", "void f() {\n" + one_more + "}\n"), 1u);
  EXPECT_EQ(count("a.cpp", "TEST(A, B) {\n  if (x) {\n" + one_more + "  }\n}\n"), 1u);
  EXPECT_EQ(count("a.cpp",
                  "namespace n {\nclass A final : public B<C> {\n  int f(int a,\n  int b) const {\n" + body + "}\n};\n}\n"),
            1u);
  EXPECT_EQ(count("a.cpp",
                  "namespace n {\nstruct alignas(16) A {\n" + repeated("  int f() { return g({1}); }\n", 90) + "};\n}\n"),
            0u);
  EXPECT_EQ(count("a.cpp", "const int a[] = {\n" + repeated("  f(1),\n", 90) + "};\n"), 0u);
  EXPECT_EQ(count("a.cpp", "void f() {\n" + repeated("  g('}', \"}\", R\"(})\");  // }\n", 79) + "}\n"), 1u);
  EXPECT_EQ(count("a.cu", "template <int N>\n__global__ void k() {\n" + one_more + "}\n"), 0u);
  EXPECT_EQ(count("a.cu", "__global__ void k() {\n" + one_more + one_more + "}\n"), 1u);
}

}  // namespace
}  // namespace dsmoe::repo
