// Ranks that compute on GPUs. They share the first one where there are not enough, so their speed says nothing.
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>

#include "cli/run_program.h"
#include "multi/run_ranks.h"

namespace dsmoe {
namespace {

using testing::ProgramResult;
using testing::RanksResult;
using testing::run_program;
using testing::TempFolder;
using Words = std::vector<std::string>;

// NCCL takes each rank to be a machine of its own, which it reaches by sockets: ranks of one machine may not share a GPU.
RanksResult on_one_gpu(int ranks, Words command) {
  command.insert(command.begin(), {"bash", "-c",
                                   "NCCL_SOCKET_IFNAME=lo NCCL_HOSTID=rank$OMPI_COMM_WORLD_RANK CUDA_VISIBLE_DEVICES=0 "
                                   "exec \"$@\"",
                                   "bash"});
  return testing::run_ranks(ranks, command);
}

bool have_gpu() { return run_program({"info"}).out.find(", sm_") != std::string::npos; }

TEST(MultiGpu, WhatRanksDoTogether) {
  SKIP_WITHOUT_MPIRUN();
  if (!have_gpu()) GTEST_SKIP() << "there is no GPU";
  for (const int ranks : {2, 4}) {
    const RanksResult r = on_one_gpu(ranks, {DSMOE_GPU_CHECKS});
    EXPECT_EQ(r.status, 0) << r.out << r.err;
    EXPECT_TRUE(r.err_has("checked " + std::to_string(ranks) + " GPU ranks")) << r.err;
  }
}

// With its experts spread over GPUs a model answers with the bits of one.
TEST(MultiGpu, AnswersOfOneProcess) {
  SKIP_WITHOUT_MPIRUN();
  if (!have_gpu()) GTEST_SKIP() << "there is no GPU";
  const TempFolder folder;
  const std::string model = (folder / "model").string(), text = (folder / "text.txt").string();
  ASSERT_EQ(run_program({"train", "-o", model, "--steps", "1", "--batch-size", "2", "--seq-len", "32", "--holdout", "0",
                         "--dtype", "bf16", "--device", "cpu"})
                .status,
            0);
  std::ofstream(text) << "The sum of 3 and 4 is 7. The sum of 5 and 2 is 7. One more line for the model.";
  const auto eval = [&](const std::string& logits) {
    return Words{
        "eval", "-m", model, "--data", text, "-c", "32", "--device", "cuda", "--logits", (folder / logits).string()};
  };
  const auto bytes = [&](const std::string& name) {
    std::ifstream file(folder / name, std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(file), {});
  };
  const Words generate = {"generate", "-m", model, "-p", "The sum", "-n", "24", "--seed", "5", "-q", "--device", "cuda"};
  const ProgramResult eval_one = run_program(eval("one")), text_one = run_program(generate);
  ASSERT_EQ(eval_one.status, 0) << eval_one.err;
  ASSERT_EQ(text_one.status, 0) << text_one.err;
  const auto by_two = [&](Words words) {
    words.insert(words.begin(), DSMOE_PROGRAM);
    return on_one_gpu(2, words);
  };
  const RanksResult eval_two = by_two(eval("two")), text_two = by_two(generate);
  ASSERT_EQ(eval_two.status, 0) << eval_two.err;
  EXPECT_EQ(eval_two.out, eval_one.out);
  EXPECT_TRUE(bytes("two") == bytes("one"));
  ASSERT_EQ(text_two.status, 0) << text_two.err;
  EXPECT_EQ(text_two.out, text_one.out);
}

TEST(MultiGpu, ARunGoesOnWithAnyNumberOfRanks) {
  SKIP_WITHOUT_MPIRUN();
  if (!have_gpu()) GTEST_SKIP() << "there is no GPU";
  const TempFolder folder;
  const std::string out = (folder / "run").string();
  const auto resumed = [&](const char* steps) {
    return Words{DSMOE_PROGRAM, "train", "--resume", "-o", out, "--steps", steps, "--device", "cuda"};
  };
  const RanksResult first = on_one_gpu(2, {DSMOE_PROGRAM, "train", "-o", out, "--steps", "2", "--batch-size", "4",
                                           "--seq-len", "32", "--device", "cuda", "--expert-parallel", "2", "--zero", "1"});
  ASSERT_EQ(first.status, 0) << first.err;
  const RanksResult three = on_one_gpu(3, resumed("4"));
  ASSERT_EQ(three.status, 0) << three.err;
  Words alone = resumed("6");
  alone.erase(alone.begin());
  EXPECT_EQ(run_program(alone).status, 0);
}

}  // namespace
}  // namespace dsmoe
