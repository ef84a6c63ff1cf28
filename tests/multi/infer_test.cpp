// A model with its experts spread over ranks computes what one process does.
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
using testing::run_ranks;
using testing::TempFolder;
using Words = std::vector<std::string>;

std::string bytes_of(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

RanksResult by_ranks(int count, Words words) {
  words.insert(words.begin(), DSMOE_PROGRAM);
  return run_ranks(count, words);
}

TEST(MultiInfer, TheBitsOfOneProcess) {
  SKIP_WITHOUT_MPIRUN();
  const TempFolder folder;
  const std::string plain = (folder / "model").string(), quantized = (folder / "q8.gguf").string();
  ASSERT_EQ(run_program({"train", "-o", plain, "--steps", "2", "--batch-size", "2", "--seq-len", "32", "--holdout", "0",
                         "--threads", "1"})
                .status,
            0);
  const ProgramResult made = run_program({"quantize", plain, "-o", quantized, "--type", "q8_0"});
  ASSERT_EQ(made.status, 0) << made.err;
  std::ofstream(folder / "text.txt") << "The sum of 3 and 4 is 7. The sum of 5 and 2 is 7. One more line for the model.";
  for (const std::string& model : {plain, quantized}) {
    const auto eval = [&](const std::string& logits) {
      return Words{"eval",      "-m", model,      "--data", (folder / "text.txt").string(), "-c", "16", "--limit", "1",
                   "--threads", "1",  "--logits", logits};
    };
    const auto generate = [&] {
      return Words{"generate", "-m", model, "-p", "The sum", "-n", "12", "--seed", "5", "-q", "--threads", "1"};
    };
    const std::string one = (folder / "one").string(), many = (folder / "many").string();
    const ProgramResult eval_one = run_program(eval(one)), text_one = run_program(generate());
    ASSERT_EQ(eval_one.status, 0) << eval_one.err;
    for (const int ranks : {2, 3}) {
      const RanksResult r = by_ranks(ranks, eval(many));
      ASSERT_EQ(r.status, 0) << r.err;
      EXPECT_EQ(r.out, eval_one.out);
      EXPECT_TRUE(bytes_of(one) == bytes_of(many)) << model << ", " << ranks << " ranks";
      std::filesystem::remove(many);
    }
    const RanksResult text = by_ranks(2, generate());
    EXPECT_EQ(text.status, 0) << text.err;
    EXPECT_EQ(text.out, text_one.out);
    std::filesystem::remove(one);
  }
}

TEST(MultiInfer, DifferentArgumentsAreRefused) {
  SKIP_WITHOUT_MPIRUN();
  const TempFolder folder;
  Words both;
  for (const char* prompt : {"One", "Two"}) {
    if (!both.empty()) both.push_back(":");
    both.insert(both.end(), {"-n", "1", DSMOE_PROGRAM, "generate", "-m", (folder / "none").string(), "-p", prompt});
  }
  const RanksResult r = testing::Ranks(both, Words{}).wait();
  EXPECT_NE(r.status, 0);
  EXPECT_TRUE(r.err_has("rank 1 has the arguments")) << r.err;
}

TEST(MultiInfer, DifferentContentsAreRefused) {
  SKIP_WITHOUT_MPIRUN();
  const TempFolder folder;
  for (const char* where : {"a", "b"}) {
    std::filesystem::create_directories(folder / where);
    std::ofstream(folder / where / "text.txt") << "The sum of 3 and 4 is 7. " << where;
    // Only the seed differs.
    ASSERT_EQ(run_program({"train", "-o", (folder / where / "model").string(), "--steps", "1", "--batch-size", "1",
                           "--seq-len", "16", "--holdout", "0", "--threads", "1", "--seed", where[0] == 'a' ? "1" : "2"})
                  .status,
              0);
  }
  const auto eval_in_two = [&](const std::string& model) {
    Words words;
    for (const char* where : {"a", "b"}) {
      if (!words.empty()) words.push_back(":");
      words.insert(words.end(), {"-n", "1", "-wdir", (folder / where).string(), DSMOE_PROGRAM, "eval", "-m", model,
                                 "--data", "text.txt", "--threads", "1"});
    }
    return testing::Ranks(words, Words{}).wait();
  };
  const RanksResult weights = eval_in_two("model"), data = eval_in_two((folder / "a" / "model").string());
  EXPECT_NE(weights.status, 0);
  EXPECT_TRUE(weights.err_has("rank 1 has weights with the fingerprint ")) << weights.err;
  EXPECT_NE(data.status, 0);
  EXPECT_TRUE(data.err_has("rank 1 has data with the fingerprint ")) << data.err;
}

}  // namespace
}  // namespace dsmoe
