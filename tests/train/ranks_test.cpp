// Training by several ranks (threads here) is the training of one.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <fstream>
#include <functional>
#include <mutex>
#include <new>
#include <optional>

#include "support/expect_error.h"
#include "support/random_tensor.h"
#include "support/thread_ranks.h"
#include "support/tolerance.h"
#include "train/checkpoints.h"
#include "train/gradient_sums.h"
#include "train/loop.h"
#include "train/rank_task.h"
#include "train/run_folder.h"
#include "train/shared_files.h"

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

const std::vector<Layout> kLayouts = {{2, 1}, {2, 2}, {3, 3}, {4, 2}, {4, 4, 1}, {4, 1, 1}, {4, 2, 2}, {3, 1, 2}};

TEST(TrainRanks, FiftySteps) {
  Task task;
  task.config = with_balance(true);
  task.options.batch_size = 8, task.options.steps = task.steps = 50;
  check(task, {{2, 1}, {2, 2}, {4, 2, 1}, {8, 8}, {8, 4, 2}});
}

TEST(TrainRanks, FiftyStepsInBf16) {
  Task task;
  task.config = with_balance(false);
  task.options.dtype = DType::kBF16;
  task.options.batch_size = 8, task.options.steps = task.steps = 50;
  check(task, {{2, 1}, {4, 4}, {4, 2, 1}, {3, 1, 2}});
}

// Of every kind: whatever else a step does is done by 2, 3, 4 and 8 ranks, in both dtypes.
TEST(DISABLED_TrainRanksSlow, FiftyStepsOfEveryKind) {
  const std::vector<std::function<void(Task&)>> kinds = {
      [](Task& t) { t.config = with_balance(false); },  // per sequence, and the router's
      [](Task& t) { t.config = with_balance(true); },   // over the batch, and of devices
      [](Task& t) {
        t.config.topk_method = "noaux_tc";
        t.options.bias_update_speed = 0.001;
      },
      [](Task& t) {
        t.options.lora_rank = 2;
        t.options.freeze = {"*q_proj*"};
      },
      [](Task& t) { t.options.grad_accum = 2, t.options.batch_size = 11; }};  // shares that are not alike
  for (std::size_t kind = 0; kind < kinds.size(); ++kind)
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      SCOPED_TRACE(fmt::format("{}, {}", kind, to_string(dtype)));
      Task task;
      task.options.dtype = dtype;
      task.options.batch_size = 8, task.options.steps = task.steps = 50;
      kinds[kind](task);
      check(task, {{2, 2}, {3, 3, 1}, {4, 2, 2}, {8, 8, 1}, {8, 4}});
    }
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

// Groups of experts are ranks here, and a token goes to two of four at most.
TEST(TrainRanks, GroupLimits) {
  Task task;
  task.config.topk_method = "group_limited_greedy";
  task.config.n_group = 4, task.config.topk_group = 2;
  check(task, {{2, 2}, {4, 4}, {4, 4, 2}});
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
    check(task, {{2, 2}, {4, 4}, {2, 2, 1}, {4, 4, 1}, {4, 2, 1}});
  }
  const testing::TempFolder folder;
  task.options.lora_rank = 2;
  task.steps = 2, task.to = folder / "saved";
  train(task, {4, 4, 1});
  task.from = task.to, task.steps = 4;
  task.to.clear();
  EXPECT_EQ(train(task, {2, 2, 1}).steps.size(), 2u);
}

TEST(TrainRanks, PartialSums) {
  Task task;
  const Trained one = train(task, {}), got = train(task, {.ranks = 2, .group = 2, .partial = true});
  EXPECT_NEAR(got.steps[0].loss, one.steps[0].loss, 1e-5);
  EXPECT_NEAR(got.steps[3].loss, one.steps[3].loss, 1e-3);
}

TEST(TrainRanks, TheSameLayoutHasTheSameBits) {
  for (const DType dtype : {DType::kF32, DType::kBF16})
    for (const Layout& layout : {Layout{3, 1}, Layout{4, 2}, Layout{4, 2, 1}}) {
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

// A checkpoint does not know the layout: what 8 ranks wrote is, read by one and written again, the same.
TEST(TrainRanks, CheckpointsOfAnyLayout) {
  for (const Index lora : {0, 2})
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      const testing::TempFolder folder;
      Task task;
      task.options.dtype = dtype, task.options.lora_rank = lora;
      task.options.batch_size = 8;
      task.steps = 2, task.to = folder / "by_eight";
      const Trained eight = train(task, {8, 4, 1});
      const auto saved = io::SafetensorsFile::open(folder / "by_eight" / "trainer" / "optimizer.safetensors");
      for (const Layout& layout :
           {Layout{1, 1}, Layout{2, 2}, Layout{3, 3}, Layout{3, 1, 1}, Layout{4, 2, 2}, Layout{2, 1}}) {
        Task next = task;
        next.from = task.to, next.to = folder / "again";
        const Trained resumed = train(next, layout);  // no steps are left
        EXPECT_TRUE(resumed.steps.empty());
        EXPECT_EQ(resumed.evaluations[0].loss, eight.evaluations[0].loss) << layout.ranks;
        const auto again = io::SafetensorsFile::open(folder / "again" / "trainer" / "optimizer.safetensors");
        ASSERT_EQ(again.names().size(), saved.names().size());
        for (const std::string& name : saved.names())
          EXPECT_TRUE(dsmoe::test::same_bits(again.tensor(name), saved.tensor(name))) << name;
        for (const char* file : {"model.safetensors", "config.json", "trainer/step.json"})
          EXPECT_TRUE(same_file(next.to / file, task.to / file)) << file;
        next.steps = 4, next.to.clear();
        EXPECT_EQ(train(next, layout).steps.size(), 2u);
        std::filesystem::remove_all(folder / "again");
      }
    }
}

// All ranks write, and where one cannot, all say so.
TEST(TrainRanks, ARankThatCannotWrite) {
  const testing::TempFolder folder;
  const std::filesystem::path made = folder / "made \xff\n";  // as a file may be named
  std::vector<std::string> messages(3);
  run_ranks(3, [&](const std::shared_ptr<Comm>& world) {
    std::ofstream(made) << "0123456789";
    const auto write = [&](const std::vector<io::FilePlace>& places, io::PlaceWriter& writer) {
      const char digit = static_cast<char>('a' + world->rank());
      io::FilePlace place = places[static_cast<std::size_t>(world->rank())];
      if (world->rank() == 1) place.file = folder / "lost";
      writer.write(place, std::as_bytes(std::span(&digit, 1)));
    };
    world->barrier();
    std::vector<io::FilePlace> places;
    if (world->rank() == 0)
      for (std::uint64_t r = 0; r < 3; ++r) places.push_back({made, 2 * r});
    messages[static_cast<std::size_t>(world->rank())] = testing::error_of([&] { write_together(*world, places, write); });
  });
  for (const std::string& message : messages) {
    EXPECT_NE(message.find("rank 1 cannot write its part of the checkpoint: "), std::string::npos) << message;
    EXPECT_NE(message.find("lost: cannot open"), std::string::npos) << message;
  }
  std::string text;
  std::ifstream(made) >> text;
  EXPECT_EQ(text, "a123c56789");
  run_ranks(2, [&](const std::shared_ptr<Comm>& world) {
    const auto write = [&](const std::vector<io::FilePlace>&, io::PlaceWriter&) {
      if (world->rank() == 1) throw std::bad_alloc();  // files are not all that can be short
    };
    EXPECT_TRUE(testing::throws_error([&] { write_together(*world, {}, write); }, {"rank 1 cannot write", "bad_alloc"}));
  });
}

TEST(TrainRanks, ZeroTakesLessMemory) {
  Task task;
  task.options.dtype = DType::kBF16;
  const std::size_t whole = train(task, {4, 1}).state_bytes, sharded = train(task, {4, 1, 1}).state_bytes;
  const std::size_t weights_and_gradients = 6, moments_and_master = 12;  // bytes a number
  EXPECT_NEAR(static_cast<double>(sharded) / static_cast<double>(whole),
              (weights_and_gradients + moments_and_master / 4.0) / (weights_and_gradients + moments_and_master), 0.01);
  EXPECT_LT(train(task, {4, 4}).state_bytes, whole * 2 / 3);  // of the experts it has a quarter
  // Of a deep model ZeRO 2 has the gradients of few layers and of the embedding and the head at a time, and a share of all.
  task.config.num_hidden_layers = 24;
  const std::size_t gradients = train(task, {4, 1, 1}).state_bytes, shared = train(task, {4, 1, 2}).state_bytes;
  EXPECT_LT(static_cast<double>(shared) / static_cast<double>(gradients), 0.8);  // 0.67 where nothing is whole
}

// Gradients of any sizes, large ones in pieces and small ones together, in stages that overlap or not, are what Comm makes
// of each alone.
TEST(TrainRanks, SumsOfGradients) {
  constexpr Index kRanks = 3, kSizes[] = {5, 1, (1 << 18) + 7, 77, 1 << 18, 2};
  for (const Sharing sharing : {Sharing{0, true}, Sharing{0, false}, Sharing{1, true}, Sharing{2, true}, Sharing{2, false}})
    run_ranks(kRanks, [&](const std::shared_ptr<Comm>& world) {
      Context ctx(1);
      const auto seed = static_cast<std::uint64_t>(world->rank() + 1);
      std::vector<Tensor> tensors, shares, wanted;
      GradientSums sums(sharing, /*piece=*/10000);
      for (const Index n : kSizes) {
        tensors.push_back(dsmoe::test::random_tensor(DType::kF32, {n}, seed + static_cast<std::uint64_t>(n)));
        wanted.push_back(tensors.back().clone());
        world->all_reduce(wanted.back().span<float>());
        shares.push_back(sharing.zero == 2 ? ctx.zeros(DType::kF32, {world->share(n).count()}) : Tensor());
        const auto stage = static_cast<Index>(tensors.size() / 2);
        sums.add(*world, stage, tensors.back(), shares.back());
        if (sharing.zero == 2) sums.add_cleared(stage, tensors.back());
      }
      for (const Index stage : {3, 2, 1}) sums.start(ctx, stage);  // and not 0
      sums.finish(ctx);
      for (std::size_t i = 0; i < tensors.size(); ++i) {
        const Comm::Range share = sharing.zero == 0 ? Comm::Range{0, kSizes[i]} : world->share(kSizes[i]);
        const Tensor got = sharing.zero == 2 ? shares[i] : tensors[i].rows(share.first, share.last);
        EXPECT_TRUE(dsmoe::test::same_bits(got, wanted[i].rows(share.first, share.last))) << i;
        if (sharing.zero == 2) {
          EXPECT_EQ(tensors[i].data<float>()[0], 0) << i;
        }
      }
    });
}

// When gradients are summed and where they are kept makes no difference; but sums over several passes are of the ranks'
// sums of all passes, or with ZeRO 2 of each pass' sum over the ranks.
TEST(TrainRanks, OverlapAndZeroChangeNoBit) {
  Task task;
  task.config = with_balance(true);
  task.config.tie_word_embeddings = true;
  task.options.freeze = {"*layers.1.mlp.experts.3.*", "*q_proj*"};
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    task.options.dtype = dtype;
    for (const Index group : {1, 2, 4}) {
      task.options.grad_accum = 1;
      const Trained plain = train(task, {.ranks = 4, .group = group, .overlap = false});
      expect_same(train(task, {.ranks = 4, .group = group}), plain);
      const Trained one = train(task, {.ranks = 4, .group = group, .zero = 1, .overlap = false});
      for (const Layout& layout : {Layout{4, group, 1}, Layout{4, group, 2}, Layout{4, group, 2, false, false}})
        expect_same(train(task, layout), one);
      for (std::size_t i = 0; i < one.steps.size(); ++i) EXPECT_EQ(one.steps[i].loss, plain.steps[i].loss) << i;
      task.options.grad_accum = 2;
      expect_same(train(task, {4, group, 2}), train(task, {4, group, 2, false, false}));
      expect_same(train(task, {4, group}), train(task, {4, group, 0, false, false}));
    }
  }
}

TEST(TrainRanks, ANumberThatIsNotFinite) {
  Task task;
  task.options.lr = 1e5, task.options.clip = 0;
  EXPECT_TRUE(testing::throws_error([&] { train(task, {2, 2}); }, {"step ", "try a lower lr"}, ErrorCode::kNumeric));
}

// The rank that the others wait for is named, and how long they did, whether by a group of experts or by all.
TEST(TrainRanks, TheSlowestRankIsNamed) {
  for (const Index group : {1, 3}) {
    TrainOptions options = small_options();
    options.batch_size = 3;
    std::vector<StepResult> results(3);
    run_ranks(3, [&](const std::shared_ptr<Comm>& world) {
      Context ctx(1);
      const auto mesh = std::make_shared<Mesh>(parallel::make_mesh(world, group));
      Trainer trainer(ctx, small_config(), random_weights(small_config(), 1, options.dtype, ctx), options, mesh);
      const Batch mine = Walks().batch(world->rank(), 1);
      trainer.step(std::span(&mine, 1));
      constexpr double kLate = 0.5;  // seconds; a step takes some milliseconds
      const Index slow = 1;
      if (world->rank() == slow) std::this_thread::sleep_for(std::chrono::duration<double>(kLate));
      const StepResult late = trainer.step(std::span(&mine, 1));
      EXPECT_EQ(late.slowest_rank, slow);
      EXPECT_GT(late.waited, 0.8 * 2 * kLate);
      // An evaluation is not a part of a step.
      const Walks data;
      if (world->rank() == slow) std::this_thread::sleep_for(std::chrono::duration<double>(kLate));
      static_cast<void>(trainer.evaluate(data, 3));
      const StepResult next = trainer.step(std::span(&mine, 1));
      EXPECT_LT(next.waited, late.waited);
      results[static_cast<std::size_t>(world->rank())] = next;
    });
    for (const StepResult& r : results) {
      EXPECT_EQ(r.waited, results[0].waited);
      EXPECT_EQ(r.slowest_rank, results[0].slowest_rank);
    }
  }
}

// fn(rank, trainer, folder of the run) on two ranks, of which the first writes.
template <class Fn>
void two_in_a_run(const std::filesystem::path& path, const TrainOptions& options, Fn fn) {
  run_ranks(2, [&](const std::shared_ptr<Comm>& world) {
    Context ctx(1);
    const auto mesh = std::make_shared<Mesh>(parallel::make_mesh(world, 1));
    Trainer trainer(ctx, small_config(), random_weights(small_config(), 1, options.dtype, ctx), options, mesh);
    std::optional<RunFolder> run_folder;
    if (world->rank() == 0)
      run_folder.emplace(path);
    else
      run_folder.emplace(path, RunFolder::Follower{});
    fn(static_cast<std::size_t>(world->rank()), trainer, *run_folder);
  });
}

// What the first rank does alone for a checkpoint is no waiting in the next step.
TEST(TrainRanks, CheckpointsAreNotWaitedForInSteps) {
  const testing::TempFolder folder;
  TrainOptions options = small_options();
  options.steps = 3, options.save_every = 1, options.keep = 1;
  constexpr double kLate = 0.5;  // seconds; a step takes some milliseconds
  two_in_a_run(folder / "run", options, [&](std::size_t, Trainer& trainer, RunFolder& run_folder) {
    RunHooks hooks;
    hooks.extra_files = [&](const auto&) { std::this_thread::sleep_for(std::chrono::duration<double>(kLate)); };
    hooks.step = [&](const StepRecord& r) { EXPECT_LT(r.result.waited, kLate / 2) << r.step; };
    run(trainer, Walks(), nullptr, options, run_folder, {}, hooks);
  });
}

// Every rank knows the newest checkpoint, though only one writes it.
TEST(TrainRanks, AllNameTheLastGoodCheckpoint) {
  const testing::TempFolder folder;
  TrainOptions options = small_options();
  options.lr = 1e5, options.clip = 0, options.save_every = 1, options.keep = 1;
  std::vector<std::string> messages(2);
  two_in_a_run(folder / "run", options, [&](std::size_t rank, Trainer& trainer, RunFolder& run_folder) {
    messages[rank] = testing::error_of([&] { run(trainer, Walks(), nullptr, options, run_folder, {}, {}); });
  });
  EXPECT_NE(messages[0].find("the last good checkpoint is "), std::string::npos) << messages[0];
  EXPECT_EQ(messages[0], messages[1]);
}

}  // namespace
}  // namespace dsmoe::train
