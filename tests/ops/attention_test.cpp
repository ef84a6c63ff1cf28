#include "ops/attention.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <memory>
#include <vector>

#include "ops/linear.h"
#include "ops/quantize.h"
#include "support/expect_error.h"
#include "support/finite_differences.h"
#include "support/random_tensor.h"
#include "support/sanitized.h"
#include "support/tolerance.h"

namespace dsmoe {
namespace {

using ops::AttentionShape;
using test::limit;
using test::random_tensor;

AttentionShape shape_of(Index heads, Index kv_heads, Index dim) {
  return {heads, kv_heads, dim, 1 / std::sqrt(static_cast<float>(dim))};
}

// A sequence whose tiles lie one after another from a row on.
struct OneSlice {
  OneSlice(Index first_row, Index rows, Index first_position, Index cache_row) {
    for (Index i = 0; i < ops::Slice::tiles_of(first_position + rows); ++i)
      tiles.push_back(cache_row + i * ops::kAttentionTile);
    slice = {first_row, rows, first_position, tiles};
  }
  OneSlice(const OneSlice&) = delete;
  operator ops::Slices() const { return std::span(&slice, 1); }

  std::vector<Index> tiles;
  ops::Slice slice;
};

// A cache of `length` valid rows; the rows after them are NaN and must not be read.
struct Case {
  AttentionShape shape;
  Tensor q, k, v, dout;

  Case(DType type, AttentionShape s, Index length, std::uint64_t seed) : shape(s) {
    q = random_tensor(type, {length, s.heads * s.head_dim}, seed);
    dout = random_tensor(type, {length, s.heads * s.head_dim}, seed + 1);
    k = cache(type, length, seed + 2);
    v = cache(type, length, seed + 3);
  }

  Tensor cache(DType type, Index length, std::uint64_t seed) const {
    const Index width = shape.kv_heads * shape.head_dim;
    Tensor rows = random_tensor(DType::kF32, {length + 3, width}, seed);
    for (Index i = length * width; i < rows.numel(); ++i) rows.data<float>()[i] = NAN;
    return rows.to(type);
  }

  Index length() const { return q.dim(0); }

  struct Result {
    Tensor out, lse;
  };
  // Queries [first, last).
  Result forward(Context& ctx, Index first, Index last) const {
    Result r{Tensor(q.dtype(), {last - first, q.dim(1)}), Tensor(DType::kF32, {shape.heads, last - first})};
    ops::attention(ctx, shape, q.rows(first, last), k, v, OneSlice(0, last - first, first, 0), r.out, &r.lse);
    return r;
  }
  std::array<Tensor, 3> backward(Context& ctx) const {
    const Index n = length();
    const Result r = forward(ctx, 0, n);
    std::array<Tensor, 3> d{Tensor(DType::kF32, q.shape()), Tensor(DType::kF32, {n, k.dim(1)}),
                            Tensor(DType::kF32, {n, k.dim(1)})};
    ops::attention_backward(ctx, shape, q, k.rows(0, n), v.rows(0, n), OneSlice(0, n, 0, 0), r.out, r.lse, dout, d[0], d[1],
                            d[2]);
    return d;
  }
};

// Groups of 1 to 4 heads, head_dim 2 to 128.
AttentionShape random_shape(test::Draw& draw) {
  const Index kv_heads = draw.between(1, 3);
  return shape_of(kv_heads * draw.between(1, 4), kv_heads, 2 * draw.between(1, 64));
}

TEST(OpsAttention, CpuAgainstRef) {
  Context cpu(2), ref(1, Backend::kRef);
  test::Draw draw(51);
  for (std::uint64_t round = 0; round < test::rounds(24u); ++round) {
    const DType type = round % 2 ? DType::kBF16 : DType::kF32;
    const AttentionShape shape = random_shape(draw);
    const Index tokens = round % 4 < 2 ? draw.between(1, 70) : draw.between(1, 3),
                before = round % 3 ? draw.between(0, 600) : 0;
    const Case c(type, shape, before + tokens, round);
    const auto got = c.forward(cpu, before, before + tokens), want = c.forward(ref, before, before + tokens);
    // Scores, sums over keys, and probabilities that are rounded to storage as well as the result.
    const Index length = shape.head_dim + before + tokens;
    EXPECT_TRUE(test::close(got.out, want.out, 2 * limit(type, length)))
        << shape.heads << "/" << shape.kv_heads << " x " << shape.head_dim << ", " << before << " + " << tokens;
    EXPECT_TRUE(test::close(got.lse, want.lse, limit(DType::kF32, length)));
  }
}

// Rows of f32 as a cache keeps them.
Tensor stored(Context& ctx, const Tensor& rows, DType type) {
  Tensor cache(type, rows.shape());
  ops::store_rows(ctx, rows, OneSlice(0, rows.dim(0), 0, 0), cache);
  return cache;
}

Tensor widened(const Tensor& x) {
  if (!is_quantized(x.dtype())) return x.to(DType::kF32);
  Tensor wide(DType::kF32, x.shape());
  ops::dequantize_row(x.dtype(), x.raw(), wide.span<float>());
  return wide;
}

// A cache of bf16 or q8_0 under f32 queries: the attention over the numbers that it stands for, bit by bit, for few rows
// and many; the same blocks from both backends.
TEST(OpsAttention, ANarrowerCacheIsComputedWithAsF32) {
  Context cpu(2), ref(1, Backend::kRef);
  for (const DType type : {DType::kBF16, DType::kQ8_0}) {
    for (const AttentionShape& shape : {shape_of(4, 2, 32), shape_of(3, 3, 64), shape_of(8, 1, 128)}) {
      const Index length = 300, width = shape.kv_heads * shape.head_dim;
      Case narrow(DType::kF32, shape, length, 11);
      const Tensor k = random_tensor(DType::kF32, {length, width}, 12), v = random_tensor(DType::kF32, {length, width}, 13);
      narrow.k = stored(cpu, k, type), narrow.v = stored(cpu, v, type);
      EXPECT_TRUE(test::same_bits(narrow.k, stored(ref, k, type)));
      EXPECT_EQ(narrow.k.bytes(), static_cast<std::size_t>(length) * row_bytes(type, width));
      Case wide = narrow;
      wide.k = widened(narrow.k), wide.v = widened(narrow.v);
      EXPECT_TRUE(test::close(wide.k, k, type == DType::kBF16 ? 0.004 : 0.01)) << "half a step of 1/128; of 1/127";
      const auto all = narrow.forward(cpu, 0, length);
      EXPECT_TRUE(test::same_bits(all.out, wide.forward(cpu, 0, length).out));
      EXPECT_TRUE(
          test::close(all.out, narrow.forward(ref, 0, length).out, 2 * limit(DType::kF32, length + shape.head_dim)));
      for (const auto& [first, last] : {std::pair<Index, Index>{0, 1}, {255, 257}, {256, 300}, {299, 300}})
        EXPECT_TRUE(test::same_bits(narrow.forward(cpu, first, last).out, all.out.rows(first, last))) << first;
    }
  }
}

TEST(OpsAttention, RefusesCachesThatItCannotRead) {
  Context ctx(1);
  Case c(DType::kF32, shape_of(2, 2, 16), 4, 1);  // two heads of 16 are one block
  c.k = c.v = stored(ctx, random_tensor(DType::kF32, {4, 32}, 1), DType::kQ8_0);
  EXPECT_TRUE(testing::throws_error([&] { c.forward(ctx, 0, 4); }, {"heads of 16", "q8_0"}));
  Case narrow(DType::kBF16, shape_of(1, 1, 32), 4, 1);
  narrow.k = narrow.v = c.k;
  EXPECT_TRUE(testing::throws_error([&] { narrow.forward(ctx, 0, 4); }, {"q8_0", "bf16 queries"}));
}

TEST(OpsAttention, BackwardAgainstRef) {
  Context cpu(2), ref(1, Backend::kRef);
  test::Draw draw(52);
  for (std::uint64_t round = 0; round < 12; ++round) {
    const DType type = round % 2 ? DType::kBF16 : DType::kF32;
    const AttentionShape shape = round < 10 ? random_shape(draw) : shape_of(3, 1, 6);
    const Case c(type, shape, round < 10 ? draw.between(1, 70) : 600, round);
    const auto got = c.backward(cpu), want = c.backward(ref);
    // A chain of three: the scores' rounding, that of p and out (stored), and that of ds.
    for (std::size_t i = 0; i < 3; ++i)
      EXPECT_TRUE(test::close(got[i], want[i], 3 * limit(type, c.length() + shape.head_dim)))
          << std::array{"dq ", "dk ", "dv "}[i] << shape.heads << "/" << shape.kv_heads << " x " << shape.head_dim << ", "
          << c.length();
  }
}

TEST(OpsAttention, OneGoChunksAndTokensGiveTheSameBits) {
  for (const DType type : {DType::kF32, DType::kBF16}) {
    for (const AttentionShape& shape : {shape_of(2, 2, 20), shape_of(6, 2, 16)}) {
      const Index length = 600;
      const Case c(type, shape, length, 7);
      Context one(1), three(3);
      const auto want = c.forward(one, 0, length);
      const auto expect_same = [&](Context& ctx, Index first, Index last) {
        const auto got = c.forward(ctx, first, last);
        EXPECT_TRUE(test::same_bits(got.out, want.out.rows(first, last))) << first << " to " << last;
        for (Index h = 0; h < shape.heads; ++h)
          for (Index t = first; t < last; ++t)
            ASSERT_EQ(got.lse.data<float>()[h * (last - first) + t - first], want.lse.data<float>()[h * length + t]);
      };
      expect_same(three, 0, length);
      for (const Index size : {64, 256, 257})
        for (Index first = 0; first < length; first += size) expect_same(three, first, std::min(length, first + size));
      for (Index first = 250; first < 265; first += 3) expect_same(three, first, first + 3);
      for (const Index t : {0, 1, 127, 255, 256, 257, 511, 512, 599}) {  // one thread: by heads; three: by tiles
        expect_same(one, t, t + 1);
        expect_same(three, t, t + 1);
      }
    }
  }
}

// Latent attention: one wide head of keys for all, which are the values, too.
TEST(OpsAttention, WideKeysThatAreTheValues) {
  Context cpu(2), one(1), five(5), ref(1, Backend::kRef);  // more threads take fewer heads each
  for (const DType type : {DType::kF32, DType::kBF16}) {
    for (const AttentionShape& shape : {shape_of(3, 1, 576), shape_of(20, 1, 288), shape_of(128, 1, 40)}) {
      Case c(type, shape, 300, 8);
      c.v = c.k;
      const auto all = c.forward(cpu, 0, 300);
      const double length = static_cast<double>(300 + shape.head_dim);
      EXPECT_TRUE(test::close(all.out, c.forward(ref, 0, 300).out, 2 * limit(type, static_cast<Index>(length))));
      for (const auto& [first, last] : {std::pair<Index, Index>{0, 1}, {1, 9}, {250, 260}, {299, 300}})
        for (Context* const ctx : {&one, &five})
          EXPECT_TRUE(test::same_bits(c.forward(*ctx, first, last).out, all.out.rows(first, last))) << first;
      // Of a result only the first numbers are made: the same, whatever path they take, and finite ones beside them.
      Case some = c;
      some.shape.values = shape.head_dim - 8;
      for (const auto& [first, last] : {std::pair<Index, Index>{0, 300}, {0, 1}, {250, 260}, {299, 300}})
        for (Context* const ctx : {&one, &five}) {
          const Tensor out = some.forward(*ctx, first, last).out;
          Index different = 0, infinite = 0;
          for (Index i = 0; i < out.numel(); ++i) {
            const double got = test::value(out, i), want = test::value(all.out, first * out.dim(1) + i);
            i % shape.head_dim < some.shape.values ? different += got != want : infinite += !std::isfinite(got);
          }
          EXPECT_TRUE(different == 0 && infinite == 0) << first << " " << different << " " << infinite;
        }
      const Case part(type, shape, 40, 9);
      const auto got = part.backward(cpu), want = part.backward(ref);
      for (std::size_t i = 0; i < 3; ++i) EXPECT_TRUE(test::close(got[i], want[i], 3 * limit(type, 40 + shape.head_dim)));
    }
  }
}

TEST(OpsAttention, GradientsHaveTheSameBitsForAnyNumberOfThreads) {
  for (const DType type : {DType::kF32, DType::kBF16}) {
    const Case c(type, shape_of(4, 2, 10), 600, 3);
    Context one(1);
    const auto want = c.backward(one);
    for (const int threads : {2, 3}) {  // heads for two threads, too few of them for three
      Context ctx(threads);
      const auto got = c.backward(ctx);
      for (std::size_t i = 0; i < 3; ++i) EXPECT_TRUE(test::same_bits(got[i], want[i])) << threads << " " << i;
    }
  }
}

TEST(OpsAttention, BackwardAgainstFiniteDifferences) {
  for (const Backend backend : {Backend::kCpu, Backend::kRef}) {
    Context ctx(1, backend);
    Case c(DType::kF32, shape_of(4, 2, 4), 5, 1);
    c.k = c.k.rows(0, 5), c.v = c.v.rows(0, 5);
    const auto got = c.backward(ctx);
    const auto objective = [&] { return test::inner_product(c.forward(ctx, 0, 5).out, c.dout); };
    EXPECT_TRUE(test::close(got[0], test::finite_differences(c.q, objective), test::difference_limit(c.q.numel())));
    EXPECT_TRUE(test::close(got[1], test::finite_differences(c.k, objective), test::difference_limit(c.q.numel())));
    EXPECT_TRUE(test::close(got[2], test::finite_differences(c.v, objective), test::difference_limit(c.q.numel())));
  }
}

// The largest score by far lies in the first tile, in a later one, or is the query's own.
TEST(OpsAttention, HugeScoresPickOneKey) {
  Context ctx(2);
  for (const DType type : {DType::kF32, DType::kBF16}) {
    for (const Index best : {0, 100, 300, 520}) {
      Case c(type, shape_of(1, 1, 2), 521, 1);
      Tensor q = Tensor::zeros(DType::kF32, {521, 2}), k = Tensor::zeros(DType::kF32, {521, 2});
      for (Index t = 0; t < 521; ++t) {
        q.data<float>()[2 * t] = 1e15f;
        k.data<float>()[2 * t] = t == best ? 1e15f : t % 2 ? -1e15f : 5e14f;
      }
      c.q = q.to(type), c.k = k.to(type), c.v = c.v.rows(0, 521);
      const auto got = c.forward(ctx, 520, 521);
      EXPECT_TRUE(test::close(got.out, c.v.rows(best, best + 1), 0)) << best;
    }
  }
}

TEST(OpsAttention, NanDoesNotTurnIntoANumberNorStay) {
  Context ctx(1);
  for (const DType type : {DType::kF32, DType::kBF16}) {
    Case c(type, shape_of(1, 1, 4), 300, 1);
    Tensor q = c.q.to(DType::kF32).clone();
    q.data<float>()[299 * 4 + 1] = NAN;
    c.q = q.to(type);
    const auto got = c.forward(ctx, 299, 300);
    for (Index i = 0; i < 4; ++i) EXPECT_TRUE(std::isnan(test::value(got.out, i)));
    // The workers' memory still holds it; an odd number of keys must not read what lies after them.
    const auto after = c.forward(ctx, 100, 101);
    for (Index i = 0; i < 4; ++i) EXPECT_TRUE(std::isfinite(test::value(after.out, i)));
  }
}

TEST(OpsAttention, NoTokens) {
  Context ctx(2);
  const Case c(DType::kF32, shape_of(2, 1, 4), 0, 1);
  EXPECT_EQ(c.forward(ctx, 0, 0).out.numel(), 0);
  EXPECT_EQ(c.backward(ctx)[0].numel(), 0);
}

// Sequences of a batch, with their tiles in any order in one cache; the cache's other rows are NaN.
struct Batch {
  AttentionShape shape;
  std::vector<Case> alone;
  std::vector<Index> before;  // tokens of each sequence that are in the cache already
  std::vector<std::vector<Index>> tiles;
  std::vector<ops::Slice> slices;
  Tensor q, k, v;

  Batch(DType type, AttentionShape s, test::Draw& draw, Index sequences) : shape(s) {
    std::vector<Index> places;
    Index rows = 0;
    for (Index i = 0; i < sequences; ++i) {
      before.push_back(draw(3) ? draw.between(0, 600) : 0);
      const Index count = draw(2) ? draw.between(1, 3) : draw.between(0, 150);
      alone.emplace_back(type, s, before.back() + count, 1000 + static_cast<std::uint64_t>(10 * i));
      for (Index t = 0; t < ops::Slice::tiles_of(alone.back().length()); ++t)
        places.push_back(static_cast<Index>(places.size()) * ops::kAttentionTile);
      rows += count;
    }
    for (std::size_t i = places.size(); i > 1; --i)
      std::swap(places[i - 1], places[static_cast<std::size_t>(draw(static_cast<Index>(i)))]);
    const Index width = s.kv_heads * s.head_dim, all = static_cast<Index>(places.size()) * ops::kAttentionTile;
    Tensor nothing(DType::kF32, {all, width});
    std::fill_n(nothing.data<float>(), nothing.numel(), NAN);
    k = nothing.to(type).clone(), v = nothing.to(type).clone(), q = Tensor(type, {rows, s.heads * s.head_dim});
    rows = 0;
    for (std::size_t i = 0; i < alone.size(); ++i) {
      const Index length = alone[i].length(), count = length - before[i];
      const auto own = static_cast<std::size_t>(ops::Slice::tiles_of(length));
      tiles.emplace_back(places.end() - static_cast<std::ptrdiff_t>(own), places.end());
      places.resize(places.size() - own);
      slices.push_back({rows, count, before[i], tiles.back()});
      Context ctx(1);
      const ops::Slice whole{0, length, 0, tiles.back()};
      ops::store_rows(ctx, alone[i].k.rows(0, length), {&whole, 1}, k);
      ops::store_rows(ctx, alone[i].v.rows(0, length), {&whole, 1}, v);
      if (count > 0)
        std::memcpy(q.rows(rows, rows + count).raw_mutable(), alone[i].q.rows(before[i], length).raw(),
                    q.rows(rows, rows + count).bytes());
      rows += count;
    }
  }

  Case::Result forward(Context& ctx) const {
    Case::Result r{Tensor(q.dtype(), q.shape()), Tensor(DType::kF32, {shape.heads, q.dim(0)})};
    ops::attention(ctx, shape, q, k, v, slices, r.out, &r.lse);
    return r;
  }
};

TEST(OpsAttention, ABatchHasTheBitsOfEachSequenceAlone) {
  test::Draw draw(53);
  Context three(3), one(1);
  for (int round = 0; round < test::rounds(8); ++round) {
    const Batch b(round % 2 ? DType::kBF16 : DType::kF32, random_shape(draw), draw, draw.between(1, 6));
    const auto got = b.forward(round % 3 ? three : one);
    for (std::size_t i = 0; i < b.alone.size(); ++i) {
      const ops::Slice& s = b.slices[i];
      const auto want = b.alone[i].forward(one, s.first_position, s.length());
      EXPECT_TRUE(test::same_bits(got.out.rows(s.first_row, s.first_row + s.rows), want.out)) << "sequence " << i;
      for (Index h = 0; h < b.shape.heads; ++h)
        for (Index t = 0; t < s.rows; ++t)
          ASSERT_EQ(got.lse.data<float>()[h * b.q.dim(0) + s.first_row + t], want.lse.data<float>()[h * s.rows + t]);
    }
  }
}

TEST(OpsAttention, ABatchWithTilesInAnyOrderAgainstRef) {
  test::Draw draw(54);
  Context cpu(2), ref(1, Backend::kRef);
  for (int round = 0; round < test::rounds(4); ++round) {
    const DType type = round % 2 ? DType::kBF16 : DType::kF32;
    const Batch b(type, random_shape(draw), draw, 4);
    const auto got = b.forward(cpu), want = b.forward(ref);
    EXPECT_TRUE(test::close(got.out, want.out, 2 * limit(type, b.shape.head_dim + 750)));
    EXPECT_TRUE(test::close(got.lse, want.lse, limit(DType::kF32, b.shape.head_dim + 750)));
  }
}

// The negative control: two tiles of other contents change places, and the result shows it.
// Negative control: without positions in the keys, attention does not know the order of tiles that it sees entirely, but
// their sums have another order then; and a wrong last tile is another result.
TEST(OpsAttention, TheWrongTileIsSeen) {
  for (const Index tokens : {1, 200}) {
    const Case c(DType::kF32, shape_of(4, 2, 64), 768 + tokens, 5);
    Context ctx(2);
    const Tensor want = c.forward(ctx, 768, 768 + tokens).out, q = c.q.rows(768, 768 + tokens);
    const auto with_tiles = [&](const std::vector<Index>& tiles) {
      const ops::Slice slice{0, tokens, 768, tiles};
      Tensor out(DType::kF32, want.shape());
      ops::attention(ctx, c.shape, q, c.k, c.v, {&slice, 1}, out);
      return out;
    };
    EXPECT_TRUE(test::close(with_tiles({512, 256, 0, 768}), want, limit(DType::kF32, 768 + tokens)));
    EXPECT_FALSE(test::same_bits(with_tiles({512, 256, 0, 768}), want));
    EXPECT_FALSE(test::close(with_tiles({0, 256, 512, 512}), want, 0.01));
  }
}

TEST(OpsAttention, RowsGoToTheTilesOfTheirPositions) {
  for (const Backend backend : {Backend::kCpu, Backend::kRef}) {
    for (const DType to : {DType::kF32, DType::kBF16}) {
      Context ctx(2, backend);
      const Tensor rows = random_tensor(DType::kF32, {7, 6}, 1), want = rows.to(to);
      Tensor cache = Tensor::zeros(to, {1024, 6});
      const std::vector<Index> a = {512, 0}, b = {256};
      const ops::Slice slices[] = {{0, 4, 254, a}, {4, 3, 0, b}};  // the first crosses into its second tile
      ops::store_rows(ctx, rows, slices, cache);
      const Index places[] = {512 + 254, 512 + 255, 0, 1, 256, 257, 258};
      for (Index t = 0; t < 7; ++t)
        EXPECT_TRUE(test::same_bits(cache.rows(places[t], places[t] + 1), want.rows(t, t + 1))) << t;
      double rest = 0;
      for (Index i = 0; i < cache.numel(); ++i) rest += test::value(cache, i) != 0;
      EXPECT_EQ(rest, 7 * 6) << "and nothing else is written";
    }
  }
}

// Training: whole sequences one after another, of any lengths.
// The steps that it is made of, to the bit.
TEST(OpsAttention, ProjectAndStore) {
  const OneSlice slice(0, 9, 250, 256);
  for (const Backend backend : {Backend::kCpu, Backend::kRef})
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      Context ctx(2, backend);
      const ops::RopeAngles angles = ops::rope_angles(ctx, ops::Rope(16, 10000.0, {}, 4096), slice);
      const Tensor x = random_tensor(dtype, {9, 48}, 1), wq = random_tensor(dtype, {64, 48}, 2),
                   wk = random_tensor(dtype, {32, 48}, 3), wv = random_tensor(dtype, {32, 48}, 4);
      Tensor q(dtype, {9, 64}), k(dtype, {9, 32}), v(dtype, {9, 32});
      Tensor k_want = ctx.zeros(dtype, {768, 32}), v_want = k_want.clone(), k_got = k_want.clone(), v_got = k_want.clone();
      ops::linear(ctx, x, wq, q);
      ops::linear(ctx, x, wk, k);
      ops::linear(ctx, x, wv, v);
      ops::rotate_and_store(ctx, q, k, v, angles, slice, k_want, v_want);
      const Tensor got = ops::project_and_store(ctx, x, {wq, wk, wv}, angles, slice, k_got, v_got);
      EXPECT_EQ(std::memcmp(got.raw(), q.raw(), q.bytes()), 0);
      EXPECT_EQ(std::memcmp(k_got.raw(), k_want.raw(), k_want.bytes()), 0);
      EXPECT_EQ(std::memcmp(v_got.raw(), v_want.raw(), v_want.bytes()), 0);
      // And with a residual sum and a norm before.
      const Tensor weight = random_tensor(DType::kF32, {48}, 6), start = random_tensor(DType::kF32, {9, 48}, 7);
      Tensor sum = start.clone(), again = start;
      const Tensor h = ops::add_rms_norm(ctx, {x, sum, weight, 1e-6f, dtype, false});
      const Tensor q_want = ops::project_and_store(ctx, h, {wq, wk, wv}, angles, slice, k_want, v_want);
      const ops::AddNorm both{x, again, weight, 1e-6f, dtype, true};
      EXPECT_TRUE(test::same_bits(ops::project_and_store(ctx, both, {wq, wk, wv}, angles, slice, k_got, v_got), q_want));
      EXPECT_TRUE(test::same_bits(again, sum));
      EXPECT_TRUE(test::same_bits(k_got, k_want));
      EXPECT_TRUE(test::same_bits(v_got, v_want));
      EXPECT_TRUE(test::same_bits(start, random_tensor(DType::kF32, {9, 48}, 7)));
      const Tensor other = random_tensor(dtype, {32, 40}, 5);
      const auto wrong = [&] { ops::project_and_store(ctx, x, {wq, other, wv}, angles, slice, k_got, v_got); };
      EXPECT_TRUE(testing::throws_error(wrong, {"[project_and_store]", "48"}, ErrorCode::kInvalidArgument));
    }
}

TEST(OpsAttention, BackwardOverABatch) {
  test::Draw draw(55);
  for (int round = 0; round < 8; ++round) {
    const DType type = round % 2 ? DType::kBF16 : DType::kF32;
    const AttentionShape shape = round < 6 ? random_shape(draw) : shape_of(3, 1, 6);  // one head: fewer than threads
    std::vector<std::unique_ptr<OneSlice>> owners;
    std::vector<ops::Slice> slices;
    Index rows = 0;
    for (Index i = 0, n = round < 6 ? draw.between(1, 5) : 2; i < n; ++i) {
      const Index length = round < 6 ? draw.between(i == 1 ? 0 : 1, 90) : 300;
      owners.push_back(std::make_unique<OneSlice>(rows, length, 0, rows));
      slices.push_back(owners.back()->slice);
      rows += length;
    }
    const Case all(type, shape, rows, static_cast<std::uint64_t>(round));
    const Tensor k = all.k.rows(0, rows), v = all.v.rows(0, rows);
    const auto run = [&](Context& ctx) {
      Tensor out(type, all.q.shape()), lse(DType::kF32, {shape.heads, rows});
      ops::attention(ctx, shape, all.q, k, v, slices, out, &lse);
      std::array<Tensor, 3> d{Tensor(DType::kF32, all.q.shape()), Tensor(DType::kF32, k.shape()),
                              Tensor(DType::kF32, v.shape())};
      ops::attention_backward(ctx, shape, all.q, k, v, slices, out, lse, all.dout, d[0], d[1], d[2]);
      return d;
    };
    Context one(1), four(4), ref(1, Backend::kRef);
    const auto got = run(four), other = run(one), want = run(ref);
    for (std::size_t i = 0; i < 3; ++i) {
      EXPECT_TRUE(test::same_bits(got[i], other[i])) << i;
      EXPECT_TRUE(test::close(got[i], want[i], 3 * limit(type, 300 + shape.head_dim))) << i;
    }
    for (const ops::Slice& s : slices) {  // the bits of the sequence alone
      Case alone = all;
      const Index end = s.first_row + s.rows;
      alone.q = all.q.rows(s.first_row, end), alone.dout = all.dout.rows(s.first_row, end);
      alone.k = k.rows(s.first_row, end), alone.v = v.rows(s.first_row, end);
      const auto single = alone.backward(one);
      for (std::size_t i = 0; i < 3; ++i) EXPECT_TRUE(test::same_bits(got[i].rows(s.first_row, end), single[i])) << i;
    }
  }
}

TEST(OpsAttention, RefusesWhatDoesNotFit) {
  Context ctx(1);
  const Case c(DType::kF32, shape_of(4, 2, 4), 5, 1);  // a cache of 8
  Tensor out(DType::kF32, {5, 16}), lse(DType::kF32, {5, 4}), wrong(DType::kBF16, {5, 16}), kv(DType::kF32, {5, 8});
  const auto run = [&](AttentionShape shape, const Tensor& q, const ops::Slice& slice, Tensor& to, Tensor* l) {
    return [&ctx, &c, shape, &q, slice, &to, l] { ops::attention(ctx, shape, q, c.k, c.v, {&slice, 1}, to, l); };
  };
  const std::vector<Index> first = {0}, later = {4}, negative = {-1};
  const ops::Slice good{0, 5, 0, first};
  const auto refuses = [&](const ops::Slice& slice, std::initializer_list<std::string_view> words) {
    EXPECT_TRUE(testing::throws_error(run(c.shape, c.q, slice, out, nullptr), words));
  };
  refuses({0, 5, 4, first}, {"9 tokens", "row 0", "cache of 8"});
  refuses({0, 5, 0, later}, {"5 tokens", "row 4", "cache of 8"});
  refuses({0, 5, 0, negative}, {"row -1"});
  refuses({0, 5, -1, first}, {"position -1"});
  refuses({0, 5, 252, first}, {"need 2 tiles", "has 1"});
  refuses({0, 4, 0, first}, {"slices have 4 rows", "batch 5"});
  refuses({0, 6, 0, first}, {"6 rows", "of 5"});
  refuses({1, 4, 0, first}, {"row 1", "follow"});
  EXPECT_TRUE(testing::throws_error(run(c.shape, c.q, good, wrong, nullptr), {"out is bf16"}));
  EXPECT_TRUE(testing::throws_error(run(c.shape, c.q, good, out, &lse), {"lse is f32 [5, 4]", "[4, 5]"}));
  EXPECT_TRUE(testing::throws_error(run(shape_of(4, 3, 4), c.q, good, out, nullptr), {"4 heads, 3 key/value heads"}));
  EXPECT_TRUE(testing::throws_error(run(shape_of(2, 2, 4), c.q, good, out, nullptr), {"q is f32 [5, 16]", "[5, 8]"}));
  EXPECT_TRUE(testing::throws_error(run({4, 2, 4, 0.0f}, c.q, good, out, nullptr), {"scale is 0"}));
  Tensor good_lse(DType::kF32, {4, 5}), dq(DType::kF32, {5, 16}), dk(DType::kF32, {5, 8}), dv(DType::kF32, {5, 8});
  Tensor wide(DType::kF32, {5, 16}), cache(DType::kF32, {4, 8});
  const auto backward = [&](const ops::Slices& slices, Tensor& to) {
    return [&, slices] { ops::attention_backward(ctx, c.shape, c.q, kv, kv, slices, out, good_lse, c.dout, dq, dk, to); };
  };
  EXPECT_TRUE(testing::throws_error(backward({&good, 1}, wide), {"dv is f32 [5, 16]"}));
  const ops::Slice two[] = {{0, 2, 0, first}, {2, 3, 0, first}};
  EXPECT_TRUE(testing::throws_error(backward(two, dv), {"row 2", "begins at row 0", "the slice itself"}));
  EXPECT_TRUE(testing::throws_error([&] { ops::store_rows(ctx, kv, {&good, 1}, cache); }, {"cache of 4"}));
}

}  // namespace
}  // namespace dsmoe
