#include "dsmoe/batch.h"

#include <gtest/gtest.h>

#include "dsmoe/error.h"
#include "dsmoe/evaluate.h"
#include "support/expect_error.h"
#include "train/corpus/builtin_tokenizer.h"

namespace dsmoe {
namespace {

using testing::throws_error;

std::shared_ptr<Model> batch_model() {
  ModelConfig c = ModelConfig::preset("tiny");
  c.num_hidden_layers = 2;
  return Model::random(c, 1, DType::kF32, train::builtin_tokenizer(512));
}

const TokenSequences kPrompts = {{5, 6, 7}, {9}, {1, 2, 3, 4, 5, 6, 7, 8}, {9}};

GenerateOptions batch_options(float temperature = 0.8f) {
  GenerateOptions o{.max_tokens = 12};
  o.sampler.temperature = temperature;
  o.sampler.seed = 3;
  o.ignore_eos = true;
  return o;
}

std::vector<Generated> one_by_one(const std::shared_ptr<Model>& model, const GenerateOptions& options) {
  std::vector<Generated> out;
  for (const std::vector<std::int32_t>& prompt : kPrompts)
    out.push_back(Session(model, {.context = 64, .threads = 1}).generate(prompt, options));
  return out;
}

TEST(ApiBatch, GivesEachPromptTheTokensThatItGetsAlone) {
  const std::shared_ptr<Model> model = batch_model();
  const std::vector<Generated> alone = one_by_one(model, batch_options());
  const std::vector<Generated> together = generate_batch(*model, kPrompts, batch_options(), {.threads = 2});
  ASSERT_EQ(together.size(), kPrompts.size());
  for (std::size_t i = 0; i < alone.size(); ++i) {
    EXPECT_EQ(together[i].ids, alone[i].ids) << i;
    EXPECT_EQ(together[i].text, alone[i].text) << i;
    EXPECT_EQ(together[i].finish, Finish::kLength) << i;
  }
  EXPECT_TRUE(generate_batch(*model, {}, batch_options()).empty());
}

TEST(ApiBatch, OverridesChangeWhatIsGenerated) {
  const std::shared_ptr<Model> model = batch_model();
  GenerateOptions changed = batch_options(0);
  changed.overrides = RoutingOverrides{.skip_best = 2};
  const std::vector<Generated> as_it_is = one_by_one(model, batch_options(0)), alone = one_by_one(model, changed);
  const std::vector<Generated> together = generate_batch(*model, kPrompts, changed, {.threads = 1});
  bool differs = false;
  for (std::size_t i = 0; i < alone.size(); ++i) {
    EXPECT_EQ(together[i].ids, alone[i].ids) << i;
    differs |= alone[i].ids != as_it_is[i].ids;
  }
  EXPECT_TRUE(differs) << "the negative control";
  changed.overrides->skip_best = 1000;
  EXPECT_TRUE(throws_error([&] { generate_batch(*model, kPrompts, changed); }, {"expert"}));
}

TEST(ApiBatch, OverridesOfASessionEndWithTheCall) {
  const std::shared_ptr<Model> model = batch_model();
  GenerateOptions wrong = batch_options();
  wrong.overrides = RoutingOverrides{.skip_best = 1000};
  Session session(model, {.context = 64, .threads = 1});
  EXPECT_THROW(session.generate(kPrompts[0], wrong), Error);
  session.rewind(0);
  EXPECT_EQ(session.generate(kPrompts[0], batch_options()).ids, one_by_one(model, batch_options())[0].ids);
}

TEST(ApiBatch, CallbacksStopOneOrAll) {
  const std::shared_ptr<Model> model = batch_model();
  std::vector<Generated> out = generate_batch(*model, kPrompts, batch_options(), {.threads = 1},
                                              [](std::size_t prompt, const Piece&) { return prompt != 1; });
  EXPECT_EQ(out[1].ids.size(), 1u);
  EXPECT_EQ(out[1].finish, Finish::kStopped);
  EXPECT_EQ(out[0].ids.size(), 12u);
  int steps = 0;
  out = generate_batch(*model, kPrompts, batch_options(), {.threads = 1}, {}, [&] { return ++steps < 3; });
  for (const Generated& g : out) EXPECT_LE(g.ids.size(), 3u);
  const auto throws = [](std::size_t, const Piece&) -> bool { throw std::logic_error("from the callback"); };
  EXPECT_THROW(generate_batch(*model, kPrompts, batch_options(), {.threads = 1}, throws), std::logic_error);
}

TEST(ApiBatch, KeepsToAGrammar) {
  const std::shared_ptr<Model> model = batch_model();
  GenerateOptions o = batch_options();
  o.grammar = "root ::= \"yes\" | \"no\"";
  o.ignore_eos = false;
  for (const Generated& g : generate_batch(*model, kPrompts, o, {.threads = 1}))
    EXPECT_TRUE(g.text == "yes" || g.text == "no") << g.text;
  o.json_schema = "{}";
  EXPECT_TRUE(throws_error([&] { generate_batch(*model, kPrompts, o); }, {"exclude each other"}));
}

TEST(ApiEvaluate, GivesTheRoutingAndTakesOverrides) {
  const std::shared_ptr<Model> model = batch_model();
  const TokenSequences text = {{5, 6, 7, 8}};
  std::vector<std::int32_t> first, second;
  const auto into = [](std::vector<std::int32_t>& to) {
    return EvaluateHooks{.routing = [&to](Index, const Routing& r) {
      EXPECT_EQ(r.experts.dim(0), 4);
      to.insert(to.end(), r.experts.span<std::int32_t>().begin(), r.experts.span<std::int32_t>().end());
    }};
  };
  const Evaluation plain = evaluate(*model, text, {}, into(first));
  EvaluateOptions options;
  options.overrides = RoutingOverrides{.skip_best = 1};
  const Evaluation changed = evaluate(*model, text, options, into(second));
  EXPECT_EQ(first.size(), static_cast<std::size_t>(model->config().moe_layers() * 4 * model->config().experts_per_token()));
  EXPECT_NE(first, second);
  EXPECT_NE(plain.loss_sum, changed.loss_sum);
}

}  // namespace
}  // namespace dsmoe
