// The whole model on a GPU against the same model on the CPU, and the promise: a token's logits have the same bits alone,
// in any batch, in any chunks of the prompt and on any pages.
#include <gtest/gtest.h>

#include <cstring>

#include "cuda/gpu_test.h"
#include "model/families/family.h"
#include "model/transformer.h"
#include "support/random_tensor.h"
#include "support/tolerance.h"

namespace dsmoe::test {
namespace {

using Ids = std::vector<std::int32_t>;

// latent: of latent attention, with queries that are made of so many numbers (0: of the token).
struct Kind {
  const char* name;
  Index heads, kv_heads, head_dim;
  DType dtype;
  DType cache;
  std::optional<Index> latent = {};
};

ModelConfig config_of(const Kind& k) {
  ModelConfig c = k.latent ? family_of("deepseek_v3").default_config() : ModelConfig();
  if (k.latent) {
    c.kv_lora_rank = 96, c.qk_nope_head_dim = 40, c.qk_rope_head_dim = 32, c.v_head_dim = 48, c.n_group = c.topk_group = 1;
    c.q_lora_rank.reset();
    if (*k.latent > 0) c.q_lora_rank = k.latent;
  }
  c.vocab_size = 523, c.hidden_size = k.heads * k.head_dim, c.intermediate_size = 320, c.moe_intermediate_size = 96;
  c.num_hidden_layers = 3, c.num_attention_heads = k.heads, c.num_key_value_heads = k.kv_heads;
  c.first_k_dense_replace = 1, c.n_routed_experts = 16, c.num_experts_per_tok = 4, c.n_shared_experts = 2;
  c.max_position_embeddings = 4096, c.initializer_range = 0.1;
  return c;
}

class CudaModel : public GpuTest {
 protected:
  void make(const Kind& k) {
    Context host(0);
    const ModelConfig c = config_of(k);
    const ModelWeights w = random_weights(c, 5, k.dtype, host);
    on_cpu.emplace(c, w);
    on_gpu.emplace(c, owned_copy(spec_of(c), w, k.dtype, Device::kCuda));
  }
  Ids random_ids(Draw& draw, Index count) {
    Ids ids;
    for (Index i = 0; i < count; ++i) ids.push_back(static_cast<std::int32_t>(draw(523)));
    return ids;
  }
  static Tensor logits(Context& ctx, const Transformer& model, const Ids& ids, Index chunk, DType cache) {
    const auto tokens = static_cast<Index>(ids.size());
    Tensor all(DType::kF32, {tokens, 523});
    KvSequence sequence(model.make_kv_pool(tokens, cache));
    for (Index t = 0; t < tokens; t += chunk) {
      const Index n = std::min(chunk, tokens - t);
      const auto part = std::span(ids).subspan(static_cast<std::size_t>(t), static_cast<std::size_t>(n));
      const Tensor some = ctx.fetch(model.logits(ctx, ForwardBatch::of(ctx, sequence, part, n)));
      std::memcpy(all.rows(t, t + n).raw_mutable(), some.raw(), some.bytes());
    }
    return all;
  }

  std::optional<Transformer> on_cpu, on_gpu;
};

constexpr Kind kKinds[] = {{"mha 128", 2, 2, 128, DType::kBF16, DType::kBF16},
                           {"gqa 64", 4, 2, 64, DType::kBF16, DType::kBF16},
                           {"odd 40", 4, 1, 40, DType::kBF16, DType::kBF16},
                           {"f32", 4, 2, 32, DType::kF32, DType::kF32},
                           {"q8_0 128", 2, 2, 128, DType::kBF16, DType::kQ8_0},
                           {"q8_0 64", 4, 2, 64, DType::kBF16, DType::kQ8_0},
                           {"q8_0 32, f32", 4, 2, 32, DType::kF32, DType::kQ8_0},
                           {"bf16, f32 cache", 4, 2, 32, DType::kBF16, DType::kF32},
                           {"f32, bf16 cache", 4, 2, 40, DType::kF32, DType::kBF16},
                           {"latent", 4, 4, 32, DType::kBF16, DType::kBF16, 48},
                           {"latent, f32", 4, 4, 32, DType::kF32, DType::kF32, 0},
                           {"latent, q8_0", 4, 4, 32, DType::kBF16, DType::kQ8_0, 0},
                           // Wide enough for a token's norms to be part of what follows them.
                           {"wide", 10, 2, 64, DType::kBF16, DType::kBF16}};

TEST_F(CudaModel, LogitsAreTheCpus) {
  Draw draw(1);
  for (const Kind& k : kKinds) {
    SCOPED_TRACE(k.name);
    make(k);
    Context host(0);
    const Ids ids = random_ids(draw, 150);
    // Three layers of two products and an attention each, embedding and head. A token whose router is undecided between two
    // experts may go either way, so the median row is compared and not the worst. So may a number next to the middle of
    // two that a narrower cache has: one of bf16 or q8_0 is allowed the errors of bf16.
    const Tensor want = logits(host, *on_cpu, ids, 150, k.cache), got = logits(ctx(), *on_gpu, ids, 150, k.cache);
    std::vector<double> errors;
    for (Index t = 0; t < 150; ++t) errors.push_back(relative_error(got.rows(t, t + 1), want.rows(t, t + 1)));
    std::sort(errors.begin(), errors.end());
    const DType rounded = k.cache == DType::kF32 ? k.dtype : DType::kBF16;
    EXPECT_LT(errors[75], chain_limit(rounded, 20, 512));
    EXPECT_LT(errors[120], 10 * chain_limit(rounded, 20, 512));
  }
}

TEST_F(CudaModel, ChunksDoNotChangeABit) {
  Draw draw(2);
  for (const Kind& k : kKinds) {
    SCOPED_TRACE(k.name);
    make(k);
    const Ids ids = random_ids(draw, 310);
    const Tensor whole = logits(ctx(), *on_gpu, ids, 310, k.cache);
    for (const Index chunk : {1, 7, 16, 17, 64, 128, 256})
      EXPECT_TRUE(same_bits(logits(ctx(), *on_gpu, ids, chunk, k.cache), whole)) << chunk;
  }
}

// Texts of several lengths go through in batches of random composition, on pages that were handed out in random order.
TEST_F(CudaModel, BatchesAndPagesDoNotChangeABit) {
  Draw draw(3);
  for (const Kind& k : kKinds) {
    SCOPED_TRACE(k.name);
    make(k);
    const auto pool = on_gpu->make_kv_pool(20 * KvPool::kPageTokens, k.cache);
    std::vector<Index> pages;
    while (pool->free_pages() > 0) pages.push_back(pool->allocate());
    while (!pages.empty()) {
      std::swap(pages.back(), pages[static_cast<std::size_t>(draw(static_cast<Index>(pages.size())))]);
      pool->release(pages.back());
      pages.pop_back();
    }
    struct Text {
      Ids ids;
      Tensor alone;
      KvSequence sequence;
    };
    std::vector<Text> texts;
    for (const Index length : {600, 1, 257, 30, 129}) {
      const Ids ids = random_ids(draw, length);
      texts.push_back({ids, logits(ctx(), *on_gpu, ids, length, k.cache), KvSequence(pool)});
    }
    for (bool more = true; more;) {
      more = false;
      ForwardBatch batch;
      std::vector<std::pair<Text*, Index>> ran;
      for (Text& t : texts) {
        const Index left = static_cast<Index>(t.ids.size()) - t.sequence.length();
        if (left == 0) continue;
        more = true;
        if (draw(4) == 0) continue;
        const Index n = draw(2) ? 1 : draw.between(1, std::min<Index>(left, 200)), from = t.sequence.length();
        batch.add(ctx(), t.sequence, std::span(t.ids).subspan(static_cast<std::size_t>(from), static_cast<std::size_t>(n)),
                  n);
        ran.emplace_back(&t, from);
      }
      if (ran.empty()) continue;
      const Tensor got = ctx().fetch(on_gpu->logits(ctx(), batch));
      Index row = 0;
      for (const auto& [t, from] : ran) {
        const Index n = t->sequence.length() - from;
        ASSERT_TRUE(same_bits(got.rows(row, row + n), t->alone.rows(from, from + n)))
            << n << " tokens from position " << from;
        row += n;
      }
    }
  }
}

TEST_F(CudaModel, OverridesAndProbes) {
  Draw draw(4);
  make(kKinds[0]);
  const Ids ids = random_ids(draw, 40);
  RoutingOverrides overrides;
  overrides.skip_best = 3;
  const auto choices = [&](Context& c, const Transformer& model) {
    std::vector<std::int32_t> all;
    PassHooks hooks;
    hooks.overrides = &overrides;
    hooks.routing = [&](Index layer, const Routing& r) {
      if (layer == 1) all.assign(r.experts.span<std::int32_t>().begin(), r.experts.span<std::int32_t>().end());
    };
    KvSequence sequence(model.make_kv_pool(40, model.dtype()));
    c.fetch(model.logits(c, ForwardBatch::of(c, sequence, ids, 1), hooks));
    return all;
  };
  Context host(0);
  const auto want = choices(host, *on_cpu), got = choices(ctx(), *on_gpu);
  ASSERT_EQ(got.size(), want.size());
  std::size_t same = 0;
  for (std::size_t i = 0; i < got.size(); ++i) same += got[i] == want[i];
  EXPECT_GT(same, want.size() * 9 / 10);  // near ties may fall the other way in bf16
}

}  // namespace
}  // namespace dsmoe::test
