// Callbacks that throw: every request still hears of its end, once, and the engine goes on.
#include <gtest/gtest.h>

#include <type_traits>

#include "infer/engine_support.h"

namespace dsmoe {
namespace {

using infer::End;
using infer::Ended;
using infer::Engine;
using infer::Request;
using test::alone;
using test::Answer;
using test::expect_same;
using test::listened;

static_assert(noexcept(std::declval<infer::Scheduler&>().add({})), "a request that has arrived cannot be lost");

// With no tokens to generate, the routing of the prompt comes at the end.
Request with_a_rest() { return {.prompt = {3, 9, 27}, .options = {.max_tokens = 0}, .routing = true}; }

TEST(EngineCallbacks, OneThatThrowsAtTheEndIsToldTheEnd) {
  const Transformer model = test::engine_model();
  Context ctx(1);
  Engine engine(ctx, model, {.parallel = 1, .queue = 1}, test::engine_tokenizer());
  Request throws = with_a_rest(), other{.prompt = {1, 2}, .options = {.max_tokens = 4, .sampler = {.temperature = 0}}};
  std::vector<Ended> ends;
  throws.on_token = [](const infer::Token&) { throw std::runtime_error("no more paper"); };
  throws.on_end = [&](const Ended& e) { ends.push_back(e); };
  const auto answer = std::make_shared<Answer>();
  ASSERT_TRUE(engine.submit(throws));
  ASSERT_TRUE(engine.submit(listened(other, answer)));
  while (engine.step()) {
  }
  ASSERT_EQ(ends.size(), 1u);
  EXPECT_EQ(ends[0].reason, End::kError);
  EXPECT_STREQ(ends[0].error->what(), "no more paper");
  EXPECT_EQ(engine.stats().ended[static_cast<std::size_t>(End::kError)], 1u);
  expect_same(*answer, alone(model, other), "one that waited");
}

TEST(EngineCallbacks, WhatIsNoExceptionIsCaughtToo) {
  const Transformer model = test::engine_model();
  Context ctx(1);
  Engine engine(ctx, model, {});
  std::vector<Ended> ends;
  Request throws{.prompt = {1, 2, 3}, .options = {.max_tokens = 4}}, rest = with_a_rest();
  throws.on_token = rest.on_token = [](const infer::Token&) { throw 7; };
  throws.on_end = [&](const Ended& e) {
    ends.push_back(e);
    if (ends.size() == 2) engine.close();
    throw 8;
  };
  rest.on_end = throws.on_end;
  engine.submit(throws);
  engine.submit(rest);
  engine.run();
  ASSERT_EQ(ends.size(), 2u);
  for (const Ended& e : ends) {
    EXPECT_EQ(e.reason, End::kError);
    EXPECT_NE(std::string(e.error->what()).find("no std::exception"), std::string::npos);
  }
}

TEST(EngineCallbacks, StoppingTellsAllThoughSomeThrow) {
  const Transformer model = test::engine_model();
  Context ctx(1);
  Engine engine(ctx, model, {});
  int ends = 0;
  Request r{.prompt = {1, 2, 3}, .options = {.max_tokens = 4}};
  r.on_end = [&](const Ended& e) {
    EXPECT_EQ(e.reason, End::kCancelled);
    ++ends;
    throw std::runtime_error("no more paper");
  };
  for (int i = 0; i < 3; ++i) engine.submit(r);
  engine.cancel(2);
  engine.stop();
  engine.run();
  EXPECT_EQ(ends, 3);
}

}  // namespace
}  // namespace dsmoe
