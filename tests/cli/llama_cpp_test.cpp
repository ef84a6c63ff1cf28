// Our files in llama.cpp and its files in our program. DSMOE_LLAMA_CPP names a llama.cpp tree that is built in build/;
// without it these tests are skipped.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <regex>
#include <sstream>

#include "cli/run_program.h"
#include "io/gguf.h"
#include "io/safetensors.h"
#include "support/files.h"
#include "support/temp_folder.h"

namespace dsmoe::testing {
namespace {

using Json = nlohmann::json;
namespace fs = std::filesystem;

class LlamaCpp : public ::testing::Test {
 protected:
  void SetUp() override {
    const char* tree = std::getenv("DSMOE_LLAMA_CPP");
    if (tree == nullptr) GTEST_SKIP() << "DSMOE_LLAMA_CPP does not name a built llama.cpp tree";
    tree_ = tree;
    write_config(kConfig);
  }

  // Rows of 256 and of 32 for every kind of block; not 8 experts, for which llama-quantize has an exception.
  static constexpr const char* kConfig = R"({"model_type": "deepseek", "vocab_size": 96, "hidden_size": 256,
    "intermediate_size": 256, "moe_intermediate_size": 32, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "n_routed_experts": 6, "num_experts_per_tok": 2, "n_shared_experts": 2,
    "first_k_dense_replace": 1, "max_position_embeddings": 256, "initializer_range": 0.08, "bos_token_id": 0,
    "eos_token_id": 1})";

  void write_config(const std::string& text) const { std::ofstream(folder_ / "config.json") << text; }
  std::string path(const std::string& name) const { return (folder_ / name).string(); }
  static void ok(const std::vector<std::string>& arguments) {
    const ProgramResult r = run_program(arguments);
    ASSERT_EQ(r.status, 0) << r.err;
  }
  // Output and errors of a command of the shell.
  std::string shell(const std::string& command) const {
    const int status = std::system((command + " > '" + path("log") + "' 2>&1").c_str());
    const std::string log = read_bytes(path("log"));
    EXPECT_EQ(status, 0) << command << "\n" << log;
    return log;
  }
  std::string tool(const char* name) const { return "'" + (tree_ / "build/bin" / name).string() + "'"; }

  // The largest relative distance of a token's logits, and how many tokens have another best one.
  std::pair<double, int> compare_logits(const std::string& file, const std::string& ids, Index vocab, double limit) const {
    shell("'" + path("llama_logits") + "' '" + file + "' '" + path("theirs") + "' " + ids);
    std::ofstream(path("x.ids")) << ids << "\n";
    ok({"eval", "-m", file, "--data", path("x.ids"), "--kv-type", "f32", "--logits", path("ours.safetensors"), "--force"});
    const std::string bytes = read_bytes(path("theirs"));
    const auto file_of_ours = io::SafetensorsFile::open(path("ours.safetensors"));
    const Tensor ours = file_of_ours.tensor("logits");
    EXPECT_EQ(ours.bytes(), bytes.size());
    if (ours.bytes() != bytes.size()) return {1, 0};
    const auto *a = ours.data<float>(), *b = reinterpret_cast<const float*>(bytes.data());
    double worst = 0;
    int others = 0;
    for (Index t = 0; t < ours.numel() / vocab; ++t, a += vocab, b += vocab) {
      double difference = 0, norm = 0;
      for (Index v = 0; v < vocab; ++v) difference += (a[v] - b[v]) * (a[v] - b[v]), norm += b[v] * b[v];
      worst = std::max(worst, std::sqrt(difference / norm));
      // Random weights give close seconds: another best token counts where it is further behind than rounding explains.
      const float* best = std::max_element(b, b + vocab);
      const double behind = *best - b[std::max_element(a, a + vocab) - a];
      others += behind > 4 * limit * std::sqrt(norm / static_cast<double>(vocab));
    }
    return {worst, others};
  }

  fs::path tree_;
  TempFolder folder_;
};

// The limits are derived in tests/formats/golden_gguf/README.md; bf16 and f16 round less than 8 bits in blocks do. The seed
// keeps tokens away from ties between experts.
TEST_F(LlamaCpp, LogitsOfEveryType) {
  shell(DSMOE_TEST_DATA "/formats/llama_cpp/build.sh '" + tree_.string() + "' '" + path("llama_logits") + "'");
  ok({"init", "--config", path("config.json"), "--dtype", "f32", "--seed", "12", "-o", path("model")});
  const std::string ids = "5 9 33 41 2 58 14 60 7 7 41 63 30 22 11 3";
  for (const std::string type : {"f32", "bf16", "f16", "q8_0", "q4_0", "q5_0", "q4_k", "q4_k_m", "q6_k"}) {
    const std::string file = path(type + ".gguf");
    ok({type[0] == 'q' ? "quantize" : "convert", path("model"), "-o", file, "--type", type});
    const double layers = 4, limit = type == "f32" ? 1e-4 : 1.5 * 2 * 0.0064 * std::sqrt(4 * layers + 1);
    const auto [worst, others] = compare_logits(file, ids, 96, limit);
    EXPECT_LT(worst, limit) << type;
    EXPECT_EQ(others, 0) << type;
    RecordProperty(type, std::to_string(worst));
    std::printf("%-7s worst token %.2e\n", type.c_str(), worst);
  }
}

// What transformers' own classes made, as far as the format carries it.
TEST_F(LlamaCpp, LogitsOfEveryFamily) {
  shell(DSMOE_TEST_DATA "/formats/llama_cpp/build.sh '" + tree_.string() + "' '" + path("llama_logits") + "'");
  int compared = 0;
  for (const auto& entry : fs::directory_iterator(DSMOE_TEST_DATA "/model/golden_families")) {
    const std::string name = entry.path().filename(), file = path(name + ".gguf");
    // Its reader takes models of other than 26 or 27 layers for ones with q_lora_rank, and knows no other betas of YaRN
    // than 32 and 1 (2026-08).
    const bool unknown = name == "deepseek_v2_lite" || name == "moonlight" || name == "deepseek_v3";
    if (!entry.is_directory() || unknown) continue;
    const ProgramResult r = run_program({"convert", entry.path().string(), "-o", file, "--type", "f32"});
    if (r.status != 0 && r.err.find("keep the model as a Hugging Face folder") != std::string::npos) continue;
    ASSERT_EQ(r.status, 0) << r.err;
    const auto [worst, others] = compare_logits(file, "5 9 33 41 2 17 14 40 7 7 41 3", 48, 1e-4);
    EXPECT_LT(worst, 1e-4) << file;
    EXPECT_EQ(others, 0) << file;
    std::printf("%-20s worst token %.2e\n", name.c_str(), worst);
    ++compared;
  }
  EXPECT_GE(compared, 9);
}

TEST_F(LlamaCpp, ItsQuantizerAndOurs) {
  ok({"init", "--config", path("config.json"), "--dtype", "f32", "--seed", "7", "-o", path("model")});
  ok({"convert", path("model"), "-o", path("f32.gguf")});
  for (const auto& [type, theirs] :
       {std::pair{"q8_0", "Q8_0"}, {"q4_0", "Q4_0"}, {"q5_0", "Q5_0"}, {"q4_k_m", "Q4_K_M"}, {"q6_k", "Q6_K"}}) {
    ok({"quantize", path("model"), "-o", path("ours.gguf"), "--type", type, "--force"});
    shell(tool("llama-quantize") + " '" + path("f32.gguf") + "' '" + path("theirs.gguf") + "' " + theirs);
    const auto a = io::GgufFile::open(path("ours.gguf")), b = io::GgufFile::open(path("theirs.gguf"));
    ASSERT_EQ(a.tensors().size(), b.tensors().size());
    int equal = 0;
    for (const io::GgufTensorInfo& t : a.tensors()) {
      EXPECT_EQ(t.type->name, std::string(b.info(t.name).type->name)) << type << " " << t.name;
      ASSERT_EQ(t.bytes, b.info(t.name).bytes) << type << " " << t.name;
      const bool same = std::memcmp(a.tensor(t.name).raw(), b.tensor(t.name).raw(), t.bytes) == 0;
      // Types with a closed formula give the same bytes; the K types search, each program in its own way.
      const bool searched = std::string(t.type->name).ends_with("_K");
      EXPECT_TRUE(same || searched) << type << " " << t.name;
      equal += same && is_quantized(*t.type->dtype);
    }
    EXPECT_GT(equal, 3) << type;

    // Its blocks as numbers, in its program and in ours; and as blocks, through ours.
    shell(tool("llama-quantize") + " --allow-requantize '" + path("theirs.gguf") + "' '" + path("wide.gguf") + "' F32");
    ok({"convert", path("theirs.gguf"), "-o", path("wide_ours.gguf"), "--type", "f32", "--force"});
    ok({"quantize", path("theirs.gguf"), "-o", path("again.gguf"), "--type", type, "--force"});
    const auto wide = io::GgufFile::open(path("wide.gguf")), wide_ours = io::GgufFile::open(path("wide_ours.gguf")),
               again = io::GgufFile::open(path("again.gguf"));
    for (const io::GgufTensorInfo& t : wide.tensors()) {
      EXPECT_EQ(std::memcmp(wide.tensor(t.name).raw(), wide_ours.tensor(t.name).raw(), t.bytes), 0)
          << type << " " << t.name;
      EXPECT_EQ(std::memcmp(b.tensor(t.name).raw(), again.tensor(t.name).raw(), b.info(t.name).bytes), 0)
          << type << " " << t.name;
    }
  }
}

TEST_F(LlamaCpp, Perplexity) {
  Json config = Json::parse(kConfig);
  config["vocab_size"] = 102400, config["bos_token_id"] = 100000, config["eos_token_id"] = 100001;
  config["initializer_range"] = 0.04;  // logits as steep as a real model's; steeper ones show llama.cpp's own rounding
  write_config(config.dump());
  ok({"init", "--config", path("config.json"), "--dtype", "f32", "--seed", "7", "-o", path("model"), "--tokenizer",
      DSMOE_TEST_DATA "/tokenizer/data/deepseek-llm"});
  // A real text: this project's own. Both cut it into windows and count the second half of each.
  const std::string text = DSMOE_SOURCE_DIR "/docs/design/determinism.md";
  constexpr int kWindow = 128;
  const ProgramResult tokens = run_program({"tokenize", "-m", path("model"), "-f", text, "--ids"});
  ASSERT_EQ(tokens.status, 0) << tokens.err;
  std::vector<int> ids;
  std::istringstream list(tokens.out);
  for (int id = 0; list >> id;) ids.push_back(id);
  ASSERT_GE(ids.size(), 4u * kWindow);
  std::ofstream windows(path("w.ids"));
  for (std::size_t w = 0; w + kWindow <= ids.size(); w += kWindow)
    for (int i = 0; i < kWindow; ++i)
      windows << (i == 0 ? 100000 : ids[w + static_cast<std::size_t>(i)]) << (i + 1 < kWindow ? " " : "\n");
  windows.close();
  for (const std::string type : {"f32", "q8_0", "q4_0", "q4_k_m"}) {
    const std::string file = path(type + ".gguf");
    ok({type[0] == 'q' ? "quantize" : "convert", path("model"), "-o", file, "--type", type});
    const ProgramResult ours = run_program(
        {"eval", "-m", file, "--data", path("w.ids"), "--score-from", std::to_string(kWindow / 2 + 1), "--json"});
    ASSERT_EQ(ours.status, 0) << ours.err;
    const std::string log = shell(tool("llama-perplexity") + " -m '" + file + "' -f '" + text + "' -c 128 -b 128 -t 2");
    std::smatch found;
    ASSERT_TRUE(std::regex_search(log, found, std::regex("Final estimate: PPL = ([0-9.]+)"))) << log;
    const double want = std::stod(found[1]), got = ours.json()["perplexity"];
    std::printf("%-7s perplexity %.2f, llama.cpp %.2f\n", type.c_str(), got, want);
    EXPECT_NEAR(got / want, 1, 0.005) << type;
  }
}

TEST_F(LlamaCpp, ItsBenchmarkRunsOurFilesWithoutATokenizer) {
  for (const char* type : {"bf16", "q4_0", "q4_k_m"}) {
    ok({"init", "--config", path("config.json"), "--type", type, "-o", path(std::string(type) + ".gguf")});
    const std::string log =
        shell(tool("llama-bench") + " -m '" + path(std::string(type) + ".gguf") + "' -p 8 -n 2 -r 1 -t 2");
    EXPECT_NE(log.find("tg2"), std::string::npos) << log;
  }
}

}  // namespace
}  // namespace dsmoe::testing
