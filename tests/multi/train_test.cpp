// dsmoe train under mpirun.
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "cli/run_program.h"
#include "multi/run_ranks.h"

namespace dsmoe {
namespace {

using testing::ProgramResult;
using testing::Ranks;
using testing::RanksResult;
using testing::run_program;
using testing::run_ranks;
using testing::TempFolder;
using Words = std::vector<std::string>;

// "--name value" of `more` instead of those here.
Words train(const std::filesystem::path& out, const Words& more = {}) {
  std::map<std::string, std::string> options = {{"--steps", "6"},      {"--batch-size", "6"},    {"--seq-len", "32"},
                                                {"--threads", "1"},    {"--seed", "3"},          {"--save-every", "3"},
                                                {"--eval-every", "0"}, {"--eval-sequences", "7"}};
  for (std::size_t i = 0; i + 1 < more.size(); i += 2) options[more[i]] = more[i + 1];
  Words words = {"train", "-o", out.string()};
  for (const auto& [name, value] : options) words.insert(words.end(), {name, value});
  return words;
}

RanksResult train_ranks(int count, const std::filesystem::path& out, const Words& more = {}) {
  Words words = train(out, more);
  words.insert(words.begin(), DSMOE_PROGRAM);
  return run_ranks(count, words);
}

struct Step {
  double loss, norm, tokens, load_max, evaluation;
  bool operator==(const Step&) const = default;
};

std::vector<Step> log_of(const std::filesystem::path& out) {
  std::vector<Step> steps;
  std::ifstream file(out / "log.jsonl");
  for (std::string line; std::getline(file, line);) {
    const nlohmann::json j = nlohmann::json::parse(line);
    steps.push_back({j["loss"], j["grad_norm"], j["tokens"], j["expert_load_max"], j.value("eval_loss", 0.0)});
  }
  return steps;
}

std::size_t count(const std::string& text, const std::string& word) {
  std::size_t n = 0;
  for (std::size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + 1)) ++n;
  return n;
}

TEST(MultiTrain, OneTraining) {
  SKIP_WITHOUT_MPIRUN();
  const TempFolder folder;
  ASSERT_EQ(run_program(train(folder / "one")).status, 0);
  const std::vector<Step> one = log_of(folder / "one");
  ASSERT_EQ(one.size(), 6u);
  const std::vector<std::pair<int, Words>> layouts = {
      {2, {}}, {2, {"--expert-parallel", "2"}}, {4, {"--expert-parallel", "2", "--zero", "1"}}, {3, {"--zero", "2"}}};
  for (const auto& [ranks, options] : layouts) {
    const std::filesystem::path out = folder / ("by" + std::to_string(ranks) + "_" + std::to_string(options.size()));
    const RanksResult r = train_ranks(ranks, out, options);
    ASSERT_EQ(r.status, 0) << r.err;
    EXPECT_EQ(count(r.out, "The model is"), 1u) << r.out;  // one rank speaks
    const std::vector<Step> got = log_of(out);
    ASSERT_EQ(got.size(), one.size());
    EXPECT_EQ(got[0].loss, one[0].loss);
    EXPECT_EQ(got[0].load_max, one[0].load_max);
    for (std::size_t i = 0; i < got.size(); ++i) {
      EXPECT_NEAR(got[i].loss, one[i].loss, 1e-5) << i;  // six steps; tests/train/ranks_test.cpp has the bound of fifty
      EXPECT_EQ(got[i].tokens, one[i].tokens);
    }
    EXPECT_NEAR(got.back().evaluation, one.back().evaluation, 1e-5);
  }
}

// What ranks waited is in what the first of them writes, and nothing of it without mpirun.
TEST(MultiTrain, WaitingIsLogged) {
  SKIP_WITHOUT_MPIRUN();
  const TempFolder folder;
  const auto lines_of = [](const std::filesystem::path& out) {
    std::vector<nlohmann::json> lines;
    std::ifstream file(out / "log.jsonl");
    for (std::string line; std::getline(file, line);) lines.push_back(nlohmann::json::parse(line));
    return lines;
  };
  const RanksResult r = train_ranks(3, folder / "run", {"--expert-parallel", "3"});
  ASSERT_EQ(r.status, 0) << r.err;
  EXPECT_TRUE(r.err_has("ranks wait ")) << r.err;
  const std::vector<nlohmann::json> steps = lines_of(folder / "run");
  ASSERT_EQ(steps.size(), 6u);
  double waited = 0;
  for (const nlohmann::json& step : steps) {
    waited += step["ranks_waited"].get<double>();
    EXPECT_GE(step["ranks_waited_share"], 0.0);
    EXPECT_LE(step["ranks_waited_share"], 1.0);
    EXPECT_GE(step["slowest_rank"], 0);
    EXPECT_LT(step["slowest_rank"], 3);
  }
  EXPECT_GT(waited, 0);
  EXPECT_LT(waited, 3 * r.seconds);
  std::size_t events = 0;  // of one rank
  for (const auto& entry : std::filesystem::directory_iterator(folder / "run" / "tensorboard")) {
    std::ifstream file(entry.path(), std::ios::binary);
    const std::string bytes{std::istreambuf_iterator<char>(file), {}};
    EXPECT_EQ(count(bytes, "ranks/slowest"), 6u);
    EXPECT_EQ(count(bytes, "ranks/waited_share"), 6u);
    EXPECT_EQ(count(bytes, "experts/load_max"), 6u);
    ++events;
  }
  EXPECT_EQ(events, 1u);
  const ProgramResult alone = run_program(train(folder / "one"));
  EXPECT_FALSE(alone.err_has("ranks wait")) << alone.err;
  for (const nlohmann::json& step : lines_of(folder / "one")) {
    EXPECT_FALSE(step.contains("ranks_waited") || step.contains("slowest_rank")) << step;
  }
}

TEST(MultiTrain, OverlapAndZeroChangeNoBit) {
  SKIP_WITHOUT_MPIRUN();
  const TempFolder folder;
  const auto steps_of = [&](const std::string& name, const Words& options) {
    Words words = train(folder / name, {"--dtype", "bf16"});
    words.insert(words.begin(), DSMOE_PROGRAM);
    words.insert(words.end(), options.begin(), options.end());
    const RanksResult r = run_ranks(4, words);
    EXPECT_EQ(r.status, 0) << r.err;
    return log_of(folder / name);
  };
  const Words spread = {"--expert-parallel", "2"};
  const auto with = [&](const Words& more) {
    Words words = spread;
    words.insert(words.end(), more.begin(), more.end());
    return words;
  };
  const std::vector<Step> plain = steps_of("plain", with({"--no-overlap"}));
  ASSERT_EQ(plain.size(), 6u);
  EXPECT_EQ(steps_of("overlap", spread), plain);
  const std::vector<Step> one = steps_of("one", with({"--zero", "1"}));
  EXPECT_EQ(steps_of("two", with({"--zero", "2"})), one);
  EXPECT_EQ(steps_of("two_after", with({"--zero", "2", "--no-overlap"})), one);
}

TEST(MultiTrain, TheSameBitsTwiceAndAfterAResume) {
  SKIP_WITHOUT_MPIRUN();
  const TempFolder folder;
  const Words layout = {"--expert-parallel", "3"};
  ASSERT_EQ(train_ranks(3, folder / "a", layout).status, 0);
  Words half = layout;
  half.insert(half.end(), {"--steps", "3", "--schedule-steps", "6"});
  ASSERT_EQ(train_ranks(3, folder / "b", half).status, 0);
  const RanksResult resumed = run_ranks(3, {DSMOE_PROGRAM, "train", "--resume", "-o", (folder / "b").string(), "--steps",
                                            "6", "--threads", "1", "--expert-parallel", "3"});
  ASSERT_EQ(resumed.status, 0) << resumed.err;
  const std::vector<Step> a = log_of(folder / "a"), b = log_of(folder / "b");
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i)
    EXPECT_TRUE(a[i].loss == b[i].loss && a[i].norm == b[i].norm) << i << ": " << a[i].loss << " " << b[i].loss;
}

TEST(MultiTrain, ARunGoesOnWithAnyNumberOfRanks) {
  SKIP_WITHOUT_MPIRUN();
  const TempFolder folder;
  const std::string out = (folder / "run").string();
  ASSERT_EQ(train_ranks(4, out, {"--expert-parallel", "4", "--zero", "1", "--steps", "2"}).status, 0);
  const ProgramResult alone = run_program({"train", "--resume", "-o", out, "--steps", "4", "--threads", "1"});
  ASSERT_EQ(alone.status, 0) << alone.err;
  const RanksResult three =
      run_ranks(3, {DSMOE_PROGRAM, "train", "--resume", "-o", out, "--steps", "6", "--threads", "1", "--zero", "1"});
  ASSERT_EQ(three.status, 0) << three.err;
  const std::vector<Step> steps = log_of(out);
  ASSERT_EQ(steps.size(), 6u);
  EXPECT_EQ(steps.back().tokens, 6 * 6 * 32);
  EXPECT_EQ(run_program({"generate", "-m", out, "-p", "One", "-n", "2", "-q"}).status, 0);
}

TEST(MultiTrain, ATokenGoesToFewRanks) {
  SKIP_WITHOUT_MPIRUN();
  const TempFolder folder;
  const RanksResult r = train_ranks(3, folder / "run", {"--expert-parallel", "3", "--max-groups", "2"});
  ASSERT_EQ(r.status, 0) << r.err;
  ASSERT_EQ(run_program(train(folder / "one", {"--devices", "3", "--max-groups", "2"})).status, 0);
  const std::vector<Step> one = log_of(folder / "one"), three = log_of(folder / "run");
  ASSERT_EQ(three.size(), one.size());
  EXPECT_EQ(three[0].loss, one[0].loss);
  std::ifstream file(folder / "run" / "config.json");
  const nlohmann::json config = nlohmann::json::parse(file);
  EXPECT_EQ(config["topk_method"], "group_limited_greedy");
  EXPECT_EQ(config["n_group"], 3);
  EXPECT_EQ(config["topk_group"], 2);
}

TEST(MultiTrain, LayoutsThatDoNotFit) {
  SKIP_WITHOUT_MPIRUN();
  const TempFolder folder;
  const auto refused = [&](int ranks, const Words& options, const std::string& why) {
    const RanksResult r = train_ranks(ranks, folder / "run", options);
    EXPECT_NE(r.status, 0);
    EXPECT_EQ(count(r.err, "dsmoe: rank 0: "), 1u) << r.err;
    EXPECT_TRUE(r.err_has(why)) << r.err;
  };
  refused(4, {"--expert-parallel", "3"}, "expert-parallel is 3, but there are 4 ranks");
  refused(4, {"--max-groups", "2"}, "max-groups is 2, but there is one group of experts; give expert-parallel or devices");
  refused(2, {"--batch-size", "1"}, "batch-size is 1, but 2 ranks share a batch");
  const ProgramResult alone = run_program(train(folder / "alone", {"--expert-parallel", "2"}));
  EXPECT_TRUE(testing::fails(alone, 1, {"expert-parallel is 2, but there is one process", "mpirun"}));
}

TEST(MultiTrain, DifferentOptionsAreRefusedByName) {
  SKIP_WITHOUT_MPIRUN();
  const TempFolder folder;
  const auto with_rate = [&](const char* rate) {
    Words words = train(folder / "run", {"--lr", rate});
    words.insert(words.begin(), {"-n", "1", DSMOE_PROGRAM});
    return words;
  };
  Words both = with_rate("0.001");
  both.push_back(":");
  for (const std::string& w : with_rate("0.002")) both.push_back(w);
  const RanksResult r = Ranks(both, Words{}).wait();
  EXPECT_NE(r.status, 0);
  EXPECT_TRUE(r.err_has("rank 1 has lr 0.002, but rank 0 has lr 0.001")) << r.err;
  EXPECT_FALSE(std::filesystem::exists(folder / "run"));
}

TEST(MultiTrain, DifferentProgramsAreRefused) {
  SKIP_WITHOUT_MPIRUN();
  const TempFolder folder;
  const std::string other = (folder / "dsmoe").string();
  std::filesystem::copy_file(DSMOE_PROGRAM, other);
  std::ofstream(other, std::ios::app | std::ios::binary) << "another";
  Words both = train(folder / "run");
  both.insert(both.begin(), {"-n", "1", DSMOE_PROGRAM});
  both.insert(both.end(), {":", "-n", "1", other});
  for (const std::string& w : train(folder / "run")) both.push_back(w);
  const RanksResult r = Ranks(both, Words{}).wait();
  EXPECT_NE(r.status, 0);
  EXPECT_TRUE(r.err_has("rank 1 has program ")) << r.err;
}

// The same options, but each rank finds other files: at a path from its own folder.
TEST(MultiTrain, DifferentContentsAreRefused) {
  SKIP_WITHOUT_MPIRUN();
  const TempFolder folder;
  const auto train_in_two = [&](const Words& options) {
    Words words;
    for (const char* where : {"a", "b"}) {
      if (!words.empty()) words.push_back(":");
      words.insert(words.end(), {"-n", "1", "-wdir", (folder / where).string(), DSMOE_PROGRAM});
      for (const std::string& w : train(folder / "run", options)) words.push_back(w);
    }
    return Ranks(words, Words{}).wait();
  };
  std::string text;
  for (int i = 0; i < 400; ++i) text += "The sum of " + std::to_string(i) + " and 1 is " + std::to_string(i + 1) + ".\n";
  for (const char* where : {"a", "b"}) {
    std::filesystem::create_directories(folder / where);
    std::ofstream(folder / where / "text.txt") << text << where;
    std::ofstream(folder / where / "same.txt") << text;
  }
  const Words tokenizer = {"tokenizer",    "train", "--data", (folder / "a" / "same.txt").string(),
                           "--vocab-size", "512",   "-o",     (folder / "tok").string()};
  const ProgramResult made = run_program(tokenizer);
  ASSERT_EQ(made.status, 0) << made.err;
  const Words options = {"--tokenizer", (folder / "tok").string(), "--holdout", "0"};
  const auto with_data = [&](const char* data) {
    Words all = options;
    all.insert(all.end(), {"--data", data});
    return all;
  };
  const RanksResult r = train_in_two(with_data("text.txt"));
  EXPECT_NE(r.status, 0);
  EXPECT_TRUE(r.err_has("rank 1 has data with the fingerprint ")) << r.err;
  EXPECT_TRUE(r.err_has("give every rank the same files")) << r.err;
  // Nor has rank 0 begun to write its log, which the others would have found.
  EXPECT_FALSE(std::filesystem::exists(folder / "run" / "log.jsonl"));
  const RanksResult same = train_in_two(with_data("same.txt"));
  EXPECT_EQ(same.status, 0) << same.err;
}

}  // namespace
}  // namespace dsmoe
