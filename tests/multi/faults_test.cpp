// When a rank is gone all others end, by themselves, and the last checkpoint is whole.
#include <gtest/gtest.h>

#include <fstream>

#include "cli/run_program.h"
#include "multi/run_ranks.h"

namespace dsmoe {
namespace {

using testing::ProgramResult;
using testing::Ranks;
using testing::RanksResult;
using testing::run_program;
using testing::TempFolder;
using Words = std::vector<std::string>;

constexpr std::chrono::seconds kSoon{30};

// A run that would take long, with a checkpoint after every second step.
Words long_run(const std::filesystem::path& out) {
  return {DSMOE_PROGRAM,       "train", "-o",           out.string(), "--steps",   "100000",
          "--batch-size",      "4",     "--seq-len",    "32",         "--threads", "1",
          "--save-every",      "2",     "--eval-every", "0",          "--holdout", "0",
          "--expert-parallel", "2"};
}

std::size_t steps_in(const std::filesystem::path& out) {
  std::ifstream file(out / "log.jsonl");
  std::size_t n = 0;
  for (std::string line; std::getline(file, line);) ++n;
  return n;
}

// Gone, or waiting for someone to look at its status.
bool ended(pid_t process) {
  std::ifstream file("/proc/" + std::to_string(process) + "/stat");
  std::string stat;
  return !std::getline(file, stat) || stat.find(") Z") != std::string::npos;
}

void expect_whole(const std::filesystem::path& out) {
  const std::size_t steps = steps_in(out);
  const ProgramResult r =
      run_program({"train", "--resume", "-o", out.string(), "--steps", std::to_string(steps + 3), "--threads", "1"});
  EXPECT_EQ(r.status, 0) << r.err;
  EXPECT_TRUE(r.err_has("resuming after")) << r.err;
}

TEST(MultiFaults, AKilledRank) {
  SKIP_WITHOUT_MPIRUN();
  for (const std::size_t after : {3u, 8u}) {  // steps: at other places of a step and of a checkpoint each time
    const TempFolder folder;
    const std::filesystem::path out = folder / "run";
    Ranks ranks(2, long_run(out));
    ASSERT_TRUE(ranks.wait_until([&] { return steps_in(out) >= after; })) << ranks.text_of("err");
    const pid_t victim = ranks.process_of(static_cast<int>(after) % 2);
    ASSERT_GT(victim, 0);
    const auto began = std::chrono::steady_clock::now();
    ::kill(victim, SIGKILL);
    const RanksResult r = ranks.wait();
    EXPECT_NE(r.status, 0);
    EXPECT_LT(std::chrono::steady_clock::now() - began, kSoon);
    EXPECT_TRUE(r.err_has("rank " + std::to_string(after % 2))) << r.err;  // mpirun names it
    expect_whole(out);
  }
}

// At other moments each time, in milliseconds after the second step, which has a checkpoint.
TEST(DISABLED_MultiFaultsSlow, TwentyKills) {
  SKIP_WITHOUT_MPIRUN();
  for (int i = 0; i < 20; ++i) {
    const TempFolder folder;
    const std::filesystem::path out = folder / "run";
    Ranks ranks(2, long_run(out));
    ASSERT_TRUE(ranks.wait_until([&] { return steps_in(out) >= 3; })) << ranks.text_of("err");
    std::this_thread::sleep_for(std::chrono::milliseconds(i * 37 % 400));
    const pid_t victim = ranks.process_of(i % 2);
    ASSERT_GT(victim, 0);
    ::kill(victim, SIGKILL);
    EXPECT_NE(ranks.wait().status, 0);
    expect_whole(out);
  }
}

TEST(MultiFaults, AStoppedRank) {
  SKIP_WITHOUT_MPIRUN();
  ::setenv("DSMOE_RANK_TIMEOUT", "3", 1);
  for (const int victim : {1, 0}) {
    const TempFolder folder;
    const std::filesystem::path out = folder / "run";
    Ranks ranks(2, long_run(out));
    ASSERT_TRUE(ranks.wait_until([&] { return steps_in(out) >= 4; })) << ranks.text_of("err");
    const pid_t process = ranks.process_of(victim);
    ASSERT_GT(process, 0);
    const auto began = std::chrono::steady_clock::now();
    ::kill(process, SIGSTOP);
    const RanksResult r = ranks.wait();
    EXPECT_NE(r.status, 0);
    EXPECT_LT(std::chrono::steady_clock::now() - began, kSoon);
    const std::string line = "dsmoe: rank " + std::to_string(victim) + " (process " + std::to_string(process) + " on ";
    EXPECT_TRUE(r.err_has(line)) << r.err;
    EXPECT_TRUE(r.err_has("resume the run from its last checkpoint")) << r.err;
    // It is not left behind: mpirun has sent it a signal, and does not wait for what comes of it.
    EXPECT_TRUE(ranks.wait_until([&] { return ended(process); }));
    expect_whole(out);
  }
}

// A signal to one rank stops all of them, after the step and with a checkpoint.
TEST(MultiFaults, OneRankIsAskedToStop) {
  SKIP_WITHOUT_MPIRUN();
  const TempFolder folder;
  const std::filesystem::path out = folder / "run";
  Ranks ranks(2, long_run(out));
  ASSERT_TRUE(ranks.wait_until([&] { return steps_in(out) >= 3; })) << ranks.text_of("err");
  ::kill(ranks.process_of(1), SIGTERM);
  const RanksResult r = ranks.wait();
  EXPECT_EQ(r.status, 0) << r.err;
  EXPECT_NE(r.out.find("Stopped after"), std::string::npos) << r.out;
  expect_whole(out);
}

// A disk that is full for one rank, by a limit on the length of files that its part goes beyond: at the first checkpoint,
// and at the next one of a run that has a checkpoint.
TEST(MultiFaults, AFullDisk) {
  SKIP_WITHOUT_MPIRUN();
  for (const int victim : {0, 1}) {
    const TempFolder folder;
    const std::filesystem::path out = folder / "run";
    const auto limited = [&](Words command) {
      Words words;
      for (int rank = 0; rank < 2; ++rank) {
        if (rank > 0) words.push_back(":");
        words.insert(words.end(), {"-n", "1"});
        if (rank == victim) words.insert(words.end(), {"bash", "-c", "ulimit -f 20000; exec \"$@\"", "bash"});
        words.insert(words.end(), command.begin(), command.end());
      }
      return Ranks(words, Words{}).wait();
    };
    const auto expect_refusal = [&](const RanksResult& r) {
      EXPECT_NE(r.status, 0);
      const std::string rank = "rank " + std::to_string(victim);
      EXPECT_TRUE(r.err_has("dsmoe: rank 0: " + rank + " cannot write its part of the checkpoint: ") ||
                  r.err_has("dsmoe: " + rank + ": "))
          << r.err;
      EXPECT_TRUE(r.err_has(".safetensors")) << r.err;
      EXPECT_TRUE(r.err_has("ulimit -f")) << r.err;
      for (const auto& entry : std::filesystem::directory_iterator(out))
        EXPECT_FALSE(entry.path().filename().string().starts_with(".")) << entry.path();  // the room is free again
    };
    expect_refusal(limited(long_run(out)));
    EXPECT_EQ(steps_in(out), 2u);
    std::filesystem::remove_all(out);
    Words two = long_run(out);
    two[5] = "2";
    const RanksResult whole = Ranks(2, two).wait();
    ASSERT_EQ(whole.status, 0) << whole.err;
    expect_refusal(limited({DSMOE_PROGRAM, "train", "--resume", "-o", out.string(), "--steps", "100000", "--threads", "1",
                            "--expert-parallel", "2"}));
    expect_whole(out);
  }
}

// The script of docs/howto/train-on-many.md, with an mpirun that adds what this machine and a short run need, and a dsmoe
// of which one rank, once, is killed when there is a checkpoint.
TEST(MultiFaults, TheDocumentedScriptGoesOn) {
  SKIP_WITHOUT_MPIRUN();
  std::ifstream page(DSMOE_SOURCE_DIR "/docs/howto/train-on-many.md");
  const std::string text{std::istreambuf_iterator<char>(page), {}};
  const std::size_t begin = text.find("#!/bin/bash\ntrap"), end = text.find("```", begin);
  ASSERT_NE(end, std::string::npos);
  const TempFolder folder;
  std::filesystem::create_directories(folder / "bin");
  const std::filesystem::path dsmoe = folder / "bin" / "dsmoe";
  std::ofstream(folder / "script") << text.substr(begin, end - begin);
  std::ofstream(dsmoe) << "#!/bin/bash\n"
                          "if [ \"$OMPI_COMM_WORLD_RANK\" = 1 ] && [ ! -e killed ]; then\n"
                          "  (until [ -e run/last ] || ! kill -0 $$; do sleep 0.02; done; touch killed; kill -KILL $$) &\n"
                          "fi\n"
                          "exec " DSMOE_PROGRAM " \"$@\"\n";
  std::filesystem::permissions(dsmoe, std::filesystem::perms::owner_all);
  std::string mpirun;
  for (const std::string& word : Ranks::mpirun_here()) mpirun += word + " ";
  std::ofstream(folder / "start")
      << "cd '" << folder.path().string() << "'\n"
      << "mpirun() {\n"
         "  echo started >> starts\n"
         "  local steps=100000\n"
         "  [ -e killed ] && steps=$(($(wc -l < run/log.jsonl) + 2))\n"
         "  command "
      << mpirun
      << "\"$@\" --steps $steps --save-every 2 --seq-len 16 --eval-every 0 --holdout 0 --threads 1\n"
         "}\n"
         "export -f mpirun\n"
         "PATH=\"$PWD/bin:$PATH\" timeout 100 bash script > out 2> err\n";
  const int status = std::system(("bash '" + (folder / "start").string() + "'").c_str());
  const auto text_of = [&](const char* name) {
    std::ifstream file(folder / name);
    return std::string{std::istreambuf_iterator<char>(file), {}};
  };
  EXPECT_EQ(status, 0) << text_of("err");
  EXPECT_TRUE(std::filesystem::exists(folder / "killed"));
  EXPECT_EQ(text_of("starts"), "started\nstarted\n");
  EXPECT_NE(text_of("err").find("resuming after"), std::string::npos) << text_of("err");
  EXPECT_NE(text_of("out").find("Done after"), std::string::npos) << text_of("out");
}

}  // namespace
}  // namespace dsmoe
