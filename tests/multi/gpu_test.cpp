// Ranks that compute on GPUs. They share the first one where there are not enough, so their speed says nothing.
// scripts/gpu_check.sh runs each of these alone, and says what took how long.
#include <gtest/gtest.h>

#include <fstream>
#include <future>
#include <iterator>
#include <nlohmann/json.hpp>

#include "cli/run_program.h"
#include "multi/run_ranks.h"
#include "serve/client.h"

namespace dsmoe {
namespace {

using testing::port_of;
using testing::ProgramResult;
using testing::Ranks;
using testing::RanksResult;
using testing::run_program;
using testing::TempFolder;
using Words = std::vector<std::string>;

// NCCL takes each rank to be a machine of its own, which it reaches by sockets: ranks of one machine may not share a GPU.
Words on_one_gpu(Words command) {
  command.insert(command.begin(), {"bash", "-c",
                                   "NCCL_SOCKET_IFNAME=lo NCCL_HOSTID=rank$OMPI_COMM_WORLD_RANK CUDA_VISIBLE_DEVICES=0 "
                                   "exec \"$@\"",
                                   "bash"});
  return command;
}
RanksResult run_on_one_gpu(int ranks, const Words& command) { return testing::run_ranks(ranks, on_one_gpu(command)); }

bool have_gpu() { return run_program({"info"}).out.find(", sm_") != std::string::npos; }

Words dsmoe(Words words) {
  words.insert(words.begin(), DSMOE_PROGRAM);
  return words;
}

std::string bytes_of(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

class MultiGpu : public ::testing::TestWithParam<int> {  // ranks
 protected:
  void SetUp() override {
    SKIP_WITHOUT_MPIRUN();
    if (!have_gpu()) GTEST_SKIP() << "there is no GPU";
  }

  void expect_checks(const std::string& filter) const {
    const RanksResult r = run_on_one_gpu(GetParam(), {DSMOE_GPU_CHECKS, "--gtest_filter=" + filter});
    EXPECT_EQ(r.status, 0) << r.out << r.err;
    EXPECT_TRUE(r.err_has("checked " + std::to_string(GetParam()) + " GPU ranks")) << r.err;
  }

  // A run whose layout is that of as many ranks.
  Words train(const std::string& steps) const {
    const std::string ranks = std::to_string(GetParam());
    return {DSMOE_PROGRAM, "train", "-o",        out(),  "--steps",      steps, "--batch-size",      "8",
            "--seq-len",   "32",    "--device",  "cuda", "--save-every", "2",   "--expert-parallel", ranks,
            "--zero",      "1",     "--holdout", "0",    "--eval-every", "0"};
  }
  Words resumed(const char* steps, const char* device = "cuda") const {
    return {"train", "--resume", "-o", out(), "--steps", steps, "--device", device};
  }
  std::string out() const { return (folder_ / "run").string(); }
  std::size_t steps_done() const {
    std::ifstream file(folder_ / "run" / "log.jsonl");
    std::size_t n = 0;
    for (std::string line; std::getline(file, line);) ++n;
    return n;
  }

  TempFolder folder_;
};

TEST_P(MultiGpu, MessagesAndSums) { expect_checks("GpuRank.Exchange:GpuRank.Sums"); }
TEST_P(MultiGpu, Layer) { expect_checks("GpuRank.SpreadLayer"); }
TEST_P(MultiGpu, FiftySteps) { expect_checks("GpuRank.Training"); }
TEST_P(MultiGpu, FiftyStepsWithZero1) { expect_checks("GpuRank.TrainingWithZero1"); }
TEST_P(MultiGpu, FiftyStepsWithZero2) { expect_checks("GpuRank.TrainingWithZero2"); }

// With its experts spread over GPUs a model answers with the bits of one.
TEST_P(MultiGpu, AnswersOfOneProcess) {
  const std::string model = (folder_ / "model").string(), text = (folder_ / "text.txt").string();
  ASSERT_EQ(run_program({"train", "-o", model, "--steps", "1", "--batch-size", "2", "--seq-len", "32", "--holdout", "0",
                         "--dtype", "bf16", "--device", "cpu"})
                .status,
            0);
  std::ofstream(text) << "The sum of 3 and 4 is 7. The sum of 5 and 2 is 7. One more line for the model.";
  const auto eval = [&](const std::string& logits) {
    return Words{"eval",
                 "-m",
                 model,
                 "--data",
                 text,
                 "-c",
                 "32",
                 "--limit",
                 "1",
                 "--device",
                 "cuda",
                 "--logits",
                 (folder_ / logits).string()};
  };
  const Words generate = {"generate", "-m", model, "-p", "The sum", "-n", "24", "--seed", "5", "-q", "--device", "cuda"};
  const ProgramResult eval_one = run_program(eval("one")), text_one = run_program(generate);
  ASSERT_EQ(eval_one.status, 0) << eval_one.err;
  ASSERT_EQ(text_one.status, 0) << text_one.err;
  const RanksResult eval_many = run_on_one_gpu(GetParam(), dsmoe(eval("many"))),
                    text_many = run_on_one_gpu(GetParam(), dsmoe(generate));
  ASSERT_EQ(eval_many.status, 0) << eval_many.err;
  EXPECT_EQ(eval_many.out, eval_one.out);
  EXPECT_TRUE(bytes_of(folder_ / "many") == bytes_of(folder_ / "one"));
  ASSERT_EQ(text_many.status, 0) << text_many.err;
  EXPECT_EQ(text_many.out, text_one.out);
}

TEST_P(MultiGpu, AServersAnswersOfOneProcess) {
  const std::string model = (folder_ / "model").string();
  ASSERT_EQ(run_program({"init", "--preset", "tiny", "-o", model}).status, 0);
  std::vector<nlohmann::json> one;
  for (const int count : {1, GetParam()}) {
    Ranks ranks(count, on_one_gpu({DSMOE_PROGRAM, "serve", "-m", model, "--port", "0", "--device", "cuda"}));
    const std::uint16_t port = port_of(ranks);
    ASSERT_NE(port, 0) << ranks.text_of("err");
    const auto ask = [port](int seed) {
      const nlohmann::json body = {
          {"prompt", {5, 6, 7 + seed % 2}}, {"max_tokens", 12}, {"ignore_eos", true}, {"seed", seed}, {"logprobs", 3}};
      return test::Client(port).post("/v1/completions", body).json()["choices"];
    };
    std::vector<std::future<nlohmann::json>> asked;
    for (int seed = 0; seed < 4; ++seed) asked.push_back(std::async(std::launch::async, ask, seed));
    std::vector<nlohmann::json> answers;
    for (auto& answer : asked) answers.push_back(answer.get());
    if (count == 1) one = answers;
    EXPECT_EQ(answers, one);
    ::kill(ranks.process_of(0), SIGTERM);
    const RanksResult r = ranks.wait();
    EXPECT_EQ(r.status, 0) << r.err;
  }
}

// The others end, and one process goes on from the last checkpoint.
TEST_P(MultiGpu, AKilledRank) {
  Ranks ranks(GetParam(), on_one_gpu(train("100000")));
  ASSERT_TRUE(ranks.wait_until([&] { return steps_done() >= 3; })) << ranks.text_of("err");
  const pid_t victim = ranks.process_of(GetParam() - 1);
  ASSERT_GT(victim, 0);
  const auto began = std::chrono::steady_clock::now();
  ::kill(victim, SIGKILL);
  EXPECT_NE(ranks.wait().status, 0);
  EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::seconds(30));
  const ProgramResult r = run_program(resumed(std::to_string(steps_done() + 2).c_str()));
  EXPECT_EQ(r.status, 0) << r.err;
  EXPECT_TRUE(r.err_has("resuming after")) << r.err;
}

TEST_P(MultiGpu, ARunGoesOnWithAnyNumberOfRanks) {
  const RanksResult first = run_on_one_gpu(GetParam(), train("2"));
  ASSERT_EQ(first.status, 0) << first.err;
  const RanksResult three = run_on_one_gpu(3, dsmoe(resumed("4")));
  ASSERT_EQ(three.status, 0) << three.err;
  EXPECT_EQ(run_program(resumed("6")).status, 0);
  EXPECT_EQ(run_program(resumed("8", "cpu")).status, 0);
}

// Memory that no rank may touch. It takes long, and the tool may not be there: gpu_check.sh asks for it.
TEST_P(MultiGpu, DISABLED_UnderASanitizer) {
  if (std::system("command -v compute-sanitizer >/dev/null") != 0) GTEST_SKIP() << "there is no compute-sanitizer";
  // NCCL asks the driver for more than it has, and takes no for an answer: that is no error.
  const RanksResult r = run_on_one_gpu(
      GetParam(), {"compute-sanitizer", "--tool", "memcheck", "--report-api-errors", "no", "--error-exitcode", "9",
                   DSMOE_GPU_CHECKS, "--gtest_filter=GpuRank.Exchange:GpuRank.Sums:GpuRank.SmallLayer"});
  EXPECT_EQ(r.status, 0) << r.out << r.err;
  EXPECT_NE((r.out + r.err).find("ERROR SUMMARY: 0 errors"), std::string::npos) << r.out << r.err;
}

INSTANTIATE_TEST_SUITE_P(, MultiGpu, ::testing::Values(2, 4, 8), ::testing::PrintToStringParamName());

}  // namespace
}  // namespace dsmoe
