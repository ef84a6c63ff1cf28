// What runs beside the steps of a training run on a GPU changes no bit of it: AdamW under the next forward pass, and steps
// that are launched before the numbers of the one ahead are here.
#include <gtest/gtest.h>

#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>

#include "cuda/gpu_test.h"
#include "formats/model_source.h"
#include "support/expect_error.h"
#include "support/tolerance.h"
#include "train/checkpoints.h"
#include "train/loop.h"
#include "train/support.h"

namespace dsmoe::train {
namespace {

using namespace test;
using testing::TempFolder;
using testing::throws_error;

class CudaOverlap : public dsmoe::test::GpuTest {
 protected:
  // Large enough that updates and passes take a while; the token ids are those of Walks.
  static ModelConfig config() {
    ModelConfig c = small_config();
    c.hidden_size = 256;
    c.num_attention_heads = c.num_key_value_heads.emplace(4);
    c.intermediate_size = 1024;
    c.moe_intermediate_size = 128;
    c.n_routed_experts = 32;
    return c;
  }
  static TrainOptions options(DType dtype = DType::kBF16) {
    TrainOptions o = small_options();
    o.dtype = dtype;
    o.lr = 1e-3;
    return o;
  }
  void launch(Trainer& trainer, Index step) {
    std::vector<Batch> passes;
    for (Index pass = 0; pass < 2; ++pass) passes.push_back(data_.batch(step * 8 + pass * 4, 4));
    trainer.launch(passes);
  }
  // One step, and nothing of it is left when the next one begins.
  StepResult alone(Trainer& trainer, Index step) {
    launch(trainer, step);
    const StepResult result = trainer.finish();
    trainer.model().finish_updates();
    ctx().synchronize();
    return result;
  }
  std::vector<Tensor> weights(const Trainer& trainer) {
    std::vector<Tensor> all;
    for (const Parameter& p : parameter_list(trainer.model().config())) all.push_back(trainer.model().weights().fetched(p));
    return all;
  }
  void expect_the_same(const std::vector<Tensor>& a, const std::vector<Tensor>& b) {
    ASSERT_EQ(a.size(), b.size());
    for (std::size_t i = 0; i < a.size(); ++i) ASSERT_TRUE(dsmoe::test::same_bits(a[i], b[i])) << i;
  }
  void expect_the_same_state(const Trainer& a, const Trainer& b) {
    const TempFolder first, second;
    a.save(first.path());
    b.save(second.path());
    EXPECT_TRUE(same_folder(first.path(), second.path()));
  }

  Walks data_;
};

TEST_F(CudaOverlap, ChangesNoBit) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    Trainer beside = make_trainer(ctx(), options(dtype), config()), after = make_trainer(ctx(), options(dtype), config());
    ASSERT_TRUE(beside.runs_ahead());
    std::vector<StepResult> got, want;
    for (Index i = 0; i < 8; ++i) {
      launch(beside, i);
      if (beside.launched() > 1) got.push_back(beside.finish());
      want.push_back(alone(after, i));
    }
    got.push_back(beside.finish());
    for (std::size_t i = 0; i < want.size(); ++i) {
      EXPECT_EQ(got[i].loss, want[i].loss) << i;
      EXPECT_EQ(got[i].grad_norm, want[i].grad_norm) << i;
      EXPECT_EQ(got[i].balance.total(), want[i].balance.total()) << i;
      EXPECT_EQ(got[i].load_max, want[i].load_max) << i;
    }
    EXPECT_EQ(beside.evaluate(data_, 6).loss, after.evaluate(data_, 6).loss);  // while the last update is under way
    expect_the_same_state(beside, after);
  }
}

TEST_F(CudaOverlap, WhoeverLooksSeesTheUpdate) {
  Trainer now = make_trainer(ctx(), options(), config()), later = make_trainer(ctx(), options(), config());
  for (Index i = 0; i < 3; ++i) {
    launch(now, i);
    now.finish();
    const std::vector<Tensor> seen = weights(now);  // at once
    alone(later, i);
    expect_the_same(seen, weights(later));
    launch(now, 7 + i), launch(later, 7 + i);
    now.finish(), later.finish();
    expect_the_same_state(now, later);
  }
}

// A step that is not finite, and one behind it that is launched already.
TEST_F(CudaOverlap, ABadStepChangesNothingNorDoesTheNext) {
  Trainer trainer = make_trainer(ctx(), options(), config()), good = make_trainer(ctx(), options(), config());
  for (Index i = 0; i < 3; ++i) alone(good, i);
  launch(trainer, 0);
  launch(trainer, 1);
  trainer.finish();
  const TensorView where(trainer.model().weights().layers[2].o.weight);
  Tensor weight = where.fetched(), broken = weight.clone();
  broken.data<BFloat16>()[3] = BFloat16(std::numeric_limits<float>::quiet_NaN());
  where.assign(broken);
  const std::vector<Tensor> before = weights(trainer);
  launch(trainer, 2);
  launch(trainer, 3);
  trainer.finish();  // step 1, which was launched before
  EXPECT_TRUE(throws_error([&] { trainer.finish(); }, {"step 2:", "layer 2", "lower lr"}));
  EXPECT_EQ(trainer.steps_done(), 2);
  EXPECT_EQ(trainer.launched(), 0);
  expect_the_same(weights(trainer), before);
  // Mended, it goes on as if nothing had been.
  where.assign(weight);
  launch(trainer, 2);
  trainer.finish();
  expect_the_same(weights(trainer), weights(good));
}

TEST_F(CudaOverlap, AGradientThatIsNotFiniteIsFoundAgain) {
  Trainer trainer = make_trainer(ctx(), options(DType::kF32), config());
  const TensorView where(trainer.model().weights().layers[2].input_norm);
  Tensor norm = where.fetched();
  for (float& w : norm.span<float>()) w = 3e38f;
  where.assign(norm);
  const std::vector<Tensor> before = weights(trainer);
  launch(trainer, 0);
  launch(trainer, 1);
  EXPECT_TRUE(throws_error([&] { trainer.finish(); }, {"step 0:", "layer 2"}));
  expect_the_same(weights(trainer), before);
}

// The loop finishes a step when the next one is under way; what it writes is of the right step.
TEST_F(CudaOverlap, ARunIsItsSteps) {
  const TempFolder dir;
  TrainOptions o = options();
  o.steps = 9;
  o.eval_every = 4;
  o.eval_sequences = 6;
  o.save_every = 3;
  const auto run_until = [&](const char* name, Index steps, const RunHooks& hooks) {
    RunFolder folder(dir / name);
    TrainOptions now = o;
    now.steps = steps;
    if (const auto last = folder.resume({})) {
      Trainer trainer(ctx(), config(), load_weights(*last, config(), o.dtype), now);
      trainer.load_state(*last);
      return run(trainer, data_, &data_, now, folder, load_run_state(*last), hooks);
    }
    Trainer trainer = make_trainer(ctx(), now, config());
    return run(trainer, data_, &data_, now, folder, {}, hooks);
  };
  std::vector<StepRecord> records;
  RunHooks listen, none;
  listen.step = [&](const StepRecord& r) { records.push_back(r); };
  run_until("whole", 9, listen);
  ASSERT_EQ(records.size(), 9u);
  Trainer steps = make_trainer(ctx(), o, config());
  for (Index i = 0; i < 9; ++i) {
    const StepRecord& r = records[static_cast<std::size_t>(i)];
    EXPECT_EQ(r.step, i);
    EXPECT_EQ(r.tokens, (i + 1) * 64);
    EXPECT_EQ(r.result.loss, test::step(steps, data_, i * 4, 4).loss);
    EXPECT_EQ(r.evaluation.has_value(), i == 3 || i == 7 || i == 8) << i;
    if (r.evaluation) {
      EXPECT_EQ(r.evaluation->loss, steps.evaluate(data_, 6).loss);
    }
  }
  run_until("parts", 5, none);
  run_until("parts", 9, none);
  EXPECT_TRUE(same_folder(dir / "whole" / "checkpoint-9", dir / "parts" / "checkpoint-9"));
}

}  // namespace
}  // namespace dsmoe::train
