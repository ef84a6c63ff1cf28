#include <gtest/gtest.h>

#include "core/device.h"
#include "dsmoe/session.h"
#include "dsmoe/trainer.h"
#include "support/expect_error.h"
#include "support/temp_folder.h"

namespace dsmoe::train {
namespace {

RunSetup small(const std::string& out) {
  RunSetup setup;
  setup.out = out;
  setup.threads = 1;
  setup.train.steps = 3;
  setup.train.batch_size = 1;
  setup.train.seq_len = 16;
  setup.train.eval_sequences = 7;
  setup.train.clip = 0.5;
  return setup;
}

TEST(ApiTrainingRun, TrainsResumesAndIsAModel) {
  const testing::TempFolder folder;
  const std::string out = folder / "run";
  std::vector<Index> steps;
  {
    TrainingRun run(small(out));
    RunHooks hooks;
    hooks.step = [&](const StepRecord& r) { steps.push_back(r.step); };
    const RunResult result = run.run(hooks);
    EXPECT_EQ(steps, (std::vector<Index>{0, 1, 2}));
    EXPECT_FALSE(result.stopped);
    ASSERT_TRUE(run.evaluate() && result.evaluation);
    EXPECT_EQ(run.evaluate()->loss, result.evaluation->loss);
  }
  EXPECT_TRUE(testing::throws_error([&] { TrainingRun run(small(out)); }, {"already holds a training run", "resume"}));

  RunSetup more;
  more.out = out;
  more.resume = true;
  EXPECT_TRUE(testing::throws_error(
      [&] {
        RunSetup same = more;
        same.train.steps = 3;
        TrainingRun run(same);
      },
      {"3 steps already"}));
  more.train.steps = 4;
  TrainingRun run(more);
  EXPECT_EQ(run.steps_done(), 3);
  EXPECT_EQ(run.options().seq_len, 16) << "not given now: the checkpoint's";
  EXPECT_EQ(run.options().clip, 0.5);
  const std::shared_ptr<const Model> model = run.model();
  EXPECT_EQ(run.run().state.tokens, 4 * 16);
  EXPECT_EQ(Session(model).generate("Once", {.max_tokens = 2}).prompt_tokens,
            Session(Model::load(out)).generate("Once", {.max_tokens = 2}).prompt_tokens);
}

// clip 1.0 is the default: only `given` tells that it is meant.
TEST(ApiTrainingRun, AnOptionWithTheDefaultValueCountsWhenItIsGiven) {
  const testing::TempFolder folder;
  RunSetup setup = small(folder / "run");
  { TrainingRun(setup).run(); }
  setup = {};
  setup.out = folder / "run";
  setup.resume = true;
  setup.train.steps = 4;
  { EXPECT_EQ(TrainingRun(setup).options().clip, 0.5); }
  setup.given = {"clip"};
  EXPECT_EQ(TrainingRun(setup).options().clip, 1.0);
}

TEST(ApiTrainingRun, FineTuningHasItsOwnLearningRate) {
  const testing::TempFolder folder;
  { TrainingRun(small(folder / "base")).run(); }
  RunSetup setup = small(folder / "tuned");
  setup.model = folder / "base";
  { EXPECT_EQ(TrainingRun(setup).options().lr, 1e-5); }
  setup.train.lora_rank = 2;
  { EXPECT_EQ(TrainingRun(setup).options().lr, 2e-4); }
  setup.train.lr = 3e-3;
  { EXPECT_EQ(TrainingRun(setup).options().lr, 3e-3); }
}

TEST(ApiTrainingRun, TheModelOutlivesTheRun) {
  const testing::TempFolder folder;
  std::shared_ptr<const Model> model;
  {
    TrainingRun run(small(folder / "run"));
    run.run();
    model = run.model();
  }
  EXPECT_EQ(Session(model).generate("Once", {.max_tokens = 3}).ids.size(),
            Session(Model::load(folder / "run")).generate("Once", {.max_tokens = 3}).ids.size());
}

TEST(ApiTrainingRun, RefusesBeforeAnythingIsMade) {
  const testing::TempFolder folder;
  RunSetup setup = small(folder / "run");
  setup.preset = "tiny";
  setup.config = "config.json";
  EXPECT_TRUE(testing::throws_error([&] { TrainingRun run(setup); }, {"only one of model, preset and config"}));
  setup.config.clear();
  setup.train.batch_size = 0;
  EXPECT_TRUE(testing::throws_error([&] { TrainingRun run(setup); }, {"batch-size is 0"}));
  setup.train.batch_size = 1;
  setup.balance.devices = 0;
  EXPECT_TRUE(testing::throws_error([&] { TrainingRun run(setup); }, {"devices is 0; it must be at least 1"}));
  setup.balance.devices.reset();
  setup.balance.max_groups = 2;
  EXPECT_TRUE(
      testing::throws_error([&] { TrainingRun run(setup); }, {"max-groups is 2, but there is one group of experts"}));
  EXPECT_FALSE(std::filesystem::exists(folder / "run"));
  if (device::available()) return;
  setup.balance.max_groups.reset();
  setup.device = Device::kCuda;
  EXPECT_TRUE(testing::throws_error([&] { TrainingRun run(setup); }, {"CUDA"}));
  EXPECT_FALSE(std::filesystem::exists(folder / "run"));
  setup.device.reset();  // auto
  EXPECT_EQ(TrainingRun(setup).device(), Device::kCpu);
}

}  // namespace
}  // namespace dsmoe::train
