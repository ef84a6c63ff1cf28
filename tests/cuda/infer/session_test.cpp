// Generating on a GPU, where tokens are chosen ahead of their being looked at: the same text as from logits that the CPU
// samples, whatever ends it.
#include "infer/session.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "cuda/gpu_test.h"
#include "model/families/family.h"
#include "support/expect_error.h"

namespace dsmoe::test {
namespace {

using Ids = std::vector<std::int32_t>;

const Ids kPrompt = {3, 9, 27, 31, 4, 12, 36, 8, 24};

class CudaSession : public GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (IsSkipped()) return;
    ModelConfig c;
    c.vocab_size = 523, c.hidden_size = 128, c.intermediate_size = 160, c.moe_intermediate_size = 64;
    c.num_hidden_layers = 2, c.num_attention_heads = 2, c.num_key_value_heads = 2, c.first_k_dense_replace = 1;
    c.n_routed_experts = 8, c.num_experts_per_tok = 2, c.n_shared_experts = 1;
    c.max_position_embeddings = 700, c.initializer_range = 0.3;
    Context host(0);
    model.emplace(c, owned_copy(spec_of(c), random_weights(c, 5, DType::kBF16, host), DType::kBF16, Device::kCuda));
  }

  // One pass for each token, and logits that the CPU samples.
  Ids by_host(const SamplerOptions& options, std::size_t count, Ids prompt = kPrompt, Ids banned = {}) {
    Context host(1);
    Sampler sampler(700);
    KvSequence sequence(model->make_kv_pool(700, model->dtype()), 700);
    sampler.start(host, options, prompt, banned);
    Ids next = prompt, out;
    while (out.size() < count) {
      sampler.choose(host, ctx().fetch(model->logits(ctx(), ForwardBatch::of(ctx(), sequence, next, 1))));
      next = {sampler.take(host)};
      out.push_back(next[0]);
    }
    return out;
  }

  std::optional<Transformer> model;
};

std::vector<SamplerOptions> kinds() {
  std::vector<SamplerOptions> all(4);
  all[0].temperature = 0;
  all[1].seed = 7;
  all[2] = {.repetition_penalty = 1.3f, .repetition_window = 20, .frequency_penalty = 0.2f, .top_k = 0, .seed = 9};
  all[3] = {.top_k = 0, .top_p = 1, .min_p = 0, .temperature = 1.5f, .seed = 1};
  return all;
}

TEST_F(CudaSession, TheTextIsThatOfTheCpusSampler) {
  infer::Session session(ctx(), *model);
  for (const SamplerOptions& o : kinds()) {
    session.rewind(0);
    Ids heard;
    const Generated got = session.generate(kPrompt, {.max_tokens = 300, .sampler = o}, [&](std::int32_t id) {
      heard.push_back(id);
      return true;
    });
    EXPECT_EQ(got.ids, by_host(o, 300));
    EXPECT_EQ(heard, got.ids);
    EXPECT_EQ(session.history().size(), kPrompt.size() + 299);
  }
}

TEST_F(CudaSession, StopsAndGoesOn) {
  const SamplerOptions o = kinds()[1];
  const Ids all = by_host(o, 60);
  infer::Session session(ctx(), *model);
  // The callback ends the text: the token is given, and not in the cache.
  Ids heard;
  Generated g = session.generate(kPrompt, {.max_tokens = 60, .sampler = o}, [&](std::int32_t id) {
    heard.push_back(id);
    return heard.size() < 10;
  });
  EXPECT_EQ(g.finish, Finish::kStopped);
  EXPECT_EQ(g.ids, Ids(all.begin(), all.begin() + 10));
  EXPECT_EQ(session.history().size(), kPrompt.size() + 9);
  // An end token does, and is no part of it.
  session.rewind(0);
  const auto end = std::find(all.begin() + 20, all.end(), all[20]);
  const auto first = std::find(all.begin(), all.end(), *end);
  g = session.generate(kPrompt, {.max_tokens = 60, .sampler = o, .end_tokens = {*end}});
  EXPECT_EQ(g.finish, Finish::kEos);
  EXPECT_EQ(g.ids, Ids(all.begin(), first));
  // What follows sees what was kept, and nothing of what was computed beyond.
  const Ids more = {5, 6};
  Ids whole = session.history();
  whole.insert(whole.end(), more.begin(), more.end());
  g = session.generate(more, {.max_tokens = 12, .sampler = o});
  EXPECT_EQ(g.ids, by_host(o, 12, whole));
  EXPECT_EQ(g.finish, Finish::kLength);
}

TEST_F(CudaSession, EndsOfTheContextAndOfEverything) {
  infer::Session session(ctx(), *model, {.context = 40});
  const Generated g = session.generate(kPrompt, {.max_tokens = -1, .sampler = kinds()[1]});
  EXPECT_EQ(g.finish, Finish::kContext);
  EXPECT_EQ(g.ids, by_host(kinds()[1], 32));
  EXPECT_EQ(session.history().size(), 40u);
  session.rewind(0);
  EXPECT_TRUE(session.generate(kPrompt, {.max_tokens = 0}).ids.empty());
  session.rewind(0);
  EXPECT_EQ(session.generate(kPrompt, {.max_tokens = 1, .sampler = kinds()[1]}).ids, by_host(kinds()[1], 1));
}

TEST_F(CudaSession, EndTokensCanBeIgnored) {
  infer::Session session(ctx(), *model);
  const Ids all = by_host(kinds()[0], 5);
  Ids banned(all.begin(), all.begin() + 3);
  for (std::int32_t id = 0; id < 30; ++id) banned.push_back(id);  // more than a session has room for at first
  for (const Ids& some : {Ids(all.begin(), all.begin() + 1), banned}) {
    session.rewind(0);
    const Generated g =
        session.generate(kPrompt, {.max_tokens = 20, .sampler = kinds()[0], .ignore_eos = true, .end_tokens = some});
    EXPECT_EQ(g.ids, by_host(kinds()[0], 20, kPrompt, some));
  }
}

// With someone looking inside, there is one pass after another.
TEST_F(CudaSession, AProbeChangesNothing) {
  infer::Session session(ctx(), *model);
  int calls = 0;
  session.set_probe([&](Index, const Routing&) { ++calls; });
  EXPECT_EQ(session.generate(kPrompt, {.max_tokens = 15, .sampler = kinds()[1]}).ids, by_host(kinds()[1], 15));
  EXPECT_EQ(calls, 15);
}

TEST_F(CudaSession, DamagedWeightsAreAnError) {
  const std::vector<BFloat16> nan(static_cast<std::size_t>(model->spec().width), BFloat16(NAN));
  Tensor damaged = ctx().fetch(model->weights().head).clone();
  std::memcpy(damaged.rows(100, 101).raw_mutable(), nan.data(), nan.size() * sizeof nan[0]);
  model->weights().head = ctx().place(damaged);
  infer::Session session(ctx(), *model);
  EXPECT_TRUE(::dsmoe::testing::throws_error([&] { session.generate(kPrompt, {.max_tokens = 5}); },
                                             {"token 100", "nan", "damaged"}, ErrorCode::kNumeric));
  EXPECT_EQ(session.history().size(), kPrompt.size());
}

}  // namespace
}  // namespace dsmoe::test
