#include "study/agreement.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "dsmoe/error.h"
#include "study/random_routing.h"

namespace dsmoe::study {
namespace {

TEST(Agreement, AgainstBruteForceAndWithItself) {
  const RoutingShape shape = small_shape();
  const std::vector<RoutingBatch> a = random_batches(shape, 10, 1);
  std::vector<RoutingBatch> b = a;
  test::Draw draw(9);
  for (RoutingBatch& batch : b) batch.layers = random_batch(shape, batch.size(), 0, 0, draw).layers;
  RoutingAgreement same(shape), different(shape);
  double shared = 0, first = 0, tokens = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    same.add(a[i], a[i]);
    different.add(a[i], b[i]);
    const std::int32_t *x = a[i].layers[2].experts.data<std::int32_t>(), *y = b[i].layers[2].experts.data<std::int32_t>();
    for (Index t = 0; t < a[i].size(); ++t, x += 3, y += 3) {
      for (int j = 0; j < 3; ++j) shared += static_cast<double>(std::count(y, y + 3, x[j]));
      first += x[0] == y[0];
      tokens += 1;
    }
  }
  for (const LayerAgreement& layer : same.layers()) {
    EXPECT_EQ(layer.overlap(), 1);
    EXPECT_EQ(layer.first_choice(), 1);
    EXPECT_EQ(layer.matched_overlap(), 1);
  }
  const LayerAgreement& layer = different.layers()[2];
  EXPECT_DOUBLE_EQ(layer.overlap(), shared / (3 * tokens));
  EXPECT_DOUBLE_EQ(layer.first_choice(), first / tokens);
  EXPECT_NEAR(layer.chance_overlap(), 3.0 / 8, 0.01) << "even loads: K / E";
  EXPECT_NEAR(layer.overlap(), layer.chance_overlap(), 0.1);
  EXPECT_GE(layer.matched_overlap(), layer.overlap());
}

TEST(Agreement, RenamedExpertsAreRecognised) {
  const RoutingShape shape = small_shape();
  const std::vector<Index> renamed = {3, 0, 7, 1, 2, 6, 5, 4};
  RoutingAgreement agreement(shape);
  for (const RoutingBatch& a : random_batches(shape, 6, 2)) {
    RoutingBatch b = a;
    for (RoutingBatch::Layer& layer : b.layers) {
      layer.experts = layer.experts.clone();
      for (std::int32_t& e : layer.experts.span<std::int32_t>())
        e = static_cast<std::int32_t>(renamed[static_cast<std::size_t>(e)]);
    }
    agreement.add(a, b);
  }
  EXPECT_LT(agreement.layers()[0].overlap(), 0.6);
  EXPECT_EQ(agreement.layers()[0].matched_overlap(), 1);
  EXPECT_EQ(agreement.layers()[0].matching(), renamed);
}

TEST(Agreement, AssignmentAgainstAllPermutations) {
  test::Draw draw(5);
  for (int round = 0; round < 30; ++round) {
    const Index n = draw.between(1, 6);
    std::vector<std::int64_t> value;
    for (Index i = 0; i < n * n; ++i) value.push_back(draw(20));
    const auto sum = [&](const std::vector<Index>& p) {
      std::int64_t s = 0;
      for (Index i = 0; i < n; ++i) s += value[static_cast<std::size_t>(i * n + p[static_cast<std::size_t>(i)])];
      return s;
    };
    std::vector<Index> p(static_cast<std::size_t>(n));
    std::iota(p.begin(), p.end(), 0);
    std::int64_t best = 0;
    do best = std::max(best, sum(p));
    while (std::next_permutation(p.begin(), p.end()));
    std::vector<Index> got = best_assignment(value, n);
    EXPECT_EQ(sum(got), best);
    std::sort(got.begin(), got.end());
    for (Index i = 0; i < n; ++i) EXPECT_EQ(got[static_cast<std::size_t>(i)], i) << "each column once";
  }
}

TEST(Agreement, OfDifferentTokensIsRefused) {
  RoutingAgreement agreement(small_shape());
  const std::vector<RoutingBatch> a = random_batches(small_shape(), 2, 1), b = random_batches(small_shape(), 2, 2);
  EXPECT_THROW(agreement.add(a[0], b[0]), Error);
}

}  // namespace
}  // namespace dsmoe::study
