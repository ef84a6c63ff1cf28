#include "ops/heads.h"

#include <gtest/gtest.h>

#include "ops/repack.h"
#include "support/expect_error.h"
#include "support/finite_differences.h"
#include "support/random_tensor.h"
#include "support/sanitized.h"
#include "support/tolerance.h"

namespace dsmoe {
namespace {

using ops::HeadNumbers;
using ops::HeadRows;
using ops::Part;
using test::random_tensor;

// x [T, H * (before + K + after)], w [H * rows, K] of which a part is used, y [T, H * (before + part)].
struct HeadCase {
  Index tokens, heads, inner, rows, first, width;
  HeadNumbers x, y;
  HeadRows w;

  HeadCase(DType type, test::Draw& draw, std::uint64_t seed)
      : tokens(draw.between(0, 40)), heads(draw.between(1, 4)), inner(2 * draw.between(1, 300)) {
    const Index most = draw.between(0, 3) == 0 ? 200 : 30;  // more than one chain of a sum, at times
    first = 2 * draw.between(0, 3), width = 2 * draw.between(1, most), rows = first + width + 2 * draw.between(0, 3);
    const Index before = 2 * draw.between(0, 3), after = 2 * draw.between(0, 3);
    x = {random_tensor(type, {tokens, heads * (before + inner + after)}, seed), {heads, before, inner}};
    w = {random_tensor(type, {heads * rows, inner}, seed + 1), {heads, first, width}};
    y = {random_tensor(type, {tokens, heads * (after + width)}, seed + 2), {heads, after, width}};
  }
  // The results of the three products, in copies of what was there.
  Tensor forward(Context& ctx) const {
    HeadNumbers to{y.x.clone(), y.part};
    ops::head_linear(ctx, x, w, to);
    return to.x;
  }
  Tensor input(Context& ctx) const {
    HeadNumbers to{x.x.clone(), x.part};
    ops::head_linear_backward_input(ctx, y, w, to);
    return to.x;
  }
  Tensor weight(Context& ctx) const {
    HeadRows to{random_tensor(DType::kF32, w.w.shape(), 9), w.part};
    ops::head_linear_backward_weight(ctx, y, x, to);
    return to.w;
  }
  HeadCase rows_of(Index from, Index to) const {
    HeadCase some = *this;
    some.tokens = to - from, some.x.x = x.x.rows(from, to), some.y.x = y.x.rows(from, to);
    return some;
  }
};

TEST(OpsHeads, CpuAgainstRef) {
  Context cpu(3), ref(1, Backend::kRef);
  test::Draw draw(81);
  for (std::uint64_t round = 0; round < test::rounds(40u); ++round) {
    const DType type = round % 2 ? DType::kBF16 : DType::kF32;
    const HeadCase c(type, draw, 10 * round);
    EXPECT_TRUE(test::close(c.forward(cpu), c.forward(ref), test::limit(type, c.inner)));
    EXPECT_TRUE(test::close(c.input(cpu), c.input(ref), test::limit(type, c.width)));
    EXPECT_TRUE(test::close(c.weight(cpu), c.weight(ref), test::limit(DType::kF32, c.tokens + 1)));
    for (const DType to : {DType::kF32, DType::kBF16}) {
      HeadNumbers a{random_tensor(to, c.x.x.shape(), 5), c.x.part}, b{a.x.clone(), a.part};
      ops::copy_heads(cpu, c.x, a);
      ops::copy_heads(ref, c.x, b);
      EXPECT_TRUE(test::same_bits(a.x, b.x)) << "numbers outside the part stay";
    }
  }
}

TEST(OpsHeads, ARowHasTheSameBitsAloneAndForAnyNumberOfThreads) {
  Context one(1), three(3);
  test::Draw draw(82);
  for (std::uint64_t round = 0; round < test::rounds(20u); ++round) {
    const HeadCase c(round % 2 ? DType::kBF16 : DType::kF32, draw, 10 * round);
    const Tensor forward = c.forward(three), input = c.input(three);
    EXPECT_TRUE(test::same_bits(c.weight(three), c.weight(one)));
    for (Index t = 0; t < c.tokens; t += 1 + t % 3) {
      EXPECT_TRUE(test::same_bits(c.rows_of(t, t + 1).forward(one), forward.rows(t, t + 1)));
      EXPECT_TRUE(test::same_bits(c.rows_of(t, t + 1).input(one), input.rows(t, t + 1)));
    }
  }
}

// Numbers in f32 or bf16, and heads' matrices as a file has them.
struct MixedHeadCase {
  HeadNumbers x, y;
  HeadRows w;

  MixedHeadCase(DType type, Index tokens, test::Draw& draw, std::uint64_t seed) {
    const DType from = draw(2) ? DType::kF32 : DType::kBF16, to = draw(2) || from == type ? DType::kF32 : DType::kBF16;
    const Index unit = block_of(type).numbers, heads = draw.between(1, 4);
    const Index inner = unit * draw.between(1, unit == 256 ? 3 : unit == 32 ? 20 : 200);
    const Index first = draw.between(0, 5), width = draw.between(1, 90), rows = first + width + draw.between(0, 5);
    const Index before = draw.between(0, 7), after = draw.between(0, 7);
    x = {random_tensor(from, {tokens, heads * (before + inner + after)}, seed), {heads, before, inner}};
    w = {test::random_weights(type, {heads * rows, inner}, seed + 1), {heads, first, width}};
    y = {random_tensor(to, {tokens, heads * (after + width)}, seed + 2), {heads, after, width}};
  }
  Tensor forward(Context& ctx) const {
    HeadNumbers to{y.x.clone(), y.part};
    ops::head_linear(ctx, x, w, to);
    return to.x;
  }
  MixedHeadCase rows_of(Index from, Index to) const {
    MixedHeadCase some = *this;
    some.x.x = x.x.rows(from, to), some.y.x = y.x.rows(from, to);
    return some;
  }
};

constexpr DType kStored[] = {DType::kF16,  DType::kBF16, DType::kQ8_0, DType::kQ4_0,
                             DType::kQ5_0, DType::kQ4_K, DType::kQ5_K, DType::kQ6_K};

TEST(OpsHeads, OfAFilesMatricesCpuAgainstRef) {
  Context cpu(3), ref(1, Backend::kRef);
  test::Draw draw(83);
  for (const DType type : kStored)
    for (std::uint64_t round = 0; round < test::rounds(8u); ++round) {
      const MixedHeadCase c(type, round == 7 ? 130 : draw(round % 2 ? 20 : 5), draw, 10 * round);
      const double limit = is_quantized(type) && c.y.x.dtype() == DType::kF32 ? test::quantized_limit(c.w.w.dim(1))
                                                                              : test::limit(c.y.x.dtype(), c.w.w.dim(1));
      const Tensor got = c.forward(cpu), want = c.forward(ref);
      EXPECT_TRUE(test::close(got, want, limit)) << to_string(type);
      Index changed = 0;
      for (Index i = 0; i < got.numel(); ++i)
        changed += i % c.y.dim() < c.y.part.first && test::value(got, i) != test::value(c.y.x, i);
      EXPECT_EQ(changed, 0) << "numbers outside the part stay";
    }
}

TEST(OpsHeads, OfAFilesMatricesARowHasTheSameBitsAloneAndForAnyNumberOfThreads) {
  Context one(1), three(3);
  test::Draw draw(84);
  for (const DType type : kStored)
    for (std::uint64_t round = 0; round < test::rounds(4u); ++round) {
      const Index tokens = round == 0 ? 131 : draw.between(1, 20);  // the last block of rows is one of few
      const MixedHeadCase c(type, tokens, draw, 10 * round);
      const Tensor all = c.forward(three);
      EXPECT_TRUE(test::same_bits(c.forward(one), all)) << to_string(type);
      for (Index t = 0; t < tokens; t += 1 + t / 3) {
        const Index end = std::min(tokens, t + 1 + t % 6);
        EXPECT_TRUE(test::same_bits(c.rows_of(t, end).forward(one), all.rows(t, end))) << to_string(type) << " " << t;
      }
    }
}

// Parts that are whole groups of 32 rows.
TEST(OpsHeads, RepackedMatricesGiveTheSameBits) {
  Context three(3), ref(1, Backend::kRef);
  for (const DType type : kStored) {
    if (!is_quantized(type)) continue;
    for (const Index blocks : {1, 4, 6, 20})
      for (const Index tokens : {1, 5, 8, 40, 130}) {
        const Index inner = blocks * block_of(type).numbers, heads = 3, width = 64;
        const Tensor w = test::random_weights(type, {heads * 128, inner}, 1), again = ops::repacked(three, w.clone());
        const Tensor x = random_tensor(DType::kF32, {tokens, heads * inner}, 2);
        const auto run = [&](Context& ctx, const Tensor& matrix) {
          Tensor y(DType::kF32, {tokens, heads * width});
          ops::head_linear(ctx, {x, {heads, 0, inner}}, {matrix, {heads, 32, width}}, {y, {heads, 0, width}});
          return y;
        };
        EXPECT_TRUE(test::same_bits(run(three, again), run(three, w))) << to_string(type) << " " << blocks << " " << tokens;
        EXPECT_TRUE(tokens != 5 || blocks == 20 || test::same_bits(run(ref, again), run(ref, w)));
      }
    const Tensor w = ops::repacked(three, test::random_weights(type, {2 * 48, 256}, 1));
    const Tensor x(DType::kF32, {1, 2 * 256}), y(DType::kF32, {1, 2 * 48});
    EXPECT_TRUE(testing::throws_error(
        [&] {
          ops::head_linear(three, {x, {2, 0, 256}}, {w, {2, 0, 48}}, {y, {2, 0, 48}});
        },
        {"rows 0 to 48 of heads of 48", "groups of 32"}));
  }
}

TEST(OpsHeads, GradientsAgainstFiniteDifferences) {
  for (const Backend backend : {Backend::kCpu, Backend::kRef}) {
    Context ctx(1, backend);
    Tensor x = random_tensor(DType::kF32, {3, 2 * 4}, 1), w = random_tensor(DType::kF32, {2 * 5, 4}, 2);
    const Tensor direction = random_tensor(DType::kF32, {3, 2 * 3}, 3);
    const Part all{2, 0, 4}, some{2, 1, 3}, out{2, 0, 3};
    const auto objective = [&] {
      Tensor y(DType::kF32, {3, 6});
      ops::head_linear(ctx, {x, all}, {w, some}, {y, out});
      return test::inner_product(y, direction);
    };
    Tensor dx(DType::kF32, x.shape()), dw = Tensor::zeros(DType::kF32, w.shape());
    ops::head_linear_backward_input(ctx, {direction, out}, {w, some}, {dx, all});
    ops::head_linear_backward_weight(ctx, {direction, out}, {x, all}, {dw, some});
    EXPECT_TRUE(test::close(dx, test::finite_differences(x, objective), test::difference_limit(18)));
    EXPECT_TRUE(test::close(dw, test::finite_differences(w, objective), test::difference_limit(18)));
  }
}

TEST(OpsHeads, RefusesWhatDoesNotFit) {
  Context ctx(1);
  const Tensor x(DType::kF32, {2, 8}), w(DType::kF32, {6, 4}), narrow(DType::kBF16, {2, 8});
  const Part half{2, 0, 4};
  const auto refused = [](auto&& fn, std::initializer_list<std::string_view> parts) {
    return testing::throws_error(fn, parts);
  };
  EXPECT_TRUE(refused([&] { ops::copy_heads(ctx, {x, {3, 0, 1}}, {x, half}); }, {"copy_heads", "3 heads"}));
  EXPECT_TRUE(refused([&] { ops::copy_heads(ctx, {x, {2, 2, 3}}, {x, half}); }, {"2 to 5 of heads of 4"}));
  EXPECT_TRUE(refused([&] { ops::copy_heads(ctx, {x, {2, 0, 3}}, {x, half}); }, {"3 of 2 heads"}));
  EXPECT_TRUE(refused([&] { ops::head_linear(ctx, {x, half}, {w, {2, 0, 3}}, {x, {2, 0, 2}}); }, {"parts of 2 and 4"}));
  const auto back = [&](const Tensor& dy, const Tensor& dx) {
    ops::head_linear_backward_input(ctx, {dy, {2, 0, 3}}, {w, {2, 0, 3}}, {dx, half});
  };
  EXPECT_TRUE(refused([&] { back(x, narrow); }, {"one dtype"}));
  EXPECT_TRUE(refused([&] { back(narrow, narrow); }, {"weights are f32", "bf16"}));
  // Blocks are multiplied forward, along their rows, alone.
  const Tensor blocks = test::random_weights(DType::kQ8_0, {6, 32}, 1), wide(DType::kF32, {2, 64}),
               some(DType::kF32, {2, 6});
  const Part all{2, 0, 32}, three{2, 0, 3};
  EXPECT_NO_THROW(ops::head_linear(ctx, {wide, all}, {blocks, three}, {some, three}));
  EXPECT_TRUE(refused(
      [&] {
        ops::head_linear_backward_input(ctx, {some, three}, {blocks, three}, {wide, all});
      },
      {"weights are q8_0", "f32"}));
}

}  // namespace
}  // namespace dsmoe
