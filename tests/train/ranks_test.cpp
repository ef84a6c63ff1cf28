// Training by several ranks (threads here) is the training of one.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <mutex>
#include <optional>

#include "support/expect_error.h"
#include "support/random_tensor.h"
#include "support/thread_ranks.h"
#include "support/tolerance.h"
#include "train/loop.h"
#include "train/rank_task.h"
#include "train/run_folder.h"
#include "train/tensor_sums.h"

namespace dsmoe::train {
namespace {

using namespace test;
using parallel::Comm;
using parallel::Mesh;
using testing::run_ranks;

Trained train(const Task& task, const Layout& layout) {
  Trained run;
  run_ranks(layout.ranks, [&](const std::shared_ptr<Comm>& world) {
    Context ctx(1);
    Trained mine;
    train_as_rank(ctx, world, task, layout, mine);
    if (world->rank() == 0) run = std::move(mine);
  });
  return run;
}

void expect_same(const Trained& a, const Trained& b) {
  ASSERT_EQ(a.steps.size(), b.steps.size());
  for (std::size_t i = 0; i < a.steps.size(); ++i) {
    EXPECT_EQ(a.steps[i].loss, b.steps[i].loss) << i;
    EXPECT_EQ(a.steps[i].grad_norm, b.steps[i].grad_norm) << i;
  }
  EXPECT_EQ(a.evaluations[0].loss, b.evaluations[0].loss);
}

void check(Task task, const std::vector<Layout>& layouts) {
  const Trained one = train(task, {});
  task.reversed = true;
  const Trained other_order = train(task, {});
  task.reversed = false;
  for (const Layout& layout : layouts) expect_the_training_of_one(task, layout, one, other_order, train(task, layout));
}

const std::vector<Layout> kLayouts = {{2, 1}, {2, 2}, {3, 3}, {4, 2}, {4, 4, true}, {4, 1, true}};

TEST(TrainRanks, FiftySteps) {
  Task task;
  task.config = with_balance(true);
  task.options.batch_size = 8, task.options.steps = task.steps = 50;
  check(task, {{2, 1}, {2, 2}, {4, 2, true}, {8, 8}});
}

TEST(TrainRanks, FiftyStepsInBf16) {
  Task task;
  task.config = with_balance(false);
  task.options.dtype = DType::kBF16;
  task.options.batch_size = 8, task.options.steps = task.steps = 50;
  check(task, {{2, 1}, {4, 4}, {4, 2, true}});
}

TEST(TrainRanks, EveryKindOfRun) {
  Task task;
  task.config = with_balance(true);
  task.options.batch_size = 5;  // uneven shares
  check(task, kLayouts);
  task.config = with_balance(false);
  task.options.grad_accum = 3, task.options.recompute = Recompute::kBlock;
  check(task, kLayouts);
}

TEST(TrainRanks, SelectionBias) {
  Task task;
  task.config.topk_method = "noaux_tc";
  task.options.bias_update_speed = 0.01;
  check(task, kLayouts);
}

TEST(TrainRanks, LoraAndFrozenParameters) {
  Task task;
  task.options.lora_rank = 2;
  task.options.freeze = {"*layers.1.mlp.experts.3.*", "*q_proj*"};
  check(task, kLayouts);
  task.options.lora_rank = 0;
  check(task, kLayouts);
}

// Some ranks have adapters of routed experts between those that all have, and some have none: all must still sum the same
// numbers together.
TEST(TrainRanks, AllExpertsOfSomeRanksAreFrozen) {
  Task task;
  for (Index e = 2; e < task.config.routed_experts(); ++e) task.options.freeze.push_back(fmt::format("*.experts.{}.*", e));
  for (const Index lora : {2, 0}) {
    task.options.lora_rank = lora;
    check(task, {{2, 2}, {4, 4}, {2, 2, true}, {4, 4, true}, {4, 2, true}});
  }
  const testing::TempFolder folder;
  task.options.lora_rank = 2;
  task.steps = 2, task.to = folder / "saved";
  train(task, {4, 4, true});
  task.from = task.to, task.steps = 4;
  task.to.clear();
  EXPECT_EQ(train(task, {2, 2, true}).steps.size(), 2u);
}

TEST(TrainRanks, PartialSums) {
  Task task;
  const Trained one = train(task, {}), got = train(task, {.ranks = 2, .group = 2, .partial = true});
  EXPECT_NEAR(got.steps[0].loss, one.steps[0].loss, 1e-5);
  EXPECT_NEAR(got.steps[3].loss, one.steps[3].loss, 1e-3);
}

TEST(TrainRanks, TheSameLayoutHasTheSameBits) {
  for (const DType dtype : {DType::kF32, DType::kBF16})
    for (const Layout& layout : {Layout{3, 1}, Layout{4, 2}, Layout{4, 2, true}}) {
      Task task;
      task.options.dtype = dtype;
      const Trained first = train(task, layout);
      expect_same(train(task, layout), first);
      // And after a resume.
      const testing::TempFolder folder;
      Task half = task;
      half.steps = 2, half.to = folder / "a";
      train(half, layout);
      Task rest = task;
      rest.from = folder / "a";
      Trained resumed = train(rest, layout);
      resumed.steps.insert(resumed.steps.begin(), first.steps.begin(), first.steps.begin() + 2);
      expect_same(resumed, first);
    }
}

// A checkpoint does not know the layout: what 4 ranks wrote is, read by one and written again, the same.
TEST(TrainRanks, CheckpointsOfAnyLayout) {
  for (const Index lora : {0, 2})
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      const testing::TempFolder folder;
      Task task;
      task.options.dtype = dtype, task.options.lora_rank = lora;
      task.steps = 2, task.to = folder / "by_four";
      const Trained four = train(task, {4, 2, true});
      const auto saved = io::SafetensorsFile::open(folder / "by_four" / "trainer" / "optimizer.safetensors");
      for (const Layout& layout : {Layout{1, 1}, Layout{2, 2}, Layout{3, 3}, Layout{3, 1, true}}) {
        Task next = task;
        next.from = task.to, next.to = folder / "again";
        const Trained resumed = train(next, layout);  // no steps are left
        EXPECT_TRUE(resumed.steps.empty());
        EXPECT_EQ(resumed.evaluations[0].loss, four.evaluations[0].loss) << layout.ranks;
        const auto again = io::SafetensorsFile::open(folder / "again" / "trainer" / "optimizer.safetensors");
        ASSERT_EQ(again.names().size(), saved.names().size());
        for (const std::string& name : saved.names())
          EXPECT_TRUE(dsmoe::test::same_bits(again.tensor(name), saved.tensor(name))) << name;
        next.steps = 4, next.to.clear();
        EXPECT_EQ(train(next, layout).steps.size(), 2u);
        std::filesystem::remove_all(folder / "again");
      }
    }
}

TEST(TrainRanks, ZeroTakesLessMemory) {
  Task task;
  task.options.dtype = DType::kBF16;
  const std::size_t whole = train(task, {4, 1}).state_bytes, sharded = train(task, {4, 1, true}).state_bytes;
  const std::size_t weights_and_gradients = 6, moments_and_master = 12;  // bytes a number
  EXPECT_NEAR(static_cast<double>(sharded) / static_cast<double>(whole),
              (weights_and_gradients + moments_and_master / 4.0) / (weights_and_gradients + moments_and_master), 0.01);
  EXPECT_LT(train(task, {4, 4}).state_bytes, whole * 2 / 3);  // of the experts it has a quarter
}

// Tensors of any sizes, small ones together, are what Comm makes of each alone.
TEST(TrainRanks, SumsOfTensors) {
  run_ranks(3, [](const std::shared_ptr<Comm>& world) {
    Context ctx(1);
    const auto seed = static_cast<std::uint64_t>(world->rank() + 1);
    std::vector<Tensor> tensors, alone;
    for (const Index n : {5, 1, 1 << 18, 77}) {
      tensors.push_back(dsmoe::test::random_tensor(DType::kF32, {n}, seed));
      alone.push_back(tensors.back().clone());
      world->all_reduce(alone.back().span<float>());
    }
    all_reduce(ctx, *world, tensors);
    for (std::size_t i = 0; i < alone.size(); ++i) EXPECT_TRUE(dsmoe::test::same_bits(tensors[i], alone[i])) << i;
    const Tensor part = dsmoe::test::random_tensor(DType::kF32, {7, 11}, seed);
    Tensor whole = part.clone();
    reduce_scatter(ctx, *world, part);
    all_gather_shares(ctx, *world, part);
    world->all_reduce(whole.span<float>());
    EXPECT_TRUE(dsmoe::test::same_bits(part, whole));
  });
}

TEST(TrainRanks, ANumberThatIsNotFinite) {
  Task task;
  task.options.lr = 1e5, task.options.clip = 0;
  EXPECT_TRUE(testing::throws_error([&] { train(task, {2, 2}); }, {"step ", "try a lower lr"}, ErrorCode::kNumeric));
}

// Every rank knows the newest checkpoint, though only one writes it.
TEST(TrainRanks, AllNameTheLastGoodCheckpoint) {
  const testing::TempFolder folder;
  TrainOptions options = small_options();
  options.lr = 1e5, options.clip = 0, options.save_every = 1, options.keep = 1;
  std::vector<std::string> messages(2);
  run_ranks(2, [&](const std::shared_ptr<Comm>& world) {
    Context ctx(1);
    const auto mesh = std::make_shared<Mesh>(parallel::make_mesh(world, 1));
    Trainer trainer(ctx, small_config(), random_weights(small_config(), 1, options.dtype, ctx), options, mesh, false);
    std::optional<RunFolder> run_folder;
    if (world->rank() == 0)
      run_folder.emplace(folder / "run");
    else
      run_folder.emplace(folder / "run", RunFolder::Follower{});
    const Walks data;
    messages[static_cast<std::size_t>(world->rank())] =
        testing::error_of([&] { run(trainer, data, nullptr, options, *run_folder, {}, {}); });
  });
  EXPECT_NE(messages[0].find("the last good checkpoint is "), std::string::npos) << messages[0];
  EXPECT_EQ(messages[0], messages[1]);
}

}  // namespace
}  // namespace dsmoe::train
