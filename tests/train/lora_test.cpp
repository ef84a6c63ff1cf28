#include "train/lora.h"

#include <gtest/gtest.h>

#include "ops/linear.h"
#include "support/random_tensor.h"
#include "support/tolerance.h"
#include "train/support.h"

namespace dsmoe::train {
namespace {

using namespace test;

void set_b(const Lora& lora, float deviation) {
  for (const Adapter& adapter : lora.adapters()) {
    const Tensor from = dsmoe::test::random_tensor(DType::kF32, adapter.b.shape(), 5, deviation);
    Tensor to = adapter.b;  // the same memory
    std::copy_n(from.data<float>(), from.numel(), to.data<float>());
  }
}

TEST(TrainLora, MergedIsBasePlusAdapters) {
  Context ctx(2);
  const ModelConfig config = small_config();
  ModelWeights weights = random_weights(config, 1, DType::kF32, ctx);
  Lora lora(ctx, config, weights, 4, 12, 1, [](const Parameter&) { return true; });
  set_b(lora, 0.1f);
  lora.merge(ctx, weights);
  for (const Adapter& adapter : lora.adapters()) {
    const Tensor x = dsmoe::test::random_tensor(DType::kF32, {9, adapter.parameter.shape[1]}, 3);
    const auto times = [&](const Tensor& in, const Tensor& w) {
      Tensor y(DType::kF32, {in.dim(0), w.dim(0)});
      ops::linear(ctx, in, w, y);
      return y;
    };
    Tensor unmerged = times(x, adapter.base);
    const Tensor added = times(times(x, adapter.a), adapter.b);
    for (Index i = 0; i < unmerged.numel(); ++i) unmerged.data<float>()[i] += 12.0f / 4 * added.data<float>()[i];
    EXPECT_TRUE(dsmoe::test::close(times(x, weights.dense(adapter.parameter)), unmerged, 1e-5)) << adapter.parameter.name;
    EXPECT_FALSE(dsmoe::test::close(times(x, adapter.base), unmerged, 1e-2)) << adapter.parameter.name;
  }
}

// The gradients of A and B are slopes of the loss.
TEST(TrainLora, GradientsAreSlopes) {
  Context ctx(1, Backend::kRef);
  const ModelConfig config = small_config();
  const Batch b = Walks(8).batch(0, 2);
  const auto loss_of = [&](std::size_t which, bool of_b, float change) {
    ModelWeights weights = random_weights(config, 1, DType::kF32, ctx);
    Lora lora(ctx, config, weights, 2, 4, 1, [](const Parameter&) { return true; });
    set_b(lora, 0.2f);
    const Adapter& adapter = lora.adapters()[which];
    Tensor changed = of_b ? adapter.b : adapter.a;
    changed.data<float>()[1] += change;
    lora.merge(ctx, weights);
    const Transformer model(config, weights);
    ModelGradients grads = zero_gradients(config);
    const LossResult r = model.loss_and_gradients(ctx, b.ids, b.targets, b.length, 1.0f, 0.0f, grads);
    lora.gradients(ctx, grads);
    return std::pair(r.loss_sum, (of_b ? adapter.db : adapter.da).data<float>()[1]);
  };
  for (const bool of_b : {false, true}) {
    const std::size_t which = 1;  // k_proj of layer 0
    const float step = 1e-2f;
    const double slope = (loss_of(which, of_b, step).first - loss_of(which, of_b, -step).first) / (2 * step);
    EXPECT_NEAR(loss_of(which, of_b, 0).second, slope, 1e-2 * std::abs(slope) + 1e-4) << of_b;
  }
}

TEST(TrainLora, OnlyAdaptersChange) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    Context ctx(2);
    TrainOptions o = small_options();
    o.lora_rank = 4;
    o.dtype = dtype;
    Trainer trainer = make_trainer(ctx, o), before = make_trainer(ctx, o);
    const Walks data;
    double first = 0, last = 0;
    for (Index i = 0; i < 60; ++i) {
      last = test::step(trainer, data, 0, 4).loss;
      if (i == 0) first = last;
    }
    EXPECT_LT(last, first - 0.2) << to_string(dtype);
    for (const Parameter& p : parameter_list(small_config())) {
      const bool same = dsmoe::test::same_bits(trainer.model().weights().dense(p), before.model().weights().dense(p));
      const bool adapted = is_matrix(p) && !p.in(ParameterGroup::kEmbedding) && !p.in(ParameterGroup::kHead);
      EXPECT_EQ(same, !adapted) << p.name;
    }
    EXPECT_LT(trainer.trained_parameters(), 20000);
  }
}

}  // namespace
}  // namespace dsmoe::train
