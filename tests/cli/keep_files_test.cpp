// Nothing that was on the disk is lost: what commands that write models and tokenizers replace, and what they refuse to.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <set>

#include "cli/run_program.h"
#include "support/files.h"
#include "support/temp_folder.h"

namespace dsmoe::testing {
namespace {

namespace fs = std::filesystem;

const std::string kConfig = R"({"model_type": "deepseek", "vocab_size": 1024, "hidden_size": 8, "intermediate_size": 16,
  "moe_intermediate_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1,
  "n_routed_experts": 4, "num_experts_per_tok": 2, "n_shared_experts": 1, "first_k_dense_replace": 1,
  "max_position_embeddings": 64})";

class KeepFiles : public ::testing::Test {
 protected:
  KeepFiles() {
    ::setenv("XDG_CACHE_HOME", dir_.path().c_str(), 1);  // not the user's
    write_bytes(dir_ / "config.json", kConfig);
  }
  std::string path(const std::string& name) const { return dir_ / name; }
  void make(const std::string& name, std::vector<std::string> more = {}) const {
    std::vector<std::string> arguments = {"init", "--config", path("config.json"), "-o", path(name)};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const ProgramResult r = run_program(arguments);
    EXPECT_EQ(r.status, 0) << r.err;
  }
  // A folder with one file in it.
  std::string folder_with(const std::string& folder, const std::string& file) const {
    fs::create_directories(dir_ / folder);
    write_bytes(dir_ / folder / file, "mine");
    return path(folder);
  }
  TempFolder dir_;
};

TEST_F(KeepFiles, OneFileOfAModelIsEnoughToAskForForce) {
  make("model");
  make("dense", {"--force"});
  int number = 0;
  for (const char* file : {"model.safetensors", "model-00002-of-00007.safetensors", "model.safetensors.index.json",
                           "tokenizer.json", "chat_template.jinja", "generation_config.json", "config.json"}) {
    const std::string out = folder_with("f" + std::to_string(number++), file);
    const std::vector<std::vector<std::string>> commands = {
        {"init", "--preset", "tiny", "-o", out},
        {"convert", path("model"), "-o", out},
        {"upcycle", "-m", path("model"), "-o", out},
        {"prune", "-m", path("model"), "--data", path("none.ids"), "--keep", "3", "-o", out}};
    for (const std::vector<std::string>& command : commands) {
      EXPECT_TRUE(fails(run_program(command), 1, {"already holds a model", file, "--force"})) << command[0];
      EXPECT_EQ(read_bytes(out + "/" + file), "mine");
    }
    EXPECT_TRUE(fails(run_program({"train", "-o", out}), 1, {"already holds a model", file}));
    EXPECT_EQ(read_bytes(out + "/" + file), "mine");
  }
}

TEST_F(KeepFiles, ForceLeavesNothingOfTheOldModelAndAllOfOthers) {
  make("model", {"--tokenizer", kSmallTokenizer, "--shard-size", "0.00001"});
  for (const char* name : {"notes.txt", "vocab.json", "model-of-mine.safetensors"})
    write_bytes(dir_ / "model" / name, "mine");
  write_bytes(dir_ / "model/chat_template.jinja", "old");
  fs::create_directory(dir_ / "model/sub");
  ASSERT_TRUE(fs::exists(dir_ / "model/model.safetensors.index.json"));
  make("model", {"--force"});
  std::set<std::string> names;
  for (const fs::directory_entry& entry : fs::directory_iterator(dir_ / "model")) names.insert(entry.path().filename());
  EXPECT_EQ(names, (std::set<std::string>{"config.json", "generation_config.json", "model-of-mine.safetensors",
                                          "model.safetensors", "notes.txt", "sub", "vocab.json"}));
  EXPECT_EQ(run_program({"generate", "-m", path("model"), "--ids", "1", "-n", "1"}).status, 0);
  // In place, with the tokenizer that it has.
  make("model", {"--tokenizer", kSmallTokenizer, "--force"});
  const ProgramResult converted = run_program({"convert", path("model"), "-o", path("model"), "--type", "f32", "--force"});
  EXPECT_EQ(converted.status, 0) << converted.err;
  EXPECT_EQ(read_bytes(dir_ / "model/tokenizer.json"), read_bytes(kSmallTokenizer + "/tokenizer.json"));
  EXPECT_EQ(read_bytes(dir_ / "model/notes.txt"), "mine");
}

TEST_F(KeepFiles, FilesOfModelsAndTokenizers) {
  make("model");
  write_bytes(dir_ / "x.gguf", "mine");
  EXPECT_TRUE(fails(run_program({"convert", path("model"), "-o", path("x.gguf")}), 1, {"already there", "--force"}));
  EXPECT_TRUE(fails(run_program({"quantize", path("model"), "-o", path("x.gguf"), "--type", "q8_0"}), 1, {"--force"}));
  EXPECT_TRUE(fails(run_program({"upcycle", "-m", path("model"), "-o", path("y.gguf")}), 2, {"folder", "quantize"}));
  EXPECT_EQ(read_bytes(dir_ / "x.gguf"), "mine");

  const auto learn = [&](const std::string& out, std::vector<std::string> more = {}) {
    std::vector<std::string> arguments = {"tokenizer",    "train", "--data", path("config.json"),
                                          "--vocab-size", "270",   "--out",  out};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run_program(arguments);
  };
  int number = 0;
  for (const char* file : {"tokenizer.json", "tokenizer_config.json", "chat_template.jinja"}) {
    const std::string out = folder_with("t" + std::to_string(number++), file);
    EXPECT_TRUE(fails(learn(out), 1, {file, "--force"}));
    EXPECT_TRUE(fails(learn(out + "/tokenizer.json"), 1, {file, "--force"}));
    EXPECT_EQ(read_bytes(out + "/" + file), "mine");
    EXPECT_EQ(learn(out, {"--force"}).status, 0);
    EXPECT_FALSE(fs::exists(out + "/chat_template.jinja")) << "the old tokenizer's";
  }
}

class KeepRuns : public KeepFiles {
 protected:
  ProgramResult train(const std::string& out, std::vector<std::string> more = {}) const {
    std::vector<std::string> arguments = {
        "train", "-o", path(out), "--batch-size", "1", "--seq-len", "16", "--eval-sequences", "1"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run_program(arguments);
  }
  ProgramResult resume(const std::string& out, std::vector<std::string> more = {}) const {
    std::vector<std::string> arguments = {"train", "--resume", "-o", path(out)};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run_program(arguments);
  }
};

TEST_F(KeepRuns, CheckpointsOfOtherProgramsStay) {
  folder_with("hf/checkpoint-500", "pytorch_model.bin");
  const ProgramResult r = train("hf", {"--steps", "3", "--save-every", "1"});
  ASSERT_EQ(r.status, 0) << r.err;
  EXPECT_EQ(read_bytes(dir_ / "hf/checkpoint-500/pytorch_model.bin"), "mine");
  EXPECT_TRUE(r.err_has("removed " + path("hf/checkpoint-1"))) << r.err;
  EXPECT_FALSE(fs::exists(dir_ / "hf/checkpoint-1"));
  EXPECT_TRUE(fails(resume("hf", {"--steps", "500"}), 1, {"checkpoint-500", "another folder"}));

  folder_with("other/checkpoint-2", "pytorch_model.bin");
  EXPECT_TRUE(fails(train("other", {"--steps", "3"}), 1, {"checkpoint-2", "another folder"}));
  EXPECT_TRUE(fails(resume("other"), 1, {"checkpoint-2", "no trainer state", "model"}));
  folder_with("logged", "log.jsonl");
  EXPECT_TRUE(fails(train("logged"), 1, {"log.jsonl", "already there"}));
  EXPECT_TRUE(fails(resume("logged"), 1, {"log.jsonl", "not the log"}));
  EXPECT_EQ(read_bytes(dir_ / "logged/log.jsonl"), "mine");
}

TEST_F(KeepRuns, ARunWithoutLinksGoesOnAndIsNotWrittenOver) {
  ASSERT_EQ(train("run", {"--steps", "2"}).status, 0);
  fs::create_directory(dir_ / "bare");
  for (const char* name : {"checkpoint-2", "log.jsonl"})
    fs::copy(dir_ / "run" / name, dir_ / "bare" / name, fs::copy_options::recursive);
  fs::copy(dir_ / "run", dir_ / "followed", fs::copy_options::recursive);  // follows links
  for (const char* name : {"bare", "followed"}) {
    EXPECT_TRUE(fails(train(name), 1, {"already holds a training run", "resume"}));
    EXPECT_TRUE(fails(run_program({"init", "--preset", "tiny", "-o", path(name), "--force"}), 1, {"training run"}));
    const ProgramResult r = resume(name, {"--steps", "3"});
    EXPECT_EQ(r.status, 0) << r.err;
    EXPECT_TRUE(r.err_has("resuming after 2 steps")) << r.err;
    EXPECT_EQ(run_program({"generate", "-m", path(name), "-p", "Once", "-n", "1", "-q"}).status, 0);
  }
  ASSERT_EQ(resume("run", {"--steps", "3"}).status, 0);
  for (const char* name : {"bare", "followed"})
    EXPECT_TRUE(read_bytes(dir_ / name / "model.safetensors") == read_bytes(dir_ / "run/model.safetensors")) << name;
}

TEST_F(KeepRuns, AResumedRunKnowsWhatItWasStartedWith) {
  const std::string text = "the cat sat on the mat and the dog ran\n";
  const auto write_data = [&](const char* name, int lines) {
    std::ofstream file(dir_ / name);
    for (int i = 0; i < lines; ++i) file << i << ' ' << text;
  };
  write_data("a.txt", 60);
  ASSERT_EQ(train("run", {"--steps", "1", "--preset", "tiny", "--data", path("a.txt")}).status, 0);
  write_bytes(dir_ / "small.json", kConfig);
  EXPECT_TRUE(fails(resume("run", {"--steps", "2", "--config", path("small.json")}), 1,
                    {"config is not what the run", "leave out config"}));
  EXPECT_TRUE(fails(resume("run", {"--steps", "2", "--preset", "paper-2b"}), 1, {"preset is not what", "another folder"}));
  EXPECT_TRUE(fails(resume("run", {"--steps", "2", "-m", path("run")}), 1, {"started from random weights", "model"}));
  EXPECT_TRUE(fails(resume("run", {"--steps", "2", "--seq-len", "8"}), 1, {"seq-len is 8", "has 16"}));
  write_data("b.txt", 61);
  const ProgramResult other = resume("run", {"--steps", "2", "--data", path("b.txt")});
  EXPECT_EQ(other.status, 1);
  EXPECT_TRUE(other.err_has("b.txt: not the data that the run")) << other.err;
  // Elsewhere, but the same.
  write_data("c.txt", 60);
  ASSERT_EQ(resume("run", {"--steps", "2", "--data", path("c.txt"), "--preset", "tiny"}).status, 0);
  ASSERT_EQ(resume("run", {"--steps", "3", "--tokenizer", path("run")}).status, 0);

  ASSERT_EQ(
      run_program({"tokenizer", "train", "--data", path("a.txt"), "--vocab-size", "270", "--out", path("tok")}).status, 0);
  EXPECT_TRUE(fails(resume("run", {"--steps", "4", "--tokenizer", path("tok")}), 1, {"tokenizer", "leave it out"}));
  fs::copy_file(dir_ / "tok/tokenizer.json", dir_ / "run/last/tokenizer.json", fs::copy_options::overwrite_existing);
  EXPECT_TRUE(fails(resume("run", {"--steps", "4"}), 1, {"tokenizer in", "put the old one back"}));
  fs::remove(dir_ / "run/last/tokenizer.json");
  EXPECT_TRUE(fails(resume("run", {"--steps", "4"}), 1, {"no tokenizer.json", "copy it"}));
}

TEST_F(KeepRuns, AFineTuningRunKnowsItsModel) {
  ASSERT_EQ(train("base", {"--steps", "1"}).status, 0);
  fs::copy(dir_ / "base/checkpoint-1", dir_ / "model", fs::copy_options::recursive);
  fs::remove_all(dir_ / "model/trainer");
  ASSERT_EQ(train("tuned", {"--steps", "1", "-m", path("model")}).status, 0);
  EXPECT_EQ(resume("tuned", {"--steps", "2", "-m", path("model")}).status, 0);
  EXPECT_TRUE(
      fails(resume("tuned", {"--steps", "3", "--preset", "tiny"}), 1, {"started from a model", "leave out preset"}));
  std::fstream weights(dir_ / "model/model.safetensors", std::ios::in | std::ios::out | std::ios::binary);
  weights.seekp(-1, std::ios::end);
  weights.put('\x3e');
  weights.close();
  EXPECT_TRUE(fails(resume("tuned", {"--steps", "3", "-m", path("model")}), 1, {"weights of", "leave out model"}));
  // As a run of the version before this one.
  fs::remove(dir_ / "tuned/last/trainer/origin.json");
  const ProgramResult old = resume("tuned", {"--steps", "3", "-m", path("model")});
  EXPECT_EQ(old.status, 0) << old.err;
  EXPECT_TRUE(old.err_has("not checked")) << old.err;
  // A config that was edited after it was saved.
  std::ofstream(dir_ / "tuned/last/config.json", std::ios::app) << "\n";
  EXPECT_TRUE(fails(resume("tuned", {"--steps", "4"}), 1, {"config.json was changed", "put the old one back"}));
}

TEST_F(KeepRuns, CheckpointsOfTwoRunsAreNotOneRun) {
  write_bytes(dir_ / "a.ids", "1 2 3 4 5\n");
  write_bytes(dir_ / "b.ids", "1 2 3 4 6\n");
  const auto train = [&](const char* run, const char* steps) {
    const std::string data = path(std::string(run) + ".ids");
    return run_program({"train", "-o", path(run), "--batch-size", "1", "--steps", steps, "--data", data}).status;
  };
  ASSERT_EQ(train("a", "1"), 0);
  ASSERT_EQ(train("b", "2"), 0);
  fs::copy(dir_ / "b/checkpoint-2", dir_ / "a/checkpoint-2", fs::copy_options::recursive);
  EXPECT_TRUE(fails(resume("a", {"--steps", "3"}), 1, {"checkpoint-2", "checkpoint-1", "different runs"}));
}

}  // namespace
}  // namespace dsmoe::testing
