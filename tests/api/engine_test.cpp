#include "dsmoe/engine.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <thread>

#include "dsmoe/error.h"
#include "dsmoe/session.h"
#include "support/expect_error.h"
#include "train/corpus/builtin_tokenizer.h"

namespace dsmoe {
namespace {

std::shared_ptr<Model> small_model() {
  ModelConfig c = ModelConfig::preset("tiny");
  c.num_hidden_layers = 2;
  return Model::random(c, 1, DType::kF32, train::builtin_tokenizer(512));
}

GenerateOptions drawn(Index tokens, std::uint64_t seed) {
  GenerateOptions o{.max_tokens = tokens};
  o.sampler.seed = seed;
  o.ignore_eos = true;
  return o;
}

TEST(ApiEngine, ManyThreadsGetWhatASessionGives) {
  const std::shared_ptr<Model> model = small_model();
  std::vector<std::string> prompts, want, got(6);
  for (std::size_t i = 0; i < got.size(); ++i) {
    prompts.push_back("Once upon a time " + std::string(i * 7, 'a'));
    Session session(model, {.threads = 1});
    want.push_back(session.generate(prompts[i], drawn(12, i)).text);
  }
  Engine engine(model, {.threads = 1});
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < got.size(); ++i)
    threads.emplace_back([&, i] { got[i] = engine.generate({.text = prompts[i], .options = drawn(12, i)}).text; });
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(got, want);
  EXPECT_EQ(engine.context(), model->config().max_position_embeddings);
}

TEST(ApiEngine, CallbacksHearTokensExpertsAndTheEnd) {
  const std::shared_ptr<Model> model = small_model();
  std::vector<std::int32_t> ids;
  Index prompt_tokens = 0, routed = 0;
  RequestEnded end;
  bool logprobs = true;
  Engine engine(model, {.threads = 1});
  Request r{.prompt = {3, 4, 5}, .options = drawn(5, 1), .logprobs = 2, .routing = true};
  r.on_prompt = [&](const PromptDone& p) { prompt_tokens = p.tokens; };
  r.on_token = [&](const GeneratedToken& t) {
    if (t.id >= 0) ids.push_back(t.id), logprobs = logprobs && t.logprobs && t.logprobs->top.size() == 2;
    routed += t.routing.tokens;
    return true;
  };
  r.on_end = [&](const RequestEnded& e) { end = e; };
  ASSERT_TRUE(engine.submit(r));
  engine.wait();
  EXPECT_EQ(ids.size(), 5u);
  EXPECT_EQ(prompt_tokens, 3);
  EXPECT_EQ(routed, 3 + 4) << "all but the last token";
  EXPECT_TRUE(logprobs);
  EXPECT_EQ(end.reason, RequestEnd::kLength);
  EXPECT_EQ(end.generated_tokens, 5);
  EXPECT_FALSE(end.error);

  Request embedding{.prompt = {3, 4, 5}, .embedding = true};
  embedding.on_end = [&](const RequestEnded& e) { end = e; };
  ASSERT_TRUE(engine.submit(embedding));
  engine.wait();
  EXPECT_EQ(static_cast<Index>(end.embedding.size()), model->config().hidden_size);
}

TEST(ApiEngine, ACallbackStopsFailsAndSubmits) {
  Engine engine(small_model(), {.threads = 1});
  std::atomic<int> tokens = 0, ends = 0;
  Request stops{.text = "Once", .options = drawn(200, 1)};
  stops.on_token = [&](const GeneratedToken&) { return ++tokens < 3; };
  const Generated stopped = engine.generate(stops);
  EXPECT_EQ(stopped.finish, Finish::kStopped);
  EXPECT_EQ(stopped.ids.size(), 3u);
  EXPECT_EQ(tokens, 3) << "and is not asked again";

  RequestEnded end;
  Request fails{.text = "Once", .options = drawn(200, 1)};
  fails.on_token = [](const GeneratedToken&) -> bool { throw std::runtime_error("no more paper"); };
  EXPECT_TRUE(testing::throws_error([&] { engine.generate(fails); }, {"no more paper"}));
  fails.on_end = [&](const RequestEnded& e) {
    end = e;
    Request next{.text = "Then", .options = drawn(2, 1)};
    next.on_end = [&](const RequestEnded&) {
      ++ends;
      throw std::runtime_error("nobody hears this");
    };
    engine.submit(next);
  };
  ASSERT_TRUE(engine.submit(fails));
  engine.wait();
  EXPECT_EQ(end.reason, RequestEnd::kError);
  EXPECT_EQ(ends, 1) << "wait() waits for what callbacks submit, too";
  EXPECT_EQ(engine.generate({.text = "Once", .options = drawn(4, 1)}).ids.size(), 4u) << "and it goes on";

  std::promise<std::string> said;
  Request waits{.text = "Once", .options = drawn(1, 1)};
  waits.on_end = [&](const RequestEnded&) {
    try {
      engine.wait();
    } catch (const Error& e) {
      said.set_value(e.what());
    }
  };
  engine.submit(waits);
  EXPECT_NE(said.get_future().get().find("cannot wait"), std::string::npos);
}

TEST(ApiEngine, ACallbackThrowsWhatIsNoException) {
  Engine engine(small_model(), {.threads = 1});
  const std::string words = "no std::exception";
  for (const bool prompt : {false, true}) {
    Request r{.text = "Once", .options = drawn(200, 1)};
    if (prompt)
      r.on_prompt = [](const PromptDone&) { throw 7; };
    else
      r.on_token = [](const GeneratedToken&) -> bool { throw 7; };
    EXPECT_TRUE(testing::throws_error([&] { engine.generate(r); }, {words}));
    RequestEnded end;
    r.on_end = [&](const RequestEnded& e) {
      end = e;
      throw 8;
    };
    EXPECT_TRUE(testing::throws_error([&] { engine.generate(r); }, {words}));
    ASSERT_TRUE(engine.submit(r));
    engine.wait();
    EXPECT_EQ(end.reason, RequestEnd::kError);
  }
  EXPECT_EQ(engine.generate({.text = "Once", .options = drawn(4, 1)}).ids.size(), 4u) << "and it goes on";
}

TEST(ApiEngine, AnAnswerWhoseTimeIsOverSaysSo) {
  Engine engine(small_model(), {.threads = 1});
  const Generated out = engine.generate({.text = "Once", .options = drawn(500, 1), .seconds = 1e-9});
  EXPECT_EQ(out.finish, Finish::kTimeout);
  EXPECT_STREQ(to_string(out.finish), "timeout");
  EXPECT_LT(out.ids.size(), 500u);
}

TEST(ApiEngine, WithinAGrammar) {
  Engine engine(small_model(), {.threads = 1});
  GenerateOptions options = drawn(20, 1);
  options.ignore_eos = false;
  options.grammar = R"(root ::= "yes" | "no")";
  const std::string text = engine.generate({.text = "Once", .options = options}).text;
  EXPECT_TRUE(text == "yes" || text == "no") << text;
  options.json_schema = "{}";
  EXPECT_TRUE(
      testing::throws_error([&] { engine.generate({.text = "Once", .options = options}); }, {"exclude each other"}));
}

TEST(ApiEngine, MistakesAndTooMany) {
  EXPECT_TRUE(testing::throws_error([&] { Engine none(nullptr); }, {"needs a model"}));
  std::optional<Engine> engine(std::in_place, small_model(), EngineOptions{.parallel = 1, .queue = 0, .threads = 1});
  EXPECT_TRUE(testing::throws_error([&] { engine->submit({}); }, {"prompt is empty"}));
  EXPECT_TRUE(testing::throws_error([&] { engine->submit({.prompt = {1}, .text = "x"}); }, {"not both"}));
  EXPECT_TRUE(testing::throws_error([&] { engine->submit({.prompt = {99'999}}); }, {"99999"}));
  EXPECT_TRUE(testing::throws_error([&] { engine->generate({.prompt = {1}, .embedding = true}); }, {"no text"}));
  engine->wait();  // for nothing
  std::promise<void> runs;
  std::optional<RequestEnd> reason;
  Request endless{.prompt = {1}, .options = drawn(-1, 1)};
  endless.on_token = [&, first = true](const GeneratedToken&) mutable {
    if (std::exchange(first, false)) runs.set_value();
    return true;
  };
  endless.on_end = [&](const RequestEnded& e) { reason = e.reason; };
  endless.options.max_tokens = 500;
  const auto id = engine->submit(endless);
  ASSERT_TRUE(id);
  runs.get_future().wait();
  EXPECT_FALSE(engine->submit({.prompt = {1}})) << "no room";
  engine->cancel(*id);
  engine->wait();
  EXPECT_EQ(reason, RequestEnd::kCancelled);
  reason.reset();
  endless.on_token = {};
  ASSERT_TRUE(engine->submit(endless));
  engine.reset();
  EXPECT_TRUE(reason) << "it ends with the engine";
}

}  // namespace
}  // namespace dsmoe
