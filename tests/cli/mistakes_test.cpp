// What users get wrong, and disks that are full: one line that says what to do, and nothing half written.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>

#include <filesystem>
#include <fstream>

#include "cli/run_program.h"
#include "support/files.h"
#include "support/temp_folder.h"

namespace dsmoe::testing {
namespace {

namespace fs = std::filesystem;

// Files of this process and of the programs it starts end here, as on a full disk.
class FileLimit {
 public:
  explicit FileLimit(rlim_t bytes) {
    ::getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit limit{bytes, before_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileLimit() { ::setrlimit(RLIMIT_FSIZE, &before_); }

 private:
  rlimit before_{};
};

class Mistakes : public ::testing::Test {
 protected:
  std::string path(const char* name) const { return folder_ / name; }
  std::string model() const {
    const ProgramResult made = run_program({"init", "--preset", "tiny", "-o", path("model")});
    EXPECT_EQ(made.status, 0) << made.err;
    return path("model");
  }
  bool nothing_at(const char* name) const { return !fs::exists(folder_ / name); }
  TempFolder folder_;
};

TEST_F(Mistakes, SlipsOfTheKeyboard) {
  EXPECT_TRUE(fails(run_program({"genrate"}), 2, {"no command \"genrate\"", "did you mean generate?", "dsmoe --help"}));
  EXPECT_TRUE(fails(run_program({"trian"}), 2, {"did you mean train?"}));
  EXPECT_TRUE(fails(run_program({"--versoin"}), 2, {"no flag \"--versoin\"", "did you mean --version?"}));
  EXPECT_TRUE(
      fails(run_program({"plan", "--perset", "tiny"}), 2, {"\"--perset\"", "did you mean --preset?", "plan --help"}));
  EXPECT_TRUE(fails(run_program({"plan", "--perset=tiny"}), 2, {"\"--perset\"", "did you mean --preset?"}));
  EXPECT_TRUE(fails(run_program({"bench", "lawyer"}), 2, {"bench --help"}));
  EXPECT_TRUE(fails(run_program({"info", "now", "then"}), 2, {"no argument \"then\"", "info --help"}));
  const ProgramResult far = run_program({"plan", "--xylophone"});
  EXPECT_TRUE(fails(far, 2, {"\"--xylophone\""}));
  EXPECT_FALSE(far.err_has("did you mean")) << far.err;
}

TEST_F(Mistakes, NumbersThatMakeNoSense) {
  const std::string out = path("new");
  const std::vector<std::string> init = {"init", "--preset", "tiny", "-o", out};
  const auto with = [](std::vector<std::string> command, const std::vector<std::string>& more) {
    command.insert(command.end(), more.begin(), more.end());
    return run_program(command);
  };
  // Not the largest of 64 bits instead, for every one of these.
  for (const char* seed : {"-1", "-5", "18446744073709551616", "99999999999999999999999"}) {
    const auto words = {std::string_view("--seed"), std::string_view(seed), std::string_view("18446744073709551615")};
    EXPECT_TRUE(fails(with(init, {"--seed", seed}), 2, words));
    EXPECT_TRUE(fails(run_program({"train", "-o", out, "-s", seed}), 2, words));
    EXPECT_TRUE(fails(run_program({"generate", "-m", out, "-p", "a", "--seed", seed}), 2, words));
  }
  for (const char* size : {"nan", "0", "-1", "1e300"}) EXPECT_TRUE(fails(with(init, {"--shard-size", size}), 2, {size}));
  EXPECT_TRUE(fails(run_program({"inspect", "-m", out, "--data", "x", "--limit", "-1"}), 2, {"--limit", "at least 0"}));
  EXPECT_TRUE(fails(run_program({"tokenizer", "train", "--data", "x", "-o", out, "--min-count", "-1"}), 2, {"at least 1"}));
  EXPECT_TRUE(fails(run_program({"bench", "model", "-m", out, "-p", "16,-5"}), 2, {"-5", "at least 0"}));
  EXPECT_TRUE(nothing_at("new"));
  EXPECT_EQ(with(init, {"--seed", "18446744073709551615"}).status, 0);

  // A mean over no token would be a loss of 0.
  std::ofstream(path("a.ids")) << "1 2 3\n";
  std::ofstream(path("b.ids")) << "1\n2\n";
  const auto eval = [&](const char* data, const std::vector<std::string>& more) {
    return with({"eval", "-m", out, "--data", path(data)}, more);
  };
  EXPECT_TRUE(fails(eval("a.ids", {"--score-from", "3"}), 1, {"no token is scored", "3 tokens", "score-from is 3"}));
  EXPECT_TRUE(fails(eval("b.ids", {}), 1, {"no token is scored", "1 tokens"}));
  EXPECT_EQ(eval("a.ids", {"--score-from", "2", "--json"}).json()["predicted_tokens"], 1);
}

TEST_F(Mistakes, WrongModelsAndFiles) {
  const std::string m = model();
  EXPECT_TRUE(
      fails(run_program({"generate", "-m", folder_.path(), "-p", "x"}), 1, {"no config.json", "folder of a model"}));
  EXPECT_TRUE(fails(run_program({"generate", "-m", m, "-p", "x"}), 1, {"no tokenizer", "--ids"}));
  EXPECT_TRUE(fails(run_program({"chat", "-m", m}), 1, {"no tokenizer", "tokenizer.json"}));
  EXPECT_TRUE(fails(run_program({"eval", "-m", m, "--data", m + "/config.json"}), 1, {"no tokenizer", "tokenizer.json"}));
  EXPECT_TRUE(fails(run_program({"train", "-m", folder_.path(), "-o", path("t")}), 1, {"folder of a model"}));
  EXPECT_TRUE(fails(run_program({"bench", "model", "-m", m, "-p", "0", "-n", "0"}), 2, {"nothing to measure", "--n-gen"}));
  EXPECT_EQ(run_program({"generate", "-m", m, "--ids", "1,2,3", "-n", "2"}).status, 0);
  EXPECT_EQ(run_program({"generate", "-m", m, "--ids", "1", "2", "3", "-n", "2"}).status, 0);
  EXPECT_EQ(run_program({"generate", "-m", m, "--ids", "1 2, 3", "-n", "2", "--json"}).json()["prompt_ids"],
            nlohmann::json({1, 2, 3}));
  for (const char* ids : {"1 x", "99999999999"})
    EXPECT_TRUE(fails(run_program({"generate", "-m", m, "--ids", ids}), 2, {"--ids", "is no token id"}));
  EXPECT_TRUE(fails(run_program({"generate", "-m", m, "-p", "x", "-f", "x"}), 2, {"--prompt excludes --file"}));
  EXPECT_TRUE(fails(run_program({"tokenize", "-m", m, "-p", "x", "--decode", "1"}), 2, {"--prompt excludes --decode"}));
  EXPECT_TRUE(fails(run_program({"generate", "-m", m, "--ids", "1,2,3,4", "-c", "3"}), 1,
                    {"4 tokens do not fit the context of 3; use a larger context"}));
  EXPECT_TRUE(fails(run_program({"generate", "-m", m, "--ids", "1", "-n", "-5"}), 2, {"-5", "-1"}));
  EXPECT_TRUE(fails(run_program({"tokenize", "-m", kTokenizer, "-f", folder_.path()}), 1, {"is a folder; give a file"}));
  EXPECT_TRUE(
      fails(run_program({"tokenize", "-m", kTokenizer, "-f", "/dev/zero"}), 1, {"/dev/zero is a device; give a file"}));
  EXPECT_TRUE(fails(run_program({"tokenize", "-m", kTokenizer, "--decode", "17464", "999999"}), 1, {"no token 999999"}));
}

TEST_F(Mistakes, AnErrorOfStandardInputIsNotItsEnd) {
  const std::string command = std::string("'") + DSMOE_PROGRAM + "' tokenize -m '" + kTokenizer + "' -f - <'" +
                              folder_.path().string() + "' >'" + path("out") + "' 2>&1";
  EXPECT_EQ(WEXITSTATUS(std::system(command.c_str())), 1);
  EXPECT_NE(testing::read_bytes(path("out")).find("reading standard input failed"), std::string::npos);
}

TEST_F(Mistakes, AnEmptyPromptIsNotStandardInput) {
  const ProgramResult made =
      run_program({"train", "-o", path("t"), "--steps", "1", "--batch-size", "1", "--seq-len", "16"});
  ASSERT_EQ(made.status, 0) << made.err;
  const auto prompt = [&](std::vector<std::string> more) {
    std::vector<std::string> arguments = {"generate", "-m", path("t"), "-n", "1", "--json"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run_program(arguments, "", "from standard input").json()["prompt_ids"].size();
  };
  EXPECT_EQ(prompt({"-p", ""}), 1u) << "the beginning of a text";
  EXPECT_GT(prompt({}), 1u);
}

TEST_F(Mistakes, PlacesThatCannotBeWrittenAreLeftAsTheyWere) {
  const std::string m = model(), in_a_file = m + "/config.json/x";
  EXPECT_TRUE(fails(run_program({"convert", m, "-o", m + "/config.json"}), 1, {"config.json is a file", "another name"}));
  EXPECT_TRUE(fails(run_program({"init", "--preset", "tiny", "-o", in_a_file}), 1, {"config.json is a file"}));
  EXPECT_TRUE(fails(run_program({"convert", m, "-o", ""}), 1, {"-o is empty"}));
  fs::create_directory(path("x.gguf"));
  EXPECT_TRUE(fails(run_program({"convert", m, "-o", path("x.gguf"), "--force"}), 1, {"x.gguf is a folder"}));
  EXPECT_TRUE(fails(run_program({"upcycle", "-m", m, "-o", path("new")}), 1, {"dense"}));
  EXPECT_TRUE(nothing_at("new")) << "refused before anything was made";
  // More than any disk has.
  EXPECT_TRUE(fails(run_program({"init", "--preset", "paper-145b", "-o", path("deep/new")}), 1, {"free", "another disk"}));
  EXPECT_TRUE(nothing_at("deep"));
}

TEST_F(Mistakes, AFullDiskLeavesNoHalfFile) {
  const std::string m = model();
  const FileLimit limit(4000);
  EXPECT_TRUE(fails(run_program({"convert", m, "-o", path("x.gguf")}), 1, {"x.gguf", "File too large", "ulimit"}));
  EXPECT_TRUE(
      fails(run_program({"init", "--preset", "tiny", "-o", path("new")}), 1, {"model.safetensors", "File too large"}));
  EXPECT_TRUE(nothing_at("new") || fs::is_empty(folder_ / "new"));
  const ProgramResult learned = run_program(
      {"tokenizer", "train", "--data", "builtin", "--max-mb", "1", "--vocab-size", "400", "--out", path("tokenizer")});
  EXPECT_EQ(learned.status, 1);
  EXPECT_TRUE(learned.err_has("tokenizer.json: cannot be written: File too large; choose another folder")) << learned.err;
  EXPECT_TRUE(fs::is_empty(folder_ / "tokenizer"));
  for (const auto& entry : fs::directory_iterator(folder_.path()))
    EXPECT_FALSE(entry.is_regular_file()) << entry.path() << " was left";
}

}  // namespace
}  // namespace dsmoe::testing
