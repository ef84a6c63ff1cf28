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
using test::random_request;
using test::random_sampler;

// A step is launched before the token of the one before was given to anyone, and not when the token is sure to be the last.
TEST(EngineAhead, ATokenComesAfterTheNextStepWasLaunched) {
  const Transformer model = test::engine_model();
  Context ctx(1);
  Engine engine(ctx, model, {}, {}, Engine::Ahead::kAlways);
  const auto answer = std::make_shared<Answer>();
  Request r{.prompt = {3, 9, 27}, .options = {.max_tokens = 3, .sampler = {.temperature = 0}}};
  engine.submit(listened(r, answer));
  std::vector<std::size_t> tokens;
  for (bool busy = true; busy;) {
    busy = engine.step();
    tokens.push_back(answer->ids.size());
  }
  EXPECT_EQ(tokens, (std::vector<std::size_t>{0, 1, 2, 3, 3}));
  EXPECT_EQ(engine.stats().step_tokens, 5u) << "the prompt and two tokens: the last is not run";
  EXPECT_EQ(answer->ids, alone(model, r).ids);
}

// The tokens that run in vain are those after an end that nobody could know.
TEST(EngineAhead, WhatRanInVainIsForgotten) {
  const Transformer model = test::engine_model();
  Request r{.prompt = {3, 9, 27}, .options = {.max_tokens = 8, .sampler = {.temperature = 0}}};
  const Answer whole = alone(model, r);
  r.options.end_tokens = {whole.ids[3]};
  Context ctx(1);
  Engine engine(ctx, model, {}, test::engine_tokenizer(), Engine::Ahead::kAlways);
  for (int i = 0; i < 3; ++i) {  // the second and third find what the first left in the prefix cache
    const auto answer = std::make_shared<Answer>(), after = std::make_shared<Answer>();
    engine.submit(listened(r, answer));
    while (engine.step()) {
    }
    EXPECT_EQ(answer->ended->reason, End::kEos);
    expect_same(*answer, alone(model, r), "a step ahead");
    Request longer{.prompt = r.prompt, .options = {.max_tokens = 8, .sampler = {.temperature = 0}}};
    longer.prompt.insert(longer.prompt.end(), whole.ids.begin(), whole.ids.begin() + 3);
    longer.prompt.push_back(i);
    engine.submit(listened(longer, after));
    while (engine.step()) {
    }
    expect_same(*after, alone(model, longer), "with what is left of one that ended");
  }
}

// A pass fails on the token 49, whose embedding is damaged.
TEST(EngineAhead, ARequestThatCannotRunDoesNotTouchTheOthers) {
  Transformer model = test::engine_model();
  Tensor row = model.weights().embedding.rows(49, 50);
  std::fill(row.span<float>().begin(), row.span<float>().end(), NAN);
  test::Draw draw(3);
  for (const auto ahead : {Engine::Ahead::kNever, Engine::Ahead::kAlways}) {
    Context ctx(1);
    Engine engine(ctx, model, {.step_tokens = 40}, test::engine_tokenizer(), ahead);
    std::vector<std::pair<Request, std::shared_ptr<Answer>>> all;
    for (int i = 0; i < 20; ++i) {
      Request r{.prompt = test::random_prompt(draw, draw.between(1, 30))};
      std::replace(r.prompt.begin(), r.prompt.end(), 49, 48);
      r.options = {.max_tokens = draw.between(1, 12), .ignore_eos = true, .end_tokens = {49}};
      r.options.sampler = random_sampler(draw);
      if (i % 5 == 3) r.prompt.back() = 49;
      all.emplace_back(r, std::make_shared<Answer>());
      engine.submit(listened(r, all.back().second));
      for (Index n = draw(3); n > 0; --n) engine.step();
    }
    while (engine.step()) {
    }
    for (const auto& [request, answer] : all) {
      ASSERT_TRUE(answer->ended);
      EXPECT_EQ(answer->ended->reason == End::kError, request.prompt.back() == 49);
      if (request.prompt.back() != 49) expect_same(*answer, alone(model, request), "beside a damaged one");
    }
    EXPECT_EQ(engine.stats().free_pages + engine.stats().cached_pages, engine.stats().pages);
  }
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

TEST(Engine, SaysWhenAllOfAStepHaveTheirTokens) {
  const Transformer model = test::engine_model();
  Context ctx(1);
  Engine engine(ctx, model, {});
  std::vector<int> tokens_of_steps;
  int tokens = 0, ends = 0;
  engine.on_step([&] { tokens_of_steps.push_back(std::exchange(tokens, 0)); });
  for (int i = 0; i < 3; ++i) {
    Request r{.prompt = {1, 2, 3}};
    r.options.max_tokens = 4;
    r.on_token = [&](const infer::Token&) { ++tokens; };
    r.on_end = [&](const infer::Ended&) { ++ends; };
    engine.submit(r);
  }
  while (engine.step()) {
  }
  EXPECT_EQ(tokens_of_steps, (std::vector{3, 3, 3, 3, 0})) << "the last one found nothing to do";
  EXPECT_EQ(ends, 3);
  Request late{.prompt = {1}};
  late.on_end = [&](const infer::Ended&) { ++tokens; };
  engine.submit(late);
  engine.stop();
  engine.run();
  EXPECT_EQ(tokens_of_steps.back(), 1) << "an end that belongs to no step";
}

TEST(Engine, ACallbackThatThrowsEndsWhatIsThereAndNotTheThread) {
  const Transformer model = test::engine_model();
  Context ctx(1);
  Engine engine(ctx, model, {});
  std::vector<End> ends;
  std::function<void(bool)> submit = [&](bool throws) {
    Request r{.prompt = {1, 2, 3}};
    r.options.max_tokens = 4;
    r.on_token = [throws](const infer::Token&) {
      if (throws) throw std::runtime_error("no more paper");
    };
    r.on_end = [&](const infer::Ended& e) {
      ends.push_back(e.reason);
      if (ends.size() == 2) submit(false);
      if (ends.size() == 3) engine.close();
    };
    engine.submit(r);
  };
  submit(true);
  submit(false);
  engine.run();
  EXPECT_EQ(ends, (std::vector{End::kError, End::kError, End::kLength}));
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
  for (const Index layer : {-1, 0, 99})
    EXPECT_TRUE(refused({.prompt = {1}, .overrides = RoutingOverrides{.disabled = {{layer, 1}}}}, {"is not a MoE layer"}));
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

class EngineThread : public ::testing::TestWithParam<Engine::Ahead> {};
INSTANTIATE_TEST_SUITE_P(Steps, EngineThread, ::testing::Values(Engine::Ahead::kNever, Engine::Ahead::kAlways),
                         [](const auto& i) { return i.param == Engine::Ahead::kNever ? "Wait" : "RunAhead"; });

// Two threads that submit and cancel while the engine runs on a third.
TEST_P(EngineThread, SubmitAndCancelFromAnyThread) {
  const Transformer model = test::engine_model();
  Context ctx(2);
  Engine engine(ctx, model, {.cache_tokens = 1024, .parallel = 4, .step_tokens = 64}, test::engine_tokenizer(), GetParam());
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

TEST_P(EngineThread, StopEndsEverything) {
  const Transformer model = test::engine_model();
  Context ctx(1);
  Engine engine(ctx, model, {.parallel = 1}, {}, GetParam());
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
