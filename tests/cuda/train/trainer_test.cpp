// Training on a GPU: the same losses as on the CPU within what rounding explains, the same bits run after run and after a
// resume, and checkpoints that move between both.
#include "train/trainer.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "cuda/gpu_test.h"
#include "formats/model_source.h"
#include "io/json_text.h"
#include "support/expect_error.h"
#include "support/tolerance.h"
#include "train/checkpoints.h"
#include "train/support.h"

namespace dsmoe::train {
namespace {

using namespace test;
using testing::TempFolder;
using testing::throws_error;

class CudaTrainer : public dsmoe::test::GpuTest {
 protected:
  Context cpu{0};
};

constexpr DType kBoth[] = {DType::kF32, DType::kBF16};

// Of the same weights: by seed, whatever the Context.
std::vector<double> losses(Context& ctx, const ModelConfig& config, const ModelWeights& weights, const TrainOptions& o,
                           Index steps) {
  Trainer trainer(ctx, config, weights, o);
  const Walks data(o.seq_len, config.vocab_size);
  std::vector<double> out;
  for (Index i = 0; i < steps; ++i) out.push_back(test::step(trainer, data, i * o.batch_size, o.batch_size).loss);
  return out;
}

double largest_difference(const std::vector<double>& a, const std::vector<double>& b, std::size_t until) {
  double most = 0;
  for (std::size_t i = 0; i <= until; ++i) most = std::max(most, std::abs(a[i] - b[i]));
  return most;
}

::testing::AssertionResult same_weights(const Trainer& a, const Trainer& b) {
  for (const Parameter& p : parameter_list(a.model().config()))
    if (const auto same = dsmoe::test::same_bits(a.model().weights().fetched(p), b.model().weights().fetched(p)); !same)
      return ::testing::AssertionFailure() << p.name << ": " << same.message();
  return ::testing::AssertionSuccess();
}

// Ten steps of PyTorch in float64, with the limits of the CPU's test.
TEST_F(CudaTrainer, TenStepsAreTheGoldenOnes) {
  for (const char* name : {"train_seq_aux", "train_batch_aux"}) {
    const std::filesystem::path folder = std::filesystem::path(DSMOE_TEST_DATA "/model/golden") / name;
    const nlohmann::json golden = io::read_json(folder / "steps.json");
    TrainOptions o = golden_options(golden);
    const ModelConfig config = ModelConfig::load(folder);
    Trainer trainer(ctx(), config, load_weights(folder, config, DType::kF32), o);
    const IdsDataset data(folder / "train.ids", config.vocab_size, IdsDataset::Order::kSequential, 0);
    for (const nlohmann::json& want : golden["steps"]) {
      const StepResult got = test::step(trainer, data, want["step"].get<Index>() * o.batch_size, o.batch_size);
      EXPECT_NEAR(got.loss / want["loss"].get<double>(), 1, 1e-5) << want["step"];
      EXPECT_NEAR(got.balance.total() / want["aux_loss"].get<double>(), 1, 1e-5) << want["step"];
      EXPECT_NEAR(got.grad_norm / want["grad_norm"].get<double>(), 1, 1e-4) << want["step"];
    }
    const auto final = io::SafetensorsFile::open(folder / "final.safetensors");
    for (const Parameter& p : parameter_list(config))
      EXPECT_TRUE(dsmoe::test::close(trainer.model().weights().fetched(p), final.tensor(p.name), 1e-4)) << p.name;
  }
}

// How far apart two right runs may be after n steps, nobody knows beforehand: a token that changes its expert changes the
// loss at once. So it is measured: the CPU trains from the same weights, each off by one rounding at random. The GPU rounds
// in every sum of every step, so it may be ten times as far off; and a hundred roundings of the loss itself.
TEST_F(CudaTrainer, FiftyStepsOfTinyAreTheCpus) {
  const ModelConfig config = ModelConfig::preset("tiny");
  TrainOptions o = small_options();
  o.seq_len = 64;
  o.warmup_steps = 10;
  o.lr = 1e-3;
  const ModelWeights weights = random_weights(config, 1, DType::kF32, cpu);
  ModelWeights nearby = owned_copy(config, weights, DType::kF32);
  for (const Parameter& p : parameter_list(config)) {
    Tensor t = nearby.dense(p).clone();
    const Philox random(3, static_cast<std::uint64_t>(p.layer + 1));
    for (Index i = 0; i < t.numel(); ++i)
      t.data<float>()[i] *= random.uniform(static_cast<std::uint64_t>(i)) < 0.5f ? 1 + 0x1p-23f : 1 - 0x1p-23f;
    nearby.view(p).assign(t);
  }
  const std::vector<double> want = losses(cpu, config, weights, o, 50), other = losses(cpu, config, nearby, o, 50),
                            got = losses(ctx(), config, weights, o, 50);
  for (std::size_t i = 0; i < want.size(); ++i)
    EXPECT_NEAR(got[i], want[i], 10 * largest_difference(other, want, i) + 100 * 0x1p-24 * want[i]) << i;
  EXPECT_LT(got.back(), want.front() - 0.1);  // something was learned

  // bf16: as far from the CPU's bf16 as that is from f32, three times.
  o.dtype = DType::kBF16;
  const std::vector<double> rounded = losses(cpu, config, weights, o, 50), narrow = losses(ctx(), config, weights, o, 50);
  for (std::size_t i = 0; i < want.size(); ++i)
    EXPECT_NEAR(narrow[i], rounded[i], 3 * largest_difference(rounded, want, i) + 0x1p-9 * want[i]) << i;
}

TEST_F(CudaTrainer, TwoRunsAreEqualToTheBitAndSoIsRecomputing) {
  for (const DType dtype : kBoth) {
    TrainOptions o = small_options();
    o.dtype = dtype;
    Trainer first = make_trainer(ctx(), o), second = make_trainer(ctx(), o);
    o.recompute = Recompute::kBlock;
    Trainer again = make_trainer(ctx(), o);
    o.recompute = Recompute::kMoe;
    Trainer experts_again = make_trainer(ctx(), o);
    const Walks data;
    for (Index i = 0; i < 5; ++i) {
      const StepResult a = test::step(first, data, i * 4, 4), b = test::step(second, data, i * 4, 4);
      test::step(again, data, i * 4, 4);
      test::step(experts_again, data, i * 4, 4);
      EXPECT_EQ(a.loss, b.loss);
      EXPECT_EQ(a.grad_norm, b.grad_norm);
    }
    EXPECT_TRUE(same_weights(first, second));
    EXPECT_TRUE(same_weights(first, again));
    EXPECT_TRUE(same_weights(first, experts_again));
  }
}

// LoRA and the selection bias among what a checkpoint keeps.
std::vector<std::pair<ModelConfig, TrainOptions>> kinds() {
  std::vector<std::pair<ModelConfig, TrainOptions>> all;
  for (const DType dtype : kBoth) {
    TrainOptions o = small_options();
    o.dtype = dtype;
    o.freeze = {"*.self_attn.q_proj.weight"};
    ModelConfig biased = small_config();
    biased.topk_method = "noaux_tc";
    biased.attention_bias = true;
    biased.n_shared_experts = 2;
    o.bias_update_speed = 0.01;
    all.emplace_back(biased, o);
    o.bias_update_speed = 0;
    o.lora_rank = 3;
    o.freeze = {};
    ModelConfig two = small_config();
    two.n_shared_experts = 2;
    all.emplace_back(two, o);
  }
  return all;
}

TEST_F(CudaTrainer, AResumedRunIsTheUninterruptedOne) {
  const Walks data;
  for (const auto& [config, o] : kinds()) {
    Trainer whole = make_trainer(ctx(), o, config), half = make_trainer(ctx(), o, config);
    for (Index i = 0; i < 6; ++i) test::step(whole, data, i * 4, 4);
    for (Index i = 0; i < 3; ++i) test::step(half, data, i * 4, 4);
    const TempFolder folder;
    half.save(folder.path());
    Trainer resumed(ctx(), config, load_weights(folder.path(), config, o.dtype), o);
    resumed.load_state(folder.path());
    for (Index i = 3; i < 6; ++i) test::step(resumed, data, i * 4, 4);
    EXPECT_TRUE(same_weights(whole, resumed));
  }
}

TEST_F(CudaTrainer, CheckpointsMoveBetweenCpuAndGpu) {
  const Walks data;
  for (const auto& [config, o] : kinds()) {
    const TempFolder a, b, c, d;
    Trainer here = make_trainer(cpu, o, config);
    for (Index i = 0; i < 2; ++i) test::step(here, data, i * 4, 4);
    here.save(a.path());
    Trainer there(ctx(), config, load_weights(a.path(), config, o.dtype), o);
    there.load_state(a.path());
    there.save(b.path());
    EXPECT_TRUE(same_folder(a.path(), b.path()));
    // The next step is the CPU's, up to rounding.
    const StepResult want = test::step(here, data, 8, 4), got = test::step(there, data, 8, 4);
    EXPECT_NEAR(got.loss, want.loss, (o.dtype == DType::kF32 ? 1e-5 : 2e-2) * want.loss);
    EXPECT_NEAR(got.grad_norm, want.grad_norm, (o.dtype == DType::kF32 ? 1e-4 : 1e-1) * want.grad_norm);
    there.save(c.path());
    Trainer back(cpu, config, load_weights(c.path(), config, o.dtype), o);
    back.load_state(c.path());
    back.save(d.path());
    EXPECT_TRUE(same_folder(c.path(), d.path()));
    EXPECT_EQ(back.steps_done(), 3);
    test::step(back, data, 12, 4);
  }
}

TEST_F(CudaTrainer, AccumulationIsOneLargeBatch) {
  const TrainOptions o = small_options();
  Trainer whole = make_trainer(ctx(), o), parts = make_trainer(ctx(), o);
  const Walks data;
  const Batch all = data.batch(0, 8);
  std::vector<Batch> pieces;
  for (Index p = 0; p < 4; ++p) pieces.push_back(data.batch(p * 2, 2));
  const StepResult a = whole.step(std::span(&all, 1)), b = parts.step(pieces);
  EXPECT_NEAR(a.loss, b.loss, 1e-6);  // as in the CPU's test
  EXPECT_NEAR(a.grad_norm, b.grad_norm, 1e-5 * a.grad_norm);
  EXPECT_LT(test::distance(whole, parts), 1e-4);
}

TEST_F(CudaTrainer, EvaluationIsTheCpus) {
  for (const DType dtype : kBoth) {
    TrainOptions o = small_options();
    o.dtype = dtype;
    const Evaluation want = make_trainer(cpu, o).evaluate(Walks(), 10), got = make_trainer(ctx(), o).evaluate(Walks(), 10);
    const double limit = (dtype == DType::kF32 ? 1e-5 : 1e-2) * want.loss;
    EXPECT_EQ(got.tokens, want.tokens);
    EXPECT_NEAR(got.loss, want.loss, limit);
    ASSERT_EQ(got.domains.size(), 2u);
    for (std::size_t i = 0; i < 2; ++i) EXPECT_NEAR(got.domains[i].second, want.domains[i].second, limit);
  }
}

TEST_F(CudaTrainer, ALossThatIsNotFiniteNamesStepAndLayer) {
  const Walks data;
  for (const Index layer : {0, 2}) {
    Trainer trainer = make_trainer(ctx(), small_options());
    test::step(trainer, data, 0, 4);
    const TensorView where(trainer.model().weights().layers[static_cast<std::size_t>(layer)].o.weight);
    Tensor weight = where.fetched();
    weight.data<float>()[3] = std::numeric_limits<float>::quiet_NaN();
    where.assign(weight);
    EXPECT_TRUE(throws_error([&] { test::step(trainer, data, 4, 4); },
                             {"step 1:", layer == 0 ? "layer 0" : "layer 2", "lower lr"}));
  }
}

TEST_F(CudaTrainer, ARunThatDoesNotFitIsRefusedBeforeItsFirstStep) {
  ModelConfig config = small_config();
  config.max_position_embeddings = Index{1} << 30;
  TrainOptions o = small_options();
  o.batch_size = 4096;
  o.seq_len = Index{1} << 20;
  EXPECT_TRUE(throws_error([&] { make_trainer(ctx(), o, config); },
                           {"training takes about", "GB free", "what would fit: batch-size", "grad-accum"}));
}

}  // namespace
}  // namespace dsmoe::train
