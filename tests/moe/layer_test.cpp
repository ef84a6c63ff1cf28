// The hard cases of the layer, and what it promises about bits.
#include <gtest/gtest.h>

#include <cmath>

#include "dsmoe/moe.h"
#include "support/expect_error.h"
#include "support/moe_case.h"
#include "support/tolerance.h"

namespace dsmoe {
namespace {

using test::moe_config;
using test::moe_weights;
using test::random_tensor;

struct Step {
  MoeForward out;
  Tensor dx;
  MoeGradients grads;
};

Step step(Context& ctx, const MoeLayer& layer, const Tensor& x, const Tensor& dy) {
  Step s{layer.forward(ctx, x, {.training = true}), {}, MoeGradients(layer.config())};
  s.dx = layer.backward(ctx, dy, s.out, s.grads);
  return s;
}

void expect_same(const Step& a, const Step& b) {
  EXPECT_TRUE(test::same_bits(a.out.y, b.out.y));
  EXPECT_TRUE(test::same_bits(a.out.routing.experts, b.out.routing.experts));
  EXPECT_TRUE(test::same_bits(a.dx, b.dx));
  EXPECT_TRUE(test::same_bits(a.grads.gate, b.grads.gate));
  EXPECT_EQ(a.out.losses.total(), b.out.losses.total());
  for (std::size_t e = 0; e < a.grads.routed.size(); ++e)
    for (const auto member : {&ExpertTensors::gate_proj, &ExpertTensors::up_proj, &ExpertTensors::down_proj})
      EXPECT_TRUE(test::same_bits(a.grads.routed[e].*member, b.grads.routed[e].*member)) << e;
}

void expect_close(const Step& got, const Step& want, DType dtype, Index length) {
  // Through the whole layer: five steps of storage rounding at most, sums of all lengths.
  const double limit = 5 * test::limit(dtype, length);
  EXPECT_TRUE(test::same_bits(got.out.routing.experts, want.out.routing.experts));
  EXPECT_TRUE(test::close(got.out.y, want.out.y, limit));
  EXPECT_TRUE(test::close(got.dx, want.dx, limit));
  EXPECT_TRUE(test::close(got.grads.gate, want.grads.gate, limit));
  for (std::size_t e = 0; e < got.grads.routed.size(); ++e)
    for (const auto member : {&ExpertTensors::gate_proj, &ExpertTensors::up_proj, &ExpertTensors::down_proj})
      EXPECT_TRUE(test::close(got.grads.routed[e].*member, want.grads.routed[e].*member, limit)) << e;
  for (const auto member : {&ExpertTensors::gate_proj, &ExpertTensors::up_proj, &ExpertTensors::down_proj})
    EXPECT_TRUE(test::close(got.grads.shared.*member, want.grads.shared.*member, limit));
}

TEST(MoeLayer, CpuAgainstRefOverRandomShapes) {
  Context cpu(2), ref(1, Backend::kRef);
  test::Draw draw(17);
  for (std::uint64_t round = 0; round < 24; ++round) {
    const DType dtype = round % 2 ? DType::kBF16 : DType::kF32;
    MoeConfig c = moe_config(draw.between(1, 90), draw.between(1, 70), draw.between(1, 40), 1, draw(4));
    c.experts_per_token = draw.between(1, std::min<Index>(c.routed_experts, 8));
    c.norm_topk_prob = draw(2) == 1;
    c.score = draw(3) == 0 ? ScoreFunction::kSigmoid : ScoreFunction::kSoftmax;
    c.seq_balance_alpha = 0.1f, c.batch_balance_alpha = 0.2f;
    const Index batch = draw.between(1, 3), length = draw.between(1, 30);
    const MoeLayer layer(c, moe_weights(c, dtype, round));
    const Tensor x = random_tensor(dtype, {batch, length, c.hidden_size}, round + 1);
    const Tensor dy = random_tensor(dtype, {batch, length, c.hidden_size}, round + 2);
    expect_close(step(cpu, layer, x, dy), step(ref, layer, x, dy), dtype, 300);
  }
}

TEST(MoeLayer, TheSameBitsForAnyNumberOfThreadsAndEveryRun) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    MoeConfig c = moe_config(100, 60, 20, 4, 2);
    c.seq_balance_alpha = 0.1f, c.device_balance_alpha = 0.1f, c.devices = 4;
    const MoeLayer layer(c, moe_weights(c, dtype, 1));
    const Tensor x = random_tensor(dtype, {2, 40, 100}, 2), dy = random_tensor(dtype, {2, 40, 100}, 3);
    Context one(1);
    const Step want = step(one, layer, x, dy);
    for (const int threads : {1, 2, 3}) {
      Context ctx(threads);
      expect_same(step(ctx, layer, x, dy), want);
    }
  }
}

TEST(MoeLayer, ATokenDoesNotDependOnItsBatch) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const MoeConfig c = moe_config(300, 70, 9, 3, 1);
    const MoeLayer layer(c, moe_weights(c, dtype, 4));
    Context ctx(2);
    const Tensor x = random_tensor(dtype, {400, 300}, 5);
    const Tensor all = layer.forward(ctx, x).y;
    for (const Index n : {1, 2, 7, 50}) {
      EXPECT_TRUE(test::same_bits(layer.forward(ctx, x.rows(200, 200 + n)).y, all.rows(200, 200 + n))) << n;
    }
  }
}

TEST(MoeLayer, ZeroTokensOneTokenAllExperts) {
  Context ctx(2), ref(1, Backend::kRef);
  for (const Index tokens : {0, 1}) {
    MoeConfig c = moe_config(8, 4, 5, 5, 1);  // K = E
    c.seq_balance_alpha = 1, c.batch_balance_alpha = 1, c.device_balance_alpha = 1;
    const MoeLayer layer(c, moe_weights(c, DType::kF32, 1));
    const Tensor x = random_tensor(DType::kF32, {tokens, 8}, 2), dy = random_tensor(DType::kF32, {tokens, 8}, 3);
    const Step got = step(ctx, layer, x, dy);
    EXPECT_EQ(got.out.y.shape(), x.shape());
    EXPECT_TRUE(std::isfinite(got.out.losses.total()));
    expect_close(got, step(ref, layer, x, dy), DType::kF32, 20);
  }
}

TEST(MoeLayer, AllTokensOnOneExpertAndEmptyExperts) {
  Context ctx(2), ref(1, Backend::kRef);
  const MoeConfig c = moe_config(12, 6, 8, 1, 0);
  MoeWeights w = moe_weights(c, DType::kF32, 1);
  for (Index i = 0; i < w.gate.numel(); ++i) w.gate.data<float>()[i] = i / 12 == 3 ? 1.0f : 0.0f;
  Tensor x = random_tensor(DType::kF32, {300, 12}, 2);
  for (float& v : x.span<float>()) v = std::abs(v);  // so that expert 3 wins everywhere
  const MoeLayer layer(c, std::move(w));
  const Tensor dy = random_tensor(DType::kF32, {300, 12}, 3);
  const Step got = step(ctx, layer, x, dy);
  for (const std::int32_t e : got.out.routing.experts.span<std::int32_t>()) EXPECT_EQ(e, 3);
  expect_close(got, step(ref, layer, x, dy), DType::kF32, 300);
  for (const std::size_t e : {std::size_t{0}, std::size_t{7}})
    for (const float g : got.grads.routed[e].down_proj.span<float>())
      EXPECT_EQ(g, 0) << "an expert without tokens has no gradient";
}

TEST(MoeLayer, MoreExpertsThanAnyFixedArray) {
  Context ctx(2), ref(1, Backend::kRef);
  const MoeConfig c = moe_config(6, 3, 1500, 40, 0);
  const MoeLayer layer(c, moe_weights(c, DType::kF32, 1));
  const Tensor x = random_tensor(DType::kF32, {9, 6}, 2), dy = random_tensor(DType::kF32, {9, 6}, 3);
  expect_close(step(ctx, layer, x, dy), step(ref, layer, x, dy), DType::kF32, 300);
}

TEST(MoeLayer, GradientsAccumulateAndAuxScaleScales) {
  MoeConfig c = moe_config(10, 5, 6, 2, 1);
  c.batch_balance_alpha = 0.5f;
  Context ctx(1);
  const MoeLayer layer(c, moe_weights(c, DType::kF32, 1));
  const Tensor x = random_tensor(DType::kF32, {7, 10}, 2), dy = random_tensor(DType::kF32, {7, 10}, 3);
  const MoeForward out = layer.forward(ctx, x, {.training = true});
  MoeGradients once(c), twice(c), no_aux(c), only_aux(c);
  layer.backward(ctx, dy, out, once);
  layer.backward(ctx, dy, out, twice), layer.backward(ctx, dy, out, twice);
  layer.backward(ctx, dy, out, no_aux, 0.0f);
  layer.backward(ctx, Tensor::zeros(DType::kF32, {7, 10}), out, only_aux);
  for (Index i = 0; i < once.gate.numel(); ++i) {
    const double g = test::value(once.gate, i);
    EXPECT_NEAR(test::value(twice.gate, i), 2 * g, 1e-5 * (1 + std::abs(g)));
    EXPECT_NEAR(test::value(no_aux.gate, i) + test::value(only_aux.gate, i), g, 1e-5 * (1 + std::abs(g)));
  }
  EXPECT_FALSE(test::close(no_aux.gate, once.gate, 1e-3)) << "the balance loss must reach the gate";
  twice.zero();
  for (const float v : twice.routed[0].up_proj.span<float>()) EXPECT_EQ(v, 0);
}

TEST(MoeLayer, SharedExpertsAreExpertsThatAllTokensChoose) {
  // Two shared experts of width F = one routed pair chosen by every token with weight 1.
  Context ctx(1, Backend::kRef);
  const MoeConfig c = moe_config(6, 4, 1, 1, 2);
  MoeWeights w = moe_weights(c, DType::kF32, 1);
  for (const auto member : {&ExpertTensors::gate_proj, &ExpertTensors::up_proj, &ExpertTensors::down_proj})
    for (float& v : (w.routed[0].*member).span<float>()) v = 0;
  const MoeLayer layer(c, w);
  const Tensor x = random_tensor(DType::kF32, {5, 6}, 2);
  const Tensor got = layer.forward(ctx, x).y;
  for (Index t = 0; t < 5; ++t) {
    for (Index d = 0; d < 6; ++d) {
      double sum = 0;
      for (Index f = 0; f < 8; ++f) {
        double g = 0, u = 0;
        for (Index i = 0; i < 6; ++i) {
          g += test::value(w.shared.gate_proj, f * 6 + i) * test::value(x, t * 6 + i);
          u += test::value(w.shared.up_proj, f * 6 + i) * test::value(x, t * 6 + i);
        }
        sum += test::value(w.shared.down_proj, d * 8 + f) * g / (1 + std::exp(-g)) * u;
      }
      EXPECT_NEAR(test::value(got, t * 6 + d), sum, 1e-5 * (1 + std::abs(sum)));
    }
  }
}

TEST(MoeLayer, RefusesWhatDoesNotFit) {
  Context ctx(1);
  const MoeConfig c = moe_config(8, 4, 3, 2, 1);
  const MoeWeights good = moe_weights(c, DType::kF32, 1);
  const MoeLayer layer(c, good);
  MoeWeights w = good;
  w.routed[1].down_proj = random_tensor(DType::kF32, {4, 8}, 1);
  EXPECT_TRUE(testing::throws_error([&] { MoeLayer(c, w); }, {"experts.1.down_proj is f32 [4, 8], expected f32 [8, 4]"}));
  w = good;
  w.routed.pop_back();
  EXPECT_TRUE(testing::throws_error([&] { MoeLayer(c, w); }, {"3 routed experts"}));
  w = good;
  w.shared.up_proj = w.shared.up_proj.to(DType::kBF16);
  EXPECT_TRUE(testing::throws_error([&] { MoeLayer(c, w); }, {"shared_experts.up_proj is bf16"}));
  MoeConfig bad = c;
  bad.experts_per_token = 4;
  EXPECT_TRUE(testing::throws_error([&] { MoeLayer(bad, good); }, {"experts_per_token"}));

  EXPECT_TRUE(testing::throws_error([&] { layer.forward(ctx, random_tensor(DType::kF32, {2, 7}, 1)); }, {"[2, 7]"}));
  EXPECT_TRUE(testing::throws_error([&] { layer.forward(ctx, random_tensor(DType::kBF16, {2, 8}, 1)); }, {"bf16"}));
  EXPECT_TRUE(testing::throws_error(
      [&] {
        layer.forward(ctx, random_tensor(DType::kF32, {5, 8}, 1), {.sequence_length = 2});
      },
      {"sequences of 2"}));
  const MoeForward out = layer.forward(ctx, random_tensor(DType::kF32, {2, 8}, 1));
  MoeGradients grads(c);
  EXPECT_TRUE(testing::throws_error(
      [&] {
        layer.backward(ctx, random_tensor(DType::kF32, {2, 8}, 1), out, grads);
      },
      {".training"}));
  const MoeForward kept = layer.forward(ctx, random_tensor(DType::kF32, {2, 8}, 1), {.training = true});
  EXPECT_TRUE(testing::throws_error(
      [&] {
        layer.backward(ctx, random_tensor(DType::kF32, {3, 8}, 1), kept, grads);
      },
      {"[3, 8]"}));

  Tensor nan = random_tensor(DType::kF32, {3, 8}, 1);
  nan.data<float>()[2 * 8] = NAN;
  EXPECT_TRUE(testing::throws_error([&] { layer.forward(ctx, nan); }, {"token 2"}));
}

}  // namespace
}  // namespace dsmoe
