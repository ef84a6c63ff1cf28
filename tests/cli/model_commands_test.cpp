// init, generate, chat, eval, tokenize and bench model, as a user runs them.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "cli/run_program.h"
#include "support/temp_folder.h"

namespace dsmoe::testing {
namespace {

using Json = nlohmann::json;

// A folder of its own for each test, gone afterwards.
class ModelCommands : public ::testing::Test {
 protected:
  void SetUp() override {
    std::ofstream(folder_ / "config.json") << R"({"model_type": "deepseek", "vocab_size": 1024, "hidden_size": 16,
      "intermediate_size": 32, "moe_intermediate_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2,
      "num_key_value_heads": 1, "n_routed_experts": 4, "num_experts_per_tok": 2, "n_shared_experts": 1,
      "first_k_dense_replace": 1, "max_position_embeddings": 64, "_my_own_field": [1, 2]})";
  }

  std::string path(const char* name) const { return (folder_ / name).string(); }
  // A model with a tokenizer like the real one.
  std::string model() const {
    const ProgramResult made = run_program({"init", "--config", path("config.json"), "--seed", "3", "--dtype", "f32",
                                            "--tokenizer", kSmallTokenizer, "-o", path("model")});
    EXPECT_EQ(made.status, 0) << made.err;
    return path("model");
  }

  TempFolder folder_;
};

TEST_F(ModelCommands, ADeviceIsNoText) {  // some never end
  const std::string m = model();
  EXPECT_TRUE(fails(run_program({"eval", "-m", m, "--data", "/dev/zero"}), 1, {"/dev/zero is a device; give a file"}));
  const TempFolder dir;
  for (const char* name : {"x.ids", "x.jsonl", "x.txt"}) {
    std::filesystem::create_symlink("/dev/zero", dir / name);
    const std::string data = (dir / name).string();
    EXPECT_TRUE(fails(run_program({"eval", "-m", m, "--data", data}), 1, {data}));
    const ProgramResult r = run_program({"inspect", "-m", m, "--data", data, "-o", (dir / "out.html").string()});
    EXPECT_TRUE(fails(r, 1, {data})) << r.err;
  }
}

TEST_F(ModelCommands, InitWritesAFolderThatOthersCanRead) {
  const std::string m = model();
  for (const char* file :
       {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"})
    EXPECT_TRUE(std::filesystem::exists(m + "/" + file)) << file;
  std::ifstream file(m + "/config.json");
  const Json config = Json::parse(file);
  EXPECT_EQ(config["_my_own_field"], Json({1, 2})) << "unknown fields are kept";
  EXPECT_EQ(config["torch_dtype"], "float32");

  const ProgramResult again = run_program({"init", "--config", path("config.json"), "-o", m});
  EXPECT_EQ(again.status, 1);
  EXPECT_NE(again.err.find("--force"), std::string::npos) << again.err;
  EXPECT_EQ(run_program({"init", "-o", path("x")}).status, 2) << "neither preset nor config";
  EXPECT_EQ(run_program({"init", "--preset", "nonsense", "-o", path("x")}).status, 1);
}

TEST_F(ModelCommands, InitWithSomeFieldsChanged) {
  const ProgramResult made = run_program(
      {"init", "--preset", "tiny", "--set", "num_hidden_layers=1", "--set", "vocab_size=64", "-o", path("cut"), "--json"});
  ASSERT_EQ(made.status, 0) << made.err;
  std::ifstream file(path("cut") + "/config.json");
  const Json config = Json::parse(file);
  EXPECT_EQ(config["num_hidden_layers"], 1);
  EXPECT_EQ(config["vocab_size"], 64);
  const ProgramResult wrong = run_program({"init", "--preset", "tiny", "--set", "layers=1", "-o", path("x")});
  EXPECT_EQ(wrong.status, 1);
  EXPECT_NE(wrong.err.find("num_hidden_layers"), std::string::npos) << wrong.err;
  EXPECT_FALSE(std::filesystem::exists(path("x")));
}

TEST_F(ModelCommands, TheSameSeedGivesTheSameFileInAnyNumberOfShards) {
  const auto make = [&](const char* out, const char* seed, const char* shard, const char* threads) {
    const ProgramResult o = run_program(
        {"init", "--config", path("config.json"), "-s", seed, "-o", path(out), "--shard-size", shard, "-t", threads});
    EXPECT_EQ(o.status, 0) << o.err;
    return run_program({"generate", "-m", path(out), "--ids", "5", "6", "-n", "6", "--json"}).out;
  };
  const auto ids = [](const std::string& text) { return Json::parse(text)["ids"]; };
  const Json one = ids(make("a", "1", "5", "1"));
  EXPECT_EQ(ids(make("b", "1", "0.00001", "2")), one);
  EXPECT_TRUE(std::filesystem::exists(path("b") + "/model.safetensors.index.json"));
  EXPECT_NE(ids(make("c", "2", "5", "1")), one);
}

TEST_F(ModelCommands, GenerateFromTextFileStandardInputAndIds) {
  const std::string m = model();
  std::ofstream(path("prompt.txt")) << "Who are you?";
  const std::vector<std::string> common = {"-n", "5", "--temp", "0", "--json"};
  const auto generate = [&](std::vector<std::string> arguments, const std::string& input = "") {
    arguments.insert(arguments.begin(), {"generate", "-m", m});
    arguments.insert(arguments.end(), common.begin(), common.end());
    const ProgramResult o = run_program(arguments, "", input);
    EXPECT_EQ(o.status, 0) << o.err;
    return Json::parse(o.out);
  };
  const Json text = generate({"-p", "Who are you?"});
  EXPECT_EQ(text["prompt_ids"].front(), kSmallBos) << "begins with the bos token";
  EXPECT_EQ(text["ids"].size(), 5u);
  EXPECT_EQ(text["finish"], "length");
  EXPECT_EQ(generate({"-f", path("prompt.txt")})["ids"], text["ids"]);
  EXPECT_EQ(generate({}, "Who are you?")["ids"], text["ids"]);
  std::vector<std::string> ids = {"--ids"};
  for (const Json& id : text["prompt_ids"]) ids.push_back(std::to_string(id.get<int>()));
  EXPECT_EQ(generate(ids)["ids"], text["ids"]);
  const Json routing = generate({"-p", "Who are you?", "--routing"})["routing"];
  EXPECT_EQ(routing[0]["layer"], 1);
  EXPECT_EQ(routing[0]["experts"].size(), text["prompt_ids"].size());
  EXPECT_EQ(routing[0]["experts"][0].size(), 2u);
}

TEST_F(ModelCommands, GenerateRefusesInOneLine) {
  const std::string m = model();
  const auto refused = [](const std::vector<std::string>& arguments, int status, const char* part) {
    const ProgramResult o = run_program(arguments);
    EXPECT_EQ(o.status, status) << o.err;
    EXPECT_NE(o.err.find(part), std::string::npos) << o.err;
    EXPECT_EQ(std::count(o.err.begin(), o.err.end(), '\n'), 1) << o.err;
  };
  refused({"generate", "-m", path("nowhere"), "-p", "x"}, 1, "there is no model");
  refused({"chat", "-m", path("nowhere")}, 1, "there is no model");
  refused({"eval", "-m", path("nowhere"), "--data", "x.ids"}, 1, "there is no model");
  refused({"bench", "model", "-m", path("nowhere")}, 1, "there is no model");
  refused({"generate", "-m", m, "-p", "x", "--top-p", "0"}, 2, "--top-p: 0; it must be over 0");
  refused({"generate", "-m", m, "--ids", "999999"}, 1, "999999");
  refused({"generate", "-m", m, "-p", "a b c d e f g", "-c", "3"}, 1, "context of 3");
  refused({"generate", "-m", m, "-p", "x", "--bogus"}, 2, "--bogus");
  std::filesystem::resize_file(m + "/model.safetensors", 5000);
  refused({"generate", "-m", m, "-p", "x"}, 1, "model.safetensors");
}

TEST_F(ModelCommands, NotesComeBehindTheTextInAFileOfBoth) {
  const std::string command =
      std::string("'") + DSMOE_PROGRAM + "' generate -m '" + model() + "' -p Hello -n 3 >'" + path("both") + "' 2>&1";
  ASSERT_EQ(std::system(command.c_str()), 0);
  std::ifstream file(path("both"));
  std::string line, last;
  while (std::getline(file, line)) last = line;
  EXPECT_EQ(last.find("prompt "), 0u) << last;
}

TEST_F(ModelCommands, EvalOfIdsWithLogitsAgreesWithItself) {
  const std::string m = model();
  std::ofstream(path("x.ids")) << "1 2 3 4 5 6\n7 8 9 10 11 12\n";
  const ProgramResult o =
      run_program({"eval", "-m", m, "--data", path("x.ids"), "--logits", path("out.safetensors"), "--json"});
  ASSERT_EQ(o.status, 0) << o.err;
  const Json j = Json::parse(o.out);
  EXPECT_EQ(j["predicted_tokens"], 10);
  EXPECT_NEAR(j["loss"].get<double>(), std::log(double{kSmallVocab}), 0.5) << "random weights know nothing";
  EXPECT_EQ(std::filesystem::file_size(path("out.safetensors")) / (2 * 6 * kSmallVocab * 4), 1u);

  std::ofstream(path("uneven.ids")) << "1 2 3\n4 5\n";
  EXPECT_EQ(run_program({"eval", "-m", m, "--data", path("uneven.ids")}).status, 0);
  const ProgramResult uneven =
      run_program({"eval", "-m", m, "--data", path("uneven.ids"), "--logits", path("u.safetensors")});
  EXPECT_EQ(uneven.status, 1);
  EXPECT_NE(uneven.err.find("one length"), std::string::npos) << uneven.err;
  EXPECT_FALSE(std::filesystem::exists(path("u.safetensors")));

  std::ofstream(path("text.txt")) << "An attention function can be described as a mapping.";
  std::ofstream(path("lines.jsonl")) << R"({"text": "An attention function can be described as a mapping."})"
                                     << "\n";
  const Json text = Json::parse(run_program({"eval", "-m", m, "--data", path("text.txt"), "--json"}).out);
  const Json lines = Json::parse(run_program({"eval", "-m", m, "--data", path("lines.jsonl"), "--json"}).out);
  EXPECT_EQ(text["loss"], lines["loss"]);
}

TEST_F(ModelCommands, TokenizeBothWays) {
  const ProgramResult o =
      run_program({"tokenize", "-m", kTokenizer, "-p", "User: Who are you?\n\nAssistant:", "--ids", "--no-bos"});
  EXPECT_EQ(o.out, "5726 25 8886 418 340 30 185 185 77398 25\n") << o.err;
  EXPECT_EQ(run_program({"tokenize", "-m", kTokenizer, "--decode", "5726", "25", "8886"}).out, "User: Who\n");
  EXPECT_EQ(run_program({"tokenize", "-m", kTokenizer, "--decode", "5726, 25 8886", "--json"}).json()["text"], "User: Who");
  const Json j = Json::parse(run_program({"tokenize", "-m", kTokenizer, "--json"}, "", "you?").out);
  EXPECT_EQ(j["ids"].size(), j["pieces"].size());
}

TEST_F(ModelCommands, ChatAnswersEachLine) {
  const std::string m = model();
  std::ofstream(m + "/tokenizer_config.json") << "{}";
  const ProgramResult refused = run_program({"chat", "-m", m}, "", "Hello\n");
  EXPECT_EQ(refused.status, 1) << "a base model has no chat template";
  EXPECT_NE(refused.err.find("--chat-template"), std::string::npos) << refused.err;
  std::ofstream(path("template.jinja")) << "{{ bos_token }}{% for message in messages %}{% if message['role'] == 'user' "
                                           "%}{{ 'User: ' + message['content'] + '\\n\\n' }}"
                                           "{% elif message['role'] == 'assistant' %}{{ 'Assistant: ' + message['content'] "
                                           "+ eos_token }}{% endif %}{% endfor %}"
                                           "{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}";
  const ProgramResult o = run_program(
      {"chat", "-m", m, "--chat-template", path("template.jinja"), "-n", "4", "--temp", "0"}, "", "Hello\n/clear\nHello\n");
  EXPECT_EQ(o.status, 0) << o.err;
  const std::size_t half = o.out.size() / 2;
  EXPECT_EQ(o.out.substr(0, half), o.out.substr(half)) << "after /clear the same question has the same answer";
}

TEST_F(ModelCommands, BenchModelPrintsATableAndJson) {
  const std::string m = model();
  const ProgramResult o =
      run_program({"bench", "model", "-m", m, "-p", "8", "-n", "4", "-b", "1,3", "-r", "1", "--kv-type", "bf16", "--json"});
  ASSERT_EQ(o.status, 0) << o.err;
  const Json j = Json::parse(o.out);
  const char* const tests[] = {"pp8", "tg4", "pp8 x 3", "tg4 x 3"};
  ASSERT_EQ(j["results"].size(), 4u);
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(j["results"][i]["test"], tests[i]);
    EXPECT_GT(j["results"][i]["tokens_per_second"], 0);
    EXPECT_GT(j["results"][i]["share_of_bound"], 0);
  }
  EXPECT_EQ(j["kv_type"], "bf16");
  EXPECT_LE(j["lowest_read_gb_per_second"], j["read_gb_per_second"]);
  const ProgramResult table = run_program({"bench", "model", "-m", m, "-p", "8", "-n", "0", "-r", "1"});
  EXPECT_NE(table.out.find("One run of each"), std::string::npos) << table.out;
}

}  // namespace
}  // namespace dsmoe::testing
