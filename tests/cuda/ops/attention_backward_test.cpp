// Attention's backward on a GPU against ops/ref, and the promise that a sequence's gradients depend on itself alone.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <utility>
#include <vector>

#include "cuda/gpu_test.h"
#include "ops/attention.h"
#include "ops/elementwise.h"
#include "support/random_tensor.h"
#include "support/tolerance.h"

namespace dsmoe::test {
namespace {

using cuda::Path;
using ops::AttentionShape;
using ops::kAttentionTile;
using Gradients = std::array<Tensor, 3>;  // dq, dk, dv

AttentionShape shape_of(Index heads, Index kv_heads, Index dim) {
  return {heads, kv_heads, dim, 1 / std::sqrt(static_cast<float>(dim))};
}

// Sequences one after another, each whole.
struct Sequences {
  AttentionShape shape;
  std::vector<Index> lengths;
  Tensor q, k, v, dout;
  std::vector<std::vector<Index>> tiles;
  std::vector<ops::Slice> slices;

  Sequences(DType type, const AttentionShape& s, std::vector<Index> of, std::uint64_t seed)
      : shape(s), lengths(std::move(of)) {
    Index rows = 0;
    for (const Index length : lengths) rows += length;
    q = random_tensor(type, {rows, s.heads * s.head_dim}, seed);
    k = random_tensor(type, {rows, s.kv_heads * s.head_dim}, seed + 1);
    v = random_tensor(type, {rows, s.kv_heads * s.head_dim}, seed + 2);
    dout = random_tensor(type, {rows, s.heads * s.head_dim}, seed + 3);
    cut();
  }
  // Sequence i alone.
  Sequences(const Sequences& all, std::size_t i) : shape(all.shape), lengths{all.lengths[i]} {
    const Index first = all.slices[i].first_row, last = first + lengths[0];
    q = all.q.rows(first, last).clone(), dout = all.dout.rows(first, last).clone();
    k = all.k.rows(first, last).clone(), v = all.v.rows(first, last).clone();
    cut();
  }

  void cut() {
    Index row = 0;
    for (const Index length : lengths) {
      std::vector<Index>& own = tiles.emplace_back();
      for (Index i = 0; i < ops::Slice::tiles_of(length); ++i) own.push_back(row + i * kAttentionTile);
      slices.push_back({row, length, 0, {}});
      row += length;
    }
    for (std::size_t i = 0; i < slices.size(); ++i) slices[i].tiles = tiles[i];
  }

  Gradients run(Context& ctx) const {
    const ops::Slices placed = ops::placed(ctx, slices);
    const Tensor on_q = ctx.place(q), on_k = ctx.place(k), on_v = ctx.place(v), on_dout = ctx.place(dout);
    Tensor out = ctx.empty(q.dtype(), q.shape()), lse = ctx.empty(DType::kF32, {shape.heads, q.dim(0)});
    ops::attention(ctx, shape, on_q, on_k, on_v, placed, out, &lse);
    Gradients d{unwritten(ctx, q), unwritten(ctx, k), unwritten(ctx, v)};
    ops::attention_backward(ctx, shape, on_q, on_k, on_v, placed, out, lse, on_dout, d[0], d[1], d[2]);
    return {ctx.fetch(d[0]), ctx.fetch(d[1]), ctx.fetch(d[2])};
  }

  static Tensor unwritten_like(const Tensor& t) {
    Tensor nan(t.dtype(), t.shape());
    std::memset(nan.raw_mutable(), 0xff, nan.bytes());
    return nan;
  }
  // NaN, so that what is not written is seen.
  static Tensor unwritten(Context& ctx, const Tensor& like) {
    Tensor nan(DType::kF32, like.shape());
    if (nan.bytes() > 0) std::memset(nan.raw_mutable(), 0xff, nan.bytes());
    return ctx.place(nan);
  }
};

// p and ds are rounded to storage, sums are over keys or queries (of all heads that share a key), and delta comes from a
// result that was rounded: three roundings against the reference, which has none.
double limit_of(const Sequences& c) {
  Index longest = 1;
  for (const Index length : c.lengths) longest = std::max(longest, length);
  return 3 * limit(c.q.dtype(), c.shape.head_dim + longest * (c.shape.heads / c.shape.kv_heads));
}

class CudaAttentionBackward : public GpuTest {
 protected:
  void expect_like_reference(const Sequences& c) {
    Context ref(1, Backend::kRef);
    const Gradients want = c.run(ref);
    for (const Path path : {Path::kAuto, Path::kPlain}) {
      const Forced forced(path);
      const Gradients got = c.run(ctx());
      for (std::size_t i = 0; i < 3; ++i)
        EXPECT_TRUE(close(got[i], want[i], limit_of(c)))
            << "gradient " << i << " of " << c.shape.heads << "/" << c.shape.kv_heads << " x " << c.shape.head_dim << " "
            << to_string(c.q.dtype()) << " " << cuda::to_string(path) << ", " << c.lengths.size()
            << " sequences, the first of " << c.lengths[0];
    }
  }
  static ::testing::AssertionResult same(const Gradients& a, const Gradients& b) {
    for (std::size_t i = 0; i < 3; ++i)
      if (const auto equal = same_bits(a[i], b[i]); !equal)
        return ::testing::AssertionFailure() << equal.message() << ", gradient " << i;
    return ::testing::AssertionSuccess();
  }
  Draw draw_{91};
};

TEST_F(CudaAttentionBackward, MatchesReference) {
  // The sizes that tensor cores take, small and odd ones, and one whose rows do not fit a block's memory eight at a time.
  for (const Index dim : {64, 128, 1, 7, 40, 100, 129, 520})
    for (const DType type : {DType::kBF16, DType::kF32}) {
      const Index kv_heads = draw_.between(1, 2), group = draw_.between(1, 3);
      std::vector<Index> lengths;
      for (Index i = 0, n = draw_.between(1, 3); i < n; ++i)
        lengths.push_back(draw_(4) ? draw_.between(1, dim > 128 ? 90 : 200) : draw_.between(0, 17));
      lengths.push_back(draw_.between(1, 70));
      expect_like_reference(
          {type, shape_of(kv_heads * group, kv_heads, dim), lengths, 10 * static_cast<std::uint64_t>(dim)});
    }
}

TEST_F(CudaAttentionBackward, LengthsAroundTheEdgesOfTiles) {
  for (const DType type : {DType::kBF16, DType::kF32})
    for (const Index dim : {64, 128})
      for (const Index length : {1, 2, 15, 17, 63, 64, 65, 127, 128, 129, 191, 193, 255, 256, 257, 321}) {
        if (type == DType::kF32 && length > 129) continue;
        expect_like_reference({type, shape_of(2, dim == 64 ? 1 : 2, dim), {length}, static_cast<std::uint64_t>(length)});
      }
}

// Many pieces for every block of the device, and more heads than are worked on together.
TEST_F(CudaAttentionBackward, MatchesThePlainKernelsOnALargeBatch) {
  for (const AttentionShape& shape : {shape_of(16, 16, 128), shape_of(12, 4, 64)}) {
    const Sequences c(DType::kBF16, shape, {1000, 1, 700, 2048, 64, 333}, 3);
    const Gradients got = c.run(ctx());
    const Forced forced(Path::kPlain);
    const Gradients want = c.run(ctx());
    for (std::size_t i = 0; i < 3; ++i) EXPECT_TRUE(close(got[i], want[i], limit_of(c))) << i;
  }
}

TEST_F(CudaAttentionBackward, TwoRunsGiveTheSameBits) {
  for (const Path path : {Path::kAuto, Path::kPlain})
    for (const Index dim : {64, 128, 40}) {
      const Forced forced(path);
      const Sequences c(DType::kBF16, shape_of(8, 4, dim), {700, 300}, 7);
      const Gradients first = c.run(ctx());
      for (int i = 0; i < (path == Path::kAuto ? 20 : 1); ++i) EXPECT_TRUE(same(c.run(ctx()), first)) << dim;
    }
}

// Forward with lse over whole sequences, as training has it, has a kernel of its own; a result has the bits that it has in
// inference, where keys and values are in pages.
TEST_F(CudaAttentionBackward, ForwardInTrainingHasTheBitsOfInference) {
  for (const AttentionShape& shape : {shape_of(16, 16, 128), shape_of(6, 2, 64), shape_of(3, 3, 128), shape_of(8, 8, 64)}) {
    const Sequences c(DType::kBF16, shape, {1000, 1, 700, 17, 128, 129, 64, 2048, 256, 255, 383}, 6);
    const ops::Slices placed = ops::placed(ctx(), c.slices);
    const Tensor q = ctx().place(c.q), k = ctx().place(c.k), v = ctx().place(c.v);
    const auto run = [&](Tensor* lse) {
      Tensor out = ctx().place(Sequences::unwritten_like(q));
      ops::attention(ctx(), shape, q, k, v, placed, out, lse);
      return ctx().fetch(out);
    };
    Tensor lse = ctx().zeros(DType::kF32, {shape.heads, q.dim(0)}), want_lse = ctx().zeros(DType::kF32, lse.shape());
    const Tensor plain = run(nullptr);
    for (int i = 0; i < 3; ++i) EXPECT_TRUE(same_bits(run(&lse), plain)) << shape.heads << " x " << shape.head_dim;
    const Forced forced(Path::kMma);
    EXPECT_TRUE(same_bits(run(&want_lse), plain));
    EXPECT_TRUE(same_bits(ctx().fetch(lse), ctx().fetch(want_lse)));
  }
}

// Rounded and turned back in the kernels: what the passes of their own would make of the f32 gradients, to the bit.
TEST_F(CudaAttentionBackward, RoundedAndTurnedBackIsWhatPassesOfTheirOwnGive) {
  for (const Path path : {Path::kAuto, Path::kPlain})
    for (const Index dim : {64, 128, 40}) {
      const Forced forced(path);
      const Sequences c(DType::kBF16, shape_of(4, 2, dim), {300, 65, 1}, 5);
      const ops::Slices placed = ops::placed(ctx(), c.slices);
      const ops::RopeAngles angles = ops::rope_angles(ctx(), ops::Rope(dim, 10000, {}, 4096), placed);
      const Tensor q = ctx().place(c.q), k = ctx().place(c.k), v = ctx().place(c.v), dout = ctx().place(c.dout);
      Tensor out = ctx().empty(DType::kBF16, q.shape()), lse = ctx().empty(DType::kF32, {4, q.dim(0)});
      ops::attention(ctx(), c.shape, q, k, v, placed, out, &lse);
      for (const bool turned : {false, true}) {
        const auto run = [&](DType dtype, const ops::RopeAngles* by) {
          Gradients d{ctx().empty(dtype, q.shape()), ctx().empty(dtype, k.shape()), ctx().empty(dtype, v.shape())};
          ops::attention_backward(ctx(), c.shape, q, k, v, placed, out, lse, dout, d[0], d[1], d[2], by);
          return d;
        };
        Gradients wide = run(DType::kF32, nullptr);
        if (turned)
          for (const std::size_t i : {0u, 1u}) ops::apply_rope(ctx(), wide[i], angles, /*inverse=*/true);
        const Gradients got = run(DType::kBF16, turned ? &angles : nullptr);
        const Gradients f32 = run(DType::kF32, turned ? &angles : nullptr);
        for (std::size_t i = 0; i < 3; ++i) {
          EXPECT_TRUE(same_bits(ctx().fetch(f32[i]), ctx().fetch(wide[i]))) << i << " " << dim;
          EXPECT_TRUE(same_bits(ctx().fetch(got[i]), ctx().fetch(ops::converted(ctx(), wide[i], DType::kBF16))))
              << i << " " << dim << " " << turned << " " << cuda::to_string(path);
        }
      }
    }
}

TEST_F(CudaAttentionBackward, ABatchHasTheBitsOfEachSequenceAlone) {
  for (const Path path : {Path::kAuto, Path::kPlain})
    for (const Index dim : {64, 128, 40})
      for (const DType type : {DType::kBF16, DType::kF32}) {
        const Forced forced(path);
        const Sequences all(type, shape_of(4, 2, dim), {65, 1, 300, 0, 128, 17, 257}, 9);
        const Gradients got = all.run(ctx());
        for (std::size_t i = 0; i < all.lengths.size(); ++i) {
          if (all.lengths[i] == 0) continue;
          const Sequences alone(all, i);
          const Index first = all.slices[i].first_row, last = first + all.lengths[i];
          EXPECT_TRUE(
              same(alone.run(ctx()), {got[0].rows(first, last), got[1].rows(first, last), got[2].rows(first, last)}))
              << "sequence " << i << ", head_dim " << dim;
        }
      }
}

// The columns of one head, as a tensor.
Tensor head_of(const Tensor& x, Index head, Index dim) {
  Tensor out(x.dtype(), {x.dim(0), dim});
  const std::size_t bytes = static_cast<std::size_t>(dim) * size_of(x.dtype()),
                    stride = x.bytes() / static_cast<std::size_t>(x.dim(0));
  for (Index i = 0; i < x.dim(0); ++i)
    std::memcpy(
        static_cast<char*>(out.raw_mutable()) + static_cast<std::size_t>(i) * bytes,
        static_cast<const char*>(x.raw()) + static_cast<std::size_t>(i) * stride + static_cast<std::size_t>(head) * bytes,
        bytes);
  return out;
}

// So many heads of so long a sequence do not fit in the memory for dS at once.
TEST_F(CudaAttentionBackward, HeadsThatTakeSeveralLaunchesHaveTheBitsOfEachAlone) {
  constexpr Index kHeads = 24, kDim = 64, kLength = 8192;
  const Sequences all(DType::kBF16, shape_of(kHeads, kHeads, kDim), {kLength}, 4);
  const Gradients got = all.run(ctx());
  for (const Index head : {0, 11, 23}) {
    Sequences alone(DType::kBF16, shape_of(1, 1, kDim), {kLength}, 4);
    alone.q = head_of(all.q, head, kDim), alone.dout = head_of(all.dout, head, kDim);
    alone.k = head_of(all.k, head, kDim), alone.v = head_of(all.v, head, kDim);
    EXPECT_TRUE(
        same(alone.run(ctx()), {head_of(got[0], head, kDim), head_of(got[1], head, kDim), head_of(got[2], head, kDim)}))
        << head;
  }
}

// One key far ahead of all others: the softmax has no slope there, whatever the size of the scores.
TEST_F(CudaAttentionBackward, HugeScoresHaveNoSlope) {
  const AttentionShape shape = shape_of(1, 1, 64);
  for (const Path path : {Path::kAuto, Path::kPlain}) {
    const Forced forced(path);
    Sequences c(DType::kBF16, shape, {300}, 1);
    Tensor q = Tensor::zeros(DType::kF32, {300, 64}), k = Tensor::zeros(DType::kF32, {300, 64});
    for (Index t = 0; t < 300; ++t) {
      q.data<float>()[64 * t] = 0x1p20f;
      k.data<float>()[64 * t] = t == 0 ? 0x1p20f : t % 2 ? -0x1p20f : 0x1p19f;
    }
    c.q = q.to(DType::kBF16), c.k = k.to(DType::kBF16);
    const Gradients got = c.run(ctx());
    for (Index i = 0; i < got[2].numel(); ++i)
      ASSERT_TRUE(std::isfinite(value(got[0], i)) && std::isfinite(value(got[1], i)));
    for (Index i = 64; i < got[2].numel(); ++i) ASSERT_EQ(value(got[2], i), 0) << i;  // the first key has it all
  }
}

// Negative control of the comparison: another gradient of the result is another gradient.
TEST_F(CudaAttentionBackward, AnotherSlopeIsSeen) {
  const Sequences c(DType::kBF16, shape_of(2, 1, 128), {200}, 5);
  Sequences other = c;
  for (std::size_t i = 0; i < other.slices.size(); ++i) other.slices[i].tiles = other.tiles[i];
  other.dout = random_tensor(DType::kBF16, c.dout.shape(), 77);
  const Gradients a = c.run(ctx()), b = other.run(ctx());
  for (std::size_t i = 0; i < 3; ++i) EXPECT_FALSE(close(a[i], b[i], 0.5)) << i;
}

TEST_F(CudaAttentionBackward, NoTokens) {
  const Sequences c(DType::kBF16, shape_of(2, 1, 64), {0}, 1);
  EXPECT_EQ(c.run(ctx())[0].numel(), 0);
}

}  // namespace
}  // namespace dsmoe::test
