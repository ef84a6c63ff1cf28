// Random models and random requests: logits against the CPU's, and the same bits in any batch, chunks and pages. Runs for
// DSMOE_RANDOM_SECONDS (a few when that is not set), each time with other numbers when DSMOE_RANDOM_SEED says so.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <iostream>

#include "cuda/gpu_test.h"
#include "model/families/family.h"
#include "model/transformer.h"
#include "support/random_tensor.h"
#include "support/tolerance.h"

namespace dsmoe::test {
namespace {

using Ids = std::vector<std::int32_t>;

double setting(const char* name, double usual) {
  const char* const text = std::getenv(name);
  return text ? std::atof(text) : usual;
}

struct Case {
  ModelConfig config;
  DType dtype, cache;
  RoutingOverrides overrides;
  bool overridden = false;

  explicit Case(Draw& draw) {
    ModelConfig& c = config;
    const Index dims[] = {2, 6, 26, 32, 40, 64, 64, 96, 128, 128};
    c.explicit_head_dim = dims[draw(10)];
    c.num_key_value_heads = draw.between(1, 3);
    c.num_attention_heads = *c.num_key_value_heads * draw.between(1, 4);
    c.hidden_size = draw(2) ? 8 * draw.between(1, 40) : draw.between(1, 300);
    c.vocab_size = draw.between(2, 700), c.num_hidden_layers = draw.between(1, 3);
    c.intermediate_size = draw.between(1, 200), c.first_k_dense_replace = draw(2);
    c.moe_intermediate_size = draw(2) ? 8 * draw.between(1, 24) : draw.between(1, 130);
    c.n_routed_experts = draw(3) ? draw.between(1, 70) : draw.between(1, 300);
    c.num_experts_per_tok = draw.between(1, std::min<Index>(8, *c.n_routed_experts));
    if (draw(4)) c.n_shared_experts = draw.between(1, 3);
    c.norm_topk_prob = draw(3) == 0, c.tie_word_embeddings = draw(4) == 0, c.attention_bias = draw(4) == 0;
    c.max_position_embeddings = 2048;
    c.initializer_range = 1 / std::sqrt(static_cast<double>(c.hidden_size));  // so that numbers neither grow nor vanish
    dtype = draw(4) ? DType::kBF16 : DType::kF32;
    const DType caches[] = {dtype, dtype, DType::kQ8_0, DType::kBF16, DType::kF32};
    cache = caches[draw(5)];
    if (c.head_dim() % block_of(cache).numbers != 0) cache = dtype;
    if (draw(4) == 0 && *c.n_routed_experts >= 4 && *c.num_experts_per_tok <= 2) {
      overridden = true;
      if (draw(2))
        overrides.skip_best = 1;
      else
        overrides.experts_per_token = draw.between(1, 3);
      overrides.drop_shared = draw(3) == 0;
    }
  }
  std::string str() const {
    return fmt::format("{}, {}, cache {}{}", config.to_json(), to_string(dtype), to_string(cache),
                       overridden ? ", overrides" : "");
  }
  // Of a row of logits. Per layer there are 8 results that are stored (two norms, q, k and v, attention's weights and
  // result, h, the experts' rows and their sum) and about as many sums; then a norm and the head. 2: rows are compared one
  // by one, and may cancel more than most. A number of a q8_0 cache may be rounded either way on the two sides.
  double limit() const {
    const auto layers = static_cast<double>(config.num_hidden_layers);
    const DType rounded = cache == DType::kBF16 ? DType::kBF16 : dtype;
    const Index length = config.hidden_size + config.moe_intermediate_size + config.intermediate_size + 600;
    const double blocks = cache == DType::kQ8_0 ? 3 * std::sqrt(4 * layers) * kInt8Error : 0;
    return 2 * (chain_limit(rounded, static_cast<int>(8 * layers) + 4, length) + blocks);
  }
};

// Logits of all rows, and the experts of all layers for each.
struct Told {
  Tensor logits;
  std::vector<Ids> chosen;  // [rows]
};

class CudaRandom : public GpuTest {
 protected:
  static Told whole(Context& ctx, const Transformer& model, const Case& c, const Ids& ids) {
    Told told;
    told.chosen.resize(ids.size());
    PassHooks hooks;
    if (c.overridden) hooks.overrides = &c.overrides;
    hooks.routing = [&](Index, const Routing& r) {
      const Index k = r.experts.dim(1);
      for (std::size_t t = 0; t < ids.size(); ++t) {
        auto row = r.experts.span<std::int32_t>().subspan(t * static_cast<std::size_t>(k), static_cast<std::size_t>(k));
        Ids sorted(row.begin(), row.end());
        std::sort(sorted.begin(), sorted.end());
        told.chosen[t].insert(told.chosen[t].end(), sorted.begin(), sorted.end());
      }
    };
    const auto tokens = static_cast<Index>(ids.size());
    KvSequence sequence(model.make_kv_pool(tokens, c.cache));
    told.logits = ctx.fetch(model.logits(ctx, ForwardBatch::of(ctx, sequence, ids, tokens), hooks));
    return told;
  }

  // Rows before the first token that the two sides send to different experts, which near ties do.
  void compare(const Case& c, const Told& got, const Told& want) {
    Index rows = 0;
    while (rows < want.logits.dim(0) &&
           got.chosen[static_cast<std::size_t>(rows)] == want.chosen[static_cast<std::size_t>(rows)])
      ++rows;
    all_ += want.logits.dim(0), compared_ += rows;
    if (rows == 0) return;
    const double error = worst_row_error(got.logits.rows(0, rows), want.logits.rows(0, rows), want.logits.dim(1));
    worst_ = std::max(worst_, error / c.limit());
    EXPECT_LE(error, c.limit());
  }

  void batches(Context& ctx, const Transformer& model, const Case& c, Draw& draw, const std::vector<Ids>& texts,
               const std::vector<Told>& want) {
    Index pages = 0;
    for (const Ids& ids : texts) pages += KvPool::pages_for(static_cast<Index>(ids.size()));
    const auto pool = model.make_kv_pool(pages * KvPool::kPageTokens, c.cache);
    std::vector<KvSequence> sequences;
    for (std::size_t i = 0; i < texts.size(); ++i) sequences.emplace_back(pool);
    PassHooks hooks;
    if (c.overridden) hooks.overrides = &c.overrides;
    for (bool more = true; more;) {
      more = false;
      ForwardBatch batch;
      std::vector<std::pair<std::size_t, Index>> ran;
      const bool decode = draw(2) == 0;
      for (std::size_t i = 0; i < texts.size(); ++i) {
        const Index at = sequences[i].length(), left = static_cast<Index>(texts[i].size()) - at;
        more = more || left > 0;
        if (left == 0 || draw(4) == 0) continue;
        const Index n = decode ? 1 : draw.between(1, std::min<Index>(left, draw(2) ? 20 : 200));
        batch.add(ctx, sequences[i], std::span(texts[i]).subspan(static_cast<std::size_t>(at), static_cast<std::size_t>(n)),
                  n);
        ran.emplace_back(i, at);
      }
      if (ran.empty()) continue;
      const Tensor got = ctx.fetch(model.logits(ctx, batch, hooks));
      Index row = 0;
      for (const auto& [i, at] : ran) {
        const Index n = sequences[i].length() - at;
        ASSERT_TRUE(same_bits(got.rows(row, row + n), want[i].logits.rows(at, at + n))) << n << " tokens from " << at;
        row += n;
      }
    }
  }

  Index all_ = 0, compared_ = 0;
  double worst_ = 0;
};

TEST_F(CudaRandom, RequestsAgainstTheCpu) {
  const auto began = std::chrono::steady_clock::now();
  const auto seconds = [&] { return std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count(); };
  const double wanted = setting("DSMOE_RANDOM_SECONDS", 4);
  const auto first = static_cast<std::uint64_t>(setting("DSMOE_RANDOM_SEED", 1)) * 1000000;
  int rounds = 0;
  Context host(0);
  for (; seconds() < wanted && !HasFailure(); ++rounds) {
    const std::uint64_t seed = first + static_cast<std::uint64_t>(rounds);
    Draw draw(seed);
    const Case c(draw);
    SCOPED_TRACE(::testing::Message() << "seed " << seed << ": " << c.str());
    const ModelWeights w = random_weights(c.config, seed, c.dtype, host);
    const Transformer on_cpu(c.config, w), on_gpu(c.config, owned_copy(spec_of(c.config), w, c.dtype, Device::kCuda));
    std::vector<Ids> texts;
    for (Index i = 0, n = draw.between(1, 12); i < n; ++i) {
      Ids& ids = texts.emplace_back();
      for (Index t = 0, length = draw(3) ? draw.between(1, 40) : draw.between(1, 520); t < length; ++t)
        ids.push_back(static_cast<std::int32_t>(draw(c.config.vocab_size)));
    }
    std::vector<Told> told;
    for (const Ids& ids : texts) {
      told.push_back(whole(ctx(), on_gpu, c, ids));
      compare(c, told.back(), whole(host, on_cpu, c, ids));
    }
    batches(ctx(), on_gpu, c, draw, texts, told);
  }
  std::cout << rounds << " random models in " << seconds() << " s; " << compared_ << " of " << all_
            << " rows compared with the CPU, the worst at " << worst_ << " of its limit\n";
  EXPECT_GT(compared_, all_ / 4) << "too few rows go to the same experts on both sides to say anything";
}

}  // namespace
}  // namespace dsmoe::test
