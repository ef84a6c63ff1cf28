// Attention over latents on a GPU: DeepSeek's 512 + 64 numbers, whose first 512 are the values, against ops/ref and the
// plain kernel; and the same bits for a token alone, in a batch, in any chunk and on any page.
#include <gtest/gtest.h>

#include "cuda/ops/attention_batch.h"
#include "ops/heads.h"
#include "ops/rope.h"

namespace dsmoe::test {
namespace {

using cuda::Path;

constexpr Index kKeys = 576, kValues = 512;

AttentionShape latents(Index heads) { return {heads, 1, kKeys, 0.06f, kValues}; }

class CudaLatentAttention : public GpuTest {
 protected:
  AttentionBatch::Result run(const AttentionShape& s, const std::vector<TextPart>& parts) {
    return AttentionBatch(s, parts, draw_).run(ctx());
  }
  // The numbers that are wanted.
  static Tensor values(const AttentionShape& s, const Tensor& out) {
    Context ref(1, Backend::kRef);
    Tensor v(out.dtype(), {out.dim(0), s.heads * kValues});
    if (out.numel() > 0) ops::copy_heads(ref, {out, {s.heads, 0, kValues}}, {v, {s.heads, 0, kValues}});
    return v;
  }
  Draw draw_{72};
};

TEST_F(CudaLatentAttention, MatchesReference) {
  Context ref(1, Backend::kRef);
  constexpr Index kHeads[] = {1, 3, 16, 128};
  for (std::uint64_t round = 0; round < 8; ++round) {
    const AttentionShape shape = latents(kHeads[round % 4]);
    const bool many = shape.heads == 128;
    std::vector<Text> texts;
    std::vector<TextPart> parts;
    Index longest = 0;
    for (Index i = 0, n = draw_.between(1, many ? 2 : 3); i < n; ++i) {
      const Index before = draw_(3) ? draw_.between(0, many ? 140 : 400) : 0,
                  count = draw_(2) ? draw_.between(0, many ? 2 : 16) : draw_.between(17, many ? 20 : 40);
      texts.emplace_back(DType::kBF16, shape, before + count, 100 * round + 10 * static_cast<std::uint64_t>(i));
      parts.push_back({nullptr, before, before + count});
      longest = std::max(longest, before + count);
    }
    for (std::size_t i = 0; i < parts.size(); ++i) parts[i].text = &texts[i];
    AttentionBatch batch(shape, parts, draw_);
    batch.v = batch.k;
    const auto want = batch.run(ref);
    for (const Path path : {Path::kAuto, Path::kMma, Path::kPlain}) {
      const Forced forced(path);
      const auto got = batch.run(ctx());
      EXPECT_TRUE(close(values(shape, got.out), values(shape, want.out), 2 * limit(DType::kBF16, kKeys + longest)))
          << shape.heads << " heads, " << cuda::to_string(path);
      EXPECT_TRUE(close(got.lse, want.lse, limit(DType::kBF16, kKeys + longest)));
    }
  }
}

TEST_F(CudaLatentAttention, OneGoChunksAndTokensGiveTheSameBits) {
  for (const Index heads : {1, 3, 16, 128}) {
    const Index kLength = heads > 16 ? 270 : 700;
    const AttentionShape shape = latents(heads);
    const Text text(DType::kBF16, shape, kLength, 5);
    const auto want = run(shape, {{&text, 0, kLength}});
    for (const Path path : {Path::kAuto, Path::kMma}) {
      SCOPED_TRACE(::testing::Message() << heads << " heads, " << cuda::to_string(path));
      const Forced forced(path);
      for (Index first = 0, last; first < kLength; first = last) {
        last = std::min(kLength, first + draw_.between(1, draw_(2) ? 20 : 300));
        const auto got = run(shape, {{&text, first, last}});
        ASSERT_TRUE(same_rows(got, 0, last - first, want, first)) << first << " to " << last;
      }
      std::vector<TextPart> tokens;  // each beside all others
      for (Index t = 0; t < kLength; t += t % 64 < 3 || t % 64 > 60 ? 1 : 13) tokens.push_back({&text, t, t + 1});
      const auto got = run(shape, tokens);
      for (std::size_t i = 0; i < tokens.size(); ++i)
        ASSERT_TRUE(same_rows(got, static_cast<Index>(i), 1, want, tokens[i].first)) << "token " << tokens[i].first;
    }
  }
}

TEST_F(CudaLatentAttention, LengthsAroundTheEdgesOfTiles) {
  const AttentionShape shape = latents(16);
  const Text text(DType::kBF16, shape, 1000, 6);
  const auto want = run(shape, {{&text, 0, 1000}});
  for (const Index length :
       {1, 2, 15, 16, 17, 31, 32, 33, 63, 64, 65, 95, 97, 127, 128, 129, 255, 256, 257, 384, 385, 1000}) {
    const auto whole = run(shape, {{&text, 0, length}}), last = run(shape, {{&text, length - 1, length}});
    EXPECT_TRUE(same_rows(whole, 0, length, want, 0)) << length;
    EXPECT_TRUE(same_rows(last, 0, 1, want, length - 1)) << length;
  }
}

TEST_F(CudaLatentAttention, RunsOfTilesInALargeBatch) {
  constexpr Index kLength = 2300;
  for (const Index heads : {3, 16}) {
    const AttentionShape shape = latents(heads);
    const Text text(DType::kBF16, shape, kLength, 5);
    const auto want = run(shape, {{&text, 0, kLength}});
    std::vector<TextPart> parts;
    for (const Index first : {0, 127, 128, 1022, 1023, 1024, 1025, 1151, 1152, 2047, 2048, 2279})
      for (const Index rows : {1, 1, 1, 1, 1, 3, 16}) parts.push_back({&text, first, first + rows});
    const AttentionBatch batch(shape, parts, draw_);
    const ops::Slices slices = ops::placed(ctx(), batch.slices);
    const Tensor q = ctx().place(batch.q), k = ctx().place(batch.k);
    for (int round = 0; round < 2; ++round) {  // counters serve the next launch, too
      AttentionBatch::Result got{ctx().place(AttentionBatch::nan_like(batch.q)),
                                 ctx().place(AttentionBatch::nan_like(Tensor(DType::kF32, {heads, q.dim(0)})))};
      ops::attention(ctx(), shape, q, k, k, slices, got.out, &got.lse);
      got = {ctx().fetch(got.out), ctx().fetch(got.lse)};
      Index row = 0;
      for (const TextPart& p : parts) {
        ASSERT_TRUE(same_rows(got, row, p.last - p.first, want, p.first)) << p.first << " to " << p.last;
        row += p.last - p.first;
      }
    }
  }
}

// Keys and values that lie in the batch, as in training.
TEST_F(CudaLatentAttention, WholeSequencesInTheBatchItself) {
  const AttentionShape shape = latents(16);
  const Index lengths[] = {200, 17, 130};
  const Tensor q = ctx().place(random_tensor(DType::kBF16, {347, 16 * kKeys}, 1)),
               k = ctx().place(random_tensor(DType::kBF16, {347, kKeys}, 2));
  std::vector<std::vector<Index>> tiles;
  std::vector<ops::Slice> slices;
  Index row = 0;
  for (const Index n : lengths) {
    tiles.emplace_back();
    for (Index i = 0; i < n; i += kAttentionTile) tiles.back().push_back(row + i);
    slices.push_back({row, n, 0, {}});
    row += n;
  }
  for (std::size_t i = 0; i < slices.size(); ++i) slices[i].tiles = tiles[i];
  const auto attend = [&] {
    Tensor out = ctx().empty(DType::kBF16, q.shape()), lse = ctx().empty(DType::kF32, {16, q.dim(0)});
    ops::attention(ctx(), shape, q, k, k, ops::placed(ctx(), slices), out, &lse);
    return AttentionBatch::Result{ctx().fetch(out), ctx().fetch(lse)};
  };
  const auto got = attend();
  const Forced forced(Path::kPlain);
  const auto want = attend();
  EXPECT_TRUE(close(values(shape, got.out), values(shape, want.out), 2 * limit(DType::kBF16, kKeys + 200)));
  EXPECT_TRUE(close(got.lse, want.lse, limit(DType::kBF16, kKeys + 200)));
}

// One launch for the queries' turned parts and the rows of the cache has the bits of the steps.
TEST_F(CudaLatentAttention, NewTokensInOneGoOrInSteps) {
  struct Sizes {
    Index heads, nope, rope, rank, rows;
  };
  for (const Sizes& s : {Sizes{16, 128, 64, 512, 1}, {16, 128, 64, 512, 70}, {3, 24, 32, 96, 5}, {2, 8, 128, 500, 40}}) {
    for (const DType weight_type : {DType::kBF16, DType::kF32}) {
      const std::vector<Index> tiles = {512, 0};
      const std::vector<ops::Slice> batch{{0, s.rows, 250, tiles}};
      const ops::Slices slices = ops::placed(ctx(), batch);
      const ops::RopeAngles angles = ops::rope_angles(ctx(), ops::Rope(s.rope, 10000.0, {}, 4096), slices);
      const Index dim = s.rank + s.rope;
      const Tensor q = ctx().place(random_tensor(DType::kBF16, {s.rows, s.heads * (s.nope + s.rope)}, 1)),
                   projected = ctx().place(random_tensor(DType::kF32, {s.rows, dim}, 2)),
                   weight = ctx().place(random_tensor(weight_type, {s.rank}, 3)),
                   start = ctx().place(random_tensor(DType::kBF16, {s.rows, s.heads * dim}, 4));
      Tensor got = start.clone(), want = start.clone(), got_cache = ctx().zeros(DType::kBF16, {768, dim}),
             want_cache = ctx().zeros(DType::kBF16, {768, dim});
      const ops::Part from{s.heads, s.nope, s.rope}, to{s.heads, s.rank, s.rope};
      EXPECT_TRUE(ops::store_latents(ctx(), {q, from}, {got, to}, projected, {weight, 1e-6f}, angles, slices, got_cache));

      Tensor turned = ctx().empty(DType::kBF16, {s.rows, s.heads * s.rope}),
             row = ctx().empty(DType::kBF16, {s.rows, s.rope}), latent = ctx().empty(DType::kF32, {s.rows, s.rank}),
             norm = ctx().empty(DType::kBF16, {s.rows, s.rank}), rows = ctx().empty(DType::kBF16, {s.rows, dim});
      ops::copy_heads(ctx(), {q, from}, {turned, {s.heads, 0, s.rope}});
      ops::apply_rope(ctx(), turned, angles);
      ops::copy_heads(ctx(), {turned, {s.heads, 0, s.rope}}, {want, to});
      ops::copy_heads(ctx(), {projected, {1, 0, s.rank}}, {latent, {1, 0, s.rank}});
      ops::rms_norm(ctx(), latent, weight, 1e-6f, norm);
      ops::copy_heads(ctx(), {norm, {1, 0, s.rank}}, {rows, {1, 0, s.rank}});
      ops::copy_heads(ctx(), {projected, {1, s.rank, s.rope}}, {row, {1, 0, s.rope}});
      ops::apply_rope(ctx(), row, angles);
      ops::copy_heads(ctx(), {row, {1, 0, s.rope}}, {rows, {1, s.rank, s.rope}});
      ops::store_rows(ctx(), rows, slices, want_cache);
      EXPECT_TRUE(same_bits(ctx().fetch(got), ctx().fetch(want))) << s.rows << " rows, rank " << s.rank;
      EXPECT_TRUE(same_bits(ctx().fetch(got_cache), ctx().fetch(want_cache))) << s.rows << " rows, rank " << s.rank;
    }
  }
}

TEST_F(CudaLatentAttention, NanStaysInItsRow) {
  const AttentionShape shape = latents(2);
  Text text(DType::kBF16, shape, 300, 2);
  const auto want = run(shape, {{&text, 0, 300}});
  Tensor q = text.q.to(DType::kF32).clone();
  q.data<float>()[299 * 2 * kKeys + 1] = NAN;  // of head 0
  text.q = q.to(DType::kBF16);
  for (const Index first : {0, 299, 290}) {
    const auto got = run(shape, {{&text, first, 300}});
    for (Index i = 0; i < 2 * kKeys; ++i)
      if (i % kKeys < kValues) {
        EXPECT_EQ(std::isnan(value(got.out, (299 - first) * 2 * kKeys + i)), i < kKeys) << i;
      }
    EXPECT_TRUE(same_rows(got, 0, 299 - first, want, first));
  }
}

}  // namespace
}  // namespace dsmoe::test
