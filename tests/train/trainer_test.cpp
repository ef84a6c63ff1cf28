#include "train/trainer.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "formats/model_source.h"
#include "io/json_text.h"
#include "support/expect_error.h"
#include "support/tolerance.h"
#include "train/support.h"

namespace dsmoe::train {
namespace {

using namespace test;

// Ten steps of PyTorch in float64 (tests/model/golden): losses of every step, the weights after the last.
class TrainGolden : public ::testing::TestWithParam<std::tuple<const char*, Backend>> {};

TEST_P(TrainGolden, TenSteps) {
  const std::filesystem::path folder = std::filesystem::path(DSMOE_TEST_DATA "/model/golden") / std::get<0>(GetParam());
  const nlohmann::json golden = io::read_json(folder / "steps.json");
  TrainOptions o = golden_options(golden);
  Context ctx(2, std::get<1>(GetParam()));
  const ModelConfig config = ModelConfig::load(folder);
  Trainer trainer(ctx, config, load_weights(folder, config, DType::kF32), o);
  const IdsDataset data(folder / "train.ids", config.vocab_size, IdsDataset::Order::kSequential, 0);
  ASSERT_EQ(data.length(), golden["seq_len"]);
  for (const nlohmann::json& want : golden["steps"]) {
    const StepResult got = test::step(trainer, data, want["step"].get<Index>() * o.batch_size, o.batch_size);
    EXPECT_NEAR(got.loss / want["loss"].get<double>(), 1, 1e-5) << want["step"];
    EXPECT_NEAR(got.balance.total() / want["aux_loss"].get<double>(), 1, 1e-5) << want["step"];
    EXPECT_NEAR(got.grad_norm / want["grad_norm"].get<double>(), 1, 1e-4) << want["step"];
  }
  const auto final = io::SafetensorsFile::open(folder / "final.safetensors");
  const auto initial = io::SafetensorsFile::open(folder / "model.safetensors");
  for (const Parameter& p : parameter_list(config)) {
    EXPECT_TRUE(dsmoe::test::close(trainer.model().weights().dense(p), final.tensor(p.name), 1e-4)) << p.name;
    EXPECT_FALSE(dsmoe::test::close(initial.tensor(p.name), final.tensor(p.name), 1e-4)) << p.name << " did not move";
  }
}

INSTANTIATE_TEST_SUITE_P(Both, TrainGolden,
                         ::testing::Combine(::testing::Values("train_seq_aux", "train_batch_aux"),
                                            ::testing::Values(Backend::kCpu, Backend::kRef)));

TEST(Trainer, OverfitsOneBatch) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    Context ctx(2);
    TrainOptions o = small_options();
    o.dtype = dtype;
    o.weight_decay = 0;
    o.lr = 1e-2;
    Trainer trainer = make_trainer(ctx, o);
    const Walks data;
    double first = 0, last = 0;
    for (int i = 0; i < 250; ++i) {
      last = test::step(trainer, data, 0, 2).loss;
      if (i == 0) first = last;
    }
    EXPECT_NEAR(first, std::log(64), 0.6) << to_string(dtype);
    EXPECT_LT(last, 0.05) << to_string(dtype);
  }
}

// The largest share of any expert after some steps of a model whose router at first sends all tokens to two experts.
double imbalance(double alpha, bool seq_aux, double bias_speed, double device_alpha = 0) {
  Context ctx(2);
  ModelConfig config = small_config();
  config.aux_loss_alpha = alpha;
  config.seq_aux = seq_aux;
  config.device_aux_loss_alpha = device_alpha;
  config.aux_loss_devices = 8;  // of one expert each: then it balances experts
  if (bias_speed > 0) config.topk_method = "noaux_tc";
  TrainOptions o = small_options();
  o.bias_update_speed = bias_speed;
  o.freeze = {"model.embed*", "lm_head*", "*norm*", "*attn*", "*experts*", "*mlp.*_proj*"};  // all but the routers
  Trainer trainer = make_trainer(ctx, o, config);
  ModelWeights& w = trainer.model().weights();
  for (Index v = 0; v < config.vocab_size; ++v) w.embedding.data<float>()[v * config.hidden_size] = 0.3f;  // in all tokens
  for (std::size_t l = 1; l < 3; ++l)
    for (Index e = 0; e < 2; ++e) w.layers[l].gate.data<float>()[e * config.hidden_size] += 0.7f;
  const Walks data;
  for (Index i = 0; i < 60; ++i) test::step(trainer, data, i * 4, 4);
  return test::step(trainer, data, 0, 64).load_max;
}

TEST(Trainer, BalancingSpreadsTheLoad) {
  const double none = imbalance(0, true, 0);
  EXPECT_GT(none, 3.0);
  EXPECT_LT(imbalance(1, true, 0), 0.75 * none);
  EXPECT_LT(imbalance(1, false, 0), 0.75 * none);
  EXPECT_LT(imbalance(0, true, 0, 1), 0.75 * none);
  EXPECT_LT(imbalance(0, true, 0.01), 0.75 * none);
}

TEST(Trainer, RouterZLossKeepsLogitsSmallAndItsGradientIsRight) {
  Context ctx(1, Backend::kRef);
  ModelConfig config = small_config();
  config.aux_loss_alpha = 0;
  config.router_z_loss_alpha = 0.3;
  const Batch b = Walks(4).batch(0, 2);
  const auto loss_of = [&](float change) {
    Transformer model(config, random_weights(config, 1, DType::kF32, ctx));
    model.weights().layers[1].gate.data<float>()[5] += change;
    ModelGradients grads = zero_gradients(config);
    const LossResult r = model.loss_and_gradients(ctx, b.ids, b.targets, b.length, 0.0f, 1.0f, grads);
    return std::pair(r.balance.router_z, grads.layers[1].gate.data<float>()[5]);
  };
  const float step = 1e-2f;
  const double slope = (loss_of(step).first - loss_of(-step).first) / (2 * step);
  EXPECT_GT(loss_of(0).first, 0);
  // Layer 2 sees the change too, but through a residual stream that a gate's weight hardly moves.
  EXPECT_NEAR(loss_of(0).second, slope, 2e-2 * std::abs(slope) + 1e-5);
}

TEST(Trainer, AccumulationIsOneLargeBatch) {
  Context ctx(2);
  const TrainOptions o = small_options();
  Trainer whole = make_trainer(ctx, o), parts = make_trainer(ctx, o), wrong = make_trainer(ctx, o);
  Walks data;
  for (Index i = 0; i < 3; ++i) {
    Batch all = data.batch(i * 8, 8);
    std::vector<Batch> pieces;
    for (Index p = 0; p < 4; ++p) pieces.push_back(data.batch(i * 8 + p * 2, 2));
    // Pieces with unlike numbers of targets: the mean is over targets, not over pieces.
    for (std::size_t t = 0; t < 20; ++t) all.targets[t] = pieces[0].targets[t] = kNoTarget;
    const StepResult a = whole.step(std::span(&all, 1)), b = parts.step(pieces);
    EXPECT_NEAR(a.loss, b.loss, 1e-6);
    EXPECT_GT(a.balance.sequence, 0);
    EXPECT_NEAR(a.balance.total(), b.balance.total(), 1e-8);
    EXPECT_NEAR(a.grad_norm, b.grad_norm, 1e-5);
    EXPECT_EQ(a.tokens, b.tokens);
    EXPECT_EQ(a.load_max, b.load_max);
    wrong.step(std::span(pieces).first(3));
  }
  EXPECT_LT(test::distance(parts, whole), 2e-5);
  EXPECT_GT(test::distance(wrong, whole), 1e-3);
}

TEST(Trainer, RecomputingHasTheSameBits) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    Context two(2), three(3);
    TrainOptions o = small_options();
    o.dtype = dtype;
    Trainer kept = make_trainer(two, o);
    o.recompute = Recompute::kBlock;
    Trainer again = make_trainer(three, o);
    o.recompute = Recompute::kMoe;
    Trainer experts_again = make_trainer(three, o);
    const Walks data;
    for (Index i = 0; i < 3; ++i) {
      test::step(kept, data, i * 4, 4);
      test::step(again, data, i * 4, 4);
      test::step(experts_again, data, i * 4, 4);
    }
    EXPECT_EQ(test::distance(again, kept), 0) << to_string(dtype);
    EXPECT_EQ(test::distance(experts_again, kept), 0) << to_string(dtype);
  }
}

TEST(Trainer, DecaysMatricesOnly) {
  Context ctx(1);
  TrainOptions o = small_options();
  o.weight_decay = 0.5;
  o.lr = 0.1;
  ModelConfig config = small_config();
  config.attention_bias = true;
  Trainer with = make_trainer(ctx, o, config);
  o.weight_decay = 0;
  Trainer without = make_trainer(ctx, o, config);
  const Walks data;
  test::step(with, data, 0, 4);
  test::step(without, data, 0, 4);
  for (const Parameter& p : parameter_list(config)) {
    const bool same = dsmoe::test::same_bits(with.model().weights().dense(p), without.model().weights().dense(p));
    EXPECT_EQ(same, p.shape.rank() == 1) << p.name;
  }
}

TEST(Trainer, FreezingKeepsWhatMatches) {
  Context ctx(2);
  TrainOptions o = small_options();
  o.freeze = {"model.embed_tokens.*", "*.self_attn.q_proj.weight"};
  Trainer trainer = make_trainer(ctx, o), before = make_trainer(ctx, o);
  const Walks data;
  for (Index i = 0; i < 2; ++i) test::step(trainer, data, i * 4, 4);
  for (const Parameter& p : parameter_list(small_config())) {
    const bool same = dsmoe::test::same_bits(trainer.model().weights().dense(p), before.model().weights().dense(p));
    EXPECT_EQ(same, p.role == "embedding.weight" || p.role == "attention.q.weight") << p.name;
  }
  o.freeze = {"no.such.*"};
  EXPECT_TRUE(testing::throws_error([&] { make_trainer(ctx, o); }, {"freeze", "no.such.*"}));
  o.freeze = {"*"};
  EXPECT_TRUE(testing::throws_error([&] { make_trainer(ctx, o); }, {"nothing is left to train"}));
}

TEST(Trainer, RefusesDropoutByName) {
  Context ctx(1);
  ModelConfig config = small_config();
  config.attention_dropout = 0.1;
  EXPECT_TRUE(testing::throws_error([&] { make_trainer(ctx, small_options(), config); }, {"attention_dropout is 0.1"}));
}

TEST(Trainer, SelectionBiasNeedsAModelThatHasOne) {
  Context ctx(1);
  TrainOptions o = small_options();
  o.bias_update_speed = 0.001;
  EXPECT_TRUE(testing::throws_error([&] { make_trainer(ctx, o); }, {"bias-update-speed", "noaux_tc"}));
}

TEST(Trainer, ALossThatIsNotFiniteNamesStepAndLayer) {
  Context ctx(2);
  const Walks data;
  for (const Index layer : {0, 2}) {
    Trainer trainer = make_trainer(ctx, small_options());
    test::step(trainer, data, 0, 4);
    trainer.model().weights().layers[static_cast<std::size_t>(layer)].o.weight.data<float>()[3] =
        std::numeric_limits<float>::quiet_NaN();
    EXPECT_TRUE(testing::throws_error([&] { test::step(trainer, data, 4, 4); },
                                      {"step 1:", layer == 0 ? "layer 0" : "layer 2", "lower lr"}));
  }
  // Finite forward, infinite gradient: the norm's weights are tiny, so what flows back is divided by them nowhere, but
  // a huge scale of the last norm overflows on the way back.
  Trainer trainer = make_trainer(ctx, small_options());
  for (float& w : trainer.model().weights().layers[2].input_norm.span<float>()) w = 3e38f;
  EXPECT_TRUE(testing::throws_error([&] { test::step(trainer, data, 0, 4); }, {"step 0:", "layer 2"}));
}

// Whoever hears of it may go on: nothing of the step has happened.
TEST(Trainer, ATargetThatIsNoTokenChangesNothing) {
  Context ctx(2);
  Trainer trainer = make_trainer(ctx, small_options()), other = make_trainer(ctx, small_options());
  const Walks data;
  const Batch good = data.batch(0, 2);
  Batch bad = good;
  bad.targets[3] = 1 << 20;
  EXPECT_TRUE(testing::throws_error([&] { trainer.step(std::span(&bad, 1)); }, {"token 3 has target 1048576"}));
  EXPECT_EQ(trainer.steps_done(), 0);
  for (int i = 0; i < 2; ++i) {
    const StepResult a = trainer.step(std::span(&good, 1)), b = other.step(std::span(&good, 1));
    EXPECT_EQ(a.loss, b.loss) << i;
    EXPECT_EQ(a.grad_norm, b.grad_norm) << i;
  }
}

TEST(Trainer, LaunchedAndFinishedIsAStep) {
  Context ctx(1);
  Trainer whole = make_trainer(ctx, small_options()), halves = make_trainer(ctx, small_options());
  const Walks data;
  for (Index i = 0; i < 3; ++i) {
    const StepResult want = test::step(whole, data, i * 4, 4);
    const Batch batch = data.batch(i * 4, 4);
    halves.launch(std::span(&batch, 1));
    EXPECT_EQ(halves.launched(), 1);
    EXPECT_EQ(halves.steps_done(), i + 1);
    const StepResult got = halves.finish();
    EXPECT_EQ(got.loss, want.loss);
    EXPECT_EQ(got.grad_norm, want.grad_norm);
    EXPECT_EQ(got.rate, want.rate);
  }
  EXPECT_FALSE(halves.runs_ahead());  // a CPU does one thing after another
  EXPECT_THROW(halves.finish(), Error);
}

TEST(Trainer, EvaluationIsPerDomain) {
  Context ctx(2);
  Trainer trainer = make_trainer(ctx, small_options());
  const Walks data;
  const Evaluation e = trainer.evaluate(data, 10);
  EXPECT_EQ(e.tokens, 160);
  ASSERT_EQ(e.domains.size(), 2u);
  EXPECT_EQ(e.domains[0].first, "even");
  Index even = 0;
  for (const std::int32_t t : data.batch(0, 10).targets) even += t % 2 == 0;
  EXPECT_NEAR(
      (e.domains[0].second * static_cast<double>(even) + e.domains[1].second * static_cast<double>(160 - even)) / 160,
      e.loss, 1e-5);
  EXPECT_NE(e.domains[0].second, e.domains[1].second);
}

}  // namespace
}  // namespace dsmoe::train
