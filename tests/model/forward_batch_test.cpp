// Many sequences in one pass: each has the bits that it has alone, whatever else is in the batch and wherever its pages
// are.
#include "model/forward_batch.h"

#include <gtest/gtest.h>

#include <cstring>

#include "model/families/family.h"
#include "model/followed_passes.h"
#include "model/transformer.h"
#include "support/expect_error.h"
#include "support/random_tensor.h"
#include "support/run_model.h"
#include "support/tolerance.h"

namespace dsmoe {
namespace {

using Ids = std::vector<std::int32_t>;

// latent: latent attention, with queries that are made of fewer numbers.
ModelConfig small(bool latent) {
  ModelConfig c = latent ? family_of("deepseek_v3").default_config() : ModelConfig();
  if (latent) {
    c.kv_lora_rank = 32, c.q_lora_rank = 32, c.qk_nope_head_dim = 8, c.qk_rope_head_dim = 32, c.v_head_dim = 12;
    c.n_group = c.topk_group = 1;
  }
  c.vocab_size = 61, c.hidden_size = 32, c.intermediate_size = 64, c.moe_intermediate_size = 32;
  c.num_hidden_layers = 3, c.num_attention_heads = 4, c.first_k_dense_replace = 1;
  c.n_routed_experts = 8, c.num_experts_per_tok = 2, c.n_shared_experts = 1;
  c.max_position_embeddings = 1024, c.initializer_range = 0.3;
  if (!latent) c.num_key_value_heads = 2;
  return c;
}

// dtype: of the weights; quantized ones take f32 activations.
Transformer make_model(DType dtype, bool latent = false) {
  Context ctx(1);
  const ModelConfig c = small(latent);
  const ModelWeights w = random_weights(c, 5, is_quantized(dtype) ? DType::kF32 : dtype, ctx);
  if (!is_quantized(dtype)) return Transformer(c, w);
  const std::vector<Parameter> parameters = parameter_list(c);
  std::vector<Tensor> tensors;
  for (const Parameter& p : parameters) {
    const Tensor from = w.dense(p);
    tensors.push_back(from);
    if (!is_matrix(p) || p.traits.dense || p.shape[1] % 32 != 0) continue;
    tensors.back() = Tensor(dtype, p.shape);
    ops::quantize_row(dtype, from.span<float>(), tensors.back().raw_mutable());
  }
  return Transformer(c, listed_weights(c, parameters, std::move(tensors)));
}

Ids random_ids(test::Draw& draw, Index count) {
  Ids ids;
  for (Index i = 0; i < count; ++i) ids.push_back(static_cast<std::int32_t>(draw(61)));
  return ids;
}

std::span<const std::int32_t> part(const Ids& ids, Index first, Index count) {
  return std::span(ids).subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(count));
}

// Pages are then handed out in a random order.
void shuffle(KvPool& pool, test::Draw& draw) {
  std::vector<Index> pages;
  while (pool.free_pages() > 0) pages.push_back(pool.allocate());
  while (!pages.empty()) {
    std::swap(pages.back(), pages[static_cast<std::size_t>(draw(static_cast<Index>(pages.size())))]);
    pool.release(pages.back());
    pages.pop_back();
  }
}

// A text, what its tokens give alone, and how far it has come in the batches.
struct Text {
  Ids ids;
  Tensor alone;  // logits [T, V]
  KvSequence sequence;

  Index left() const { return static_cast<Index>(ids.size()) - sequence.length(); }
};

class ForwardBatchTest : public ::testing::TestWithParam<std::pair<DType, bool>> {
 protected:
  ForwardBatchTest() : model(make_model(GetParam().first, GetParam().second)) {}

  Text text(const std::shared_ptr<KvPool>& pool, Ids ids) {
    Tensor alone = test::logits_of(one, model, ids, static_cast<Index>(ids.size()), pool->dtype());
    return {std::move(ids), std::move(alone), KvSequence(pool)};
  }

  // Runs some tokens of some texts in one pass, and compares all logits.
  void step(Context& ctx, std::vector<Text>& texts, test::Draw& draw) {
    ForwardBatch batch;
    std::vector<std::pair<Text*, Index>> ran;
    for (Text& t : texts) {
      if (t.left() == 0 || draw(4) == 0) continue;
      const Index n = draw(2) ? 1 : draw.between(1, std::min<Index>(t.left(), 200));
      batch.add(ctx, t.sequence, part(t.ids, t.sequence.length(), n), n);
      ran.emplace_back(&t, t.sequence.length());
    }
    if (ran.empty()) return;
    const Tensor logits = model.logits(ctx, batch);
    Index row = 0;
    for (const auto& [t, before] : ran) {
      const Index n = t->sequence.length() - before;
      EXPECT_TRUE(test::same_bits(logits.rows(row, row + n), t->alone.rows(before, before + n)))
          << n << " tokens from position " << before;
      row += n;
    }
    EXPECT_EQ(row, logits.dim(0));
  }

  void finish(std::vector<Text>& texts, test::Draw& draw) {
    const auto left = [&] {
      Index sum = 0;
      for (const Text& t : texts) sum += t.left();
      return sum;
    };
    for (int i = 0; left() > 0; ++i) step(i % 2 ? three : one, texts, draw);
  }

  Transformer model;
  Context one{1}, three{3};
};

TEST_P(ForwardBatchTest, RandomBatchesAndPageOrders) {
  test::Draw draw(71);
  for (const DType cache : {DType::kF32, DType::kBF16}) {
    const auto pool = model.make_kv_pool(20 * KvPool::kPageTokens, cache);
    shuffle(*pool, draw);
    std::vector<Text> texts;
    for (const Index length : {600, 1, 257, 30, 90}) texts.push_back(text(pool, random_ids(draw, length)));
    finish(texts, draw);
  }
}

TEST_P(ForwardBatchTest, SharedPrefixesAndForks) {
  test::Draw draw(72);
  const auto pool = model.make_kv_pool(24 * KvPool::kPageTokens, model.dtype());
  shuffle(*pool, draw);
  const Ids prompt = random_ids(draw, 400);
  KvSequence prefix(pool);
  model.forward(three, ForwardBatch::of(three, prefix, prompt));
  std::vector<Text> texts;
  for (const Index shared : {400, 400, 256, 300, 1}) {  // within a page, at its end, all of it
    Ids ids(prompt.begin(), prompt.begin() + shared);
    const Ids more = random_ids(draw, draw.between(1, 80));
    ids.insert(ids.end(), more.begin(), more.end());
    texts.push_back(text(pool, std::move(ids)));
    texts.back().sequence = prefix.fork(shared);
  }
  for (int i = 0; i < 3; ++i) step(three, texts, draw);
  // One that has come some way is forked, rewound and goes on.
  Text& first = texts[0];
  Text again = text(pool, first.ids);
  again.sequence = first.sequence.fork(first.sequence.length());
  again.sequence.truncate(again.sequence.length() / 2);
  texts.push_back(std::move(again));
  finish(texts, draw);
  // The prefix is what it was.
  std::vector<Text> last;
  last.push_back(text(pool, [&] {
    Ids ids = prompt;
    ids.push_back(7);
    return ids;
  }()));
  last[0].sequence = std::move(prefix);
  finish(last, draw);
}

// The negative control: two sequences whose first pages are exchanged have other bits. (Pages of one sequence would not do:
// keys carry their positions, so the order in which they are read only changes roundings.)
TEST_P(ForwardBatchTest, ExchangedPagesAreSeen) {
  test::Draw draw(73);
  const Ids a = random_ids(draw, 300), b = random_ids(draw, 300);
  const auto run = [&](bool exchange) {
    const auto pool = model.make_kv_pool(4 * KvPool::kPageTokens, model.dtype());
    KvSequence x(pool), y(pool);
    ForwardBatch prompts, next;
    prompts.add(three, x, part(a, 0, 299));
    prompts.add(three, y, part(b, 0, 299));
    model.forward(three, prompts);
    for (Index l = 0; exchange && l < pool->layers(); ++l) {
      for (Tensor* t : {&pool->k(l), &pool->v(l)}) {
        if (t->bytes() == 0) continue;  // latent attention has its values in the keys
        const Index from = x.tiles()[0], to = y.tiles()[0];
        Tensor first = t->rows(from, from + KvPool::kPageTokens), second = t->rows(to, to + KvPool::kPageTokens);
        const Tensor kept = first.clone();
        std::memcpy(first.raw_mutable(), second.raw(), second.bytes());
        std::memcpy(second.raw_mutable(), kept.raw(), kept.bytes());
      }
    }
    next.add(three, x, part(a, 299, 1));
    next.add(three, y, part(b, 299, 1));
    return model.logits(three, next);
  };
  const Tensor want = run(false), wrong = run(true);
  EXPECT_TRUE(test::same_bits(run(false), want));
  for (Index row = 0; row < 2; ++row) EXPECT_FALSE(test::same_bits(wrong.rows(row, row + 1), want.rows(row, row + 1)));
}

INSTANTIATE_TEST_SUITE_P(Types, ForwardBatchTest,
                         ::testing::Values(std::pair(DType::kF32, false), std::pair(DType::kBF16, false),
                                           std::pair(DType::kQ8_0, false), std::pair(DType::kF32, true),
                                           std::pair(DType::kBF16, true), std::pair(DType::kQ8_0, true)),
                         [](const auto& p) {
                           return std::string(to_string(p.param.first)) + (p.param.second ? "_latent" : "");
                         });

// Numbers of a head of the cache are whole blocks; of latent attention all that is kept of a token is one head.
TEST(LatentForwardBatch, ACacheOfBlocksIsCloseToOneOfF32) {
  Context ctx(2);
  const Transformer model = make_model(DType::kF32, true);
  test::Draw draw(77);
  const Ids ids = random_ids(draw, 300);
  const Tensor exact = test::logits_of(ctx, model, ids, 300, DType::kF32);
  const Tensor blocks = test::logits_of(ctx, model, ids, 300, DType::kQ8_0);
  EXPECT_TRUE(test::close(blocks, exact, 0.3)) << "some tokens choose other experts";
  EXPECT_FALSE(test::same_bits(blocks, exact));
  EXPECT_TRUE(test::same_bits(test::logits_of(ctx, model, ids, 7, DType::kQ8_0), blocks));
  EXPECT_EQ(model.make_kv_pool(1, DType::kF32)->k(0).dim(1), 64);
  EXPECT_EQ(model.make_kv_pool(1, DType::kF32)->v(0).numel(), 0) << "values are a part of the keys";
}

class OneModel : public ::testing::Test {
 protected:
  Transformer model = make_model(DType::kF32);
  Context ctx{2};
  std::shared_ptr<KvPool> pool = model.make_kv_pool(4 * KvPool::kPageTokens, DType::kF32);
};

// Training and inference are one forward: the stream of a sequence is the same in both, to the bit.
TEST_P(ForwardBatchTest, TrainingAndInferenceHaveTheSameBits) {
  if (!model.trainable()) GTEST_SKIP() << "quantized";
  Context& ctx = three;
  const auto pool = model.make_kv_pool(4 * KvPool::kPageTokens, model.dtype());
  test::Draw draw(74);
  const Ids ids = random_ids(draw, 2 * 300);
  std::vector<Tensor> heard;
  ForwardSaved saved;
  const PassHooks hooks{.layer = [&](Index, const Tensor& x) { heard.push_back(x.clone()); }};
  const Tensor both = model.forward(ctx, ForwardBatch::training(ids, 300), hooks, &saved);
  ASSERT_EQ(heard.size(), 4u) << "before the first layer and after each";
  EXPECT_EQ(saved.blocks.size(), 3u);
  EXPECT_EQ(saved.offsets.size(), 3u);
  EXPECT_TRUE(test::same_bits(heard[3], both));
  for (Index b = 0; b < 2; ++b) {
    KvSequence s(pool);
    std::size_t layer = 0;
    const PassHooks compare{.layer = [&](Index l, const Tensor& x) {
      EXPECT_EQ(l, static_cast<Index>(layer) - 1);
      EXPECT_TRUE(test::same_bits(x, heard[layer++].rows(300 * b, 300 * (b + 1)))) << "layer " << l;
    }};
    model.forward(ctx, ForwardBatch::of(ctx, s, part(ids, 300 * b, 300)), compare);
    EXPECT_EQ(layer, 4u);
  }
}

TEST_F(OneModel, LogitsAreThoseAskedFor) {
  test::Draw draw(75);
  const Ids a = random_ids(draw, 5), b = random_ids(draw, 7), c = random_ids(draw, 3);
  KvSequence x(pool), y(pool), z(pool);
  ForwardBatch batch;
  batch.add(ctx, x, a, 2);
  batch.add(ctx, y, b, 0);
  batch.add(ctx, z, c);
  const Tensor got = model.logits(ctx, batch);
  ASSERT_EQ(got.shape(), Shape({3, 61}));
  EXPECT_TRUE(test::same_bits(got.rows(0, 2), test::logits_of(ctx, model, a).rows(3, 5)));
  EXPECT_TRUE(test::same_bits(got.rows(2, 3), test::logits_of(ctx, model, c).rows(2, 3)));
  EXPECT_EQ(y.length(), 7);
}

TEST_F(OneModel, HooksAreThoseOfThePass) {
  test::Draw draw(76);
  const Ids a = random_ids(draw, 5), b = random_ids(draw, 4);
  KvSequence x(pool), y(pool);
  ForwardBatch batch;
  batch.add(ctx, x, a, 5);
  batch.add(ctx, y, b, 4);
  const RoutingOverrides overrides{.drop_shared = true};
  std::vector<Index> layers;
  const PassHooks hooks{.routing =
                            [&](Index layer, const Routing& r) {
                              layers.push_back(layer);
                              EXPECT_EQ(r.experts.shape(), Shape({9, 3})) << "one more for the shared one that is dropped";
                            },
                        .overrides = &overrides};
  const Tensor got = model.logits(ctx, batch, hooks);
  EXPECT_EQ(layers, (std::vector<Index>{1, 2}));
  EXPECT_TRUE(test::same_bits(got.rows(5, 9), test::logits_of(ctx, model, b, {.overrides = &overrides})));
  EXPECT_FALSE(test::same_bits(got.rows(5, 9), test::logits_of(ctx, model, b)));
}

TEST_F(OneModel, APassThatFailsLeavesTheSequencesAsTheyWere) {
  KvSequence good(pool), bad(pool);
  model.forward(ctx, ForwardBatch::of(ctx, good, Ids{1, 2, 3}));
  ForwardBatch batch;
  batch.add(ctx, good, Ids{4});
  batch.add(ctx, bad, Ids{61});  // past the vocabulary
  EXPECT_TRUE(testing::throws_error([&] { model.forward(ctx, batch); }, {"61"}));
  EXPECT_EQ(good.length(), 3);
  EXPECT_EQ(bad.length(), 0);
  const Tensor got = model.logits(ctx, ForwardBatch::of(ctx, good, Ids{5}));
  EXPECT_TRUE(test::same_bits(got, test::logits_of(ctx, model, Ids{1, 2, 3, 5}).rows(3, 4)));
}

TEST_F(OneModel, RefusesBatchesThatCannotBe) {
  const auto other = model.make_kv_pool(10, DType::kF32);
  KvSequence a(pool), b(pool), elsewhere(other);
  ForwardBatch batch;
  batch.add(ctx, a, Ids{1, 2});
  EXPECT_TRUE(testing::throws_error([&] { batch.add(ctx, a, Ids{3}); }, {"twice"}));
  EXPECT_TRUE(testing::throws_error([&] { batch.add(ctx, elsewhere, Ids{3}); }, {"one KV cache"}));
  EXPECT_TRUE(testing::throws_error([&] { batch.add(ctx, b, Ids{}); }, {"no tokens"}));
  EXPECT_TRUE(testing::throws_error([&] { batch.add(ctx, b, Ids{3}, 2); }, {"logits of 2 tokens", "1 given"}));
  EXPECT_TRUE(testing::throws_error([&] { batch.add(ctx, b, Ids(1000, 3)); }, {"1000 tokens need 4 pages", "3 are free"}));
  EXPECT_TRUE(testing::throws_error([&] { ForwardBatch::training(Ids{1, 2, 3}, 2); }, {"3 tokens", "sequences of 2"}));
  EXPECT_TRUE(testing::throws_error([&] { model.forward(ctx, ForwardBatch()); }, {"no tokens"}));
  ForwardSaved saved;
  EXPECT_TRUE(testing::throws_error([&] { model.forward(ctx, batch, {}, &saved); }, {"training pass has no KV cache"}));
  model.forward(ctx, batch);
  EXPECT_EQ(a.length(), 2);
  EXPECT_TRUE(testing::throws_error([&] { model.forward(ctx, batch); }, {"sequence 0", "changed"})) << "a second time";
}

// A pass that failed in the middle on the leader alone leaves the others waiting for the rest of it.
TEST(PassLeader, SaysNothingMoreWhenOthersCannotFollow) {
  const PassLeader leader(parallel::self());
  leader.copy_page(0, 1, 2);
  EXPECT_FALSE(leader.lost());
  leader.lose(Error(ErrorCode::kIo, "rank 2 is gone"));
  EXPECT_TRUE(testing::throws_error([&] { leader.copy_page(0, 1, 2); }, {"rank 2 is gone"}));
  EXPECT_TRUE(testing::throws_error([&] { leader.end(); }, {"rank 2 is gone"}));
}

}  // namespace
}  // namespace dsmoe
