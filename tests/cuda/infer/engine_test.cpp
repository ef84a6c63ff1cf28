// Many requests on a GPU, where a step is launched before the tokens of the one before were seen: every answer is the one
// that the request gets alone, one step after another.
#include "infer/engine.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "cuda/gpu_test.h"
#include "infer/session.h"
#include "model/families/family.h"
#include "support/random_tensor.h"

namespace dsmoe::test {
namespace {

using infer::End;
using infer::Engine;
using infer::Request;
using Ids = std::vector<std::int32_t>;

struct GpuAnswer {
  Ids ids;
  std::optional<infer::Ended> ended;
};

Request heard(Request r, const std::shared_ptr<GpuAnswer>& to) {
  r.on_token = [to](const infer::Token& t) {
    if (t.id >= 0) to->ids.push_back(t.id);
  };
  r.on_end = [to](infer::Ended e) { to->ended = std::move(e); };
  return r;
}

class CudaEngine : public GpuTest {
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

  Request random_request(Draw& draw) {
    Request r;
    for (Index n = draw.between(1, draw(4) == 0 ? 400 : 30); n > 0; --n)
      r.prompt.push_back(static_cast<std::int32_t>(draw(522)));
    r.options.max_tokens = draw.between(1, 40);
    r.options.end_tokens = {static_cast<std::int32_t>(draw(500)), 522};
    r.options.ignore_eos = draw(2) == 0;
    SamplerOptions& s = r.options.sampler;
    s.seed = static_cast<std::uint64_t>(draw(1000));
    s.temperature = draw(4) == 0 ? 0.0f : 0.5f + 0.5f * static_cast<float>(draw(4));
    if (draw(3) == 0) s.repetition_penalty = 1.2f, s.repetition_window = draw(100);
    if (draw(3) == 0) s.presence_penalty = 0.5f, s.frequency_penalty = 0.25f;
    if (draw(30) == 0) r.logprobs = 2;
    if (draw(30) == 0) r.logit_bias = {{7, 3.0f}};
    return r;
  }

  GpuAnswer alone(const Request& r, std::optional<KvType> cache) {
    const auto answer = std::make_shared<GpuAnswer>();
    EngineOptions options{.cache_tokens = 1024, .no_prefix_cache = true};
    options.kv_type = cache;
    Engine engine(ctx(), *model, options, {}, Engine::Ahead::kNever);
    engine.submit(heard(r, answer));
    while (engine.step()) {
    }
    return *answer;
  }

  // With `broken`, every fourth request has a token whose embedding is damaged.
  void check(const EngineOptions& options, int count, std::uint64_t seed, std::int32_t broken = -1) {
    Draw draw(seed);
    Engine engine(ctx(), *model, options);
    std::vector<std::pair<Request, std::shared_ptr<GpuAnswer>>> all;
    for (bool busy = true; busy || static_cast<int>(all.size()) < count;) {
      while (static_cast<int>(all.size()) < count && draw(3) == 0) {
        Request r = random_request(draw);
        if (broken >= 0) r.options.ignore_eos = true;
        if (broken >= 0 && all.size() % 4 == 3) r.prompt.back() = broken;
        all.emplace_back(r, std::make_shared<GpuAnswer>());
        engine.submit(heard(r, all.back().second));
      }
      busy = engine.step();
    }
    for (const auto& [request, got] : all) {
      ASSERT_TRUE(got->ended);
      const bool fails = broken >= 0 && request.prompt.back() == broken;
      EXPECT_EQ(got->ended->reason == End::kError, fails);
      if (fails) continue;
      const GpuAnswer want = alone(request, options.kv_type);
      EXPECT_EQ(got->ids, want.ids);
      EXPECT_EQ(got->ended->reason, want.ended->reason);
    }
    EXPECT_EQ(engine.stats().free_pages + engine.stats().cached_pages, engine.stats().pages);
  }

  std::optional<Transformer> model;
};

TEST_F(CudaEngine, EveryAnswerIsTheOneThatTheRequestGetsAlone) {
  check({.cache_tokens = 256 * 40, .parallel = 48, .step_tokens = 200}, 150, 1);
}

TEST_F(CudaEngine, WithATinyPool) { check({.cache_tokens = 768, .parallel = 8, .step_tokens = 150}, 60, 2); }

TEST_F(CudaEngine, WithAQuantizedCache) {
  check({.cache_tokens = 256 * 24, .kv_type = KvType::kQ8_0, .parallel = 20, .step_tokens = 100}, 40, 5);
}

TEST_F(CudaEngine, GivesWhatASessionGives) {
  Draw draw(3);
  for (int i = 0; i < 10; ++i) {
    Request r = random_request(draw);
    r.logprobs = -1, r.logit_bias.clear();
    const auto answer = std::make_shared<GpuAnswer>();
    Engine engine(ctx(), *model, {.cache_tokens = 1024});
    engine.submit(heard(r, answer));
    while (engine.step()) {
    }
    EXPECT_EQ(answer->ids, infer::Session(ctx(), *model).generate(r.prompt, r.options).ids);
  }
}

TEST_F(CudaEngine, ADamagedTokenIsTheErrorOfThoseWhoHaveIt) {
  const std::vector<BFloat16> nan(static_cast<std::size_t>(model->spec().width), BFloat16(NAN));
  Tensor damaged = ctx().fetch(model->weights().embedding).clone();
  std::memcpy(damaged.rows(522, 523).raw_mutable(), nan.data(), nan.size() * sizeof nan[0]);
  model->weights().embedding = ctx().place(damaged);
  check({.cache_tokens = 256 * 40, .parallel = 16, .step_tokens = 100}, 40, 4, 522);
}

}  // namespace
}  // namespace dsmoe::test
