// Many requests of every kind at once: each answer is the one that the request gets alone.
#include <gtest/gtest.h>

#include <cmath>
#include <thread>

#include "infer/engine.h"
#include "infer/engine_support.h"
#include "infer/session.h"
#include "support/expect_error.h"

namespace dsmoe {
namespace {

using infer::End;
using infer::Engine;
using infer::Request;
using test::alone;
using test::Answer;
using test::expect_same;
using test::Ids;
using test::listened;
using test::random_request;

// Without what somebody has to look at before the next token.
Request plain(Request r) {
  r.logprobs = -1, r.prompt_logprobs = r.routing = r.embedding = false;
  r.logit_bias.clear(), r.overrides.reset();
  return r;
}

// Random requests that come at random times, some of them cancelled: every other answer is what the request gets alone.
void check_load(DType dtype, const EngineOptions& options, int threads, int count, std::uint64_t seed,
                Engine::Ahead ahead = Engine::Ahead::kAuto) {
  const Transformer model = test::engine_model(dtype);
  test::Draw draw(seed);
  Context ctx(threads);
  Engine engine(ctx, model, options, test::engine_tokenizer(), ahead);
  struct Sent {
    Request request;
    std::shared_ptr<Answer> answer = std::make_shared<Answer>();
    infer::RequestId id = 0;
    bool cancelled = false;
  };
  std::vector<Sent> sent;
  for (bool busy = true; busy || static_cast<int>(sent.size()) < count;) {
    while (static_cast<int>(sent.size()) < count && draw(3) == 0) {
      Sent& s = sent.emplace_back();
      s.request = random_request(draw);
      // Most of the time a step may be launched ahead of the one before; then somebody asks for more.
      if (ahead == Engine::Ahead::kAlways && draw(20) > 0) s.request = plain(std::move(s.request));
      const auto id = engine.submit(listened(s.request, s.answer));
      ASSERT_TRUE(id);
      s.id = *id;
    }
    if (!sent.empty() && draw(60) == 0) {
      Sent& s = sent[static_cast<std::size_t>(draw(static_cast<Index>(sent.size())))];
      s.cancelled = s.cancelled || !s.answer->ended;
      engine.cancel(s.id);
    }
    busy = engine.step();
  }
  for (const Sent& s : sent) {
    ASSERT_TRUE(s.answer->ended);
    const std::string what = fmt::format("request {} of {} tokens", s.id, s.request.prompt.size());
    if (s.answer->ended->reason == End::kCancelled) {
      EXPECT_TRUE(s.cancelled) << what;
      continue;
    }
    expect_same(*s.answer, alone(model, s.request, options), what);
  }
  const infer::EngineStats stats = engine.stats();
  EXPECT_EQ(stats.free_pages + stats.cached_pages, stats.pages) << "no page is lost";
  EXPECT_EQ(stats.running + stats.waiting, 0);
  if (options.cache_tokens <= 1024) {
    EXPECT_GT(stats.preemptions, 0u);
  }
  EXPECT_EQ(stats.cached_tokens > 0, !options.no_prefix_cache);
}

TEST(EngineLoad, EveryAnswerIsTheOneThatTheRequestGetsAlone) {
  check_load(DType::kF32, {.cache_tokens = 256 * 12, .parallel = 8, .step_tokens = 100}, 2, 80, 1);
}

TEST(EngineLoad, InBf16) {
  check_load(DType::kBF16, {.cache_tokens = 256 * 12, .parallel = 8, .step_tokens = 100}, 2, 40, 2);
}

TEST(EngineLoad, WithATinyPool) {
  check_load(DType::kF32, {.cache_tokens = 768, .parallel = 8, .step_tokens = 150}, 2, 80, 3);
}

TEST(EngineLoad, WithATinyPoolAndNoPrefixCache) {
  check_load(DType::kF32, {.cache_tokens = 768, .parallel = 16, .step_tokens = 64, .no_prefix_cache = true}, 1, 60, 4);
}

TEST(EngineLoad, AStepAhead) {
  check_load(DType::kF32, {.cache_tokens = 256 * 12, .parallel = 8, .step_tokens = 100}, 2, 120, 5, Engine::Ahead::kAlways);
}

TEST(EngineLoad, AStepAheadWithATinyPool) {
  check_load(DType::kF32, {.cache_tokens = 768, .parallel = 8, .step_tokens = 150}, 2, 120, 6, Engine::Ahead::kAlways);
}

TEST(EngineLoad, AStepAheadWithATinyPoolAndNoPrefixCache) {
  check_load(DType::kF32, {.cache_tokens = 768, .parallel = 16, .step_tokens = 64, .no_prefix_cache = true}, 1, 80, 7,
             Engine::Ahead::kAlways);
}

}  // namespace
}  // namespace dsmoe
