#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <numeric>

#include "cli/run_program.h"
#include "support/temp_folder.h"

namespace dsmoe::testing {
namespace {

TEST(PlanCommand, PrintsTheReleasedModel) {
  const ProgramResult r = run_program({"plan", "--preset", "deepseek-moe-16b"});
  EXPECT_EQ(r.status, 0) << r.err;
  for (const char* number :
       {"16,375,728,128", "2,828,650,496", "74,974,368", "6,177,161,216", "30.5 GiB", "896 MiB", "224 KiB"})
    EXPECT_TRUE(r.out_has(number)) << number << " in\n" << r.out;
}

TEST(PlanCommand, NotesFieldsThatHaveNoEffect) {
  const TempFolder folder;
  std::ofstream(folder / "config.json") << R"({"model_type": "deepseek", "hidden_sise": 64, "transformers_version": "5"})";
  const ProgramResult r = run_program({"plan", "--config", (folder / "config.json").string(), "--json"});
  EXPECT_EQ(r.status, 0) << r.err;
  EXPECT_NO_THROW(r.json()) << "standard output is the answer alone";
  EXPECT_EQ(r.err.rfind("note: ", 0), 0u) << r.err;
  EXPECT_TRUE(r.err_has("unknown fields have no effect: 'hidden_sise'\n")) << r.err;
  EXPECT_EQ(r.err.find("note", 1), std::string::npos) << "once: " << r.err;
}

TEST(PlanCommand, PrintsJson) {
  const ProgramResult r = run_program({"plan", "--preset", "deepseek-moe-16b", "--json"});
  ASSERT_EQ(r.status, 0) << r.err;
  const auto plan = r.json();
  EXPECT_EQ(plan["parameters"], 16375728128);
  EXPECT_EQ(plan["activated_parameters"], 2828650496);
  EXPECT_EQ(plan["tensors"], 5466);
  EXPECT_EQ(plan["context"], 4096);
  EXPECT_EQ(plan["flops_per_token"], 6177161216);
  EXPECT_EQ(plan["training_flops_per_token"], 3 * 6177161216);
  EXPECT_EQ(plan["combinations"], "74974368");
  EXPECT_EQ(plan["memory"]["inference"]["weights"]["bf16"], 32751456256);
  EXPECT_EQ(plan["memory"]["inference"]["kv_cache_per_token"], 229376);
  EXPECT_EQ(plan["memory"]["training"]["bf16"]["total"], 16375728128 * 18);
  ASSERT_EQ(plan["architectures"].size(), 3u);
  EXPECT_EQ(plan["architectures"][0]["routed"], 33);
  EXPECT_EQ(plan["architectures"][0]["width"], 2816);
  EXPECT_EQ(plan["architectures"][2]["parameters"], plan["parameters"]);
  std::int64_t parts = 0;
  for (const auto& part : plan["parameters_by_part"]) parts += part.get<std::int64_t>();
  EXPECT_EQ(parts, 16375728128);
}

TEST(PlanCommand, ManyRanks) {
  const std::vector<std::string> words = {"plan", "--preset", "paper-145b", "--ranks",      "64", "--expert-parallel",
                                          "8",    "--zero",   "1",          "--batch-size", "64"};
  const ProgramResult text = run_program(words);
  EXPECT_TRUE(text.out_has("Training by 64 ranks, experts over 8, ZeRO 1")) << text.out << text.err;
  EXPECT_TRUE(text.out_has("Sent by a rank in a step of 64 x ")) << text.out;
  std::vector<std::string> with_json = words;
  with_json.push_back("--json");
  const auto plan = run_program(with_json).json();
  const auto& ranks = plan["training_by_ranks"];
  EXPECT_EQ(ranks["expert_parallel"], 8);
  EXPECT_LT(ranks["bf16"]["memory"]["total"], plan["memory"]["training"]["bf16"]["total"].get<double>() / 8);
  EXPECT_GT(ranks["bf16"]["bytes_sent_per_step"]["tokens"], 0);
  EXPECT_FALSE(ranks.contains("on_cards"));
  for (const char* w : {"--device", "h200", "--link", "50GB/s", "--efficiency", "0.5"}) with_json.push_back(w);
  const auto on_cards = run_program(with_json).json()["training_by_ranks"]["on_cards"];
  EXPECT_EQ(on_cards["link"], 50e9);
  EXPECT_GT(on_cards["step_seconds"]["share_of_peak"], 0.05);
  EXPECT_LT(on_cards["step_seconds"]["share_of_peak"], 0.5);
  EXPECT_LE(on_cards["best_layout"]["memory"], 141e9);
  EXPECT_GT(on_cards["step_seconds"]["busiest_rank"], 1.05);
  EXPECT_GT(on_cards["step_seconds"]["uneven"], 0);
  std::vector<std::string> machines = with_json;
  for (const char* w : {"--ranks-per-machine", "8", "--link-inside", "450GB/s"}) machines.push_back(w);
  const auto by_machines = run_program(machines).json()["training_by_ranks"];
  EXPECT_EQ(by_machines["bf16"]["bytes_sent_per_step"]["between_machines"]["tokens"], 0);
  EXPECT_LT(by_machines["on_cards"]["step_seconds"]["tokens"], on_cards["step_seconds"]["tokens"].get<double>() / 8.9);
  machines.erase(machines.begin() + static_cast<std::ptrdiff_t>(words.size()));
  const ProgramResult both = run_program(machines);
  EXPECT_TRUE(both.out_has("to other machines") && both.out_has("450 GB/s in a machine and 50 GB/s between them"))
      << both.out;
  EXPECT_TRUE(fails(run_program({"plan", "--preset", "tiny", "--ranks", "4", "--ranks-per-machine", "3"}), 1,
                    {"ranks-per-machine is 3, but there are 4 ranks"}));
  with_json.erase(with_json.begin() + static_cast<std::ptrdiff_t>(words.size()));  // as text
  const ProgramResult table = run_program(with_json);
  EXPECT_TRUE(table.out_has("With twice its even share for the busiest expert of a layer")) << table.out;
  EXPECT_TRUE(table.out_has("A step on 64 x h200 at best") && table.out_has("share of the cards' peak")) << table.out;
  EXPECT_TRUE(fails(
      run_program({"plan", "--preset", "tiny", "--ranks", "2", "--batch-size", "2", "--device", "h100", "--link", "fast"}),
      2, {"--link is a speed"}));
  EXPECT_TRUE(fails(run_program({"plan", "--preset", "tiny", "--ranks", "2", "--device", "h100", "--link", "1GB/s"}), 1,
                    {"needs a batch-size"}));
  EXPECT_TRUE(fails(run_program({"plan", "--preset", "tiny", "--ranks", "4", "--batch-size", "2"}), 1,
                    {"batch-size is 2, but 4 ranks"}));
  EXPECT_TRUE(fails(run_program({"plan", "--preset", "tiny", "--ranks", "4", "--expert-parallel", "3"}), 1,
                    {"expert-parallel is 3, but there are 4 ranks"}));
  EXPECT_TRUE(fails(run_program({"plan", "-N", "16", "-K", "2", "--ranks", "4"}), 2, {"--ranks needs a whole model"}));
}

// How busy experts are, from the file that an inspection writes.
TEST(PlanCommand, LoadsOfExperts) {
  const TempFolder folder;
  const std::string model = (folder / "m").string(), file = (folder / "loads.json").string();
  ASSERT_EQ(run_program({"init", "--preset", "tiny", "--set", "vocab_size=1024", "--tokenizer",
                         std::string(DSMOE_TEST_DATA) + "/cli/data/tokenizer", "-o", model})
                .status,
            0);
  const ProgramResult counted = run_program({"inspect", "-m", model, "--data", "builtin", "--limit", "64", "--json"});
  ASSERT_EQ(counted.status, 0) << counted.err;
  std::ofstream(file) << counted.out;
  std::vector<std::string> words = {
      "plan",   "--config", model,          "--ranks", "2",      "--expert-parallel", "2", "--device", "100GFLOPS",
      "--link", "1GB/s",    "--batch-size", "4",       "--json", "--expert-loads",    file};
  const auto json = run_program(words).json();
  double busiest = 0;
  const auto report = counted.json();
  for (const auto& layer : report["layers"]) {
    const std::vector<double> load = layer["load"];
    const double first = std::accumulate(load.begin(), load.begin() + 15, 0.0),
                 all = std::accumulate(load.begin(), load.end(), 0.0);
    busiest += 2 * std::max(first, all - first) / all / 3;
  }
  EXPECT_NEAR(json["training_by_ranks"]["on_cards"]["step_seconds"]["busiest_rank"], busiest, 1e-9);
  words.insert(words.end(), {"--expert-load-max", "2"});
  EXPECT_TRUE(fails(run_program(words), 2, {"--expert-load-max"}));
  words.resize(words.size() - 4);
  const auto refused = [&](const std::string& text, std::initializer_list<std::string_view> why) {
    std::ofstream(file) << text;
    std::vector<std::string> all = words;
    all.insert(all.end(), {"--expert-loads", file});
    EXPECT_TRUE(fails(run_program(all), 1, why));
  };
  refused("{}", {"loads.json", "'layers' is missing"});
  refused(R"({"layers": []})", {"loads.json", "there are no layers"});
  refused(R"({"layers": [{"load": [1, "x"]}]})", {"loads.json", "'load'"});
  refused(R"({"layers": [{"load": [1, 2]}]})", {"the loads are of 1 layers, but the model has 3 MoE layers"});
  words.insert(words.end(), {"--expert-load-max", "40"});
  EXPECT_TRUE(fails(run_program(words), 1, {"expert-load-max is 40", "has 1 to 5 times its even share"}));
}

TEST(PlanCommand, NumbersOfExpertsAreEnough) {
  const ProgramResult text = run_program({"plan", "-N", "16", "-K", "2", "-m", "4", "-s", "1"});
  EXPECT_EQ(text.status, 0) << text.err;
  EXPECT_TRUE(text.out_has("120") && text.out_has("4,426,165,368") && text.out_has("553,270,671")) << text.out;
  EXPECT_FALSE(text.out_has("Parameters")) << text.out;
  const auto plan = run_program({"plan", "-N", "16", "-K", "2", "-m", "4", "-s", "1", "--json"}).json();
  EXPECT_EQ(plan["scope"], "counts");
  EXPECT_EQ(plan["combinations"], "553270671");
  EXPECT_EQ(plan["architectures"][0]["combinations"], "120");
  EXPECT_EQ(plan["architectures"][1]["combinations"], "4426165368");
  EXPECT_TRUE(plan["architectures"][2]["width"].is_null());
  EXPECT_FALSE(plan.contains("parameters"));
}

TEST(PlanCommand, LongCountsStayExact) {
  const ProgramResult r = run_program({"plan", "-N", "64", "-K", "4", "-m", "8"});
  EXPECT_TRUE(r.out_has("7.028e50")) << r.out;
  EXPECT_TRUE(r.out_has("702,814,253,655,938,225,018,039,814,641,109,516,123,603,866,169,840")) << r.out;
}

TEST(PlanCommand, SizesGiveALayerAndThenAModel) {
  const std::vector<std::string> layer = {
      "plan", "-N", "16", "-K", "2", "-m", "4", "-s", "1", "--hidden-size", "1280", "--expert-size", "3392", "--json"};
  const auto one = run_program(layer).json();
  EXPECT_EQ(one["scope"], "moe_layers");
  EXPECT_EQ(one["parameters"], 64 * 3 * 1280 * 848 + 63 * 1280);
  EXPECT_EQ(one["activated_parameters"], 8 * 3 * 1280 * 848 + 63 * 1280);
  EXPECT_EQ(one["flops_per_token"], 2 * (8 * 3 * 1280 * 848 + 63 * 1280));
  EXPECT_FALSE(one.contains("memory"));
  auto with = layer;
  with.insert(with.end(), {"--layers", "9", "--vocab-size", "8192", "--context", "2048"});
  const auto model = run_program(with).json();
  const auto preset = run_program({"plan", "--preset", "paper-2b", "--json"}).json();
  EXPECT_EQ(model["scope"], "model");
  for (const char* key : {"parameters", "activated_parameters", "flops_per_token", "memory", "architectures"})
    EXPECT_EQ(model[key], preset[key]) << key;
}

class PlanFiles : public ::testing::Test {
 protected:
  std::string file(const std::string& name, const std::string& text) const {
    std::ofstream(folder_ / name) << text;
    return (folder_ / name).string();
  }
  TempFolder folder_;
};

TEST_F(PlanFiles, ReadsAConfig) {
  const std::string moe = file("config.json", R"({"hidden_size": 64, "num_attention_heads": 2, "num_key_value_heads": null,
    "num_hidden_layers": 2, "vocab_size": 100, "n_routed_experts": 8, "num_experts_per_tok": 3, "n_shared_experts": 1,
    "moe_intermediate_size": 16, "max_position_embeddings": 32})");
  const auto plan = run_program({"plan", "--config", moe, "--json"}).json();
  EXPECT_EQ(plan["context"], 32);
  EXPECT_EQ(plan["combinations"], "56");
  EXPECT_EQ(run_program({"plan", "--config", folder_.path(), "--json"}).json()["parameters"], plan["parameters"]);
  EXPECT_EQ(run_program({"plan", "--config", moe, "--context", "64", "--json"}).json()["context"], 64);
}

TEST_F(PlanFiles, ADenseModelHasNoArchitectures) {
  const std::string dense = file("dense.json", "{}");
  const ProgramResult text = run_program({"plan", "--config", dense});
  EXPECT_EQ(text.status, 0) << text.err;
  EXPECT_FALSE(text.out_has("combinations"));
  const auto plan = run_program({"plan", "--config", dense, "--json"}).json();
  EXPECT_EQ(plan["parameters"], plan["activated_parameters"]);
  EXPECT_TRUE(plan["combinations"].is_null());
  EXPECT_TRUE(plan["architectures"].empty());
}

TEST_F(PlanFiles, RefusesBadFilesInOneLine) {
  EXPECT_TRUE(fails(run_program({"plan", "--config", folder_ / "none.json"}), 1, {"none.json", "No such file"}));
  EXPECT_TRUE(fails(run_program({"plan", "--config", file("bad.json", "{\n\n oops")}), 1,
                    {"bad.json", "not valid JSON", "line 3"}));
  EXPECT_TRUE(fails(run_program({"plan", "--config", file("v4.json", R"({"model_type": "deepseek_v4"})")}), 1,
                    {"v4.json", "model_type", "deepseek_v4"}));
  EXPECT_TRUE(
      fails(run_program({"plan", "--config", file("k.json", R"({"n_routed_experts": 4, "num_experts_per_tok": 5})")}), 1,
            {"num_experts_per_tok is 5", "n_routed_experts 4"}));
}

TEST_F(PlanFiles, AStrangePathDoesNotBreakJson) {
  const std::string path = file("\xff.json", "{}");
  const ProgramResult r = run_program({"plan", "--config", path, "--json"});
  ASSERT_EQ(r.status, 0) << r.err;
  EXPECT_TRUE(r.json()["model"].is_string());
}

TEST(PlanCommand, RefusesBadValues) {
  EXPECT_TRUE(fails(run_program({"plan", "--preset", "huge"}), 1, {"huge", "deepseek-moe-16b"}));
  EXPECT_TRUE(fails(run_program({"plan", "-N", "16", "-K", "20"}), 1, {"K", "20", "16"}));
  EXPECT_TRUE(fails(run_program({"plan", "-N", "0", "-K", "1"}), 1, {"N", "is 0"}));
  EXPECT_TRUE(fails(run_program({"plan", "-N", "16", "-K", "2", "-m", "0"}), 1, {"m (split) is 0"}));
  EXPECT_TRUE(fails(run_program({"plan", "-N", "16", "-K", "2", "-m", "4", "-s", "8"}), 1, {"Ks", "8"}));
  EXPECT_TRUE(fails(run_program({"plan", "-N", "16", "-K", "2", "-s", "-1"}), 1, {"Ks", "-1"}));
  EXPECT_TRUE(fails(run_program({"plan", "-N", "16", "-K", "2", "-m", "4", "--hidden-size", "8", "--expert-size", "9"}), 1,
                    {"F (expert size) is 9", "m = 4"}));
  EXPECT_TRUE(fails(run_program({"plan", "--preset", "tiny", "-m", "3"}), 1, {"m (split) is 3"}));
  EXPECT_TRUE(fails(run_program({"plan", "--preset", "tiny", "--context", "99999999999"}), 1, {"context"}));
}

TEST(PlanCommand, RefusesBadUsage) {
  EXPECT_TRUE(fails(run_program({"plan"}), 2, {"--preset", "-N", "dsmoe plan --help"}));
  EXPECT_TRUE(fails(run_program({"plan", "-N", "16"}), 2, {"--active"}));
  EXPECT_TRUE(fails(run_program({"plan", "-N", "x", "-K", "1"}), 2, {"--experts", "x"}));
  EXPECT_TRUE(fails(run_program({"plan", "--preset"}), 2, {"--preset"}));
  EXPECT_TRUE(fails(run_program({"plan", "--preset", "tiny", "--config", "x"}), 2, {"--preset", "--config"}));
  EXPECT_TRUE(fails(run_program({"plan", "--preset", "tiny", "-N", "2", "-K", "1"}), 2, {"--preset", "--experts"}));
  EXPECT_TRUE(fails(run_program({"plan", "-N", "4", "-K", "2", "--layers", "3"}), 2, {"--hidden-size"}));
  EXPECT_TRUE(fails(run_program({"plan", "--preset", "tiny", "--context", "0"}), 2, {"--context"}));
  EXPECT_TRUE(fails(run_program({"plan", "--preset", "tiny", "extra"}), 2, {"extra"}));
}

// The peaks that benchmarks measured on an H200 (docs/performance.md): the prediction is within 5% of them.
TEST(PlanCommand, PredictsThePeakOfTrainingOnAGpu) {
  const auto peak = [](const std::vector<std::string>& model, bool recompute = false) {
    std::vector<std::string> args = {"plan", "--json"};
    args.insert(args.end(), model.begin(), model.end());
    const auto memory = run_program(args).json()["memory"]["gpu_training"]["bf16"];
    return memory[recompute ? "peak_with_recompute" : "peak"].get<double>() / (1 << 30);
  };
  const std::vector<std::string> paper = {"--preset", "paper-2b", "--context", "2048", "--batch-size", "16"};
  EXPECT_NEAR(peak(paper), 53.2, 0.05 * 53.2);
  EXPECT_LT(peak(paper, true), peak(paper));
  const ProgramResult r = run_program({"plan", "--preset", "paper-2b", "--context", "2048", "--batch-size", "16"});
  EXPECT_TRUE(r.status == 0 && r.out_has("Training on a GPU, 16 x 2,048 tokens a pass")) << r.out;
}

}  // namespace
}  // namespace dsmoe::testing
