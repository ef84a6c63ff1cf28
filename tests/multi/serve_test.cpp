// dsmoe serve under mpirun: the first rank listens, and answers with the bits of one process.
#include <gtest/gtest.h>

#include <future>
#include <nlohmann/json.hpp>

#include "cli/run_program.h"
#include "multi/run_ranks.h"
#include "serve/client.h"

namespace dsmoe {
namespace {

using testing::port_of;
using testing::Ranks;
using testing::RanksResult;
using testing::run_program;
using testing::TempFolder;

// Some at once, of which three begin with the same page and a half: pages are shared, and one is copied.
std::vector<nlohmann::json> answers_of(std::uint16_t port) {
  std::vector<int> long_prompt;
  for (int i = 0; i < 384; ++i) long_prompt.push_back(3 + i * 7 % 200);
  const auto ask = [port](const std::vector<int>& prompt, int seed) {
    const nlohmann::json body = {{"prompt", prompt}, {"max_tokens", 6}, {"ignore_eos", true},
                                 {"seed", seed},     {"logprobs", 3},   {"temperature", 0.8}};
    return test::Client(port).post("/v1/completions", body).json()["choices"];
  };
  std::vector<nlohmann::json> answers = {ask(long_prompt, 1)};
  std::vector<std::future<nlohmann::json>> later;
  for (int i = 0; i < 4; ++i) {
    std::vector<int> prompt = i < 2 ? long_prompt : std::vector<int>{5, 6, 7 + i};
    prompt.push_back(9 + i);
    later.push_back(std::async(std::launch::async, ask, prompt, i));
  }
  for (auto& answer : later) answers.push_back(answer.get());
  return answers;
}

TEST(MultiServe, TheAnswersOfOneProcess) {
  SKIP_WITHOUT_MPIRUN();
  const TempFolder folder;
  const std::string model = (folder / "m").string();
  ASSERT_EQ(run_program({"init", "--preset", "tiny", "-o", model}).status, 0);
  std::vector<nlohmann::json> one;
  for (const int count : {1, 2, 3}) {
    Ranks ranks(count, {DSMOE_PROGRAM, "serve", "-m", model, "--port", "0", "-t", "1"});
    const std::uint16_t port = port_of(ranks);
    ASSERT_NE(port, 0) << ranks.text_of("err");
    const std::vector<nlohmann::json> answers = answers_of(port);
    if (count == 1) one = answers;
    ASSERT_EQ(one.size(), 5u);
    EXPECT_EQ(one[0][0]["logprobs"]["tokens"].size(), 6u) << one[0];
    EXPECT_EQ(answers, one) << count;
    ::kill(ranks.process_of(0), SIGTERM);
    const RanksResult r = ranks.wait();
    EXPECT_EQ(r.status, 0) << r.err;
    EXPECT_TRUE(r.err_has("finishing what runs")) << r.err;
  }
}

// A follower that does not answer any more ends the server, while it answers and while nobody asks.
TEST(MultiServe, AStoppedFollower) {
  SKIP_WITHOUT_MPIRUN();
  ::setenv("DSMOE_RANK_TIMEOUT", "3", 1);
  const TempFolder folder;
  const std::string model = (folder / "m").string();
  ASSERT_EQ(run_program({"init", "--preset", "tiny", "-o", model}).status, 0);
  for (const bool asked : {true, false}) {
    Ranks ranks(2, {DSMOE_PROGRAM, "serve", "-m", model, "--port", "0", "-t", "1"});
    const std::uint16_t port = port_of(ranks);
    ASSERT_NE(port, 0) << ranks.text_of("err");
    const pid_t follower = ranks.process_of(1);
    ASSERT_GT(follower, 0);
    const auto began = std::chrono::steady_clock::now();
    ::kill(follower, SIGSTOP);
    test::Client client(port);
    const nlohmann::json body = {{"prompt", {5, 6, 7}}, {"max_tokens", 4}};
    if (asked) client.send(test::Client::request("POST", "/v1/completions", body.dump()));
    const RanksResult r = ranks.wait();
    EXPECT_NE(r.status, 0);
    EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::seconds(30));
    EXPECT_TRUE(r.err_has("dsmoe: rank 1 (process " + std::to_string(follower) + " on ")) << r.err;
  }
}

}  // namespace
}  // namespace dsmoe
