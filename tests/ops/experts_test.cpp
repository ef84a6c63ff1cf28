// The grouped products against their plain reference, over random shapes, loads and dtypes.
#include "ops/experts.h"

#include <gtest/gtest.h>

#include "support/random_tensor.h"
#include "support/tolerance.h"

namespace dsmoe {
namespace {

using test::limit;
using test::random_tensor;

struct Case {
  ops::ExpertWeights weights;
  std::vector<Tensor> storage;
  std::vector<Index> offset;
  std::vector<std::int32_t> token;
  std::vector<float> weight;
  Index tokens;

  ops::ExpertRows rows() const { return {tokens, offset, token, weight}; }
};

// Experts of which some have no rows; every third matrix lies in columns of a wider one.
Case random_case(DType dtype, Index tokens, Index model, Index width, Index experts, Index most, std::uint64_t seed) {
  Case c;
  c.tokens = tokens;
  c.weights.dtype = dtype;
  c.weights.model_width = model;
  c.weights.expert_width = width;
  test::Draw draw(seed);
  const auto matrix = [&](std::vector<ops::Matrix>& list, Index rows, Index cols) {
    const bool wide = c.storage.size() % 3 == 0;
    const Index ld = wide ? cols + 5 : cols, skip = wide ? 2 : 0;
    c.storage.push_back(random_tensor(dtype, {rows, ld}, seed * 1000 + c.storage.size()));
    list.push_back(
        {static_cast<const char*>(c.storage.back().raw()) + static_cast<std::size_t>(skip) * size_of(dtype), ld});
  };
  c.offset.push_back(0);
  const Philox rng(seed, 3);
  for (Index e = 0; e < experts; ++e) {
    matrix(c.weights.gate, width, model), matrix(c.weights.up, width, model), matrix(c.weights.down, model, width);
    const Index rows = tokens == 0 || draw(4) == 0 ? 0 : draw.between(1, most);
    for (Index r = 0; r < rows; ++r) {
      c.token.push_back(static_cast<std::int32_t>(draw(tokens)));
      c.weight.push_back(rng.uniform(c.weight.size()));
    }
    c.offset.push_back(static_cast<Index>(c.token.size()));
  }
  return c;
}

struct Results {
  Tensor h, y, dx;
  ops::ExpertActivations kept;
  ops::ExpertRowGrads d;
  std::vector<Tensor> grads;
};

Results run(Context& ctx, const Case& c, std::uint64_t seed) {
  const auto& w = c.weights;
  const Tensor x = random_tensor(w.dtype, {c.tokens, w.model_width}, seed + 1);
  const Tensor dy = random_tensor(w.dtype, {c.tokens, w.model_width}, seed + 2);
  Results r;
  r.h = Tensor(w.dtype, {c.rows().rows(), w.expert_width});
  r.y = Tensor(w.dtype, {c.tokens, w.model_width});
  ops::experts_gate_up(ctx, w, c.rows(), x, r.h, &r.kept);
  ops::experts_down_combine(ctx, w, c.rows(), r.h, r.y);
  r.d = ops::experts_down_backward(ctx, w, c.rows(), dy, r.kept);
  r.dx = random_tensor(DType::kF32, {c.tokens, w.model_width}, seed + 3);
  ops::experts_gate_up_backward(ctx, w, c.rows(), r.d, r.dx);
  ops::ExpertGrads grads;
  for (std::size_t e = 0; e < w.gate.size(); ++e) {
    const auto add = [&](std::vector<ops::GradMatrix>& list, Index rows, Index cols) {
      r.grads.push_back(random_tensor(DType::kF32, {rows, cols}, seed + 4));
      list.push_back({r.grads.back().data<float>(), cols});
    };
    add(grads.gate, w.expert_width, w.model_width), add(grads.up, w.expert_width, w.model_width);
    add(grads.down, w.model_width, w.expert_width);
  }
  ops::experts_weight_backward(ctx, c.rows(), x, dy, r.d, grads);
  return r;
}

TEST(OpsExperts, CpuAgainstRef) {
  Context cpu(2), ref(1, Backend::kRef);
  test::Draw draw(3);
  for (std::uint64_t round = 0; round < 20; ++round) {
    const DType dtype = round % 2 ? DType::kBF16 : DType::kF32;
    const Index tokens = draw.between(1, 40), model = draw.between(1, 150), width = draw.between(1, 150);
    const Case c = random_case(dtype, tokens, model, width, draw.between(1, 9), round % 5 == 0 ? 200 : 25, round);
    const Results got = run(cpu, c, round), want = run(ref, c, round);
    // Errors of one step are inputs of the next, so lengths add up; three steps of storage rounding at most.
    const Index length = model + width + 200;
    EXPECT_TRUE(test::close(got.kept.gate, want.kept.gate, limit(dtype, model)));
    EXPECT_TRUE(test::close(got.kept.up, want.kept.up, limit(dtype, model)));
    EXPECT_TRUE(test::close(got.h, want.h, 2 * limit(dtype, model)));
    EXPECT_TRUE(test::close(got.y, want.y, 3 * limit(dtype, length)));
    EXPECT_TRUE(test::close(got.d.gate_up, want.d.gate_up, 3 * limit(dtype, length)));
    EXPECT_TRUE(test::close(got.d.scaled_h, want.d.scaled_h, 3 * limit(dtype, length)));
    EXPECT_TRUE(test::close(got.dx, want.dx, 3 * limit(dtype, length)));
    for (std::size_t i = 0; i < got.grads.size(); ++i)
      EXPECT_TRUE(test::close(got.grads[i], want.grads[i], 3 * limit(dtype, length))) << i;
    const auto as_tensor = [](const std::vector<float>& v) {
      return Tensor::wrap(static_cast<const void*>(v.data()), DType::kF32, {static_cast<Index>(v.size())});
    };
    EXPECT_TRUE(test::close(as_tensor(got.d.weight), as_tensor(want.d.weight), 3 * limit(dtype, length)));
  }
}

TEST(OpsExperts, TheSameBitsForAnyNumberOfThreads) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const Case c = random_case(dtype, 30, 130, 70, 7, 60, 5);
    Context one(1);
    const Results want = run(one, c, 9);
    for (const int threads : {2, 3}) {
      Context ctx(threads);
      const Results got = run(ctx, c, 9);
      EXPECT_TRUE(test::same_bits(got.y, want.y));
      EXPECT_TRUE(test::same_bits(got.dx, want.dx));
      EXPECT_EQ(got.d.weight, want.d.weight);
      for (std::size_t i = 0; i < got.grads.size(); ++i) EXPECT_TRUE(test::same_bits(got.grads[i], want.grads[i]));
    }
  }
}

TEST(OpsExperts, NoTokens) {
  Context ctx(2);
  const Case c = random_case(DType::kF32, 0, 8, 4, 3, 5, 1);
  const Results r = run(ctx, c, 1);
  EXPECT_EQ(r.y.numel(), 0);
  EXPECT_TRUE(test::same_bits(r.grads[0], random_tensor(DType::kF32, {4, 8}, 5))) << "gradients must stay as they were";
}

}  // namespace
}  // namespace dsmoe
