// eval with changed routing, inspect, prune, upcycle and merge, as a user runs them.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "cli/run_program.h"
#include "support/files.h"
#include "support/temp_folder.h"

namespace dsmoe::testing {
namespace {

using Json = nlohmann::json;

class StudyCommands : public ::testing::Test {
 protected:
  void SetUp() override {
    std::ofstream(path("a.ids")) << "1 2 3 4 5 6 7 8 9\n10 11 12 13 14\n";
    std::ofstream(path("b.ids")) << "20 21 22 23 24 25 26\n";
  }
  std::string path(const std::string& name) const { return (folder_ / name).string(); }

  std::string model(
      const std::string& name, const std::string& seed,
      const std::string& experts =
          R"("n_routed_experts": 16, "num_experts_per_tok": 2, "n_shared_experts": 1, "first_k_dense_replace": 1,)") const {
    std::ofstream(path("config.json"))
        << R"({"model_type": "deepseek", "vocab_size": 50, "hidden_size": 16, "intermediate_size": 32,
      "moe_intermediate_size": 8, "num_hidden_layers": 3, "num_attention_heads": 2, "num_key_value_heads": 1, )"
        << experts << R"("max_position_embeddings": 64, "initializer_range": 0.3})";
    const ProgramResult made =
        run_program({"init", "--config", path("config.json"), "--seed", seed, "--dtype", "f32", "-o", path(name)});
    EXPECT_EQ(made.status, 0) << made.err;
    return path(name);
  }
  static Json good(const ProgramResult& result) {
    EXPECT_EQ(result.status, 0) << result.err;
    return result.status == 0 ? Json::parse(result.out) : Json();
  }
  TempFolder folder_;
};

TEST_F(StudyCommands, EvalWithChangedRouting) {
  const std::string m = model("m", "3");
  const double plain = good(run_program({"eval", "-m", m, "--data", path("a.ids"), "--json"}))["loss"];
  const Json j = good(run_program({"eval", "-m", m, "--data", path("a.ids"), "--mask-top", "1/16,2/16", "--no-shared",
                                   "--top-k", "1,2,4", "--disable", "1:3,2:5", "--plot", path("p.svg"), "--json"}));
  ASSERT_EQ(j["ablations"].size(), 8u);
  EXPECT_EQ(j["ablations"][0]["loss"], plain);
  EXPECT_EQ(j["ablations"][1]["masked_experts"], 1);
  EXPECT_NE(j["ablations"][1]["loss"], plain);
  EXPECT_EQ(j["ablations"][5]["loss"], plain) << "the model's own number of experts";
  EXPECT_NE(read_bytes(path("p.svg")).find("<svg"), std::string::npos);
  const ProgramResult table = run_program({"eval", "-m", m, "--data", path("a.ids"), "--mask-top", "1/16"});
  EXPECT_TRUE(table.out_has("top 1/16 masked (1 of 16)")) << table.out;

  EXPECT_TRUE(fails(run_program({"eval", "-m", m, "--data", path("a.ids"), "--mask-top", "2"}), 1, {"1/16"}));
  EXPECT_TRUE(fails(run_program({"eval", "-m", m, "--data", path("a.ids"), "--disable", "0:1"}), 1, {"layer 0"}));
  EXPECT_TRUE(fails(run_program({"eval", "-m", m, "--data", path("a.ids"), "--plot", path("q.svg")}), 2, {"--mask-top"}));
  EXPECT_TRUE(fails(run_program({"eval", "-m", m, "--data", path("a.ids"), "--top-k", "1", "--logits", path("l")}), 2,
                    {"--logits"}));
}

TEST_F(StudyCommands, InspectWritesEverythingThatIsAsked) {
  const std::string m = model("m", "3"), other = model("n", "4");
  const std::vector<std::string> data = {"--data", path("a.ids"), "second=" + path("b.ids")};
  std::vector<std::string> arguments = {"inspect", "-m",          m,         "--against",     other,   "-o", path("r.html"),
                                        "--csv",   path("r.csv"), "--trace", path("r.trace"), "--json"};
  arguments.insert(arguments.end(), data.begin(), data.end());
  const Json j = good(run_program(arguments));
  EXPECT_EQ(j["data"]["tokens"], 21);
  EXPECT_EQ(j["data"]["domains"][0]["name"], "a");
  EXPECT_EQ(j["data"]["domains"][1]["tokens"], 7);
  EXPECT_EQ(j["layers"].size(), 2u);
  EXPECT_EQ(j["layers"][0]["combinations"]["possible"], "120");
  EXPECT_LT(j["stability"]["layers"][0]["overlap"], 1);
  EXPECT_NE(read_bytes(path("r.html")).find("application/json"), std::string::npos);
  const std::string csv = read_bytes(path("r.csv"));
  EXPECT_EQ(std::count(csv.begin(), csv.end(), '\n'), 1 + 2 * 16);

  const Json replayed = good(run_program({"inspect", "--replay", path("r.trace"), "--json"}));
  EXPECT_EQ(replayed["layers"][0]["load"], j["layers"][0]["load"]);
  EXPECT_EQ(replayed["layers"][1]["pairs"], j["layers"][1]["pairs"]);
  const Json same = good(run_program({"inspect", "-m", m, "--against", m, "--data", path("a.ids"), "--json"}));
  EXPECT_EQ(same["stability"]["layers"][1]["overlap"], 1);
  const ProgramResult table = run_program({"inspect", "-m", m, "--data", path("a.ids")});
  EXPECT_TRUE(table.out_has("120 sets exist")) << table.out;
}

TEST_F(StudyCommands, InspectRefusesInOneLine) {
  const std::string m = model("m", "3");
  EXPECT_TRUE(fails(run_program({"inspect", "-m", m}), 2, {"--data"}));
  EXPECT_TRUE(fails(run_program({"inspect", "-m", path("nowhere"), "--data", path("a.ids")}), 1, {"there is no model"}));
  std::ofstream(path("x.trace")) << "nonsense";
  EXPECT_TRUE(fails(run_program({"inspect", "--replay", path("x.trace")}), 1, {"not a routing trace"}));
  EXPECT_TRUE(fails(run_program({"inspect", "--replay", path("x.trace"), "--data", path("a.ids")}), 2, {"--replay"}));
  const std::string dense = model("d", "1", "");
  EXPECT_TRUE(fails(run_program({"inspect", "-m", dense, "--data", path("a.ids")}), 1, {"no MoE layer"}));
}

TEST_F(StudyCommands, PruneSaysTheLossBeforeAndAfter) {
  const std::string m = model("m", "3");
  const double plain = good(run_program({"eval", "-m", m, "--data", path("a.ids"), "--json"}))["loss"];
  const Json j =
      good(run_program({"prune", "-m", m, "--data", path("a.ids"), "--remove", "12", "-o", path("small"), "--json"}));
  EXPECT_EQ(j["experts_after"], 4);
  EXPECT_NEAR(j["loss_before"].get<double>(), plain, 1e-9);
  EXPECT_GT(j["choices_lost"], 0);
  EXPECT_LT(j["choices_lost"], 12.0 / 16) << "the least used have less than their share";
  EXPECT_NEAR(good(run_program({"eval", "-m", path("small"), "--data", path("a.ids"), "--json"}))["loss"].get<double>(),
              j["loss_after"].get<double>(), 1e-9);
  const Json all =
      good(run_program({"prune", "-m", m, "--data", path("a.ids"), "--keep", "16", "-o", path("same"), "--json"}));
  EXPECT_EQ(all["loss_after"], all["loss_before"]);
  EXPECT_TRUE(
      fails(run_program({"prune", "-m", m, "--data", path("a.ids"), "--keep", "1", "-o", path("x")}), 1, {"1 experts"}));
  EXPECT_TRUE(fails(run_program({"prune", "-m", m, "--data", path("a.ids"), "-o", path("x")}), 2, {"--keep"}));
  EXPECT_TRUE(
      fails(run_program({"prune", "-m", m, "--data", path("a.ids"), "--keep", "9", "-o", path("small")}), 1, {"--force"}));
}

TEST_F(StudyCommands, UpcycleKeepsTheLossAndMergeTakesSeveral) {
  const std::string a = model("a", "1", ""), b = model("b", "2", "");
  const auto loss = [&](const std::string& m) {
    return good(run_program({"eval", "-m", m, "--data", path("a.ids"), "--json"}))["loss"].get<double>();
  };
  const Json j = good(run_program(
      {"upcycle", "-m", a, "--experts", "6", "--granularity", "4", "--shared", "1", "-o", path("moe"), "--json"}));
  EXPECT_EQ(j["routed_experts"], 18);
  EXPECT_EQ(j["experts_per_token"], 3);
  EXPECT_NEAR(loss(path("moe")), loss(a), 1e-5 * loss(a));
  const Json merged = good(run_program({"merge", "-m", a, b, "--granularity", "2", "-o", path("both"), "--json"}));
  EXPECT_EQ(merged["routed_experts"], 4);
  EXPECT_TRUE(std::isfinite(loss(path("both"))));
  EXPECT_TRUE(fails(run_program({"upcycle", "-m", path("moe"), "-o", path("x")}), 1, {"experts already"}));
  EXPECT_EQ(run_program({"merge", "-m", a, "-o", path("x")}).status, 2);
}

TEST_F(StudyCommands, AGgufFileIsStudiedToo) {
  std::ofstream(path("config.json"))
      << R"({"model_type": "deepseek", "vocab_size": 50, "hidden_size": 64, "intermediate_size": 64, "moe_intermediate_size": 32,
    "num_hidden_layers": 3, "num_attention_heads": 2, "num_key_value_heads": 1, "n_routed_experts": 16, "num_experts_per_tok": 2,
    "n_shared_experts": 1, "first_k_dense_replace": 1, "max_position_embeddings": 64, "initializer_range": 0.3})";
  const std::string file = path("m.gguf"), small = path("q8.gguf"), widened = path("widened.gguf");
  ASSERT_EQ(run_program({"init", "--config", path("config.json"), "--type", "f32", "-o", file}).status, 0);
  ASSERT_EQ(run_program({"quantize", file, "-o", small, "--type", "q8_0"}).status, 0);
  const auto ablations = [&](std::vector<std::string> of) {
    of.insert(of.begin(), "eval");
    of.insert(of.end(), {"--data", path("a.ids"), "--mask-top", "1/16,4/16", "--no-shared", "--top-k", "1,4", "--disable",
                         "1:3,2:5", "--kv-type", "f32", "--json"});
    return good(run_program(of))["ablations"];
  };
  // The same numbers in f32, so that all the difference is the rounding of activations to 8 bits: 0.6% of a row in each of
  // the five products that a token passes per layer, over three layers, and in the head. By so much the logits differ,
  // whose deviation is initializer_range * sqrt(hidden_size); a loss is a mean over 12 tokens of the difference of two of
  // them, and 3 deviations are enough for every one of seven. A flipped choice would show as much more.
  ASSERT_EQ(run_program({"convert", small, "-o", widened}).status, 0);
  const Json exact = ablations({"-m", widened}), rounded = ablations({"-m", small});
  ASSERT_EQ(rounded.size(), 7u);
  const double limit = 3 * std::sqrt(16.0) * 0.006 * 0.3 * std::sqrt(64.0) * std::sqrt(2.0 / 12);
  for (std::size_t i = 0; i < rounded.size(); ++i) {
    EXPECT_NEAR(rounded[i]["loss"], exact[i]["loss"], limit) << rounded[i]["label"];
  }

  const Json seen = good(run_program({"inspect", "-m", small, "--against", file, "--data", path("a.ids"), "-o",
                                      path("r.html"), "--csv", path("r.csv"), "--json"}));
  EXPECT_GT(seen["stability"]["layers"][0]["overlap"], 0.7);
  EXPECT_TRUE(std::filesystem::exists(path("r.html")));

  const std::vector<std::string> prune = {"prune", "-m", small, "--data", path("a.ids"), "--keep", "8", "-o", path("p")};
  EXPECT_TRUE(fails(run_program(prune), 1, {"quantized", "--dtype f32 or bf16"}));
  std::vector<std::string> wide = prune;
  wide.insert(wide.end(), {"--dtype", "bf16", "--json"});
  const Json pruned = good(run_program(wide));
  EXPECT_EQ(good(run_program({"eval", "-m", path("p"), "--data", path("a.ids"), "--json"}))["loss"], pruned["loss_after"]);
  EXPECT_TRUE(fails(run_program({"upcycle", "-m", small, "-o", path("u")}), 1, {"experts already", "dense"}));
  EXPECT_TRUE(fails(run_program({"merge", "-m", small, file, "-o", path("u")}), 1, {"experts already", "dense"}));
  EXPECT_FALSE(std::filesystem::exists(path("u") + "/config.json"));
}

TEST_F(StudyCommands, BenchTracePrintsEveryCost) {
  const Json j = good(run_program({"bench", "trace", "-m", model("m", "3"), "-p", "16", "-r", "2", "--json"}));
  for (const char* key : {"tokens_per_second", "off_cost", "off_nanoseconds_per_layer", "statistics_cost", "trace_cost"})
    EXPECT_GT(j[key], 0) << key;
  EXPECT_LT(j["off_cost"], 1e-3) << "two tests of a pointer";
  EXPECT_TRUE(j.contains("trace_whole") && j.contains("statistics_whole"));
}

TEST_F(StudyCommands, CompareTrainsAllFourAndGoesOn) {
  std::ofstream(path("config.json"))
      << R"({"model_type": "deepseek", "vocab_size": 300, "hidden_size": 16, "intermediate_size": 32,
    "moe_intermediate_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 2, "n_routed_experts": 7,
    "num_experts_per_tok": 3, "n_shared_experts": 1, "first_k_dense_replace": 1, "max_position_embeddings": 64})";
  const std::vector<std::string> command = {
      "compare",   "--config", path("config.json"), "--steps", "2",  "--seeds",   "2",     "--batch-size", "1",
      "--seq-len", "32",       "--eval-sequences",  "2",       "-o", path("out"), "--json"};
  const Json j = good(run_program(command));
  ASSERT_EQ(j["models"].size(), 4u);
  EXPECT_EQ(j["models"][0]["expert_parameters"], j["models"][2]["expert_parameters"]);
  EXPECT_EQ(j["models"][1]["losses"].size(), 2u);
  EXPECT_FALSE(j.contains("plots"));
  for (const char* file : {"report.html", "curves.svg", "ablations.svg", "compare.json"})
    EXPECT_TRUE(std::filesystem::exists(path("out") + "/" + file)) << file;
  const Json again = good(run_program(command));
  EXPECT_EQ(again["models"], j["models"]) << "all runs are there, none is trained again";
  // A reader of its progress that goes away does not end it, as it would by SIGPIPE.
  std::string line = std::string(DSMOE_PROGRAM);
  for (const std::string& argument : command) line += " " + (argument == path("out") ? path("piped") : argument);
  EXPECT_EQ(std::system(("{ " + line + " 2>&1 >/dev/null; echo $? >" + path("status") + "; } | true").c_str()), 0);
  EXPECT_EQ(read_bytes(path("status")), "0\n");
  EXPECT_EQ(Json::parse(read_bytes(path("piped") + "/compare.json"))["models"], j["models"]);

  std::vector<std::string> other = command;
  other.insert(other.end(), {"--lr", "0.1"});
  EXPECT_TRUE(fails(run_program(other), 1, {"other options"}));
  EXPECT_TRUE(fails(run_program({"compare", "--data", path("a.ids"), "-o", path("x")}), 2, {"--tokenizer"}));
}

}  // namespace
}  // namespace dsmoe::testing
