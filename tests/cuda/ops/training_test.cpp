// The ops that only training has, on a GPU against ops/ref: gradients of linear layers, norms, embedding and loss, and
// AdamW.
#include <gtest/gtest.h>

#include <vector>

#include "core/device.h"
#include "cuda/gpu_test.h"
#include "ops/adamw.h"
#include "ops/cross_entropy.h"
#include "ops/elementwise.h"
#include "ops/embedding.h"
#include "ops/linear.h"
#include "ops/rms_norm.h"
#include "support/expect_error.h"
#include "support/random_tensor.h"
#include "support/tolerance.h"

namespace dsmoe::test {
namespace {

using cuda::Path;

struct CudaTraining : GpuTest {
  Context ref{1, Backend::kRef};

  Tensor copy(const Tensor& t) { return ctx().place(t.clone()); }
};

constexpr DType kBoth[] = {DType::kF32, DType::kBF16};

struct LinearSizes {
  Index t, n, k;
};
// Odd sizes, sizes around the tiles of 64, 128 and 256, and so many tokens that they are cut into slices.
constexpr LinearSizes kLinear[] = {{1, 8, 8},      {3, 19, 37},     {16, 64, 64},    {17, 136, 256},   {63, 200, 72},
                                   {65, 128, 520}, {130, 264, 136}, {257, 72, 1000}, {300, 1000, 264}, {2100, 136, 264}};

TEST_F(CudaTraining, LinearBackwardInput) {
  for (const auto& [t, n, k] : kLinear)
    for (const DType dtype : kBoth) {
      const Tensor dy = random_tensor(dtype, {t, n}, 1), w = random_tensor(dtype, {n, k}, 2);
      const Tensor start = random_tensor(DType::kF32, {t, k}, 3);
      for (const bool accumulate : {false, true}) {
        Tensor want = start.clone();
        ops::linear_backward_input(ref, dy, w, want, accumulate);
        for (const Path path : paths_for(dtype, k, n)) {
          const Forced forced(path);
          Tensor got = copy(start), again = copy(start);
          ops::linear_backward_input(ctx(), ctx().place(dy), ctx().place(w), got, accumulate);
          ops::linear_backward_input(ctx(), ctx().place(dy), ctx().place(w), again, accumulate);
          EXPECT_TRUE(close(ctx().fetch(got), want, limit(DType::kF32, n)))
              << t << " " << n << " " << k << " " << to_string(dtype) << " " << cuda::to_string(path);
          EXPECT_TRUE(same_bits(ctx().fetch(got), ctx().fetch(again)));
        }
      }
    }
}

// The sum of several products in one go, in f32 or rounded once; depths that are no whole blocks lie between.
TEST_F(CudaTraining, LinearBackwardInputOfSeveral) {
  for (const auto& [t, n, k] : kLinear)
    for (const DType dtype : kBoth)
      for (const DType result : {DType::kF32, dtype}) {
        const Index other = n + 24;
        const Tensor dy[] = {random_tensor(dtype, {t, n}, 1), random_tensor(dtype, {t, other}, 2),
                             random_tensor(dtype, {t, n}, 3)};
        const Tensor w[] = {random_tensor(dtype, {n, k}, 4), random_tensor(dtype, {other, k}, 5),
                            random_tensor(dtype, {n, k}, 6)};
        for (const std::size_t count : {1u, 2u, 3u}) {
          Tensor want(result, {t, k});
          std::vector<Tensor> placed;
          std::vector<ops::ProjectionGrad> here, there;
          for (std::size_t i = 0; i < count; ++i) here.push_back({&dy[i], &w[i]});
          ops::linear_backward_input(ref, here, want);
          for (std::size_t i = 0; i < count; ++i) placed.insert(placed.end(), {ctx().place(dy[i]), ctx().place(w[i])});
          for (std::size_t i = 0; i < count; ++i) there.push_back({&placed[2 * i], &placed[2 * i + 1]});
          for (const Path path : paths_for(dtype, k, n)) {
            const Forced forced(path);
            Tensor got = ctx().empty(result, {t, k}), again = ctx().empty(result, {t, k});
            for (Tensor* const to : {&got, &again}) {
              device::fill_bytes(to->raw_mutable(), 0xff, to->bytes(), ctx().stream());  // NaN
              ops::linear_backward_input(ctx(), there, *to);
            }
            EXPECT_TRUE(close(ctx().fetch(got), want, limit(result, 3 * other)))
                << t << " " << n << " " << k << " " << to_string(dtype) << " " << to_string(result) << " " << count << " "
                << cuda::to_string(path);
            EXPECT_TRUE(same_bits(ctx().fetch(got), ctx().fetch(again)));
          }
        }
      }
}

TEST_F(CudaTraining, LinearBackwardWeight) {
  for (const auto& [t, n, k] : kLinear)
    for (const DType dtype : kBoth) {
      const Tensor dy = random_tensor(dtype, {t, n}, 1), x = random_tensor(dtype, {t, k}, 2);
      const Tensor start = random_tensor(DType::kF32, {n, k}, 3);
      Tensor want = start.clone();
      ops::linear_backward_weight(ref, dy, x, want);
      for (const Path path : paths_for(dtype, k, n)) {
        const Forced forced(path);
        Tensor got = copy(start), again = copy(start);
        ops::linear_backward_weight(ctx(), ctx().place(dy), ctx().place(x), got);
        ops::linear_backward_weight(ctx(), ctx().place(dy), ctx().place(x), again);
        EXPECT_TRUE(close(ctx().fetch(got), want, limit(DType::kF32, t)))
            << t << " " << n << " " << k << " " << to_string(dtype) << " " << cuda::to_string(path);
        EXPECT_TRUE(same_bits(ctx().fetch(got), ctx().fetch(again)));
        Tensor zero = ctx().zeros(DType::kF32, {n, k});
        ops::linear_backward_weight(ctx(), ctx().place(dy), ctx().place(x), zero);
        ops::linear_backward_weight(ctx(), ctx().place(dy), ctx().place(x), again, /*accumulate=*/false);
        EXPECT_TRUE(close(ctx().fetch(again), ctx().fetch(zero), limit(DType::kF32, 1)));
      }
    }
}

// A wide matrix, whose blocks are taken in the other order.
TEST_F(CudaTraining, SlicesFillADevice) {
  EXPECT_EQ(cuda::linear_slice(16384, 2048, 2048), 16384);  // 128 tiles are enough
  EXPECT_EQ(cuda::linear_slice(16384, 102400, 2048), 16384);
  EXPECT_EQ(cuda::linear_slice(32768, 512, 512), 2240);  // 8 tiles are not: 15 slices make 120
  EXPECT_EQ(cuda::linear_slice(1, 8, 8), 64);
  EXPECT_EQ(cuda::linear_slice(32768, 512, 512) % 64, 0);
}

TEST_F(CudaTraining, NormBackward) {
  for (const Index d : {1, 7, 64, 255, 2048, 5003})
    for (const Index t : {1, 3, 8, 257})
      for (const DType weight : kBoth)
        for (const DType grad : kBoth) {
          const Tensor x = random_tensor(DType::kF32, {t, d}, 1, 3.0f), w = random_tensor(weight, {d}, 2);
          const Tensor dy = random_tensor(grad, {t, d}, 3);
          Tensor dx = random_tensor(DType::kF32, {t, d}, 4), dw = random_tensor(DType::kF32, {d}, 5);
          Tensor got_dx = copy(dx), got_dw = copy(dw);
          ops::rms_norm_backward(ref, dy, x, w, 1e-6f, dx, dw);
          ops::rms_norm_backward(ctx(), ctx().place(dy), ctx().place(x), ctx().place(w), 1e-6f, got_dx, got_dw);
          // In a narrow row the two terms of dx, r g and r³ mean(g x) x, cancel: of one number both are the same.
          EXPECT_TRUE(close(ctx().fetch(got_dx), dx, limit(DType::kF32, std::max<Index>(d, 64)))) << d << " " << t;
          EXPECT_TRUE(close(ctx().fetch(got_dw), dw, limit(DType::kF32, d + t))) << d << " " << t;
          // The rounded copy is that of the dx beside it.
          Tensor rounded = ctx().empty(DType::kBF16, {t, d}), want = ctx().empty(DType::kBF16, {t, d});
          ops::rms_norm_backward(ctx(), ctx().place(dy), ctx().place(x), ctx().place(w), 1e-6f, got_dx, got_dw, &rounded);
          ops::convert(ctx(), got_dx, want);
          EXPECT_TRUE(same_bits(ctx().fetch(rounded), ctx().fetch(want))) << d << " " << t;
        }
}

TEST_F(CudaTraining, BiasBackward) {
  for (const Index n : {1, 33, 2048})
    for (const Index t : {1, 31, 1100})
      for (const DType dtype : kBoth) {
        const Tensor dy = random_tensor(dtype, {t, n}, 1);
        Tensor want = random_tensor(DType::kF32, {n}, 2), got = copy(want);
        ops::add_bias_backward(ref, dy, want);
        ops::add_bias_backward(ctx(), ctx().place(dy), got);
        EXPECT_TRUE(close(ctx().fetch(got), want, limit(DType::kF32, t))) << n << " " << t;
      }
}

TEST_F(CudaTraining, EmbeddingBackward) {
  for (const Index d : {5, 64, 1028})
    for (const Index vocab : {3, 1000}) {
      Draw draw(static_cast<std::uint64_t>(d));
      std::vector<std::int32_t> ids;
      for (int i = 0; i < 700; ++i) ids.push_back(static_cast<std::int32_t>(draw(static_cast<std::uint64_t>(vocab))));
      const Tensor id = Tensor::view_of(std::span<const std::int32_t>(ids)), dx = random_tensor(DType::kF32, {700, d}, 1);
      Tensor want = random_tensor(DType::kF32, {vocab, d}, 2), got = copy(want), again = copy(want);
      ops::embedding_backward(ref, id, dx, want);
      ops::embedding_backward(ctx(), id, ctx().place(dx), got);
      ops::embedding_backward(ctx(), ctx().place(id), ctx().place(dx), again);
      EXPECT_TRUE(close(ctx().fetch(got), want, limit(DType::kF32, 700)));
      EXPECT_TRUE(same_bits(ctx().fetch(again), ctx().fetch(got)));
    }
}

TEST_F(CudaTraining, CrossEntropyBackward) {
  for (const Index v : {3, 1000, 1001, 102400})
    for (const DType dtype : kBoth) {
      const Tensor logits = random_tensor(DType::kF32, {5, v}, 8, 4.0f);
      const std::vector<std::int32_t> targets = {2, 0, ops::kIgnoredTarget, 1, static_cast<std::int32_t>(v - 1)};
      const Tensor target = Tensor::view_of(std::span<const std::int32_t>(targets));
      Tensor want(dtype, logits.shape());
      const Tensor want_sum = ops::cross_entropy(ref, logits, target, nullptr, &want, 0.25f);
      Tensor got = copy(logits), apart = ctx().empty(dtype, logits.shape());
      // In f32 the gradient takes the place of the logits.
      Tensor& to = dtype == DType::kF32 ? got : apart;
      const Tensor sum = ctx().fetch(ops::cross_entropy(ctx(), got, target, nullptr, &to, 0.25f));
      EXPECT_TRUE(close(ctx().fetch(to), want, limit(dtype, std::max<Index>(v, 64)))) << v;
      EXPECT_NEAR(sum.data<double>()[0], want_sum.data<double>()[0], limit(DType::kF32, v) * want_sum.data<double>()[0]);
      EXPECT_EQ(sum.data<double>()[1], 4);
    }
}

// In f64, which ranks add up themselves, the losses are what their sum is made of.
TEST_F(CudaTraining, LossesOfTokens) {
  const Tensor logits = ctx().place(random_tensor(DType::kF32, {700, 50}, 8, 4.0f));
  std::vector<std::int32_t> targets(700);
  for (std::size_t t = 0; t < targets.size(); ++t) targets[t] = static_cast<std::int32_t>(t % 50);
  targets[3] = ops::kIgnoredTarget;
  const Tensor target = ctx().place(Tensor::view_of(std::span<const std::int32_t>(targets)));
  Tensor exact = ctx().empty(DType::kF64, {700}), rounded = ctx().empty(DType::kF32, {700});
  const Tensor sum = ctx().fetch(ops::cross_entropy(ctx(), logits, target, &exact));
  EXPECT_TRUE(same_bits(ctx().fetch(ops::cross_entropy(ctx(), logits, target, &rounded)), sum));
  const Tensor wide = ctx().fetch(exact), narrow = ctx().fetch(rounded);
  for (Index t = 0; t < 700; ++t) EXPECT_EQ(static_cast<float>(wide.data<double>()[t]), narrow.data<float>()[t]) << t;
  EXPECT_EQ(wide.data<double>()[3], 0);
}

TEST_F(CudaTraining, ATargetThatTheVocabularyHasNotIsAnError) {
  const Tensor logits = ctx().place(random_tensor(DType::kF32, {3, 10}, 1));
  const std::vector<std::int32_t> targets = {1, 10, 2};
  const Tensor target = ctx().place(Tensor::view_of(std::span<const std::int32_t>(targets)));
  ops::cross_entropy(ctx(), logits, target);
  EXPECT_TRUE(dsmoe::testing::throws_error([&] { ctx().synchronize(); }, {"token 1", "no such token"},
                                           ErrorCode::kInvalidArgument));
}

TEST_F(CudaTraining, AdamW) {
  for (const Index n : {1, 1023, 4096, 70000}) {
    std::vector<ops::AdamTensor> want, got;
    for (const bool decay : {false, true})
      for (const bool rounded : {false, true}) {
        ops::AdamTensor t{random_tensor(DType::kF32, {n}, 1),
                          random_tensor(DType::kF32, {n}, 2),
                          random_tensor(DType::kF32, {n}, 3),
                          random_tensor(DType::kF32, {n}, 4),
                          rounded ? Tensor::zeros(DType::kBF16, {n}) : Tensor(),
                          decay};
        for (float& v : t.v.span<float>()) v = std::abs(v);
        got.push_back({copy(t.weight), copy(t.gradient), copy(t.m), copy(t.v), rounded ? copy(t.stored) : Tensor(), decay});
        want.push_back(std::move(t));
      }
    const double square = ctx().fetch(ops::gradient_square(ctx(), got)).data<double>()[0];
    const double expected = ops::gradient_square(ref, want).data<double>()[0];
    EXPECT_NEAR(square, expected, limit(DType::kF32, 4) * expected) << n;
    const ops::AdamOptions options{.rate = 0.01, .grad_scale = 0.5, .step = 3};
    ops::adamw(ref, want, options);
    ops::adamw(ctx(), got, options);
    for (std::size_t i = 0; i < want.size(); ++i) {
      EXPECT_TRUE(close(ctx().fetch(got[i].weight), want[i].weight, limit(DType::kF32, 4))) << n;
      EXPECT_TRUE(close(ctx().fetch(got[i].m), want[i].m, limit(DType::kF32, 4))) << n;
      EXPECT_TRUE(close(ctx().fetch(got[i].v), want[i].v, limit(DType::kF32, 4))) << n;
      EXPECT_TRUE(same_bits(ctx().fetch(got[i].gradient), Tensor::zeros(DType::kF32, {n})));
      if (want[i].stored.numel() > 0) {
        EXPECT_TRUE(same_bits(ctx().fetch(got[i].stored), ctx().fetch(got[i].weight).to(DType::kBF16)));
      }
    }
  }
}

TEST_F(CudaTraining, ClipScaleIsTheCpusToTheBit) {
  const Tensor squares = random_tensor(DType::kF32, {64}, 1);
  Tensor want = Tensor::zeros(DType::kF64, {1}), got = ctx().zeros(DType::kF64, {1});
  for (Index i = 0; i < squares.numel(); ++i) {
    Tensor square(DType::kF64, {1});
    square.data<double>()[0] = std::abs(static_cast<double>(squares.data<float>()[i]));
    ops::clip_scale(ref, square, i == 0 ? 0 : 0.5, want);
    ops::clip_scale(ctx(), ctx().place(square), i == 0 ? 0 : 0.5, got);
    ASSERT_TRUE(same_bits(ctx().fetch(got), want)) << i;
  }
}

// What a norm that is not finite, or a fault in a kernel ahead, does to this update and to all after it.
TEST_F(CudaTraining, NothingIsUpdatedAfterAFault) {
  Tensor square(DType::kF64, {1});
  const auto updates = [&](Tensor& scale, double value) {
    square.data<double>()[0] = value;
    ops::clip_scale(ctx(), ctx().place(square), 1, scale);
    const Tensor before = random_tensor(DType::kF32, {5000}, 1);
    std::vector<ops::AdamTensor> t = {
        {copy(before), copy(before), copy(before), ctx().zeros(DType::kF32, {5000}), ctx().zeros(DType::kBF16, {5000})}};
    ops::adamw(ctx(), t, {.scale = scale, .clear = false});
    const bool changed = !same_bits(ctx().fetch(t[0].weight), before);
    EXPECT_EQ(!same_bits(ctx().fetch(t[0].m), before), changed);
    EXPECT_EQ(!same_bits(ctx().fetch(t[0].stored), Tensor::zeros(DType::kBF16, {5000})), changed);
    return changed;
  };
  Tensor scale = ctx().zeros(DType::kF64, {1});
  EXPECT_TRUE(updates(scale, 1));
  EXPECT_FALSE(updates(scale, std::numeric_limits<double>::infinity()));
  EXPECT_FALSE(updates(scale, 1));
  // A target that is no token.
  scale = ctx().zeros(DType::kF64, {1});
  const std::vector<std::int32_t> target = {10};
  ops::cross_entropy(ctx(), ctx().place(random_tensor(DType::kF32, {1, 10}, 1)),
                     ctx().place(Tensor::view_of(std::span<const std::int32_t>(target))));
  square.data<double>()[0] = 1;
  ops::clip_scale(ctx(), ctx().place(square), 1, scale);
  EXPECT_THROW(ctx().synchronize(), Error);
  EXPECT_TRUE(std::isnan(ctx().fetch(scale).data<double>()[0]));
}

TEST_F(CudaTraining, PartsOfTensorsNeedNoAlignment) {
  const Tensor numbers = random_tensor(DType::kF32, {1000}, 1);
  const auto part = [](const Tensor& t) { return t.rows(3, 998); };
  std::vector<ops::AdamTensor> whole(1), parts(1);
  for (Tensor ops::AdamTensor::*field :
       {&ops::AdamTensor::weight, &ops::AdamTensor::gradient, &ops::AdamTensor::m, &ops::AdamTensor::v}) {
    whole[0].*field = copy(part(numbers));
    parts[0].*field = part(copy(numbers));
  }
  for (auto* t : {&whole[0].v, &parts[0].v}) ctx().fill_zero(*t);
  EXPECT_EQ(ctx().fetch(ops::gradient_square(ctx(), whole)).data<double>()[0],
            ctx().fetch(ops::gradient_square(ctx(), parts)).data<double>()[0]);
  ops::adamw(ctx(), whole, {});
  ops::adamw(ctx(), parts, {});
  EXPECT_TRUE(same_bits(ctx().fetch(whole[0].weight), ctx().fetch(parts[0].weight)));
}

TEST_F(CudaTraining, Scale) {
  for (const Index n : {1, 64, 1001}) {
    Tensor want = random_tensor(DType::kF32, {n}, 1), got = copy(want);
    ops::scale(ref, 0.3f, want);
    ops::scale(ctx(), 0.3f, got);
    EXPECT_TRUE(same_bits(ctx().fetch(got), want));
  }
}

}  // namespace
}  // namespace dsmoe::test
