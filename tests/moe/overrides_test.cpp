// Changed routing against a direct implementation, and against layers that are built the changed way.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "dsmoe/moe.h"
#include "dsmoe/routing_overrides.h"
#include "ops/mixed.h"
#include "ops/quantize.h"
#include "support/expect_error.h"
#include "support/expert_tensors.h"
#include "support/moe_case.h"
#include "support/sanitized.h"
#include "support/tolerance.h"

namespace dsmoe {
namespace {

using test::moe_config;
using test::moe_weights;
using test::random_tensor;
using testing::throws_error;

constexpr int kLayer = 4;

MoeConfig config(Index experts, Index k, Index shared) {
  MoeConfig c = moe_config(24, 8, experts, k, shared);
  c.layer_index = kLayer;
  return c;
}

MoeForward forward(const MoeLayer& layer, const Tensor& x, const RoutingOverrides* o) {
  Context ctx(2);
  return layer.forward(ctx, x, {.overrides = o});
}

// The rule, spelled out: sort all experts, strike the disabled, strike the best, take the next K.
std::vector<std::int32_t> direct(const float* scores, Index experts, Index skip, Index k,
                                 const std::vector<Index>& disabled) {
  std::vector<std::int32_t> order(static_cast<std::size_t>(experts));
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) { return scores[a] > scores[b]; });
  std::erase_if(order, [&](std::int32_t e) { return std::find(disabled.begin(), disabled.end(), e) != disabled.end(); });
  return {order.begin() + skip, order.begin() + skip + k};
}

TEST(RoutingOverrides, AgainstADirectImplementation) {
  test::Draw draw(5);
  for (std::uint64_t round = 0; round < 40; ++round) {
    MoeConfig c = config(draw.between(6, 40), draw.between(1, 3), draw(3));
    c.norm_topk_prob = draw(2) == 1;
    const MoeLayer layer(c, moe_weights(c, DType::kF32, round));
    const Tensor x = random_tensor(DType::kF32, {17, 24}, round);
    RoutingOverrides o;
    o.skip_best = draw(3);
    if (draw(2)) o.experts_per_token = draw.between(1, 3);
    std::vector<Index> disabled;
    for (Index n = draw(2); n > 0; --n) {
      disabled.push_back(draw(c.routed_experts));
      o.disabled.emplace_back(kLayer, disabled.back());
      o.disabled.emplace_back(kLayer + 1, draw(c.routed_experts));  // another layer's
    }
    const Routing plain = forward(layer, x, nullptr).routing, got = forward(layer, x, &o).routing;
    EXPECT_TRUE(test::same_bits(got.scores, plain.scores));
    const Index k = o.experts_per_token ? o.experts_per_token : c.experts_per_token;
    ASSERT_EQ(got.experts.shape(), Shape({17, k}));
    for (Index t = 0; t < 17; ++t) {
      const float* s = plain.scores.data<float>() + t * c.routed_experts;
      const std::vector<std::int32_t> want = direct(s, c.routed_experts, o.skip_best, k, disabled);
      double sum = 0;
      for (const std::int32_t e : want) sum += s[e];
      for (Index j = 0; j < k; ++j) {
        const std::int32_t e = want[static_cast<std::size_t>(j)];
        EXPECT_EQ(got.experts.data<std::int32_t>()[t * k + j], e);
        const double weight = c.norm_topk_prob && k > 1 ? s[e] / sum : s[e];
        EXPECT_NEAR(got.weights.data<float>()[t * k + j], weight, 1e-6 * weight);
      }
    }
  }
}

TEST(RoutingOverrides, OthersMakeTheLayerThatIsBuiltThatWay) {
  const MoeConfig c = config(12, 3, 2);
  const MoeWeights w = moe_weights(c, DType::kF32, 1);
  const MoeLayer layer(c, w);
  const Tensor x = random_tensor(DType::kF32, {20, 24}, 2);

  MoeConfig routed_only = c;
  routed_only.shared_experts = 0, routed_only.experts_per_token = 5;
  MoeWeights w_routed = w;
  w_routed.experts = w.experts.range(2, 14);
  const RoutingOverrides no_shared{.drop_shared = true};
  EXPECT_TRUE(test::same_bits(forward(layer, x, &no_shared).y, forward(MoeLayer(routed_only, w_routed), x, nullptr).y));
  routed_only.experts_per_token = 4;
  const RoutingOverrides fewer{.experts_per_token = 4, .drop_shared = true};
  EXPECT_TRUE(test::same_bits(forward(layer, x, &fewer).y, forward(MoeLayer(routed_only, w_routed), x, nullptr).y));

  MoeConfig more = c;
  more.experts_per_token = 7;
  const RoutingOverrides seven{.experts_per_token = 7};
  EXPECT_TRUE(test::same_bits(forward(layer, x, &seven).y, forward(MoeLayer(more, w), x, nullptr).y));

  const RoutingOverrides nothing;
  EXPECT_TRUE(test::same_bits(forward(layer, x, &nothing).y, forward(layer, x, nullptr).y));
  const RoutingOverrides masked{.skip_best = 1};
  EXPECT_FALSE(test::same_bits(forward(layer, x, &masked).y, forward(layer, x, nullptr).y));
}

// Weights as a GGUF file has them: the experts quantized, the shared ones in one wide matrix, the gate f32.
MoeWeights quantized(const MoeConfig& c, DType dtype, std::uint64_t seed) {
  MoeWeights w = MoeWeights::random(c, DType::kF32, seed, 0.1f);
  const auto quantize = [&](const Tensor& t) {
    if (!is_quantized(dtype)) return t.to(dtype);
    Tensor to(dtype, t.shape());
    ops::quantize_row(dtype, t.span<float>(), to.raw_mutable());
    return to;
  };
  const auto each = [&](const ExpertTensors& e) {
    return ExpertTensors{quantize(e.gate_proj), quantize(e.up_proj), quantize(e.down_proj)};
  };
  std::vector<ExpertTensors> routed;
  for (Index e = 0; e < c.routed_experts; ++e)
    routed.push_back(each(test::expert_tensors(w.experts, c.shared_experts + e)));
  w.experts = Experts::listed(c.shared_experts, each(test::wide_mlp(w.experts, c.shared_experts)), routed);
  return w;
}

// y += weight * FFN(x) of one row, by the plain products.
void add_expert(const ExpertTensors& e, const Tensor& x, float weight, float* y) {
  Tensor gate(DType::kF32, {1, e.gate_proj.dim(0)}), up(DType::kF32, gate.shape()), out(DType::kF32, x.shape());
  ops::ref::linear_mixed(x, e.gate_proj, gate);
  ops::ref::linear_mixed(x, e.up_proj, up);
  for (Index i = 0; i < gate.numel(); ++i) {
    const float g = gate.data<float>()[i];
    gate.data<float>()[i] = g / (1 + std::exp(-g)) * up.data<float>()[i];
  }
  ops::ref::linear_mixed(gate, e.down_proj, out);
  for (Index i = 0; i < out.numel(); ++i) y[i] += weight * out.data<float>()[i];
}

class QuantizedOverrides : public ::testing::TestWithParam<DType> {};

TEST_P(QuantizedOverrides, AgainstADirectImplementation) {
  MoeConfig c = moe_config(256, 256, 12, 3, 2);
  c.layer_index = kLayer;
  const MoeWeights w = quantized(c, GetParam(), 7);
  const MoeLayer layer(c, w);
  const Tensor x = random_tensor(DType::kF32, {9, 256}, 8);
  const std::vector<Index> off = {2, 11};
  const RoutingOverrides cases[] = {{},
                                    {.skip_best = 2},
                                    {.experts_per_token = 1},
                                    {.experts_per_token = 7},
                                    {.drop_shared = true},
                                    {.disabled = {{kLayer, 2}, {kLayer, 11}, {kLayer + 1, 5}}},
                                    {.skip_best = 1, .experts_per_token = 4, .drop_shared = true}};
  const Tensor plain = forward(layer, x, nullptr).y;
  const Tensor scores = forward(layer, x, nullptr).routing.scores;
  for (std::size_t i = 0; i < std::size(cases); i += test::kSanitized ? 2 : 1) {
    const RoutingOverrides& o = cases[i];
    const Index k = o.experts_per_token ? o.experts_per_token : o.drop_shared ? 5 : 3;
    SCOPED_TRACE(::testing::Message() << k << " chosen, " << o.skip_best << " skipped, shared dropped " << o.drop_shared);
    const MoeForward got = forward(layer, x, &o);
    Tensor want = Tensor::zeros(DType::kF32, x.shape());
    for (Index t = 0; t < x.dim(0); ++t) {
      const Tensor row = x.rows(t, t + 1).clone();
      float* const y = want.data<float>() + t * 256;
      const float* const s = scores.data<float>() + t * c.routed_experts;
      if (!o.drop_shared) add_expert(w.experts.list()[0].mlp, row, 1, y);
      const auto chosen = direct(s, c.routed_experts, o.skip_best, k, o.disabled.empty() ? std::vector<Index>() : off);
      for (std::size_t j = 0; j < chosen.size(); ++j) {
        EXPECT_EQ(got.routing.experts.data<std::int32_t>()[t * k + static_cast<Index>(j)], chosen[j]);
        add_expert(w.experts.list()[1 + static_cast<std::size_t>(chosen[j])].mlp, row, s[chosen[j]], y);
      }
    }
    // An activation that f32 rounding moves across a half takes the next of 254 steps: 0.6% of a row at most.
    EXPECT_TRUE(test::close(got.y, want, 0.006));
    const bool changes = o.skip_best > 0 || o.experts_per_token > 0 || o.drop_shared || !o.disabled.empty();
    if (changes)
      EXPECT_GT(test::relative_error(got.y, plain), 0.02) << "it must matter for this to be a test";
    else
      EXPECT_TRUE(test::same_bits(got.y, plain));
  }
}

INSTANTIATE_TEST_SUITE_P(Types, QuantizedOverrides,
                         ::testing::Values(DType::kF16, DType::kQ8_0, DType::kQ4_0, DType::kQ5_0, DType::kQ4_K,
                                           DType::kQ5_K, DType::kQ6_K),
                         [](const auto& type) { return to_string(type.param); });

TEST(RoutingOverrides, GroupsLoseTheirBarredExperts) {
  MoeConfig c = config(8, 2, 0);
  c.groups = 4, c.groups_per_token = 1;
  const MoeLayer layer(c, moe_weights(c, DType::kF32, 3));
  const Tensor x = random_tensor(DType::kF32, {6, 24}, 4);
  RoutingOverrides o;
  o.disabled = {{kLayer, 0}, {kLayer, 2}, {kLayer, 4}, {kLayer, 6}};  // one expert left in every group, and two to choose
  EXPECT_TRUE(throws_error([&] { forward(layer, x, &o); }, {"groups", "2 experts"}));
  o.disabled = {{kLayer, 0}, {kLayer, 1}};
  const Routing chosen = forward(layer, x, &o).routing;
  for (const std::int32_t e : chosen.experts.span<std::int32_t>()) EXPECT_GT(e, 1);
}

TEST(RoutingOverrides, WhatCannotBeMetIsRefused) {
  const MoeConfig c = config(8, 2, 1);
  const MoeLayer layer(c, moe_weights(c, DType::kF32, 1));
  const Tensor x = random_tensor(DType::kF32, {3, 24}, 1);
  const auto refused = [&](const RoutingOverrides& o, std::initializer_list<std::string_view> words) {
    return throws_error([&] { forward(layer, x, &o); }, words);
  };
  EXPECT_TRUE(refused({.skip_best = 7}, {"layer 4", "1 of 8"}));
  EXPECT_TRUE(refused({.experts_per_token = 9}, {"9 per token"}));
  EXPECT_TRUE(refused({.skip_best = -1}, {"negative"}));
  EXPECT_TRUE(refused({.disabled = {{kLayer, 8}}}, {"no expert 8"}));
  EXPECT_NO_THROW(RoutingOverrides({.disabled = {5, {kLayer, 7}}}).apply(c)) << "one expert, named five times";
  Context ctx(1);
  const RoutingOverrides o;
  EXPECT_TRUE(throws_error([&] { layer.forward(ctx, x, {.training = true, .overrides = &o}); }, {"training"}));
}

}  // namespace
}  // namespace dsmoe
