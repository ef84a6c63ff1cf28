// The commands on models of other families, and what `info MODEL` tells of them.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "cli/run_program.h"
#include "dsmoe/model_config.h"
#include "support/files.h"
#include "support/temp_folder.h"

namespace dsmoe::testing {
namespace {

using Json = nlohmann::json;

class FamilyCommands : public ::testing::Test {
 protected:
  std::string path(const std::string& name) const { return (folder_ / name).string(); }
  static ProgramResult ok(const std::vector<std::string>& arguments) {
    ProgramResult r = run_program(arguments);
    EXPECT_EQ(r.status, 0) << r.err;
    return r;
  }
  std::string made_of(const Json& config, const std::string& tokenizer = kSmallTokenizer) const {
    std::ofstream(path("config.json")) << config;
    ok({"init", "--config", path("config.json"), "--seed", "3", "--tokenizer", tokenizer, "-o", path("model")});
    return path("model");
  }
  // With latent attention.
  std::string deepseek_v3(const char* type = "deepseek_v3", int vocab = kSmallVocab,
                          const std::string& tokenizer = kSmallTokenizer) const {
    return made_of({{"model_type", type},
                    {"vocab_size", vocab},
                    {"hidden_size", 32},
                    {"num_hidden_layers", 2},
                    {"num_attention_heads", 2},
                    {"kv_lora_rank", 32},
                    {"q_lora_rank", 32},
                    {"qk_nope_head_dim", 32},
                    {"qk_rope_head_dim", 32},
                    {"v_head_dim", 32},
                    {"first_k_dense_replace", 1},
                    {"n_routed_experts", 4},
                    {"num_experts_per_tok", 2},
                    {"n_group", 1},
                    {"topk_group", 1},
                    {"moe_intermediate_size", 32},
                    {"intermediate_size", 64},
                    {"rope_scaling",
                     {{"type", "yarn"},
                      {"factor", 4},
                      {"original_max_position_embeddings", 64},
                      {"mscale", 1},
                      {"mscale_all_dim", 1}}},
                    {"max_position_embeddings", 256},
                    {"initializer_range", 0.05}},
                   tokenizer);
  }
  std::string qwen3() const {
    return made_of({{"model_type", "qwen3_moe"},
                    {"vocab_size", kSmallVocab},
                    {"hidden_size", 32},
                    {"head_dim", 32},
                    {"num_hidden_layers", 2},
                    {"num_attention_heads", 2},
                    {"num_key_value_heads", 1},
                    {"num_experts", 4},
                    {"num_experts_per_tok", 2},
                    {"moe_intermediate_size", 32},
                    {"intermediate_size", 64},
                    {"norm_topk_prob", true},
                    {"rope_theta", 1e6},
                    {"max_position_embeddings", 256},
                    {"initializer_range", 0.05}});
  }
  // With shared experts behind a gate.
  std::string qwen2() const {
    return made_of({{"model_type", "qwen2_moe"},
                    {"vocab_size", kSmallVocab},
                    {"hidden_size", 64},
                    {"num_hidden_layers", 2},
                    {"num_attention_heads", 2},
                    {"num_key_value_heads", 1},
                    {"num_experts", 4},
                    {"num_experts_per_tok", 2},
                    {"moe_intermediate_size", 32},
                    {"shared_expert_intermediate_size", 64},
                    {"intermediate_size", 64},
                    {"max_position_embeddings", 256},
                    {"initializer_range", 0.05}});
  }
  // With numbers per layer, and an alpha.
  std::string hunyuan(int vocab = kSmallVocab, const std::string& tokenizer = kSmallTokenizer) const {
    return made_of({{"model_type", "hunyuan_v1_moe"},
                    {"vocab_size", vocab},
                    {"hidden_size", 32},
                    {"head_dim", 32},
                    {"num_hidden_layers", 2},
                    {"num_attention_heads", 2},
                    {"num_key_value_heads", 1},
                    {"num_experts", 4},
                    {"moe_topk", {2, 2}},
                    {"num_shared_expert", {1, 1}},
                    {"moe_intermediate_size", {32, 32}},
                    {"intermediate_size", 32},
                    {"rope_scaling", {{"type", "dynamic"}, {"alpha", 1000}, {"factor", 1}}},
                    {"tie_word_embeddings", true},
                    {"max_position_embeddings", 256},
                    {"initializer_range", 0.05}},
                   tokenizer);
  }
  // With a vocabulary of characters.
  std::string mixtral() const {
    return made_of({{"model_type", "mixtral"},
                    {"vocab_size", 512},
                    {"hidden_size", 64},
                    {"num_hidden_layers", 2},
                    {"num_attention_heads", 2},
                    {"num_key_value_heads", 1},
                    {"num_local_experts", 4},
                    {"intermediate_size", 64},
                    {"max_position_embeddings", 512},
                    {"initializer_range", 0.05}},
                   DSMOE_TEST_DATA "/tokenizer/data/characters");
  }
  void is_a_model_for_every_command(const std::string& m) const;
  void is_a_folder_of_ranks(const std::string& m, const std::string& from) const;
  void is_trained_fine_tuned_and_pruned(const std::string& m, const char* experts) const;

  TempFolder folder_;
};

void FamilyCommands::is_a_model_for_every_command(const std::string& m) const {
  std::ofstream(path("text.txt")) << "An attention function can be described as mapping a query and a set of key-value "
                                     "pairs to an output. The output is a weighted sum of the values.\n";
  const Json a = ok({"generate", "-m", m, "-p", "Who are you?", "-n", "6", "--temp", "0", "--json"}).json();
  ok({"convert", m, "-o", path("m.gguf")});
  EXPECT_EQ(ok({"generate", "-m", path("m.gguf"), "-p", "Who are you?", "-n", "6", "--temp", "0", "--json"}).json()["text"],
            a["text"]);
  const double loss = ok({"eval", "-m", m, "--data", path("text.txt"), "--json"}).json()["loss"];
  ok({"quantize", m, "-o", path("q8.gguf"), "--type", "q8_0"});
  EXPECT_NEAR(ok({"eval", "-m", path("q8.gguf"), "--data", path("text.txt"), "--json"}).json()["loss"], loss, 0.05);
  ok({"convert", path("m.gguf"), "-o", path("back")});
  for (const char* name : {"config.json", "model.safetensors", "tokenizer.json"})
    EXPECT_EQ(read_bytes(path(std::string("back/") + name)), read_bytes(m + "/" + name)) << name;
  const ProgramResult chat = run_program({"chat", "-m", m, "-n", "3"}, "", "hello\n");
  EXPECT_EQ(chat.status, 0) << chat.err;
}

TEST_F(FamilyCommands, Qwen3IsAModelForEveryCommand) { is_a_model_for_every_command(qwen3()); }
TEST_F(FamilyCommands, HunyuanIsAModelForEveryCommand) { is_a_model_for_every_command(hunyuan()); }
TEST_F(FamilyCommands, Qwen2IsAModelForEveryCommand) { is_a_model_for_every_command(qwen2()); }
TEST_F(FamilyCommands, AModelOfCharactersForEveryCommand) { is_a_model_for_every_command(mixtral()); }
TEST_F(FamilyCommands, DeepseekV3IsAModelForEveryCommand) { is_a_model_for_every_command(deepseek_v3()); }

// Folders as Kimi-K2 and Hunyuan-A13B are released: no tokenizer.json, but tiktoken's ranks. What is written has one.
void FamilyCommands::is_a_folder_of_ranks(const std::string& m, const std::string& from) const {
  const auto text_of = [&](const std::string& of) {
    return ok({"generate", "-m", of, "-p", "HelloWorld", "-n", "6", "--temp", "0", "--json"}).json()["text"];
  };
  const Json text = text_of(m);
  const std::string json = read_bytes(m + "/tokenizer.json");
  std::filesystem::remove(m + "/tokenizer.json");
  std::filesystem::copy(from, m,
                        std::filesystem::copy_options::recursive | std::filesystem::copy_options::overwrite_existing);
  EXPECT_EQ(text_of(m), text);
  EXPECT_EQ(ok({"info", m, "--json"}).json()["not_supported"], Json::array());
  ok({"tokenize", "-m", m, "-p", "HelloWorld"});
  const ProgramResult chat = run_program({"chat", "-m", m, "-n", "3"}, "", "hello\n");
  EXPECT_EQ(chat.status, 0) << chat.err;
  ok({"quantize", m, "-o", path("q8.gguf"), "--type", "q8_0"});
  ok({"convert", m, "-o", path("m.gguf")});
  EXPECT_EQ(text_of(path("m.gguf")), text);
  std::filesystem::create_directory(path("back"));
  std::ofstream(path("back/tiktoken.model")) << "another model's";
  EXPECT_EQ(run_program({"convert", path("m.gguf"), "-o", path("back")}).status, 1) << "without --force";
  ok({"convert", path("m.gguf"), "-o", path("back"), "--force"});
  EXPECT_FALSE(std::filesystem::exists(path("back/tiktoken.model")));
  std::ofstream(path("text.txt")) << std::string(2000, 'a');
  ok({"train", "-m", m, "--data", path("text.txt"), "--steps", "2", "--batch-size", "1", "--seq-len", "8", "-o",
      path("run")});
  for (const char* folder : {"back", "run"}) {
    EXPECT_EQ(read_bytes(path(std::string(folder) + "/tokenizer.json")), json) << folder;
    text_of(path(folder));
  }
}

TEST_F(FamilyCommands, AFolderOfKimisRanks) {
  const std::string ranks = DSMOE_TEST_DATA "/tokenizer/data/tiktoken";
  is_a_folder_of_ranks(deepseek_v3("kimi_k2", 783, ranks), ranks);
}

TEST_F(FamilyCommands, AFolderOfHunyuansRanks) {
  std::filesystem::create_directory(path("ranks"));
  std::ofstream(path("ranks/hy.tiktoken")) << read_bytes(DSMOE_TEST_DATA "/tokenizer/data/tiktoken/tiktoken.model");
  std::ofstream(path("ranks/tokenizer_config.json"))
      << R"({"tokenizer_class": "HYTokenizer", "eos_token": "<|eos|>", "chat_template": "{{ messages[0].content }}"})";
  is_a_folder_of_ranks(hunyuan(737, path("ranks")), path("ranks"));
}

void FamilyCommands::is_trained_fine_tuned_and_pruned(const std::string& m, const char* experts) const {
  std::ofstream text(path("text.txt"));
  for (int i = 0; i < 200; ++i) text << "the cat sat on the mat, and the dog sat on the cat. ";
  text.close();
  const auto loss = [&](const std::string& of) {
    return ok({"eval", "-m", of, "--data", path("text.txt"), "--json"}).json()["loss"].get<double>();
  };
  const double before = loss(m);
  ok({"train", "-m", m, "--data", path("text.txt"), "--steps", "20", "--batch-size", "4", "--seq-len", "32", "--lr", "3e-3",
      "-o", path("whole")});
  EXPECT_LT(loss(path("whole")), before - 0.5);
  ok({"train", "-m", m, "--data", path("text.txt"), "--steps", "20", "--batch-size", "4", "--seq-len", "32", "--lr", "1e-2",
      "--lora-rank", "4", "-o", path("lora")});
  EXPECT_LT(loss(path("lora")), before - 0.2);
  ok({"prune", "-m", m, "--keep", "3", "--data", path("text.txt"), "-o", path("pruned")});
  const Json config = Json::parse(read_bytes(path("pruned/config.json")));
  EXPECT_EQ(config[experts], 3);
  EXPECT_EQ(config.contains("n_routed_experts"), std::string_view(experts) == "n_routed_experts");
  EXPECT_GT(loss(path("pruned")), 0);
}

TEST_F(FamilyCommands, Qwen3IsTrainedFineTunedAndPruned) { is_trained_fine_tuned_and_pruned(qwen3(), "num_experts"); }
TEST_F(FamilyCommands, HunyuanIsTrainedFineTunedAndPruned) { is_trained_fine_tuned_and_pruned(hunyuan(), "num_experts"); }
TEST_F(FamilyCommands, Qwen2IsTrainedFineTunedAndPruned) { is_trained_fine_tuned_and_pruned(qwen2(), "num_experts"); }
TEST_F(FamilyCommands, DeepseekV3IsTrainedFineTunedAndPruned) {
  is_trained_fine_tuned_and_pruned(deepseek_v3(), "n_routed_experts");
}

// Fields that say one thing in two ways, and groups of experts, change with the architectures that plan compares.
TEST_F(FamilyCommands, EveryPresetIsPlannedAndMadeSmall) {
  for (const std::string& preset : ModelConfig::preset_names())
    EXPECT_TRUE(ok({"plan", "--preset", preset}).out_has("FLOPs"));
  const std::vector<std::string> sizes = {
      "hidden_size=32",  "num_hidden_layers=1", "num_attention_heads=2",     "num_key_value_heads=2",
      "vocab_size=1024", "pad_token_id=null",   "max_position_embeddings=64"};
  const std::pair<const char*, std::vector<std::string>> more[] = {
      {"qwen1.5-moe-a2.7b", {"num_experts=4", "moe_intermediate_size=16", "shared_expert_intermediate_size=32"}},
      {"hunyuan-a13b", {"num_experts=8", "intermediate_size=16", "moe_intermediate_size=16", "head_dim=16"}},
      {"deepseek-v2",
       {"n_routed_experts=16", "moe_intermediate_size=16", "intermediate_size=16", "kv_lora_rank=16", "q_lora_rank=16",
        "qk_nope_head_dim=8", "qk_rope_head_dim=8", "v_head_dim=8", "first_k_dense_replace=0"}}};
  for (const auto& [preset, changes] : more) {
    std::vector<std::string> command = {"init", "--preset", preset, "-o", path(preset)};
    for (const std::vector<std::string>& list : {sizes, changes})
      for (const std::string& change : list) command.insert(command.end(), {"--set", change});
    ok(command);
    ok({"plan", "--config", path(preset) + "/config.json"});
    EXPECT_EQ(ok({"info", path(preset), "--json"}).json()["supported"], true) << preset;
  }
}

TEST_F(FamilyCommands, InfoTellsFamilyNeedsAndWhatIsMissing) {
  const Json qwen = ok({"info", qwen3(), "--json"}).json();
  EXPECT_EQ(qwen["family"], "Qwen3-MoE");
  EXPECT_EQ(qwen["supported"], true);
  EXPECT_NE(qwen["needs"].dump().find("norms of queries and keys, per head"), std::string::npos);
  EXPECT_EQ(qwen["not_supported"], Json::array());
  const ProgramResult words = ok({"info", path("model")});
  for (const char* word : {"family", "Qwen3-MoE", "4 experts of 32", "not supported", "nothing"})
    EXPECT_TRUE(words.out_has(word)) << word << " in " << words.out;

  const auto config = [&](const char* name, const Json& fields) {
    std::filesystem::create_directory(path(name));
    std::ofstream(path(std::string(name) + "/config.json")) << fields;
    return ok({"info", path(name), "--json"}).json();
  };
  const Json qwen2 = config("qwen2", {{"model_type", "qwen2_moe"}});
  EXPECT_NE(qwen2["needs"].dump().find("4 shared experts behind a gate"), std::string::npos);
  const Json v4 = config("v4", {{"model_type", "deepseek_v4"}});
  EXPECT_EQ(v4["supported"], false);
  EXPECT_NE(v4["not_supported"].dump().find("deepseek_v4"), std::string::npos);
  const Json v3 = config("v3", {{"model_type", "deepseek_v3"}});
  EXPECT_EQ(v3["family"], "DeepSeek-V3");
  EXPECT_NE(v3["needs"].dump().find("latent attention (MLA) of 128 heads, with 576 numbers per token"), std::string::npos);
  const Json mla = config("mla", {{"model_type", "glm4_moe"}, {"head_dim", 128}, {"kv_lora_rank", 512}});
  EXPECT_NE(mla["not_supported"].dump().find("kv_lora_rank"), std::string::npos);
  const Json glm = config("glm", {{"model_type", "glm4_moe"}, {"head_dim", 128}, {"num_nextn_predict_layers", 1}});
  EXPECT_EQ(glm["supported"], true);
  EXPECT_NE(glm["not_supported"].dump().find("predicting further tokens"), std::string::npos);
  EXPECT_NE(glm["needs"].dump().find("64 of a head's 128"), std::string::npos);
  std::ofstream(path("v3/tokenizer.model")) << "x";
  const Json no_json = ok({"info", path("v3"), "--json"}).json();
  EXPECT_NE(no_json["not_supported"].dump().find("tokenizer.model is not read"), std::string::npos);
  std::ofstream(path("glm/qwen.tiktoken")) << "x";
  const Json tiktoken = ok({"info", path("glm"), "--json"}).json();
  EXPECT_NE(tiktoken["not_supported"].dump().find("qwen.tiktoken is not read"), std::string::npos);
  EXPECT_NE(tiktoken["not_supported"].dump().find("GGUF"), std::string::npos) << "what to do";
  EXPECT_EQ(run_program({"info", path("nothing")}).status, 1);
}

}  // namespace
}  // namespace dsmoe::testing
