// An error on one rank alone, in the middle of what all do together: no memory for a tensor, once, at a place that the test
// chooses (fail_memory.cpp). Whoever it happens to, all end, with one line that names the rank and what it was.
#include <gtest/gtest.h>

#include <fstream>
#include <future>
#include <nlohmann/json.hpp>

#include "cli/run_program.h"
#include "multi/run_ranks.h"
#include "serve/client.h"

namespace dsmoe {
namespace {

using testing::Ranks;
using testing::RanksResult;
using testing::run_program;
using testing::TempFolder;
using Words = std::vector<std::string>;
using Clock = std::chrono::steady_clock;

constexpr int kCount = 3;

class MultiErrors : public ::testing::TestWithParam<int> {  // the rank that it happens to
 protected:
  std::string model() {
    const std::string path = (folder_ / "model").string();
    if (!std::filesystem::exists(path)) {
      EXPECT_EQ(run_program({"init", "--preset", "tiny", "--set", "max_position_embeddings=20000", "--set",
                             "vocab_size=1024", "--tokenizer", DSMOE_SOURCE_DIR "/tests/cli/data/tokenizer", "-o", path})
                    .status,
                0);
    }
    return path;
  }

  // dsmoe by kCount ranks.
  std::unique_ptr<Ranks> start(const Words& words) const {
    Words all;
    for (int rank = 0; rank < kCount; ++rank) {
      if (rank > 0) all.push_back(":");
      all.insert(all.end(), {"-n", "1"});
      if (rank == GetParam())
        all.insert(all.end(), {"env", "LD_PRELOAD=" DSMOE_FAIL_MEMORY, "FAIL_MEMORY=" + (folder_ / "now").string()});
      all.push_back(DSMOE_PROGRAM);
      all.insert(all.end(), words.begin(), words.end());
    }
    return std::make_unique<Ranks>(all, Words{});
  }

  // The n-th tensor from now on.
  void fail_at(int n) const {
    std::ofstream(folder_ / "soon") << n << "\n";
    std::filesystem::rename(folder_ / "soon", folder_ / "now");
  }

  void expect_the_end(Ranks& ranks, Clock::time_point began) const {
    const RanksResult r = ranks.wait();
    EXPECT_NE(r.status, 0);
    EXPECT_LT(Clock::now() - began, std::chrono::seconds(30));
    const std::string line = "dsmoe: rank " + std::to_string(GetParam()) + ": out of memory";
    const std::size_t first = r.err.find("dsmoe: rank ");
    EXPECT_EQ(r.err.compare(first, line.size(), line), 0) << r.err;
    EXPECT_EQ(r.err.find("dsmoe: rank ", first + 1), std::string::npos) << r.err;
  }

  TempFolder folder_;
};

TEST_P(MultiErrors, Eval) {
  SKIP_WITHOUT_MPIRUN();
  std::string text;
  for (int i = 0; i < 20000; ++i) text += "The sum of " + std::to_string(i) + " and 1 is " + std::to_string(i + 1) + ". ";
  std::ofstream(folder_ / "text.txt") << text;
  const std::string m = model();
  const auto began = Clock::now();
  fail_at(2000);  // some passes later
  const auto ranks = start({"eval", "-m", m, "--data", (folder_ / "text.txt").string(), "-c", "64", "-t", "1"});
  expect_the_end(*ranks, began);
}

TEST_P(MultiErrors, Generate) {
  SKIP_WITHOUT_MPIRUN();
  const auto ranks = start({"generate", "-m", model(), "--ids", "5,6,7", "-n", "19000", "--ignore-eos", "-t", "1"});
  ASSERT_TRUE(ranks->wait_until([&] { return ranks->text_of("out").size() > 100; })) << ranks->text_of("err");
  const auto began = Clock::now();
  fail_at(20);
  expect_the_end(*ranks, began);
}

TEST_P(MultiErrors, Train) {
  SKIP_WITHOUT_MPIRUN();
  const auto ranks = start({"train", "-o", (folder_ / "run").string(), "--steps", "100000", "--batch-size", "3",
                            "--seq-len", "32", "--threads", "1", "--holdout", "0", "--expert-parallel", "3"});
  ASSERT_TRUE(ranks->wait_until([&] { return std::filesystem::exists(folder_ / "run" / "log.jsonl"); }));
  const auto began = Clock::now();
  fail_at(200);
  expect_the_end(*ranks, began);
}

// One who asks is told, and one who asks at the same time is not left waiting.
TEST_P(MultiErrors, Serve) {
  SKIP_WITHOUT_MPIRUN();
  const auto ranks = start({"serve", "-m", model(), "--port", "0", "-t", "1"});
  const std::uint16_t port = testing::port_of(*ranks);
  ASSERT_NE(port, 0) << ranks->text_of("err");
  const auto ask = [port] {
    const nlohmann::json body = {{"prompt", {5, 6, 7}}, {"max_tokens", 2000}, {"ignore_eos", true}};
    return test::Client(port).post("/v1/completions", body);
  };
  std::vector<std::future<test::HttpAnswer>> asked;
  for (int i = 0; i < 2; ++i) asked.push_back(std::async(std::launch::async, ask));
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  const auto began = Clock::now();
  fail_at(20);
  for (auto& reply : asked) {
    if (GetParam() > 0) {
      reply.wait();  // nobody is there any more
      continue;
    }
    const test::HttpAnswer r = reply.get();
    EXPECT_EQ(r.status, 500);
    EXPECT_NE(r.body.find("out of memory"), std::string::npos) << r.body;
  }
  expect_the_end(*ranks, began);
}

INSTANTIATE_TEST_SUITE_P(, MultiErrors, ::testing::Values(0, 1, 2), ::testing::PrintToStringParamName());

}  // namespace
}  // namespace dsmoe
