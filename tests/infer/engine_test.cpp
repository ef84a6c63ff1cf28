#include "infer/engine.h"

#include <gtest/gtest.h>

#include <cmath>
#include <thread>

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

SamplerOptions random_sampler(test::Draw& draw) {
  SamplerOptions s;
  s.seed = static_cast<std::uint64_t>(draw(1000));
  s.temperature = draw(4) == 0 ? 0.0f : 0.5f + 0.25f * static_cast<float>(draw(4));
  s.top_k = draw(2) ? 0 : draw.between(1, 40);
  s.top_p = draw(2) ? 1.0f : 0.9f;
  s.min_p = draw(2) ? 0.0f : 0.05f;
  if (draw(3) == 0) s.repetition_penalty = 1.2f, s.repetition_window = draw(100);
  if (draw(3) == 0) s.presence_penalty = 0.5f, s.frequency_penalty = 0.25f;
  return s;
}

// Prompts that often begin alike; a bit of everything that can be asked.
Request random_request(test::Draw& draw) {
  static const Ids kCommon = [] {
    test::Draw d(99);
    return test::random_prompt(d, 600);
  }();
  Request r;
  if (draw(3) > 0) r.prompt.assign(kCommon.begin(), kCommon.begin() + draw.between(1, 560));
  const Ids rest = test::random_prompt(draw, draw(4) == 0 ? draw.between(1, 150) : draw.between(1, 12));
  if (draw(3) == 0) r.prompt = test::random_prompt(draw, draw.between(220, 255));  // grows into a second page
  r.prompt.insert(r.prompt.end(), rest.begin(), rest.end());
  r.options.sampler = random_sampler(draw);
  r.options.max_tokens = draw(20) == 0 ? 0 : draw.between(1, 40);
  r.options.end_tokens = {static_cast<std::int32_t>(draw(50))};
  r.options.ignore_eos = draw(2) == 0;
  if (draw(4) == 0) r.options.stop = {"BC", "X"};
  if (draw(4) == 0) r.logprobs = draw(4);
  if (draw(5) == 0) r.logit_bias = {{static_cast<std::int32_t>(draw(50)), 3.0f}, {2, -50.0f}};
  if (draw(5) == 0) r.routing = true;
  if (draw(8) == 0) r.prompt_logprobs = true;
  if (draw(10) == 0) r.embedding = true;
  if (draw(5) == 0) {
    r.overrides.emplace();
    if (draw(2))
      r.overrides->skip_best = draw.between(1, 3);
    else
      r.overrides->disabled = {{1, draw(8)}, {2, draw(8)}};
    r.overrides->drop_shared = draw(3) == 0;
  }
  return r;
}

// Random requests that come at random times, some of them cancelled: every other answer is what the request gets alone.
void check_load(DType dtype, const EngineOptions& options, int threads, int count, std::uint64_t seed) {
  const Transformer model = test::engine_model(dtype);
  test::Draw draw(seed);
  Context ctx(threads);
  Engine engine(ctx, model, options, test::engine_tokenizer());
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

TEST(Engine, GivesWhatASessionGives) {
  const Transformer model = test::engine_model();
  test::Draw draw(7);
  for (int i = 0; i < 20; ++i) {
    Request r;
    r.prompt = test::random_prompt(draw, draw.between(1, 300));
    r.options.sampler = random_sampler(draw);
    r.options.max_tokens = draw.between(0, 30);
    r.options.end_tokens = {3, 4};
    r.options.ignore_eos = draw(2) == 0;
    Context ctx(1);
    const Generated want = infer::Session(ctx, model).generate(r.prompt, r.options);
    const Answer got = alone(model, r);
    EXPECT_EQ(got.ids, want.ids);
    EXPECT_STREQ(to_string(got.ended->reason), to_string(want.finish));
  }
}

TEST(Engine, EndsForTheReasonItGives) {
  const Transformer model = test::engine_model();
  Request r{.prompt = {3, 9, 27}};
  r.options = {.max_tokens = 5, .sampler = {.temperature = 0}};
  EXPECT_EQ(alone(model, r).ended->reason, End::kLength);
  const Answer first = alone(model, r);
  r.options.max_tokens = -1;
  const Answer full = alone(model, r, {.context = 15});
  EXPECT_EQ(full.ended->reason, End::kContext);
  EXPECT_EQ(full.ids.size(), 13u) << "twelve run, and the one that the last of them gave";
  r.options.end_tokens = {first.ids[3]};
  EXPECT_EQ(alone(model, r).ended->reason, End::kEos);
  r.options.end_tokens = {};
  r.options.stop = {std::string(1, static_cast<char>('A' + first.ids[2]))};
  const Answer stopped = alone(model, r);
  EXPECT_EQ(stopped.ended->reason, End::kStop);
  EXPECT_EQ(stopped.text.find(r.options.stop[0]), std::string::npos);
}

TEST(Engine, RefusesWhatCanNeverRun) {
  const Transformer model = test::engine_model();
  Context ctx(1);
  Engine engine(ctx, model, {.context = 10});
  const auto refused = [&](Request r, std::initializer_list<std::string_view> words) {
    return testing::throws_error([&] { engine.submit(std::move(r)); }, words);
  };
  EXPECT_TRUE(refused({}, {"empty"}));
  EXPECT_TRUE(refused({.prompt = {50}}, {"token 50"}));
  EXPECT_TRUE(refused({.prompt = Ids(11)}, {"11 tokens", "context"}));
  EXPECT_TRUE(refused({.prompt = {1}, .options = {.stop = {"x"}}}, {"stop"}));
  EXPECT_TRUE(refused({.prompt = {1}, .options = {.sampler = {.temperature = -1}}}, {"temp"}));
  EXPECT_TRUE(refused({.prompt = {1}, .logit_bias = {{1, NAN}}}, {"bias"}));
  EXPECT_TRUE(refused({.prompt = {1}, .overrides = RoutingOverrides{.skip_best = 8}}, {"experts"}));
  EXPECT_FALSE(engine.step());
}

TEST(Engine, MoreThanTheQueueIsRefusedAndThenThereIsRoomAgain) {
  const Transformer model = test::engine_model();
  Context ctx(1);
  Engine engine(ctx, model, {.parallel = 2, .queue = 1});
  const Request r{.prompt = {1, 2, 3}, .options = {.max_tokens = 2}};
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(engine.submit(r));
  EXPECT_FALSE(engine.submit(r));
  while (engine.step()) {
  }
  EXPECT_TRUE(engine.submit(r));
  EXPECT_EQ(engine.stats().refused, 1u);
  EXPECT_EQ(engine.stats().submitted, 4u);
}

TEST(Engine, ARequestWhoseTimeIsOverEnds) {
  const Transformer model = test::engine_model();
  Context ctx(1);
  Engine engine(ctx, model, {.parallel = 1, .request_seconds = 3600});
  const auto a = std::make_shared<Answer>(), b = std::make_shared<Answer>();
  engine.submit(listened({.prompt = {1}, .options = {.max_tokens = 1}}, a));
  engine.submit(listened({.prompt = {1}, .seconds = 1e-9}, b));
  while (engine.step()) {
  }
  EXPECT_EQ(a->ended->reason, End::kLength);
  EXPECT_EQ(b->ended->reason, End::kTimeout) << "also one that waits";
}

// Allows two tokens, then ends after six.
struct TwoTokens : infer::TokenMask {
  bool allowed(std::span<std::uint32_t> bits) override {
    std::fill(bits.begin(), bits.end(), 0u);
    bits[0] = 1u << 5;
    bits[1] = 1u << 8;
    return accepted.size() < 6;
  }
  void accept(std::int32_t id) override { accepted.push_back(id); }
  Ids accepted;
};

TEST(Engine, AMaskIsFollowedAndEndsTheText) {
  const Transformer model = test::engine_model();
  for (const float temperature : {0.0f, 1.0f, 100.0f}) {
    const auto mask = std::make_shared<TwoTokens>();
    Request r{.prompt = {4, 5, 6}, .mask = mask};
    r.options.sampler = {.top_p = 1, .min_p = 0, .temperature = temperature, .seed = 4};
    const Answer got = alone(model, r);
    EXPECT_EQ(got.ended->reason, End::kEos);
    EXPECT_EQ(got.ids, mask->accepted);
    EXPECT_EQ(got.ids.size(), 6u);
    for (const std::int32_t id : got.ids) EXPECT_TRUE(id == 5 || id == 40) << id;
  }
}

struct Broken : infer::TokenMask {
  bool allowed(std::span<std::uint32_t>) override { throw Error(ErrorCode::kNumeric, "no good"); }
  void accept(std::int32_t) override {}
};

TEST(Engine, ARequestThatCannotRunDoesNotTouchTheOthers) {
  const Transformer model = test::engine_model();
  Context ctx(1);
  Engine engine(ctx, model, {}, test::engine_tokenizer());
  Request good{.prompt = {4, 5, 6}, .routing = true};
  std::vector<std::shared_ptr<Answer>> answers;
  for (int i = 0; i < 5; ++i) {
    Request r = good;
    if (i == 2) r.mask = std::make_shared<Broken>();
    engine.submit(listened(r, answers.emplace_back(std::make_shared<Answer>())));
  }
  while (engine.step()) {
  }
  const Answer want = alone(model, good);
  for (int i = 0; i < 5; ++i) {
    if (i == 2) continue;
    expect_same(*answers[static_cast<std::size_t>(i)], want, "beside a broken one");
  }
  ASSERT_TRUE(answers[2]->ended);
  EXPECT_EQ(answers[2]->ended->reason, End::kError);
  EXPECT_STREQ(answers[2]->ended->error->what(), "no good");
  EXPECT_TRUE(answers[2]->ids.empty());
  EXPECT_EQ(engine.stats().free_pages + engine.stats().cached_pages, engine.stats().pages);
}

TEST(Engine, LogprobsAreThoseOfTheModelsLogits) {
  const Transformer model = test::engine_model();
  Request r{.prompt = {4, 5, 6}, .logprobs = 3, .prompt_logprobs = true};
  r.options = {.max_tokens = 4, .sampler = {.temperature = 0}};
  const Answer got = alone(model, r);
  ASSERT_EQ(got.logprobs.size(), 4u);
  ASSERT_EQ(got.prompt_logprobs.size(), 2u) << "of all but the first";
  EXPECT_EQ(got.prompt_logprobs[0].token.id, 5);
  Ids text = r.prompt;
  for (const auto& l : got.logprobs) {
    EXPECT_EQ(l.token.id, l.top[0].id) << "greedy";
    EXPECT_EQ(l.token.value, l.top[0].value);
    EXPECT_GT(l.top[0].value, l.top[2].value);
    text.push_back(l.token.id);
  }
  // What was said of a token as part of the answer is said of it as part of a prompt.
  const Answer again = alone(model, {.prompt = text, .options = {.max_tokens = 0}, .logprobs = 3, .prompt_logprobs = true});
  ASSERT_EQ(again.prompt_logprobs.size(), 6u);
  for (std::size_t i = 0; i < 4; ++i) EXPECT_TRUE(test::same(again.prompt_logprobs[i + 2], got.logprobs[i]));
  double sum = 0;
  const Answer all = alone(model, {.prompt = {4}, .options = {.max_tokens = 1}, .logprobs = 50});
  for (const auto& l : all.logprobs[0].top) sum += std::exp(static_cast<double>(l.value));
  EXPECT_NEAR(sum, 1, 1e-5);
}

TEST(Engine, OverridesAreTheRequestsOwn) {
  const Transformer model = test::engine_model();
  Request r{.prompt = {4, 5, 6, 7}, .routing = true};
  r.options = {.max_tokens = 8, .sampler = {.temperature = 0}};
  const Answer plain = alone(model, r);
  r.overrides = RoutingOverrides{.disabled = {{1, plain.routing[0].experts[0]}}};
  const Answer changed = alone(model, r);
  EXPECT_EQ(plain.routed, 4 + 7) << "all but the last token";
  EXPECT_NE(plain.routing[0].experts, changed.routing[0].experts);
  for (const std::int32_t e : changed.routing[0].experts) EXPECT_NE(e, plain.routing[0].experts[0]);
}

// Two threads that submit and cancel while the engine runs on a third.
TEST(EngineThread, SubmitAndCancelFromAnyThread) {
  const Transformer model = test::engine_model();
  Context ctx(2);
  Engine engine(ctx, model, {.cache_tokens = 1024, .parallel = 4, .step_tokens = 64}, test::engine_tokenizer());
  std::thread runs([&] { engine.run(); });
  struct Sent {
    Request request;
    std::shared_ptr<Answer> answer = std::make_shared<Answer>();
  };
  std::vector<Sent> sent[2];
  std::vector<std::thread> clients;
  for (int c = 0; c < 2; ++c) {
    clients.emplace_back([&, c] {
      test::Draw draw(static_cast<std::uint64_t>(50 + c));
      for (int i = 0; i < 15; ++i) {
        Sent& s = sent[c].emplace_back();
        s.request = random_request(draw);
        const auto id = engine.submit(listened(s.request, s.answer));
        if (id && draw(5) == 0) engine.cancel(*id);
        engine.stats();
      }
    });
  }
  for (std::thread& t : clients) t.join();
  engine.close();
  EXPECT_FALSE(engine.submit({.prompt = {1}})) << "it is closed";
  runs.join();
  for (const auto& client : sent) {
    for (const Sent& s : client) {
      ASSERT_TRUE(s.answer->ended);
      if (s.answer->ended->reason != End::kCancelled) expect_same(*s.answer, alone(model, s.request), "beside others");
    }
  }
}

TEST(EngineThread, StopEndsEverything) {
  const Transformer model = test::engine_model();
  Context ctx(1);
  Engine engine(ctx, model, {.parallel = 1});
  const auto a = std::make_shared<Answer>(), b = std::make_shared<Answer>();
  Request endless{.prompt = {1}, .options = {.max_tokens = -1, .ignore_eos = true}};
  engine.submit(listened(endless, a));
  engine.submit(listened(endless, b));
  engine.stop();
  engine.run();
  EXPECT_EQ(a->ended->reason, End::kCancelled);
  EXPECT_EQ(b->ended->reason, End::kCancelled);
}

}  // namespace
}  // namespace dsmoe
