// What is planned for ranks is what they hold and send.
#include "train/rank_plan.h"

#include <gtest/gtest.h>

#include <mutex>
#include <set>

#include "support/expect_error.h"
#include "support/thread_ranks.h"
#include "train/support.h"

namespace dsmoe::train {
namespace {

using namespace test;
using parallel::Comm;
using parallel::Mesh;

struct Measured {
  std::size_t memory = 0;   // of the rank with the most
  std::uint64_t bytes = 0;  // that all send in one step
};

constexpr Index kSequences = 8;

Measured measure(const ModelConfig& config, DType dtype, const RankLayout& layout) {
  Measured measured;
  std::mutex mutex;
  testing::run_ranks(static_cast<int>(layout.ranks), [&](const std::shared_ptr<Comm>& world) {
    Context ctx(1);
    const auto mesh = std::make_shared<Mesh>(parallel::make_mesh(world, layout.expert_parallel));
    mesh->partial_sums = layout.partial_sums;
    TrainOptions o = small_options();
    o.dtype = dtype, o.batch_size = kSequences;
    Trainer trainer(ctx, config, random_weights(config, 1, dtype, ctx), o, mesh, Sharing{layout.zero, layout.overlap});
    const std::set<Comm*> groups = {world.get(), mesh->data.get(), mesh->experts.get()};
    std::uint64_t before = 0, after = 0;
    for (const Comm* c : groups) before += c->bytes_sent();
    const Walks data;
    const Comm::Range mine = world->share(kSequences);
    const Batch batch = data.batch(mine.first, mine.count());
    trainer.step(std::span(&batch, 1));
    for (const Comm* c : groups) after += c->bytes_sent();
    const std::lock_guard lock(mutex);
    measured.memory = std::max(measured.memory, trainer.state_bytes());
    measured.bytes += after - before;
  });
  return measured;
}

TEST(TrainRankPlan, MemoryAndBytes) {
  ModelConfig config = small_config();
  config.num_experts_per_tok = config.n_routed_experts;  // so that where tokens go is known
  for (const DType dtype : {DType::kF32, DType::kBF16})
    for (const RankLayout& layout : {RankLayout{2, 1}, RankLayout{4, 2, 1}, RankLayout{4, 4}, RankLayout{2, 2, 0, true},
                                     RankLayout{4, 1, 1}, RankLayout{4, 1, 2}, RankLayout{4, 2, 2}}) {
      const Measured got = measure(config, dtype, layout);
      const auto memory = static_cast<double>(rank_memory(config, dtype, layout).total());
      const double bytes = rank_traffic(config, dtype, layout, kSequences * 16).total() * static_cast<double>(layout.ranks);
      EXPECT_NEAR(static_cast<double>(got.memory) / memory, 1, 0.002) << layout.ranks << " " << layout.expert_parallel;
      // Counts, losses and the load of experts come on top.
      EXPECT_GE(static_cast<double>(got.bytes) / bytes, 0.999) << layout.ranks << " " << layout.expert_parallel;
      EXPECT_LE(static_cast<double>(got.bytes) / bytes, 1.05) << layout.ranks << " " << layout.expert_parallel;
    }
}

TEST(TrainRankPlan, ChoicesAtRandom) {
  ModelConfig config = small_config();
  const RankLayout layout{2, 2};
  const Measured got = measure(config, DType::kF32, layout);
  const double bytes = rank_traffic(config, DType::kF32, layout, kSequences * 16).total() * 2;
  EXPECT_NEAR(static_cast<double>(got.bytes) / bytes, 1, 0.1);  // 128 tokens do not choose evenly
}

// A token that may go to few ranks sends less. Groups are not chosen at random, but by the best of their experts.
TEST(TrainRankPlan, GroupLimits) {
  ModelConfig config = small_config();
  config.num_experts_per_tok = 4;
  const RankLayout layout{4, 4};
  const double anywhere = rank_traffic(config, DType::kF32, layout, kSequences * 16).tokens;
  config.topk_method = "group_limited_greedy";
  config.n_group = 4, config.topk_group = 2;
  const RankTraffic limited = rank_traffic(config, DType::kF32, layout, kSequences * 16);
  EXPECT_LT(limited.tokens, 0.95 * anywhere);
  const Measured got = measure(config, DType::kF32, layout);
  EXPECT_NEAR(static_cast<double>(got.bytes) / (4 * limited.total()), 1, 0.1);
}

// Counts what goes to ranks of other machines.
class Counting : public Comm {
 public:
  // `ranks`: of the job, of which this group is.
  Counting(std::shared_ptr<Comm> comm, std::vector<Index> ranks, Index per_machine, double& between)
      : Comm(comm->rank(), comm->size()),
        comm_(std::move(comm)),
        ranks_(std::move(ranks)),
        per_machine_(per_machine),
        between_(between) {}
  using Comm::start_exchange;
  std::unique_ptr<Pending> start_exchange(std::span<const parallel::ConstBytes> to,
                                          std::span<const parallel::Bytes> from) override {
    for (std::size_t r = 0; r < to.size(); ++r)
      if (ranks_[r] / per_machine_ != ranks_[static_cast<std::size_t>(rank())] / per_machine_)
        between_ += static_cast<double>(to[r].size());
    return comm_->start_exchange(to, from);
  }

 protected:
  std::shared_ptr<Comm> subgroup(const std::vector<int>&) override { return {}; }

 private:
  std::shared_ptr<Comm> comm_;
  std::vector<Index> ranks_;
  Index per_machine_;
  double& between_;
};

TEST(TrainRankPlan, BytesBetweenMachines) {
  ModelConfig config = small_config();
  config.num_experts_per_tok = config.n_routed_experts;
  for (const auto& [group, per_machine] : {std::pair<Index, Index>{4, 2}, {2, 2}, {2, 4}, {4, 4}, {8, 4}, {1, 2}}) {
    RankLayout layout{8, group};
    layout.per_machine = per_machine;
    double all = 0;
    std::mutex mutex;
    testing::run_ranks(8, [&, g = group, per = per_machine](const std::shared_ptr<Comm>& world) {
      const parallel::Mesh plain = parallel::make_mesh(world, g);
      double between = 0;
      std::vector<Index> everyone, same_experts, spread;
      for (Index r = 0; r < 8; ++r) {
        everyone.push_back(r);
        if (r % g == world->rank() % g) same_experts.push_back(r);
        if (r / g == world->rank() / g) spread.push_back(r);
      }
      const auto mesh = std::make_shared<Mesh>();
      mesh->world = std::make_shared<Counting>(plain.world, everyone, per, between);
      mesh->data = std::make_shared<Counting>(plain.data, same_experts, per, between);
      mesh->experts = std::make_shared<Counting>(plain.experts, spread, per, between);
      Context ctx(1);
      TrainOptions o = small_options();
      o.batch_size = kSequences;
      Trainer trainer(ctx, config, random_weights(config, 1, o.dtype, ctx), o, mesh);
      between = 0;
      const Batch batch = Walks().batch(world->rank(), 1);
      trainer.step(std::span(&batch, 1));
      const std::lock_guard lock(mutex);
      all += between;
    });
    const RankTraffic planned = rank_traffic(config, DType::kF32, layout, kSequences * 16);
    const double bytes = 8 * (planned.gradients_between + planned.tokens_between);
    EXPECT_GE(all / bytes, 0.999) << group << " " << per_machine;
    EXPECT_LE(all / bytes, 1.05) << group << " " << per_machine;
    if (group <= per_machine) EXPECT_EQ(planned.tokens_between, 0);
  }
  RankLayout layout{8, 2};
  EXPECT_EQ(rank_traffic(config, DType::kF32, layout, 128).gradients_between, 0);  // one machine
  layout.per_machine = 3;
  EXPECT_TRUE(testing::throws_error([&] { layout.check(config); }, {"ranks-per-machine is 3, but there are 8 ranks"}));
}

TEST(TrainRankPlan, LayoutsThatCannotBe) {
  const ModelConfig config = small_config();
  EXPECT_TRUE(testing::throws_error(
      [&] {
        rank_memory(config, DType::kF32, {4, 3});
      },
      {"expert-parallel is 3", "4 ranks"}));
  EXPECT_TRUE(testing::throws_error([&] { rank_traffic(config, DType::kF32, {16, 16}, 1); }, {"only 8 routed experts"}));
  EXPECT_EQ(rank_memory(config, DType::kBF16, {}).total(), training_memory(config, DType::kBF16).total());
  EXPECT_EQ(rank_traffic(config, DType::kBF16, {}, 100).total(), 0);
}

}  // namespace
}  // namespace dsmoe::train
