// A short training of one rank among others, and what it must have in common with that of one process.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <memory>
#include <vector>

#include "formats/model_source.h"
#include "parallel/mesh.h"
#include "train/support.h"

namespace dsmoe::train::test {

struct Layout {
  int ranks = 1;
  Index group = 1;
  Index zero = 0;
  bool partial = false;
  bool overlap = true;
};

struct Trained {
  std::vector<StepResult> steps;
  std::vector<Evaluation> evaluations;
  std::size_t state_bytes = 0;  // of the first rank
};

struct Task {
  ModelConfig config = small_config();
  TrainOptions options = small_options();
  Index steps = 4;
  bool reversed = false;  // the sequences of a batch in the other order: the same sums, added differently
  std::filesystem::path from = {}, to = {};  // checkpoints
};

// The batch of a step, from the last sequence to the first.
class Reversed : public Walks {
 public:
  explicit Reversed(Index size) : size_(size) {}
  Batch batch(Index first, Index count) const override {
    Batch all{.sequences = count, .length = 16};
    for (Index i = first; i < first + count; ++i) {
      const Batch one = Walks::batch(i / size_ * size_ + (size_ - 1 - i % size_), 1);
      all.ids.insert(all.ids.end(), one.ids.begin(), one.ids.end());
      all.targets.insert(all.targets.end(), one.targets.begin(), one.targets.end());
      all.labels.insert(all.labels.end(), one.labels.begin(), one.labels.end());
    }
    return all;
  }

 private:
  Index size_;
};

// What each rank of `world` does; the first of them tells of it in `run`.
inline void train_as_rank(Context& ctx, const std::shared_ptr<parallel::Comm>& world, const Task& task,
                          const Layout& layout, Trained& run) {
  const Walks walks;
  const Reversed reversed(task.options.batch_size);
  const Dataset& data = task.reversed ? static_cast<const Dataset&>(reversed) : walks;
  std::shared_ptr<parallel::Mesh> mesh;
  if (layout.ranks > 1) {
    mesh = std::make_shared<parallel::Mesh>(parallel::make_mesh(world, layout.group));
    mesh->partial_sums = layout.partial;
  }
  const ModelConfig& c = task.config;
  Context host(1);
  Trainer trainer(
      ctx, c,
      task.from.empty() ? random_weights(c, 1, task.options.dtype, host) : load_weights(task.from, c, task.options.dtype),
      task.options, mesh, Sharing{layout.zero, layout.overlap});
  if (!task.from.empty()) trainer.load_state(task.from);
  const Index size = task.options.batch_size, passes = task.options.grad_accum;
  for (Index step = trainer.steps_done(); step < task.steps; ++step) {
    std::vector<Batch> mine;
    const parallel::Comm::Range share = world->share(size);
    for (Index p = 0; p < passes; ++p) mine.push_back(data.batch((step * passes + p) * size + share.first, share.count()));
    run.steps.push_back(trainer.step(mine));
  }
  const Evaluation e = trainer.evaluate(walks, size + 1);  // the last batch has one sequence, for all ranks
  if (!task.to.empty()) {
    if (world->rank() == 0) std::filesystem::create_directories(task.to);
    trainer.save(task.to);
  }
  run.evaluations.push_back(e), run.state_bytes = trainer.state_bytes();
}

inline ModelConfig with_balance(bool batch) {
  ModelConfig c = small_config();
  c.aux_loss_alpha = 0.05, c.seq_aux = !batch;
  c.device_aux_loss_alpha = batch ? 0.05 : 0, c.aux_loss_devices = 4;
  c.router_z_loss_alpha = 0.01;
  return c;
}

// The first loss has the bits of one rank, as has an evaluation of the same weights. What follows differs as much as
// another order of the same sums makes a difference on one rank: 16 times what the reversed batches do there, and where
// those happen to agree, what the dtype can tell apart.
inline void expect_the_training_of_one(const Task& task, const Layout& layout, const Trained& one,
                                       const Trained& other_order, const Trained& got, double balance = 1e-12) {
  ASSERT_EQ(got.steps.size(), one.steps.size());
  EXPECT_EQ(got.steps[0].loss, one.steps[0].loss);
  EXPECT_EQ(got.steps[0].tokens, one.steps[0].tokens);
  EXPECT_EQ(got.steps[0].load_max, one.steps[0].load_max);
  EXPECT_NEAR(got.steps[0].balance.total(), one.steps[0].balance.total(), balance);
  double apart = task.options.dtype == DType::kBF16 ? 4e-3 : 1e-6, worst = 0;
  for (std::size_t i = 0; i < one.steps.size(); ++i) {
    apart = std::max(apart, std::abs(other_order.steps[i].loss - one.steps[i].loss));
    worst = std::max(worst, std::abs(got.steps[i].loss - one.steps[i].loss));
  }
  const double token = 0.1 / static_cast<double>(one.steps[0].tokens);
  EXPECT_LE(worst, 16 * apart + token) << layout.ranks << " ranks, groups of " << layout.group;
  const double limit = 16 * std::max(apart, std::abs(other_order.evaluations[0].loss - one.evaluations[0].loss)) + token;
  EXPECT_NEAR(got.evaluations[0].loss, one.evaluations[0].loss, limit);
  EXPECT_EQ(got.evaluations[0].tokens, one.evaluations[0].tokens);
  EXPECT_EQ(got.evaluations[0].domains.size(), one.evaluations[0].domains.size());
}

}  // namespace dsmoe::train::test
