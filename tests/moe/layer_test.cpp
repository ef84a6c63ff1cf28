// The hard cases of the layer, and what it promises about bits.
#include <gtest/gtest.h>

#include <cmath>

#include "dsmoe/moe.h"
#include "ops/rms_norm.h"
#include "support/expect_error.h"
#include "support/expert_tensors.h"
#include "support/moe_case.h"
#include "support/sanitized.h"
#include "support/tolerance.h"

namespace dsmoe {
namespace {

using test::expert_tensors;
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
  EXPECT_TRUE(test::same_bits(a.grads.shared_gate, b.grads.shared_gate));
  EXPECT_TRUE(test::same_bits(a.out.losses, b.out.losses));
  EXPECT_TRUE(test::same_bits(a.grads.experts.gate_up(), b.grads.experts.gate_up()));
  EXPECT_TRUE(test::same_bits(a.grads.experts.down(), b.grads.experts.down()));
}

void expect_close(const Step& got, const Step& want, const MoeConfig& c) {
  const test::LayerLimits limits = test::layer_limits(
      want.out.y.dtype(), {want.out.y.numel() / c.hidden_size, c.hidden_size, c.expert_size, c.routed_experts});
  EXPECT_TRUE(test::same_bits(got.out.routing.experts, want.out.routing.experts));
  EXPECT_TRUE(test::close(got.out.y, want.out.y, limits.y));
  EXPECT_TRUE(test::close(got.dx, want.dx, limits.dx));
  EXPECT_TRUE(test::close(got.grads.gate, want.grads.gate, limits.gate));
  if (c.shared_gate) {
    EXPECT_TRUE(test::close(got.grads.shared_gate, want.grads.shared_gate, limits.gate));
  }
  for (Index e = 0; e < got.grads.experts.count(); ++e) {
    const ExpertTensors a = expert_tensors(got.grads.experts, e), b = expert_tensors(want.grads.experts, e);
    for (const auto member : {&ExpertTensors::gate_proj, &ExpertTensors::up_proj, &ExpertTensors::down_proj})
      EXPECT_TRUE(test::close(a.*member, b.*member, limits.experts)) << e;
  }
}

// A block's residual sum and norm before the layer: the bits of the steps, by every way through the layer.
TEST(MoeLayer, OfASumsNorm) {
  for (const Backend backend : {Backend::kCpu, Backend::kRef})
    for (const bool training : {false, true}) {
      Context ctx(2, backend);
      const MoeConfig c = moe_config(24, 16, 8, 3, 1);
      const MoeLayer layer(c, moe_weights(c, DType::kF32, 3));
      const Tensor y = random_tensor(DType::kF32, {5, 24}, 1), start = random_tensor(DType::kF32, {5, 24}, 2),
                   weight = random_tensor(DType::kF32, {24}, 4);
      Tensor sum = start.clone(), x = start;
      const Tensor h = ops::add_rms_norm(ctx, {y, sum, weight, 1e-6f, DType::kF32, false});
      const MoeForward want = layer.forward(ctx, h, {.training = training});
      const MoeForward got =
          layer.forward(ctx, ops::AddNorm{y, x, weight, 1e-6f, DType::kF32, true}, {.training = training});
      EXPECT_TRUE(test::same_bits(x, sum));
      EXPECT_TRUE(test::same_bits(start, random_tensor(DType::kF32, {5, 24}, 2)));
      EXPECT_TRUE(test::same_bits(got.y, want.y));
      EXPECT_TRUE(test::same_bits(got.routing.experts, want.routing.experts));
      EXPECT_TRUE(test::same_bits(got.routing.weights, want.routing.weights));
      EXPECT_EQ(got.saved != nullptr, training);
    }
}

TEST(MoeLayer, CpuAgainstRefOverRandomShapes) {
  Context cpu(2), ref(1, Backend::kRef);
  test::Draw draw(17);
  for (std::uint64_t round = 0; round < test::rounds(24u); ++round) {
    const DType dtype = round % 2 ? DType::kBF16 : DType::kF32;
    MoeConfig c = moe_config(draw.between(1, 90), draw.between(1, 70), draw.between(1, 40), 1, draw(4));
    c.experts_per_token = draw.between(1, std::min<Index>(c.routed_experts, 8));
    c.norm_topk_prob = draw(2) == 1;
    c.score = draw(3) == 0 ? ScoreFunction::kSigmoid : ScoreFunction::kSoftmax;
    c.seq_balance_alpha = 0.1f, c.batch_balance_alpha = 0.2f;
    c.shared_gate = c.shared_experts > 0 && draw(2) == 1;
    const Index batch = draw.between(1, 3), length = draw.between(1, 30);
    const MoeLayer layer(c, moe_weights(c, dtype, round));
    const Tensor x = random_tensor(dtype, {batch, length, c.hidden_size}, round + 1);
    const Tensor dy = random_tensor(dtype, {batch, length, c.hidden_size}, round + 2);
    expect_close(step(cpu, layer, x, dy), step(ref, layer, x, dy), c);
  }
}

TEST(MoeLayer, TheSameBitsForAnyNumberOfThreadsAndEveryRun) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    MoeConfig c = moe_config(100, 60, 20, 4, 2);
    c.seq_balance_alpha = 0.1f, c.device_balance_alpha = 0.1f, c.devices = 4, c.shared_gate = true;
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
    EXPECT_TRUE(std::isfinite(fetch_losses(ctx, got.out).total()));
    expect_close(got, step(ref, layer, x, dy), c);
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
  expect_close(got, step(ref, layer, x, dy), c);
  for (const Index e : {0, 7})
    for (const float g : expert_tensors(got.grads.experts, e).down_proj.span<float>())
      EXPECT_EQ(g, 0) << "an expert without tokens has no gradient";
}

TEST(MoeLayer, MoreExpertsThanAnyFixedArray) {
  Context ctx(2), ref(1, Backend::kRef);
  const MoeConfig c = moe_config(6, 3, 1500, 40, 0);
  const MoeLayer layer(c, moe_weights(c, DType::kF32, 1));
  const Tensor x = random_tensor(DType::kF32, {9, 6}, 2), dy = random_tensor(DType::kF32, {9, 6}, 3);
  expect_close(step(ctx, layer, x, dy), step(ref, layer, x, dy), c);
}

TEST(MoeLayer, GradientsAccumulateAndAuxScaleScales) {
  MoeConfig c = moe_config(10, 5, 6, 2, 1);
  c.batch_balance_alpha = 0.5f;
  Context ctx(1);
  const MoeLayer layer(c, moe_weights(c, DType::kF32, 1));
  const Tensor x = random_tensor(DType::kF32, {7, 10}, 2), dy = random_tensor(DType::kF32, {7, 10}, 3);
  const auto forward = [&] { return layer.forward(ctx, x, {.training = true}); };
  MoeGradients once(c), twice(c), no_aux(c), only_aux(c), in_parts(c);
  layer.backward(ctx, dy, forward(), once);
  layer.backward(ctx, dy, forward(), twice), layer.backward(ctx, dy, forward(), twice);
  layer.backward(ctx, dy, forward(), no_aux, {.aux_scale = 0});
  Tensor half(DType::kF32, {1});
  half.data<float>()[0] = 0.5f;
  layer.backward(ctx, dy, forward(), in_parts, {.aux_scale = 2, .aux_scale_factor = half});
  EXPECT_TRUE(test::same_bits(in_parts.gate, once.gate));
  layer.backward(ctx, Tensor::zeros(DType::kF32, {7, 10}), forward(), only_aux);
  for (Index i = 0; i < once.gate.numel(); ++i) {
    const double g = test::value(once.gate, i);
    EXPECT_NEAR(test::value(twice.gate, i), 2 * g, 1e-5 * (1 + std::abs(g)));
    EXPECT_NEAR(test::value(no_aux.gate, i) + test::value(only_aux.gate, i), g, 1e-5 * (1 + std::abs(g)));
  }
  EXPECT_FALSE(test::close(no_aux.gate, once.gate, 1e-3)) << "the balance loss must reach the gate";
  layer.backward(ctx, dy, forward(), twice, {.accumulate = false});
  EXPECT_TRUE(test::same_bits(twice.experts.down(), once.experts.down())) << "overwritten, not added to";
  EXPECT_TRUE(test::same_bits(twice.gate, once.gate));
  twice.zero(ctx);
  for (const float v : twice.experts.gate_up().span<float>()) EXPECT_EQ(v, 0);
}

// A mapped file's tensors, and the stacks that training and GPUs take.
TEST(MoeLayer, BackwardComputesAgainWhatForwardLeftOut) {
  Context ctx(2);
  const MoeConfig c = moe_config(12, 6, 8, 2, 1);
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const MoeLayer layer(c, moe_weights(c, dtype, 1));
    const Tensor x = random_tensor(dtype, {7, c.hidden_size}, 2), dy = random_tensor(dtype, {7, c.hidden_size}, 3);
    Step less{layer.forward(ctx, x, {.training = true, .keep_experts = false}), {}, MoeGradients(c)};
    less.dx = layer.backward(ctx, dy, less.out, less.grads, {.x = x});
    expect_same(less, step(ctx, layer, x, dy));
    const MoeForward out = layer.forward(ctx, x, {.training = true, .keep_experts = false});
    EXPECT_TRUE(testing::throws_error([&] { layer.backward(ctx, dy, out, less.grads); }, {"x must be"}));
  }
}

TEST(MoeLayer, ListedAndStackedExpertsGiveTheSameBits) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    MoeConfig c = moe_config(40, 24, 6, 2, 3);
    c.seq_balance_alpha = 0.1f;
    MoeWeights stacked = moe_weights(c, DType::kF32, 1), listed = stacked;
    std::vector<ExpertTensors> routed;
    for (Index e = 3; e < 9; ++e) routed.push_back(expert_tensors(stacked.experts, e));
    const auto rounded = [&](ExpertTensors e) {
      return ExpertTensors{e.gate_proj.to(dtype), e.up_proj.to(dtype), e.down_proj.to(dtype)};
    };
    for (ExpertTensors& e : routed) e = rounded(e);
    listed.experts = Experts::listed(3, rounded(test::wide_mlp(stacked.experts, 3)), routed);
    stacked.experts = stacked.experts.stack(dtype);
    listed.gate = stacked.gate = stacked.gate.to(dtype);
    EXPECT_FALSE(listed.experts.stacked());
    EXPECT_TRUE(test::same_bits(listed.experts.stack(dtype).down(), stacked.experts.down()));
    const Tensor x = random_tensor(dtype, {2, 30, 40}, 2), dy = random_tensor(dtype, {2, 30, 40}, 3);
    Context ctx(2);
    expect_same(step(ctx, MoeLayer(c, listed), x, dy), step(ctx, MoeLayer(c, stacked), x, dy));
  }
}

TEST(MoeLayer, Bf16GradientsAreTheF32OnesRounded) {
  const MoeConfig c = moe_config(24, 16, 5, 2, 1);
  const MoeLayer layer(c, moe_weights(c, DType::kBF16, 1));
  const Tensor x = random_tensor(DType::kBF16, {30, 24}, 2), dy = random_tensor(DType::kBF16, {30, 24}, 3);
  for (const Backend backend : {Backend::kCpu, Backend::kRef}) {
    Context ctx(1, backend);
    MoeGradients wide(c), narrow(c, Device::kCpu, DType::kBF16);
    layer.backward(ctx, dy, layer.forward(ctx, x, {.training = true}), wide);
    for (int i = 0; i < 2; ++i)
      layer.backward(ctx, dy, layer.forward(ctx, x, {.training = true}), narrow, {.accumulate = false});
    EXPECT_TRUE(test::same_bits(narrow.experts.gate_up(), wide.experts.gate_up().to(DType::kBF16)));
    EXPECT_TRUE(test::same_bits(narrow.experts.down(), wide.experts.down().to(DType::kBF16)));
    EXPECT_TRUE(test::same_bits(narrow.gate, wide.gate.to(DType::kBF16)));
  }
}

TEST(MoeLayer, SharedExpertsAreExpertsThatAllTokensChoose) {
  // Two shared experts of width F = one routed pair chosen by every token with weight 1.
  Context ctx(1, Backend::kRef);
  const MoeConfig c = moe_config(6, 4, 1, 1, 2);
  MoeWeights w = moe_weights(c, DType::kF32, 1);
  ExpertTensors routed = expert_tensors(w.experts, 2);
  for (const auto member : {&ExpertTensors::gate_proj, &ExpertTensors::up_proj, &ExpertTensors::down_proj})
    for (float& v : (routed.*member).span<float>()) v = 0;
  const ExpertTensors shared = test::wide_mlp(w.experts, 2);
  const MoeLayer layer(c, w);
  const Tensor x = random_tensor(DType::kF32, {5, 6}, 2);
  const Tensor got = layer.forward(ctx, x).y;
  for (Index t = 0; t < 5; ++t) {
    for (Index d = 0; d < 6; ++d) {
      double sum = 0;
      for (Index f = 0; f < 8; ++f) {
        double g = 0, u = 0;
        for (Index i = 0; i < 6; ++i) {
          g += test::value(shared.gate_proj, f * 6 + i) * test::value(x, t * 6 + i);
          u += test::value(shared.up_proj, f * 6 + i) * test::value(x, t * 6 + i);
        }
        sum += test::value(shared.down_proj, d * 8 + f) * g / (1 + std::exp(-g)) * u;
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
  using testing::throws_error;
  const auto listed = [&](auto change) {
    ExpertTensors shared = expert_tensors(good.experts, 0);
    std::vector<ExpertTensors> routed;
    for (Index e = 1; e < 4; ++e) routed.push_back(expert_tensors(good.experts, e));
    change(shared, routed);
    MoeWeights w = good;
    w.experts = Experts::listed(1, shared, routed);
    return w;
  };
  using List = std::vector<ExpertTensors>;
  const MoeWeights misshapen = listed([](ExpertTensors&, List& routed) {
    routed[1].down_proj = random_tensor(DType::kF32, {4, 8}, 1);
  });
  EXPECT_TRUE(throws_error([&] { MoeLayer(c, misshapen); }, {"experts.1.down_proj is f32 [4, 8], expected f32 [8, 4]"}));
  const MoeWeights few = listed([](ExpertTensors&, List& routed) { routed.pop_back(); });
  EXPECT_TRUE(throws_error([&] { MoeLayer(c, few); }, {"3 routed experts"}));
  const MoeWeights mixture = listed([](ExpertTensors& shared, List&) { shared.up_proj = shared.up_proj.to(DType::kBF16); });
  EXPECT_TRUE(throws_error([&] { MoeLayer(c, mixture); }, {"shared_experts.up_proj is bf16"}));
  MoeWeights stacks = good;
  stacks.experts = good.experts.range(0, 3);
  EXPECT_TRUE(throws_error([&] { MoeLayer(c, stacks); }, {"expected [4, 2, 4, 8]"}));
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
  EXPECT_TRUE(throws_error([&] { layer.backward(ctx, random_tensor(DType::kF32, {3, 8}, 1), kept, grads); }, {"[3, 8]"}));
  const Tensor dy = random_tensor(DType::kF32, {2, 8}, 1);
  MoeGradients narrow(moe_config(8, 3, 3, 2, 1)), other_gate(c), none;
  other_gate.gate = Tensor::zeros(DType::kF32, {2, 8});
  EXPECT_TRUE(throws_error([&] { layer.backward(ctx, dy, kept, narrow); }, {"[4, 2, 4, 8]"}));
  EXPECT_TRUE(throws_error([&] { layer.backward(ctx, dy, kept, other_gate); }, {"[2, 8]"}));
  EXPECT_TRUE(throws_error([&] { layer.backward(ctx, dy, kept, none); }, {"gradient of the gate"}));
  layer.backward(ctx, dy, kept, grads);
  EXPECT_TRUE(throws_error([&] { layer.backward(ctx, dy, kept, grads); }, {"already had its backward"}));

  Tensor nan = random_tensor(DType::kF32, {3, 8}, 1);
  nan.data<float>()[2 * 8] = NAN;
  EXPECT_TRUE(testing::throws_error([&] { layer.forward(ctx, nan); }, {"token 2"}));
}

}  // namespace
}  // namespace dsmoe
