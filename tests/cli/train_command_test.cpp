// dsmoe train as a user runs it.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>

#include <filesystem>
#include <fstream>
#include <thread>

#include "cli/run_program.h"
#include "support/files.h"
#include "support/sanitized.h"
#include "support/temp_folder.h"

namespace dsmoe {
namespace {

using testing::fails;
using testing::ProgramResult;
using testing::run_program;

namespace fs = std::filesystem;

const std::string kGolden = DSMOE_TEST_DATA "/model/golden/train_seq_aux";

class TrainCommand : public ::testing::Test {
 protected:
  TrainCommand() { ::setenv("XDG_CACHE_HOME", dir_.path().c_str(), 1); }  // not the user's

  std::string out(const char* name = "out") const { return dir_ / name; }

  // The parity switches, on the golden model and its data.
  ProgramResult train(std::vector<std::string> more) const {
    std::vector<std::string> arguments = {"train",
                                          "-m",
                                          kGolden,
                                          "--data",
                                          kGolden + "/train.ids",
                                          "--order",
                                          "sequential",
                                          "--lr-schedule",
                                          "constant",
                                          "--warmup-steps",
                                          "0",
                                          "--weight-decay",
                                          "0",
                                          "--clip",
                                          "1.0",
                                          "--batch-size",
                                          "3",
                                          "--lr",
                                          "1e-3"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run_program(arguments);
  }

  static std::vector<nlohmann::json> log(const std::string& folder) {
    std::vector<nlohmann::json> entries;
    std::ifstream in(folder + "/log.jsonl");
    for (std::string line; std::getline(in, line);) entries.push_back(nlohmann::json::parse(line));
    return entries;
  }

  testing::TempFolder dir_;
};

TEST_F(TrainCommand, TokenIdsAreHeldOutAsAnotherFileAndNoOptionIsLookedOver) {
  const ProgramResult o = train({"--steps", "2", "--eval-data", kGolden + "/train.ids", "-o", out()});
  ASSERT_EQ(o.status, 0) << o.err;
  const auto loss = run_program({"eval", "-m", out(), "--data", kGolden + "/train.ids", "--json"}).json()["loss"];
  ASSERT_TRUE(log(out()).back().contains("eval_loss"));
  EXPECT_NEAR(log(out()).back()["eval_loss"].get<double>(), loss.get<double>(), 1e-5);
  std::ofstream(dir_ / "text.txt") << "text";
  EXPECT_TRUE(
      fails(train({"--steps", "2", "--eval-data", dir_ / "text.txt", "-o", out("a")}), 1, {"text.txt", "one .ids file"}));
  EXPECT_TRUE(fails(train({"--steps", "2", "--seq-len", "5", "-o", out("b")}), 1, {"seq-len is 5", "train.ids"}));
  EXPECT_TRUE(fails(train({"--steps", "2", "--holdout", "0.1", "-o", out("c")}), 1, {"holdout is 0.1", "eval-data"}));
  std::ofstream long_line(dir_ / "long.ids");
  for (int i = 0; i < 9000; ++i) long_line << "1 ";
  long_line.close();
  EXPECT_TRUE(fails(train({"--steps", "2", "--eval-data", dir_ / "long.ids", "-o", out("d")}), 1,
                    {"long.ids", "8999 tokens", "max_position_embeddings"}));
}

TEST_F(TrainCommand, TenStepsAreThoseOfPyTorchAndResumingChangesNothing) {
  const ProgramResult whole = train({"--steps", "10", "-o", out("whole")});
  ASSERT_EQ(whole.status, 0) << whole.err;
  EXPECT_TRUE(whole.out_has("Done after 10 steps"));
  const nlohmann::json golden = nlohmann::json::parse(testing::read_bytes(kGolden + "/steps.json"));
  const auto entries = log(out("whole"));
  ASSERT_EQ(entries.size(), 10u);
  for (std::size_t i = 0; i < 10; ++i)
    for (const char* field : {"loss", "aux_loss"})
      EXPECT_NEAR(entries[i][field].get<double>() / golden["steps"][i][field].get<double>(), 1, 1e-5) << i << field;

  ASSERT_EQ(train({"--steps", "5", "-o", out("parts"), "-t", "1"}).status, 0);
  // The options come from the checkpoint.
  const ProgramResult rest = run_program({"train", "--resume", "-o", out("parts"), "--steps", "10", "-t", "3", "--json"});
  ASSERT_EQ(rest.status, 0) << rest.err;
  EXPECT_EQ(rest.json()["steps"], 10);
  for (const char* file : {"/last/model.safetensors", "/last/trainer/optimizer.safetensors", "/model.safetensors"})
    EXPECT_TRUE(testing::read_bytes(out("whole") + file) == testing::read_bytes(out("parts") + file)) << file;

  // OUT is a model.
  EXPECT_EQ(run_program({"generate", "-m", out("parts"), "--ids", "1", "2", "-n", "2"}).status, 0);
}

TEST_F(TrainCommand, BuiltInCorpusFromNothing) {
  const ProgramResult r = run_program({"train", "-o", out(), "--steps", "3", "--batch-size", "2", "--seq-len", "32",
                                       "--eval-sequences", "14", "--dtype", "bf16", "--json"});
  ASSERT_EQ(r.status, 0) << r.err;
  EXPECT_NEAR(r.json()["loss"].get<double>(), 6.2, 0.4);  // ln 512
  EXPECT_GE(r.json()["eval_domains"].size(), 6u);
  EXPECT_TRUE(fs::exists(out() + "/tokenizer.json"));
  const ProgramResult text = run_program({"generate", "-m", out(), "-p", "Once", "-n", "4", "-q"});
  EXPECT_EQ(text.status, 0) << text.err;
  EXPECT_TRUE(fails(run_program({"train", "-o", out()}), 1, {"already holds a training run", "resume"}));
  EXPECT_TRUE(fails(run_program({"train", "--resume", "-o", out(), "--steps", "3"}), 1, {"3 steps already"}));
}

TEST_F(TrainCommand, LearnsATokenizerFromFiles) {
  std::ofstream text(dir_ / "a.txt");
  for (int i = 0; i < 400; ++i) text << "the cat " << i << " sat on the mat and the dog " << i * 7 << " ran\n";
  text.close();
  const ProgramResult r =
      run_program({"train", "--data", dir_ / "a.txt", "-o", out(), "--steps", "2", "--batch-size", "2", "--seq-len", "32"});
  ASSERT_EQ(r.status, 0) << r.err;
  EXPECT_EQ(run_program({"generate", "-m", out(), "-p", "the cat", "-n", "4", "-q"}).status, 0);
}

// A run that would take for ever, started by hand, since run_program waits.
class RunUnderWay : public TrainCommand {
 protected:
  std::vector<std::string> command(const char* length) const {
    return {"dsmoe", "train",     "-o",   out(),          "--steps", "100000",       "--batch-size",
            "1",     "--seq-len", length, "--save-every", "0",       "--eval-every", "0"};
  }
  static pid_t start(std::vector<std::string> arguments) {
    std::vector<char*> argv;
    for (std::string& argument : arguments) argv.push_back(argument.data());
    argv.push_back(nullptr);
    const pid_t child = ::fork();
    if (child != 0) return child;
    ::setpgid(0, 0);
    ::freopen("/dev/null", "w", stdout);
    ::freopen("/dev/null", "w", stderr);
    ::execv(DSMOE_PROGRAM, argv.data());
    ::_exit(127);
  }
  void wait_for_steps(std::size_t steps) const {
    for (int i = 0; i < 600 && log(out()).size() < steps; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  static int end_of(pid_t child) {
    int status = 0;
    ::waitpid(child, &status, 0);
    return status;
  }
  void expect_saved(int status) const {
    ASSERT_TRUE(WIFEXITED(status)) << "signal " << WTERMSIG(status);
    EXPECT_EQ(WEXITSTATUS(status), 0);
    EXPECT_EQ(fs::read_symlink(out() + "/last").string(), "checkpoint-" + std::to_string(log(out()).size()));
  }
};

TEST_F(RunUnderWay, AskedToStopItSavesAndEndsWell) {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    SCOPED_TRACE(signal);
    fs::remove_all(out());
    const pid_t child = start(command("16"));
    wait_for_steps(3);
    ::kill(child, signal);
    expect_saved(end_of(child));
  }
}

TEST_F(RunUnderWay, TheSecondTimeItEndsAtOnce) {
  std::vector<std::string> slow = command("128");
  slow.insert(slow.end(), {"--grad-accum", test::kSanitized ? "8" : "64"});  // a step of a second or so
  const pid_t child = start(slow);
  wait_for_steps(1);
  ::kill(child, SIGTERM);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  ::kill(child, SIGINT);
  const int status = end_of(child);
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGINT) << status;
}

// The kernel sends SIGHUP to a paused job when the shell that started it ends: nothing would be saved or said.
TEST_F(RunUnderWay, AJobPausedWhenItsShellEndsIsSaved) {
  ASSERT_EQ(::prctl(PR_SET_CHILD_SUBREAPER, 1), 0);
  int pipe[2];
  ASSERT_EQ(::pipe(pipe), 0);
  const pid_t shell = ::fork();
  if (shell == 0) {
    ::setsid();
    const pid_t job = start(command("16"));
    static_cast<void>(!::write(pipe[1], &job, sizeof job));
    wait_for_steps(3);
    ::kill(job, SIGSTOP);
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    ::_exit(0);
  }
  pid_t job = 0;
  ASSERT_EQ(::read(pipe[0], &job, sizeof job), static_cast<ssize_t>(sizeof job));
  end_of(shell);
  expect_saved(end_of(job));
  ::close(pipe[0]);
  ::close(pipe[1]);
  ::prctl(PR_SET_CHILD_SUBREAPER, 0);
}

TEST_F(TrainCommand, GoesOnWhenNobodyCanReadItsProgress) {
  const std::string command = std::string(DSMOE_PROGRAM) + " train -m " + kGolden + " --data " + kGolden +
                              "/train.ids --steps 2 -o " + out() + " 2>/dev/full >/dev/null";
  EXPECT_EQ(std::system(command.c_str()), 0);
  EXPECT_EQ(log(out()).size(), 2u);
}

TEST_F(TrainCommand, RefusesWhatMakesNoSense) {
  EXPECT_TRUE(fails(run_program({"train", "-m", kGolden, "--preset", "tiny", "-o", out("a")}), 2, {"only one of"}));
  EXPECT_TRUE(
      fails(run_program({"train", "-o", out("b"), "--lr-schedule", "steep"}), 2, {"--lr-schedule", "steep", "cosine"}));
  EXPECT_TRUE(fails(run_program({"train", "-o", out("c"), "--seq-len", "4096"}), 1, {"4096", "max_position_embeddings"}));
  EXPECT_TRUE(fails(run_program({"train", "-o", out("d"), "--steps", "0"}), 2, {"--steps", "at least 1"}));
  EXPECT_TRUE(fails(run_program({"train", "-m", kGolden, "-o", out("e")}), 1, {"has no tokenizer", ".ids"}));
  EXPECT_TRUE(fails(run_program({"train", "-o", kGolden}), 1, {"already holds a model"}));
  EXPECT_EQ(run_program({"train"}).status, 2);
}

TEST_F(TrainCommand, ResumingRefusesWhatWouldTrainSomethingElse) {
  ASSERT_EQ(train({"--steps", "1", "--lora-rank", "2", "-o", out()}).status, 0);
  const auto resumed = [&](std::vector<std::string> more) {
    more.insert(more.begin(), {"train", "--resume", "-o", out(), "--steps", "2"});
    return run_program(more);
  };
  EXPECT_TRUE(fails(resumed({"--lora-rank", "4"}), 1, {"lora-rank is 4", "has 2", "leave it out", "with model"}));
  EXPECT_TRUE(fails(resumed({"--dtype", "bf16"}), 1, {"dtype is", "bf16", "leave it out"}));
  EXPECT_TRUE(fails(resumed({"--freeze", "*"}), 1, {"freeze is", "leave it out"}));
  EXPECT_TRUE(fails(resumed({"--epsilon", "0"}), 2, {"--epsilon: 0", "over 0"}));
  EXPECT_EQ(resumed({}).status, 0);
}

TEST_F(TrainCommand, BenchTrainPrintsItsBound) {
  const ProgramResult r =
      run_program({"bench", "train", "--preset", "tiny", "--batch-size", "1", "--seq-len", "16", "-r", "1", "--json"});
  ASSERT_EQ(r.status, 0) << r.err;
  const nlohmann::json results = r.json()["results"];
  ASSERT_EQ(results.size(), 2u);
  for (const nlohmann::json& row : results)
    for (const char* field :
         {"tokens_per_second", "gflops", "peak_gflops", "share_of_peak", "state_bytes", "activation_bytes"})
      EXPECT_GT(row[field], 0) << field;
}

TEST_F(TrainCommand, RecomputeMayLackItsValue) {
  const auto activations = [&](const std::vector<std::string>& given) {
    std::vector<std::string> args = {"bench", "train", "--preset",     "tiny", "--layers",  "2", "--dtype", "f32", "--json",
                                     "-r",    "1",     "--batch-size", "1",    "--seq-len", "16"};
    args.insert(args.end() - 2, given.begin(), given.end());
    const ProgramResult r = run_program(args);
    EXPECT_EQ(r.status, 0) << r.err;
    return r.json()["results"][0]["activation_bytes"].get<double>();
  };
  const double all = activations({});
  EXPECT_EQ(activations({"--recompute", "none"}), all);
  EXPECT_LT(activations({"--recompute"}), all);
  EXPECT_EQ(activations({"--recompute", "block"}), activations({"--recompute"}));
  EXPECT_TRUE(
      fails(run_program({"train", "-o", out("a"), "--recompute", "all"}), 2, {"--recompute", "none", "moe", "block"}));
}

// The goal: at most one and a half times what weights, gradients, moments and kept activations take.
TEST_F(TrainCommand, AStepTakesLittleMoreMemoryThanWhatItKeeps) {
#ifdef DSMOE_SANITIZED
  GTEST_SKIP() << "sanitizers take memory of their own";
#endif
  const ProgramResult r = run_program({"bench", "train", "-r", "1", "--json"});
  ASSERT_EQ(r.status, 0) << r.err;
  const nlohmann::json results = r.json()["results"];
  for (const nlohmann::json& row : results) {
    const double needed = row["state_bytes"].get<double>() + row["activation_bytes"].get<double>();
    if (row["memory_bytes"] == 0) GTEST_SKIP() << "the system does not tell how much memory a process had at most";
    EXPECT_GT(row["memory_bytes"], 0.9 * needed) << "less than it holds: measured wrongly";
    EXPECT_LT(row["memory_bytes"], 1.5 * needed) << row;
  }
}

TEST_F(TrainCommand, DomainsComeFromFilesAndFields) {
  fs::create_directories(dir_ / "texts");
  for (const char* name : {"cats", "dogs"}) {
    std::ofstream text(dir_ / "texts" / (std::string(name) + ".txt"));
    for (int i = 0; i < 200; ++i) text << "the " << name << ' ' << i << " sat on the mat\n";
  }
  std::ofstream lines(dir_ / "x.jsonl");
  for (int i = 0; i < 400; ++i)
    lines << (i % 2 ? R"({"text": "the cat sat on the mat and slept", "kind": "cats"})"
                    : R"({"text": "a dog ran to the house and barked", "kind": "dogs"})")
          << '\n';
  lines.close();
  const auto domains = [&](const std::string& data, std::vector<std::string> more) {
    std::vector<std::string> arguments = {"train",        "--data", data,        "-o", out("run"),  "--steps", "1",
                                          "--batch-size", "1",      "--seq-len", "16", "--holdout", "0.3",     "--json"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const ProgramResult r = run_program(arguments);
    EXPECT_EQ(r.status, 0) << r.err;
    fs::remove_all(out("run"));
    return r.status == 0 && r.json().contains("eval_domains") ? r.json()["eval_domains"] : nlohmann::json::object();
  };
  EXPECT_EQ(domains(dir_ / "texts", {}).size(), 0u) << "one folder, one domain";
  const nlohmann::json by_file = domains(dir_ / "texts", {"--label-by", "file"});
  EXPECT_TRUE(by_file.contains("cats") && by_file.contains("dogs")) << by_file;
  EXPECT_EQ(domains(dir_ / "x.jsonl", {}).size(), 0u);
  const nlohmann::json by_field = domains(dir_ / "x.jsonl", {"--label-field", "kind"});
  EXPECT_TRUE(by_field.contains("cats") && by_field.contains("dogs")) << by_field;
  EXPECT_TRUE(
      fails(run_program({"train", "-o", out("x"), "--label-by", "colour"}), 2, {"--label-by", "colour", "folder,file"}));
}

}  // namespace
}  // namespace dsmoe
