// Ranks on two hosts, which are network namespaces of this machine joined by a line that delays and loses packets
// (two_hosts.py). Skipped where such are not allowed.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <future>
#include <iterator>

#include "cli/run_program.h"
#include "multi/run_ranks.h"

namespace dsmoe {
namespace {

using testing::RanksResult;
using testing::TempFolder;
using Words = std::vector<std::string>;

std::string text_of(const std::filesystem::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

// By two hosts, until the file "cut" in the folder cuts the line.
RanksResult on_two_hosts(const TempFolder& folder, const Words& command) {
  const std::string script = DSMOE_SOURCE_DIR "/tests/multi/two_hosts.py";
  std::string line = "command -v python3 >/dev/null || exit 77; DSMOE_RANK_TIMEOUT=5 python3 " + script + " 2 0.002 " +
                     (folder / "cut").string();
  for (const std::string& word : command) line += " '" + word + "'";
  const auto began = std::chrono::steady_clock::now();
  const int status =
      std::system((line + " >" + (folder / "out").string() + " 2>" + (folder / "err").string() + " </dev/null").c_str());
  RanksResult r;
  r.status = WIFEXITED(status) ? WEXITSTATUS(status) : 128;
  r.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  r.out = text_of(folder / "out"), r.err = text_of(folder / "err");
  return r;
}

constexpr int kNotAllowed = 77;

Words run_of(const std::filesystem::path& out, const std::string& steps) {
  return {DSMOE_PROGRAM, "train", "-o",        out.string(), "--steps",      steps, "--batch-size", "2", "--seq-len", "32",
          "--threads",   "1",     "--holdout", "0",          "--eval-every", "0",   "--save-every", "2", "--zero",    "1"};
}

// Without the times.
std::vector<std::string> losses_in(const std::filesystem::path& out) {
  std::vector<std::string> losses;
  std::ifstream file(out / "log.jsonl");
  for (std::string line; std::getline(file, line);) losses.push_back(line.substr(0, line.find("\"tokens_per_second\"")));
  return losses;
}

TEST(MultiNetwork, TwoHosts) {
  SKIP_WITHOUT_MPIRUN();
  const TempFolder folder;
  const RanksResult r = on_two_hosts(folder, run_of(folder / "two", "3"));
  if (r.status == kNotAllowed) GTEST_SKIP() << r.out;
  ASSERT_EQ(r.status, 0) << r.err;
  const RanksResult here = testing::run_ranks(2, run_of(folder / "one", "3"));
  ASSERT_EQ(here.status, 0) << here.err;
  ASSERT_EQ(losses_in(folder / "one").size(), 3u);
  EXPECT_EQ(losses_in(folder / "two"), losses_in(folder / "one"));
}

TEST(MultiNetwork, ALostNetwork) {
  SKIP_WITHOUT_MPIRUN();
  const TempFolder folder;
  const std::filesystem::path out = folder / "run";
  auto job = std::async(std::launch::async, [&] { return on_two_hosts(folder, run_of(out, "100000")); });
  const auto ended = [&] { return job.wait_for(std::chrono::milliseconds(50)) == std::future_status::ready; };
  while (losses_in(out).size() < 3 && !ended()) continue;
  const auto cut = std::chrono::steady_clock::now();
  std::ofstream(folder / "cut") << "now";
  const RanksResult r = job.get();
  if (r.status == kNotAllowed) GTEST_SKIP() << r.out;
  EXPECT_NE(r.status, 0);
  EXPECT_LT(std::chrono::steady_clock::now() - cut, std::chrono::seconds(30));
  EXPECT_TRUE(r.err_has("dsmoe: rank 1 (process ")) << r.err;
  EXPECT_TRUE(r.err_has(" on other-host) does not answer any more")) << r.err;
  const testing::ProgramResult resumed = testing::run_program(
      {"train", "--resume", "-o", out.string(), "--steps", std::to_string(losses_in(out).size() + 2), "--threads", "1"});
  EXPECT_EQ(resumed.status, 0) << resumed.err;
  EXPECT_TRUE(resumed.err_has("resuming after")) << resumed.err;
}

}  // namespace
}  // namespace dsmoe
