// One rule for every file that a command writes: what is there already is replaced only with --force, and devices and pipes
// are written into.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>
#include <set>

#include "cli/run_program.h"
#include "support/files.h"
#include "support/temp_folder.h"

namespace dsmoe::testing {
namespace {

namespace fs = std::filesystem;
using Words = std::vector<std::string>;

class OutputFiles : public ::testing::Test {
 protected:
  OutputFiles() {
    ::setenv("XDG_CACHE_HOME", dir_.path().c_str(), 1);  // not the user's
    write_bytes(dir_ / "config.json", R"({"model_type": "deepseek", "vocab_size": 50, "hidden_size": 8,
      "intermediate_size": 16, "moe_intermediate_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2,
      "num_key_value_heads": 1, "n_routed_experts": 4, "num_experts_per_tok": 2, "n_shared_experts": 1,
      "first_k_dense_replace": 1, "max_position_embeddings": 64})");
    write_bytes(dir_ / "a.ids", "1 2 3 4 5 6\n7 8 9 10 11 12\n");
    EXPECT_EQ(run({"init", "--config", path("config.json"), "-o", path("m")}).status, 0);
  }
  std::string path(const std::string& name) const { return dir_ / name; }
  static ProgramResult run(Words words, const Words& more = {}) {
    words.insert(words.end(), more.begin(), more.end());
    return run_program(words);
  }
  // Each command with an output, without the name of the file.
  std::vector<Words> commands() const {
    const std::string m = path("m"), a = path("a.ids");
    return {{"eval", "-m", m, "--data", a, "--logits"},
            {"eval", "-m", m, "--data", a, "--mask-top", "1/4", "--plot"},
            {"inspect", "-m", m, "--data", a, "-o"},
            {"inspect", "-m", m, "--data", a, "--csv"},
            {"inspect", "-m", m, "--data", a, "--trace"}};
  }
  TempFolder dir_;
};

TEST_F(OutputFiles, AreReplacedOnlyWhenAsked) {
  write_bytes(dir_ / "there", "mine");
  write_bytes(dir_ / "far", "mine too");
  fs::create_symlink("far", dir_ / "link");
  fs::create_symlink("nowhere", dir_ / "dangling");
  fs::create_directory(dir_ / "folder");
  for (const Words& command : commands()) {
    const std::string& flag = command.back();
    for (const char* name : {"there", "link", "dangling"})
      EXPECT_TRUE(fails(run(command, {path(name)}), 1, {name, "already there", "--force"})) << flag;
    EXPECT_TRUE(fails(run(command, {path("folder"), "--force"}), 1, {"is a folder", "another name"})) << flag;
    EXPECT_TRUE(fails(run(command, {path("none/x")}), 1, {"no folder", "none"})) << flag;
    EXPECT_EQ(read_bytes(dir_ / "there"), "mine") << flag;
    EXPECT_TRUE(fs::is_symlink(dir_ / "dangling")) << flag;

    EXPECT_EQ(run(command, {path("new" + flag)}).status, 0) << flag;
    EXPECT_EQ(run(command, {path("there"), "--force"}).status, 0) << flag;
    EXPECT_EQ(read_bytes(dir_ / "there").size(), read_bytes(dir_ / ("new" + flag)).size()) << flag;
    write_bytes(dir_ / "there", "mine");
    EXPECT_EQ(run(command, {path("link"), "--force"}).status, 0) << flag;
    EXPECT_EQ(read_bytes(dir_ / "far"), "mine too") << "the link is replaced, not what it leads to";
    fs::remove(dir_ / "link");
    fs::create_symlink("far", dir_ / "link");
  }
  EXPECT_TRUE(fails(run({"inspect", "-m", path("m"), "--data", path("a.ids"), "-o", path("x"), "--csv", path("./x")}), 1,
                    {"two outputs"}));
}

// In a folder of its own and by a name under /dev/fd: a program that got it wrong must not harm the machine's devices.
TEST_F(OutputFiles, DevicesAndPipesAreWrittenInto) {
  fs::create_symlink("/dev/null", dir_ / "null");
  ASSERT_EQ(::mkfifo(path("fifo").c_str(), 0600), 0);
  int number = 0;
  for (const Words& command : commands()) {
    const std::string& flag = command.back();
    EXPECT_EQ(run(command, {path("null")}).status, 0) << flag;
    EXPECT_EQ(fs::read_symlink(dir_ / "null"), "/dev/null") << flag;
    std::string line = std::string(DSMOE_PROGRAM);
    for (const std::string& word : command) line += " " + word;
    const std::string file = path("plain" + std::to_string(number++));
    EXPECT_EQ(run(command, {file}).status, 0) << flag;
    const std::string want = read_bytes(file), quiet = " 2>/dev/null";
    const auto shell = [](const std::string& text) { return std::system(text.c_str()); };
    EXPECT_EQ(shell("cat <" + path("fifo") + " >" + path("got") + " & " + line + " " + path("fifo") + quiet +
                    " >/dev/null && wait $!"),
              0)
        << flag;
    EXPECT_TRUE(fs::is_fifo(dir_ / "fifo")) << flag;
    EXPECT_TRUE(read_bytes(dir_ / "got") == want) << flag;
    // Standard output, of which the file is a part: the rest of it comes behind.
    for (const char* to : {" >", " | cat >"}) {
      EXPECT_EQ(shell(line + " /dev/fd/1" + quiet + to + path("all")), 0) << flag;
      EXPECT_EQ(read_bytes(dir_ / "all").substr(0, want.size()), want) << flag << to;
      EXPECT_GT(read_bytes(dir_ / "all").size(), want.size()) << flag << to;
    }
  }
  const Words full = {"inspect", "-m", path("m"), "--data", path("a.ids"), "--json", "--csv", path("full")};
  fs::create_symlink("/dev/full", dir_ / "full");
  const ProgramResult r = run(full);
  EXPECT_EQ(r.status, 1);
  EXPECT_TRUE(r.err_has("No space left") && r.err_has("free some space")) << r.err;
}

TEST_F(OutputFiles, AComparisonReplacesItsOwnAlone) {
  for (const char* name : {"report.html", "curves.svg", "ablations.svg", "compare.json", "runs", "settings.json"}) {
    const fs::path out = dir_ / ("of-" + std::string(name));
    fs::create_directory(out);
    write_bytes(out / name, "mine");
    EXPECT_TRUE(fails(run({"compare", "--preset", "tiny", "--steps", "1", "-o", out, "--json"}), 1, {name})) << name;
    EXPECT_EQ(read_bytes(out / name), "mine");
    EXPECT_EQ(std::distance(fs::directory_iterator(out), fs::directory_iterator()), 1) << "nothing was begun";
  }
}

}  // namespace
}  // namespace dsmoe::testing
