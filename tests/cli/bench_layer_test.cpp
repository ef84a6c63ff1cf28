#include "cli/run_program.h"
#include "ops/tolerance.h"

namespace dsmoe::testing {
namespace {

std::vector<std::string> small_layer(std::vector<std::string> more) {
  std::vector<std::string> arguments = {"bench",     "layer", "--hidden-size", "128", "--expert-size", "32",
                                        "--experts", "32",    "--repeat",      "1",   "--json"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

TEST(BenchLayer, PrintsAResultPerPass) {
  const ProgramResult r = run_program(small_layer({"--tokens", "1,40", "--backward"}));
  ASSERT_EQ(r.status, 0) << r.err;
  const auto report = r.json();
  EXPECT_EQ(report["dtype"], "f32");
  EXPECT_LT(report["error_against_reference"].get<double>(), 1e-5);
  EXPECT_EQ(report["sample_output"].size(), 8u);
  ASSERT_EQ(report["results"].size(), 4u);
  const auto& one = report["results"][0];
  // 2 shared and 6 routed experts of three matrices each, and the gate.
  const double operations = 2.0 * (8 * 3 * 128 * 32 + 32 * 128);
  EXPECT_NEAR(one["gflops"].get<double>() * 1e9 * one["seconds"].get<double>(), operations, 1e-6 * operations);
  EXPECT_EQ(one["empty_experts"], 26);
  EXPECT_EQ(report["results"][3]["pass"], "forward+backward");
}

TEST(BenchLayer, MeasuresBothKindsOfGradients) {
  const ProgramResult r =
      run_program(small_layer({"--tokens", "3", "--backward", "--dtype", "bf16", "--grad-dtype", "f32,bf16"}));
  ASSERT_EQ(r.status, 0) << r.err;
  const auto results = r.json()["results"];
  ASSERT_EQ(results.size(), 3u);
  EXPECT_EQ(results[0]["gradients"], "");
  EXPECT_EQ(results[1]["gradients"], "f32");
  EXPECT_EQ(results[2]["gradients"], "bf16");
  EXPECT_GT(r.json()["error_against_reference"].get<double>(), 0x1p-12) << "bf16 gradients are compared too";
}

TEST(BenchLayer, SkewsTheRouting) {
  const ProgramResult r = run_program(small_layer({"--tokens", "400", "--skew"}));
  ASSERT_EQ(r.status, 0) << r.err;
  const auto result = r.json()["results"][0];
  EXPECT_EQ(result["empty_experts"], 8);
  EXPECT_GE(result["largest_expert_share"].get<double>(), 0.29);
  // Without it nobody is empty at so many tokens.
  EXPECT_EQ(run_program(small_layer({"--tokens", "400"})).json()["results"][0]["empty_experts"], 0);
}

TEST(BenchLayer, QuantizedWeights) {
  for (const char* dtype : {"q8_0", "q4_k"}) {
    const ProgramResult r = run_program({"bench", "layer", "--hidden-size", "256", "--expert-size", "128", "--experts", "8",
                                         "--repeat", "1", "--json", "--tokens", "1,20", "--dtype", dtype});
    ASSERT_EQ(r.status, 0) << r.err;
    EXPECT_EQ(r.json()["dtype"], dtype);
    EXPECT_LT(r.json()["error_against_reference"].get<double>(), tolerance::requantized_limit(256, 8 * 128));
  }
}

TEST(BenchLayer, RefusesWhatMakesNoSense) {
  EXPECT_EQ(run_program(small_layer({"--dtype", "q4_0", "--backward"})).status, 2);
  EXPECT_EQ(run_program(small_layer({"--skew", "--experts", "13"})).status, 2);
  EXPECT_EQ(run_program(small_layer({"--path", "mma"})).status, 2);
  EXPECT_EQ(run_program(small_layer({"--tokens", "0"})).status, 2);
  EXPECT_EQ(run_program(small_layer({"--backward", "--grad-dtype", "bf16"})).status, 2) << "of f32 weights";
}

TEST(BenchLayer, OnCudaOrSaysWhyNot) {
  const ProgramResult r = run_program(small_layer({"--device", "cuda", "--tokens", "1,40", "--backward"}));
  if (r.status == 0) {
    EXPECT_EQ(r.json()["dtype"], "bf16");
    EXPECT_EQ(r.json()["results"].size(), 4u);
    return;
  }
  EXPECT_EQ(r.status, 1);
  EXPECT_TRUE(r.is_one_error_line()) << r.err;
  EXPECT_TRUE(r.err_has("DSMOE_CUDA=ON") || r.err_has("no CUDA device")) << r.err;
}

}  // namespace
}  // namespace dsmoe::testing
