#include "ops/heads.h"

#include <gtest/gtest.h>

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
  EXPECT_TRUE(refused([&] { ops::head_linear(ctx, {narrow, half}, {w, {2, 0, 3}}, {x, {2, 0, 3}}); }, {"one dtype"}));
  EXPECT_TRUE(refused(
      [&] {
        ops::head_linear(ctx, {narrow, half}, {w, {2, 0, 3}}, {narrow, {2, 0, 3}});
      },
      {"weights are f32", "bf16"}));
}

}  // namespace
}  // namespace dsmoe
