// convert, quantize and init to GGUF, and the other commands on a .gguf file, as a user runs them.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "cli/run_program.h"
#include "support/files.h"
#include "support/temp_folder.h"

namespace dsmoe::testing {
namespace {

using Json = nlohmann::json;
namespace fs = std::filesystem;

class GgufCommands : public ::testing::Test {
 protected:
  void SetUp() override { write_config("config.json", Json::object()); }

  void write_config(const char* name, const Json& changes) const {
    Json config = {{"model_type", "deepseek"},      {"vocab_size", kSmallVocab},   {"hidden_size", 32},
                   {"intermediate_size", 64},       {"moe_intermediate_size", 32}, {"num_hidden_layers", 2},
                   {"num_attention_heads", 2},      {"num_key_value_heads", 1},    {"n_routed_experts", 4},
                   {"num_experts_per_tok", 2},      {"n_shared_experts", 1},       {"first_k_dense_replace", 1},
                   {"max_position_embeddings", 64}, {"_my_own_field", {1, 2}},     {"rms_norm_eps", 1e-6}};
    config.update(changes);
    std::ofstream(folder_ / name) << config.dump(2);
  }
  std::string path(const std::string& name) const { return (folder_ / name).string(); }
  static ProgramResult ok(const std::vector<std::string>& arguments) {
    ProgramResult r = run_program(arguments);
    EXPECT_EQ(r.status, 0) << r.err;
    return r;
  }
  std::string model(const char* type = "f32") const {
    ok({"init", "--config", path("config.json"), "--seed", "3", "--dtype", type, "--tokenizer", kSmallTokenizer, "-o",
        path("model")});
    return path("model");
  }
  void expect_nothing_left_of(const std::string& name) const {
    for (const auto& entry : fs::directory_iterator(folder_.path()))
      EXPECT_EQ(entry.path().filename().string().find(name), std::string::npos) << entry.path();
  }

  TempFolder folder_;
};

TEST_F(GgufCommands, AFolderSurvivesTheWayToGgufAndBack) {
  for (const char* type : {"f32", "bf16"}) {
    const std::string m = model(type);
    const ProgramResult made = ok({"convert", m, "-o", path("m.gguf"), "--json"});
    EXPECT_EQ(made.json()["type"], type);
    ok({"convert", path("m.gguf"), "-o", path("back")});
    int files = 0;
    for (const auto& entry : fs::directory_iterator(m)) {
      const std::string name = entry.path().filename().string();
      if (name.starts_with(".")) continue;
      EXPECT_EQ(read_bytes(path("back/" + name)), read_bytes(entry.path())) << name;
      ++files;
    }
    EXPECT_EQ(files, 5) << "config, generation config, weights, and two files of the tokenizer";
    fs::remove_all(m), fs::remove_all(path("back")), fs::remove(path("m.gguf"));
  }
}

TEST_F(GgufCommands, AFileAloneIsAModelForEveryCommand) {
  const std::string m = model(), file = path("m.gguf");
  ok({"convert", m, "-o", file});
  fs::rename(m, path("gone"));
  const std::string folder = path("gone");
  const auto same = [&](std::vector<std::string> arguments) {
    std::vector<std::string> other = arguments;
    arguments.insert(arguments.end(), {"-m", file});
    other.insert(other.end(), {"-m", folder});
    const Json a = ok(arguments).json(), b = ok(other).json();
    for (const char* key : {"ids", "text", "loss", "pieces"}) EXPECT_EQ(a.value(key, Json()), b.value(key, Json())) << key;
  };
  std::ofstream(path("text.txt")) << "An attention function can be described as a mapping.";
  same({"generate", "-p", "Who are you?", "-n", "5", "--temp", "0", "--json"});
  same({"eval", "--data", path("text.txt"), "--json"});
  same({"tokenize", "-p", "Who are you?", "--json"});
  const ProgramResult chat = run_program({"chat", "-m", file, "-n", "3"}, "", "hello\n");
  EXPECT_EQ(chat.status, 0) << chat.err;
  const Json bench = ok({"bench", "model", "-m", file, "-p", "4", "-n", "2", "-r", "1", "--cold", "--json"}).json();
  EXPECT_GT(bench["first_token_seconds"], 0);
  EXPECT_GE(bench["peak_resident_bytes"], bench["resident_bytes"]);
  EXPECT_EQ(bench["dtype"], "f32");
  EXPECT_EQ(bench["results"].size(), 2u);
}

TEST_F(GgufCommands, QuantizedModelsAnswer) {
  const std::string m = model();
  ok({"convert", m, "-o", path("m.gguf")});
  std::ofstream(path("x.ids")) << "1 2 3 4 5 6 7 8\n";
  const double exact = ok({"eval", "-m", m, "--data", path("x.ids"), "--json"}).json()["loss"];
  std::uint64_t before = fs::file_size(path("m.gguf"));
  for (const char* type : {"q8_0", "q5_0", "q4_0"}) {
    const std::string file = path(std::string(type) + ".gguf"), again = path("again.gguf");
    const Json made = ok({"quantize", m, "-o", file, "--type", type, "--json"}).json();
    EXPECT_EQ(made["type"], type);
    EXPECT_LT(fs::file_size(file), before);
    before = fs::file_size(file);
    ok({"quantize", path("m.gguf"), "-o", again, "--type", type, "-t", "1", "--force"});
    EXPECT_EQ(read_bytes(again).size(), read_bytes(file).size()) << "from a folder or a file alike";
    EXPECT_NEAR(ok({"eval", "-m", file, "--data", path("x.ids"), "--json"}).json()["loss"], exact, 0.05) << type;
    EXPECT_NEAR(ok({"eval", "-m", file, "--data", path("x.ids"), "--dtype", "f32", "--json"}).json()["loss"], exact, 0.05)
        << type;
    ok({"generate", "-m", file, "-p", "Who are you?", "-n", "3"});
  }
  // A quantized file can be quantized again, or become a folder.
  ok({"quantize", path("q8_0.gguf"), "-o", path("q4.gguf"), "--type", "q4_0"});
  ok({"convert", path("q8_0.gguf"), "-o", path("wide"), "--type", "bf16"});
  EXPECT_NEAR(ok({"eval", "-m", path("wide"), "--data", path("x.ids"), "--json"}).json()["loss"], exact, 0.05);
  const ProgramResult text = ok({"quantize", m, "-o", path("t.gguf"), "--type", "q4_k_m"});
  EXPECT_TRUE(text.out_has("bits each")) << text.out;
}

TEST_F(GgufCommands, InitWritesAFileThatRuns) {
  for (const char* type : {"f32", "bf16", "q8_0", "q4_0", "q4_k_m"}) {
    const std::string file = path(std::string(type) + ".gguf");
    const Json made = ok({"init", "--config", path("config.json"), "--type", type, "-o", file, "--json"}).json();
    EXPECT_EQ(made["file"], file);
    const ProgramResult out = ok({"generate", "-m", file, "--ids", "5", "6", "-n", "3", "--json"});
    EXPECT_EQ(out.json()["ids"].size(), 3u) << type;
  }
  EXPECT_TRUE(
      fails(run_program({"init", "--config", path("config.json"), "--type", "q4_0", "-o", path("folder")}), 2, {".gguf"}));
  EXPECT_TRUE(fails(run_program({"init", "--config", path("config.json"), "-o", path("f32.gguf")}), 1, {"--force"}));
  EXPECT_TRUE(fails(run_program({"generate", "-m", path("f32.gguf"), "-p", "x"}), 1, {"no tokenizer", "--ids"}));
}

TEST_F(GgufCommands, WhatCannotBeDoneIsRefusedInOneLine) {
  const std::string m = model();
  EXPECT_TRUE(fails(run_program({"convert", path("nowhere"), "-o", path("x.gguf")}), 1, {"there is no model"}));
  EXPECT_TRUE(fails(run_program({"convert", m, "-o", path("no/such/x.gguf")}), 1, {"there is no folder"}));
  EXPECT_TRUE(fails(run_program({"convert", m, "-o", path("x.gguf"), "--type", "q4_0"}), 2, {"--type"}));
  EXPECT_TRUE(fails(run_program({"quantize", m, "-o", path("x.gguf"), "--type", "q3_k"}), 2, {"--type"}));
  EXPECT_TRUE(fails(run_program({"quantize", m, "-o", path("x.gguf")}), 2, {"--type"}));
  EXPECT_TRUE(fails(run_program({"quantize", m, "-o", path("x"), "--type", "q4_0"}), 2, {".gguf"}));
  const auto cannot = [&](const Json& change, const char* field) {
    write_config("other.json", change);
    EXPECT_TRUE(fails(run_program({"init", "--config", path("other.json"), "-o", path("x.gguf")}), 1, {field}));
  };
  cannot({{"norm_topk_prob", true}}, "norm_topk_prob");
  cannot({{"n_shared_experts", nullptr}}, "n_shared_experts");
  cannot({{"attention_bias", true}}, "attention_bias");
  expect_nothing_left_of("x.gguf");

  ok({"convert", m, "-o", path("m.gguf")});
  EXPECT_TRUE(fails(run_program({"convert", m, "-o", path("m.gguf")}), 1, {"--force"}));
  std::ofstream(path("text.gguf")) << "not a model";
  EXPECT_TRUE(
      fails(run_program({"generate", "-m", path("text.gguf"), "-p", "x"}), 1, {"neither a folder nor a GGUF file"}));
  fs::resize_file(path("m.gguf"), fs::file_size(path("m.gguf")) - 4096);
  EXPECT_TRUE(fails(run_program({"generate", "-m", path("m.gguf"), "-p", "x"}), 1, {"truncated"}));
  EXPECT_TRUE(fails(run_program({"quantize", path("m.gguf"), "-o", path("y.gguf"), "--type", "q8_0"}), 1, {"truncated"}));
  expect_nothing_left_of("y.gguf");
}

}  // namespace
}  // namespace dsmoe::testing
