// Attention on a GPU against ops/ref, and the promise that a query's bits depend on its own keys and values alone.
#include "ops/attention.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <vector>

#include "cuda/ops/attention_batch.h"
#include "ops/mixed.h"
#include "ops/quantize.h"
#include "support/expect_error.h"
#include "support/random_tensor.h"
#include "support/tolerance.h"

namespace dsmoe::test {
namespace {

using cuda::Path;

using Part = TextPart;
using Batch = AttentionBatch;

class CudaAttention : public GpuTest {
 protected:
  Batch::Result run(const AttentionShape& s, const std::vector<Part>& parts) { return Batch(s, parts, draw_).run(ctx()); }
  Draw draw_{71};
};

// Groups of 1, 2 and 8 heads; the sizes that tensor cores take, and another.
AttentionShape random_shape(Draw& draw) {
  const Index kv_heads = draw.between(1, 3), groups[] = {1, 2, 8}, dims[] = {64, 128, 40};
  return shape_of(kv_heads * groups[draw(3)], kv_heads, dims[draw(3)]);
}

TEST_F(CudaAttention, MatchesReference) {
  Context ref(1, Backend::kRef);
  for (std::uint64_t round = 0; round < 24; ++round) {
    const DType type = round % 4 ? DType::kBF16 : DType::kF32;
    const AttentionShape shape = random_shape(draw_);
    std::vector<Text> texts;
    std::vector<Part> parts;
    Index longest = 0;
    for (Index i = 0, n = draw_.between(1, 4); i < n; ++i) {
      const Index before = draw_(3) ? draw_.between(0, 400) : 0,
                  count = draw_(2) ? draw_.between(0, 16) : draw_.between(17, 200);
      texts.emplace_back(type, shape, before + count, 100 * round + 10 * static_cast<std::uint64_t>(i));
      parts.push_back({nullptr, before, before + count});
      longest = std::max(longest, before + count);
    }
    for (std::size_t i = 0; i < parts.size(); ++i) parts[i].text = &texts[i];
    const Batch batch(shape, parts, draw_);
    const auto want = batch.run(ref);
    for (const Path path : {Path::kAuto, Path::kMma, Path::kPlain}) {
      if (type == DType::kF32 && path != Path::kAuto) continue;
      const Forced forced(path);
      const auto got = batch.run(ctx());
      // Scores, sums over keys, and weights that are rounded to storage as well as the result.
      const Index length = shape.head_dim + longest;
      EXPECT_TRUE(close(got.out, want.out, 2 * limit(type, length)))
          << shape.heads << "/" << shape.kv_heads << " x " << shape.head_dim << " " << to_string(type) << " "
          << cuda::to_string(path);
      // The sum of rounded weights.
      EXPECT_TRUE(close(got.lse, want.lse, limit(type, length)));
    }
  }
}

// The reference takes q8_0 as it is; tensor cores take it rounded to bf16, which is one more rounding of every number.
TEST_F(CudaAttention, QuantizedCacheMatchesReference) {
  Context ref(1, Backend::kRef);
  for (std::uint64_t round = 0; round < 24; ++round) {
    const DType type = round % 4 ? DType::kBF16 : DType::kF32;
    const Index kv_heads = draw_.between(1, 3), groups[] = {1, 2, 8}, dims[] = {64, 128, 32, 96};
    const AttentionShape shape = shape_of(kv_heads * groups[draw_(3)], kv_heads, dims[draw_(4)]);
    std::vector<Text> texts;
    std::vector<Part> parts;
    Index longest = 0;
    for (Index i = 0, n = draw_.between(1, 4); i < n; ++i) {
      const Index before = draw_(3) ? draw_.between(0, 400) : 0,
                  count = draw_(2) ? draw_.between(0, 16) : draw_.between(17, 200);
      texts.emplace_back(type, DType::kQ8_0, shape, before + count, 100 * round + 10 * static_cast<std::uint64_t>(i));
      parts.push_back({nullptr, before, before + count});
      longest = std::max(longest, before + count);
    }
    for (std::size_t i = 0; i < parts.size(); ++i) parts[i].text = &texts[i];
    const Batch batch(shape, parts, draw_);
    const auto want = batch.run(ref);
    for (const Path path : {Path::kAuto, Path::kMma, Path::kPlain}) {
      if (type == DType::kF32 && path != Path::kAuto) continue;
      const Forced forced(path);
      const auto got = batch.run(ctx());
      const Index length = shape.head_dim + longest;
      EXPECT_TRUE(close(got.out, want.out, 3 * limit(type, length)))
          << shape.heads << "/" << shape.kv_heads << " x " << shape.head_dim << " " << to_string(type) << " "
          << cuda::to_string(path);
      EXPECT_TRUE(close(got.lse, want.lse, 2 * limit(type, length)));
    }
  }
}

// What a block stands for, rounded to bf16, gives the same bits from a cache of bf16.
TEST_F(CudaAttention, QuantizedCacheHasTheBitsOfTheUnpackedOne) {
  for (const Index dim : {64, 128}) {
    const AttentionShape shape = shape_of(4, 2, dim);
    const Text blocks(DType::kBF16, DType::kQ8_0, shape, 500, 3);
    Text plain = blocks;
    plain.k = ops::dequantized(blocks.k, DType::kBF16), plain.v = ops::dequantized(blocks.v, DType::kBF16);
    for (const Index first : {0, 499, 490, 300}) {
      const auto got = run(shape, {{&blocks, first, 500}}), want = run(shape, {{&plain, first, 500}});
      EXPECT_TRUE(same_rows(got, 0, 500 - first, want, 0)) << dim << " from " << first;
    }
  }
}

// Up to 16 rows are split over their keys, more are blocks of 128 queries: chunks of all sizes mix both.
TEST_F(CudaAttention, OneGoChunksAndTokensGiveTheSameBits) {
  constexpr Index kLength = 700;
  for (const auto& [dim, cache] : {std::pair{64, DType::kBF16},
                                   {128, DType::kBF16},
                                   {40, DType::kBF16},
                                   {64, DType::kQ8_0},
                                   {128, DType::kQ8_0},
                                   {32, DType::kQ8_0}})
    for (const Index group : {1, 2, 8}) {
      const AttentionShape shape = shape_of(group * (group == 1 ? 3 : 1), group == 1 ? 3 : 1, dim);
      const Text text(DType::kBF16, cache, shape, kLength, 5);
      for (const Path path : {Path::kAuto, Path::kMma, Path::kPlain}) {
        SCOPED_TRACE(::testing::Message() << "head_dim " << dim << " " << to_string(cache) << ", groups of " << group
                                          << ", " << cuda::to_string(path));
        const Forced forced(path);
        const auto want = run(shape, {{&text, 0, kLength}});
        for (Index first = 0, last; first < kLength; first = last) {
          last = std::min(kLength, first + draw_.between(1, draw_(2) ? 20 : 300));
          const auto got = run(shape, {{&text, first, last}});
          ASSERT_TRUE(same_rows(got, 0, last - first, want, first)) << first << " to " << last;
        }
        std::vector<Part> tokens;  // each beside all others
        for (Index t = 0; t < kLength; t += t % 64 < 3 || t % 64 > 60 ? 1 : 7) tokens.push_back({&text, t, t + 1});
        const auto got = run(shape, tokens);
        for (std::size_t i = 0; i < tokens.size(); ++i)
          ASSERT_TRUE(same_rows(got, static_cast<Index>(i), 1, want, tokens[i].first)) << "token " << tokens[i].first;
      }
    }
}

TEST_F(CudaAttention, LengthsAroundTheEdgesOfTiles) {
  for (const DType type : {DType::kBF16, DType::kF32})
    for (const Index dim : {64, 128}) {
      const AttentionShape shape = shape_of(4, 2, dim);
      const Text text(type, shape, 1000, 6);
      const auto want = run(shape, {{&text, 0, 1000}});
      for (const Index length : {1, 2, 15, 16, 17, 31, 33, 63, 64, 65, 127, 128, 129, 255, 256, 257, 1000}) {
        const auto whole = run(shape, {{&text, 0, length}}), last = run(shape, {{&text, length - 1, length}});
        EXPECT_TRUE(same_rows(whole, 0, length, want, 0)) << length;
        EXPECT_TRUE(same_rows(last, 0, 1, want, length - 1)) << length;
      }
    }
}

TEST_F(CudaAttention, ABatchHasTheBitsOfEachSequenceAlone) {
  for (std::uint64_t round = 0; round < 10; ++round) {
    const AttentionShape shape = random_shape(draw_);
    const DType type = round % 5 ? DType::kBF16 : DType::kF32;
    std::vector<Text> texts;
    for (std::uint64_t i = 0; i < 3; ++i) texts.emplace_back(type, shape, 600, 100 * round + 10 * i);
    std::vector<Part> parts;
    for (Index i = 0, n = draw_.between(2, 12); i < n; ++i) {
      const Index first = draw_.between(0, 599),
                  last = std::min<Index>(600, first + (draw_(2) ? 1 : draw_.between(0, 300)));
      parts.push_back({&texts[static_cast<std::size_t>(draw_(3))], first, last});
    }
    const auto got = run(shape, parts);
    Index row = 0;
    for (const Part& p : parts) {
      const auto alone = run(shape, {p});
      EXPECT_TRUE(same_rows(got, row, p.last - p.first, alone, 0)) << p.first << " to " << p.last;
      row += p.last - p.first;
    }
  }
}

// In a batch of many a block takes a run of several tiles, and what is left of long sequences is merged. The counters by
// which blocks find out that they end last serve the next launch, too.
TEST_F(CudaAttention, RunsOfTilesInALargeBatch) {
  constexpr Index kLength = 2300;
  for (const auto& [dim, cache] : {std::pair{64, DType::kBF16}, {128, DType::kBF16}, {128, DType::kQ8_0}})
    for (const Index group : {1, 8}) {
      SCOPED_TRACE(::testing::Message() << "head_dim " << dim << " " << to_string(cache) << ", groups of " << group);
      const AttentionShape shape = shape_of(2 * group, 2, dim);
      const Text text(DType::kBF16, cache, shape, kLength, 5);
      const auto want = run(shape, {{&text, 0, kLength}});
      std::vector<Part> parts;
      for (const Index first : {0, 127, 128, 1022, 1023, 1024, 1025, 1151, 1152, 2047, 2048, 2279})
        for (const Index rows : {1, 1, 1, 1, 1, 3, 16}) parts.push_back({&text, first, first + rows});
      const Batch batch(shape, parts, draw_);
      const ops::Slices slices = ops::placed(ctx(), batch.slices);
      const Tensor q = ctx().place(batch.q), k = ctx().place(batch.k), v = ctx().place(batch.v);
      for (int round = 0; round < 2; ++round) {
        Batch::Result got{ctx().place(Batch::nan_like(batch.q)),
                          ctx().place(Batch::nan_like(Tensor(DType::kF32, {shape.heads, q.dim(0)})))};
        ops::attention(ctx(), shape, q, k, v, slices, got.out, &got.lse);
        got = {ctx().fetch(got.out), ctx().fetch(got.lse)};
        Index row = 0;
        for (const Part& p : parts) {
          ASSERT_TRUE(same_rows(got, row, p.last - p.first, want, p.first)) << p.first << " to " << p.last;
          row += p.last - p.first;
        }
      }
    }
}

// Blocks of the prompt kernel may hold one or two tiles; neither changes a bit.
TEST_F(CudaAttention, StagesGiveTheSameBits) {
  for (const Index dim : {64, 128}) {
    const AttentionShape shape = shape_of(2, 1, dim);
    const Text text(DType::kBF16, shape, 900, 8);
    const auto want = run(shape, {{&text, 0, 900}});
    const Forced forced(Path::kMma);
    EXPECT_TRUE(same_rows(run(shape, {{&text, 0, 900}}), 0, 900, want, 0));
  }
}

// Negative control: without positions in the keys, attention does not know the order of pages that it sees entirely, but
// their sums have another order then, which f32 shows; and a wrong page is another result.
TEST_F(CudaAttention, TheWrongPageIsSeen) {
  for (const DType type : {DType::kF32, DType::kBF16})
    for (const Index tokens : {1, 100}) {
      const AttentionShape shape = shape_of(4, 2, 64);
      const Text text(type, shape, 768 + tokens, 5);
      Batch batch(shape, {{&text, 768, 768 + tokens}}, draw_);
      const auto want = batch.run(ctx());
      std::swap(batch.pages[0][0], batch.pages[0][2]);
      const auto swapped = batch.run(ctx());
      EXPECT_TRUE(close(swapped.out, want.out, limit(type, 768 + tokens)));
      if (type == DType::kF32) {
        EXPECT_FALSE(same_bits(swapped.out, want.out));
      }
      batch.pages[0][1] = batch.pages[0][0];
      EXPECT_FALSE(close(batch.run(ctx()).out, want.out, 0.05));
    }
}

// The largest score by far lies in the first tile, in a later one, or is the query's own.
TEST_F(CudaAttention, HugeScoresPickOneKey) {
  const AttentionShape shape = shape_of(1, 1, 64);
  for (const DType type : {DType::kF32, DType::kBF16})
    for (const Index best : {0, 100, 300, 520}) {
      Text text(type, shape, 521, 1);
      Tensor q = Tensor::zeros(DType::kF32, {521, 64}), k = Tensor::zeros(DType::kF32, {521, 64});
      for (Index t = 0; t < 521; ++t) {
        q.data<float>()[64 * t] = 1e15f;
        k.data<float>()[64 * t] = t == best ? 1e15f : t % 2 ? -1e15f : 5e14f;
      }
      text.q = q.to(type), text.k = k.to(type);
      for (const Index first : {520, 400}) {  // both kernels
        const auto got = run(shape, {{&text, first, 521}});
        EXPECT_TRUE(same_bits(got.out.rows(520 - first, 521 - first), text.v.rows(best, best + 1))) << best;
      }
    }
}

TEST_F(CudaAttention, NanStaysInItsRow) {
  for (const DType type : {DType::kF32, DType::kBF16}) {
    const AttentionShape shape = shape_of(2, 1, 64);
    Text text(type, shape, 300, 2);
    const auto want = run(shape, {{&text, 0, 300}});
    Tensor q = text.q.to(DType::kF32).clone();
    q.data<float>()[299 * 128 + 1] = NAN;  // of head 0
    text.q = q.to(type);
    for (const Index first : {0, 299, 290}) {
      const auto got = run(shape, {{&text, first, 300}});
      for (Index i = 0; i < 128; ++i) EXPECT_EQ(std::isnan(value(got.out, (299 - first) * 128 + i)), i < 64) << i;
      EXPECT_TRUE(same_rows(got, 0, 299 - first, want, first));
    }
  }
}

TEST_F(CudaAttention, NoTokens) {
  const AttentionShape shape = shape_of(2, 1, 64);
  const Text text(DType::kBF16, shape, 3, 1);
  EXPECT_EQ(run(shape, {{&text, 3, 3}}).out.numel(), 0);
  const auto got = run(shape, {{&text, 3, 3}, {&text, 0, 3}, {&text, 2, 2}}), want = run(shape, {{&text, 0, 3}});
  EXPECT_TRUE(same_rows(got, 0, 3, want, 0));
}

TEST_F(CudaAttention, SlicesMustBeOnTheGpu) {
  const AttentionShape shape = shape_of(1, 1, 64);
  const Text text(DType::kBF16, shape, 3, 1);
  const Batch batch(shape, {{&text, 0, 3}}, draw_);
  Tensor out = ctx().empty(DType::kBF16, batch.q.shape());
  const Tensor q = ctx().place(batch.q), k = ctx().place(batch.k), v = ctx().place(batch.v);
  EXPECT_TRUE(testing::throws_error([&] { ops::attention(ctx(), shape, q, k, v, batch.slices, out); }, {"placed()"}));
}

}  // namespace
}  // namespace dsmoe::test
