#include "cli/run_program.h"

namespace dsmoe::testing {
namespace {

TEST(BenchAttention, OnCudaOrSaysWhyNot) {
  const ProgramResult r = run_program({"bench", "attention", "--tokens", "600", "--length", "300,100", "--heads", "4",
                                       "--kv-heads", "2", "--head-dim", "64", "--repeat", "1", "--json"});
  if (r.status == 0) {
    const auto results = r.json()["results"];
    ASSERT_EQ(results.size(), 4u);
    EXPECT_EQ(results[1]["pass"], "backward");
    EXPECT_EQ(results[1]["sequences"], 2);
    // Five products over the pairs of a query and a key that it sees.
    const double operations = 5 * 2.0 * 2 * (300 * 301 / 2) * 4 * 64;
    EXPECT_NEAR(results[1]["gflops"].get<double>() * 1e9 * results[1]["seconds"].get<double>(), operations,
                1e-6 * operations);
    return;
  }
  EXPECT_EQ(r.status, 1);
  EXPECT_TRUE(r.is_one_error_line()) << r.err;
  EXPECT_TRUE(r.err_has("DSMOE_CUDA=ON") || r.err_has("no CUDA device")) << r.err;
}

TEST(BenchAttention, RefusesWhatMakesNoSense) {
  EXPECT_EQ(run_program({"bench", "attention", "--heads", "6", "--kv-heads", "4"}).status, 2);
  EXPECT_EQ(run_program({"bench", "attention", "--tokens", "100", "--length", "200"}).status, 2);
  EXPECT_EQ(run_program({"bench", "attention", "--length", "0"}).status, 2);
}

}  // namespace
}  // namespace dsmoe::testing
