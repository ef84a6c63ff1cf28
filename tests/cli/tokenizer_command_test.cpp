// tokenizer train, as a user runs it.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "cli/run_program.h"
#include "support/files.h"
#include "support/temp_folder.h"

namespace dsmoe::testing {
namespace {

class TokenizerCommand : public ::testing::Test {
 protected:
  std::string path(const char* name) const { return (folder_ / name).string(); }

  TempFolder folder_;
};

TEST_F(TokenizerCommand, LearnsFromTheBuiltinCorpus) {
  const auto train = [&](const char* out) {
    return run_program(
        {"tokenizer", "train", "--data", "builtin", "--max-mb", "1", "--vocab-size", "400", "--out", path(out)});
  };
  const ProgramResult made = train("a");
  ASSERT_EQ(made.status, 0) << made.err;
  EXPECT_TRUE(made.out_has("400 tokens (141 merges)")) << made.out;
  const ProgramResult ids = run_program({"tokenize", "-m", path("a"), "-p", "Once there was a girl", "--json"});
  ASSERT_EQ(ids.status, 0) << ids.err;
  EXPECT_EQ(ids.json()["ids"][0], 256);
  EXPECT_LT(ids.json()["ids"].size(), 15u) << "words that it knows";
  ASSERT_EQ(train("b/tokenizer.json").status, 0) << "named like a file";
  EXPECT_EQ(read_bytes(path("a/tokenizer.json")), read_bytes(path("b/tokenizer.json"))) << "the same every time";
  EXPECT_EQ(read_bytes(path("a/tokenizer_config.json")), read_bytes(path("b/tokenizer_config.json")));
}

TEST_F(TokenizerCommand, WhatIsLeftOutIsReportedAndNoTokensAreCounted) {
  std::ofstream(path("x.jsonl")) << "{\"text\": \"ab ab ab\"}\n{\"prompt\": \"ab\"}\n";
  const ProgramResult r =
      run_program({"tokenizer", "train", "--data", path("x.jsonl"), "--vocab-size", "262", "-o", path("t")});
  EXPECT_EQ(r.status, 0) << r.err;
  EXPECT_TRUE(r.err_has("data: 1 document of 1 file\ndata: 1 left out:")) << r.err;
}

// The defaults are DeepSeek's 100000 and 100001: other programs would never see the end of a text.
TEST_F(TokenizerCommand, AModelMadeWithItHasItsSpecialTokens) {
  std::ofstream(path("x.txt")) << "ab ab ab ab";
  ASSERT_EQ(run_program({"tokenizer", "train", "--data", path("x.txt"), "--vocab-size", "270", "-o", path("t")}).status, 0);
  // 256 bytes, then bos, eos and pad.
  constexpr int kBos = 256, kEos = 257;
  const auto written = [&](const std::string& more, const char* name) {
    std::ofstream(path("config.json")) << R"({"model_type": "deepseek", "vocab_size": 270, "hidden_size": 8,
      "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2)"
                                       << more << "}";
    const ProgramResult r =
        run_program({"init", "--config", path("config.json"), "--tokenizer", path("t"), "-o", path("m"), "--force"});
    EXPECT_EQ(r.status, 0) << r.err;
    return nlohmann::json::parse(read_bytes(path("m") + "/" + name));
  };
  for (const char* file : {"config.json", "generation_config.json"}) {
    EXPECT_EQ(written("", file)["eos_token_id"], kEos) << file;
    EXPECT_EQ(written("", file)["bos_token_id"], kBos) << file;
    const std::string two = R"(, "eos_token_id": [5, )" + std::to_string(kEos) + "]";
    EXPECT_EQ(written(two, file)["eos_token_id"].size(), 2u) << "it is among them";
  }
}

TEST_F(TokenizerCommand, LearnsFromFilesAndLeavesOutBadLines) {
  std::ofstream(path("x.jsonl")) << "{\"body\": \"ab ab ab ab\"}\nnonsense\n{\"body\": \"ab ab ab\"}\n";
  std::vector<std::string> arguments = {"tokenizer", "train",           "--data",  path("x.jsonl"), "--field",
                                        "body",      "--out",           path("t"), "--json",        "--vocab-size",
                                        "300",       "--pre-tokenizer", "gpt-2"};
  const ProgramResult made = run_program(arguments);
  ASSERT_EQ(made.status, 0) << made.err;
  EXPECT_EQ(made.json()["vocab_size"], 261) << "\"ab\" and \" ab\", then there is nothing to join";
  EXPECT_EQ(made.json()["bytes"], 19);
  EXPECT_TRUE(made.err_has("x.jsonl:2:")) << made.err;
  EXPECT_TRUE(fails(run_program(arguments), 1, {"tokenizer.json is already there", "--force"}));
  arguments.insert(arguments.end(), {"--strict", "--force"});
  const ProgramResult strict = run_program(arguments);
  EXPECT_EQ(strict.status, 1);
  EXPECT_TRUE(strict.err_has("x.jsonl:2:")) << strict.err;
}

TEST_F(TokenizerCommand, SaysWhatIsWrong) {
  const auto usage = [](std::vector<std::string> arguments) { return run_program(std::move(arguments)); };
  EXPECT_EQ(usage({"tokenizer"}).status, 2);
  const ProgramResult missing = usage({"tokenizer", "train", "--data", "builtin"});
  EXPECT_EQ(missing.status, 2);
  EXPECT_TRUE(missing.is_one_error_line() && missing.err_has("--out") && missing.err_has("dsmoe tokenizer train --help"))
      << missing.err;
  const ProgramResult small = usage({"tokenizer", "train", "--data", "builtin", "--vocab-size", "100", "--out", path("x")});
  EXPECT_EQ(small.status, 1);
  EXPECT_TRUE(small.is_one_error_line() && small.err_has("259")) << small.err;
  const ProgramResult help = usage({"tokenizer", "train", "--help"});
  EXPECT_EQ(help.status, 0);
  EXPECT_TRUE(help.out_has("--vocab-size") && help.out_has("Examples:")) << help.out;
  EXPECT_EQ(usage({"tokenizer", "train", "--data", path("none"), "--out", path("x")}).status, 1);
}

}  // namespace
}  // namespace dsmoe::testing
