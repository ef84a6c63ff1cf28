// Captured passes: sequences come and go, with the bits that they have alone, and few passes serve them all.
#include "model/decode_graphs.h"

#include <gtest/gtest.h>

#include <cstring>

#include "core/device.h"
#include "cuda/gpu_test.h"
#include "model/families/family.h"
#include "model/transformer.h"
#include "support/random_tensor.h"
#include "support/tolerance.h"

namespace dsmoe::test {
namespace {

using Ids = std::vector<std::int32_t>;

class CudaDecodeGraphs : public GpuTest {
 protected:
  void make(Index vocab, DType dtype = DType::kBF16) {
    ModelConfig c;
    c.vocab_size = vocab, c.hidden_size = 128, c.intermediate_size = 160, c.moe_intermediate_size = 64;
    c.num_hidden_layers = 2, c.num_attention_heads = 2, c.num_key_value_heads = 2, c.first_k_dense_replace = 1;
    c.n_routed_experts = 8, c.num_experts_per_tok = 2, c.n_shared_experts = 1;
    c.max_position_embeddings = 4096, c.initializer_range = 0.2;
    Context host(0);
    model.emplace(c, owned_copy(spec_of(c), random_weights(c, 5, dtype, host), dtype, Device::kCuda));
  }
  struct Text {
    Ids ids;
    Tensor alone;  // logits of all positions in one pass
    KvSequence sequence;
  };
  std::vector<Text> texts(Draw& draw, const std::shared_ptr<KvPool>& pool, Index count, Index longest) {
    std::vector<Text> out;
    for (Index i = 0; i < count; ++i) {
      Ids ids;
      for (Index t = 0, n = draw.between(2, longest); t < n; ++t)
        ids.push_back(static_cast<std::int32_t>(draw(model->spec().vocab)));
      KvSequence once(model->make_kv_pool(longest, pool->dtype()));
      Tensor alone = ctx().fetch(model->logits(ctx(), ForwardBatch::of(ctx(), once, ids, static_cast<Index>(ids.size()))));
      out.push_back({std::move(ids), std::move(alone), KvSequence(pool)});
    }
    return out;
  }
  // One token more of each.
  void step(std::vector<Text*> some) {
    ForwardBatch batch;
    std::vector<Index> at;
    for (Text* t : some) {
      at.push_back(t->sequence.length());
      batch.add(ctx(), t->sequence, std::span(t->ids).subspan(static_cast<std::size_t>(at.back()), 1));
    }
    const Tensor got = ctx().fetch(model->logits(ctx(), batch));
    ASSERT_EQ(got.dim(0), static_cast<Index>(some.size()));
    for (std::size_t i = 0; i < some.size(); ++i) {
      const auto row = static_cast<Index>(i);
      ASSERT_TRUE(same_bits(got.rows(row, row + 1), some[i]->alone.rows(at[i], at[i] + 1)))
          << "sequence " << i << " of " << some.size() << " at " << at[i];
    }
  }

  std::optional<Transformer> model;
};

TEST_F(CudaDecodeGraphs, JoiningAndLeavingKeepsTheBits) {
  Draw draw(1);
  for (const DType cache : {DType::kBF16, DType::kQ8_0}) {
    make(97);
    const auto pool = model->make_kv_pool(80 * KvPool::kPageTokens, cache);
    std::vector<Text> all = texts(draw, pool, 40, 60);
    for (bool more = true; more;) {
      std::vector<Text*> some;
      const Index skip = draw(10);  // of ten, so that batches have all sizes
      more = false;
      for (Text& t : all) {
        if (t.sequence.length() == static_cast<Index>(t.ids.size())) continue;
        more = true;
        if (draw(10) >= skip) some.push_back(&t);
      }
      if (!some.empty()) step(some);
      ASSERT_FALSE(HasFatalFailure());
    }
    // Sizes up to 40 are 1, 2, 4, 8, 16, 24, 32 and 48. A sequence has up to 128 keys here, so a size has one bound on its
    // keys, as a power of two.
    EXPECT_LE(pool->graphs().captures(), 8u) << to_string(cache);
    EXPECT_GE(pool->graphs().captures(), 6u) << to_string(cache);
    EXPECT_EQ(pool->graphs().size(), pool->graphs().captures());
  }
}

// Passes of other sizes are captured into the memory of the first.
TEST_F(CudaDecodeGraphs, ShareTheirMemory) {
  Draw draw(2);
  make(150000);
  const auto pool = model->make_kv_pool(256 * KvPool::kPageTokens, DType::kBF16);
  std::vector<KvSequence> sequences;
  for (int i = 0; i < 256; ++i) sequences.emplace_back(pool);
  const std::int32_t id = 7;
  const auto run = [&](std::size_t count) {
    ForwardBatch batch;
    for (std::size_t i = 0; i < count; ++i) batch.add(ctx(), sequences[i], std::span(&id, 1));
    ctx().fetch(model->logits(ctx(), batch));
    for (std::size_t i = 0; i < count; ++i) sequences[i].truncate(0);
  };
  run(256);
  device::release_cached();
  const std::size_t before = device::memory().free;
  std::size_t numbers = 0;
  for (const std::size_t count : {224, 192, 160, 128, 96, 64}) {
    run(count);
    numbers += count * 150000;
  }
  device::release_cached();
  const std::size_t after = device::memory().free;
  EXPECT_EQ(pool->graphs().size(), 7u);
  EXPECT_LT(before - std::min(before, after), numbers * sizeof(float) / 4) << "logits alone would take four times that";
}

TEST_F(CudaDecodeGraphs, TheOldestGoes) {
  make(97);
  const auto pool = model->make_kv_pool(2 * KvPool::kPageTokens, DType::kBF16);
  KvSequence sequence(pool);
  const std::int32_t id = 7;
  std::vector<ops::Sampling> all;  // each has passes of its own
  Ids first;
  for (std::size_t i = 0; i < DecodeGraphs::kMost + 6; ++i) {
    ops::Sampling& s = all.emplace_back(ctx(), 1, 8, 1);
    s.start(ctx(), 0, {.temperature = 0}, std::span(&id, 1));
    const ForwardBatch batch = ForwardBatch::of(ctx(), sequence, std::span(&id, 1));
    pool->graphs().step(ctx(), *model, batch, s);
    first.push_back(ctx().fetch(s.ids).span<std::int32_t>()[0]);
    sequence.truncate(0);
    EXPECT_LE(pool->graphs().size(), DecodeGraphs::kMost);
  }
  EXPECT_EQ(pool->graphs().captures(), DecodeGraphs::kMost + 6);
  EXPECT_EQ(first, Ids(first.size(), first[0]));
}

}  // namespace
}  // namespace dsmoe::test
