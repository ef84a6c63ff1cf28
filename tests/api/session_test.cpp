#include "dsmoe/session.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>

#include "dsmoe/error.h"
#include "dsmoe/evaluate.h"
#include "support/expect_error.h"
#include "support/temp_folder.h"
#include "train/corpus/builtin_tokenizer.h"

namespace dsmoe {
namespace {

ModelConfig tiny() {
  ModelConfig c = ModelConfig::preset("tiny");
  c.num_hidden_layers = 2;
  return c;
}

std::shared_ptr<Model> with_tokenizer() { return Model::random(tiny(), 1, DType::kF32, train::builtin_tokenizer(512)); }

GenerateOptions greedy(Index tokens) {
  GenerateOptions o{.max_tokens = tokens};
  o.sampler.temperature = 0;
  o.ignore_eos = true;
  return o;
}

TEST(ApiSession, KeepsTheModelAlive) {
  std::shared_ptr<Model> model = with_tokenizer();
  const std::weak_ptr<Model> watched = model;
  Session session(model, {.threads = 1});
  const Generated before = session.generate("Once", greedy(4));
  model.reset();
  EXPECT_FALSE(watched.expired());
  session.rewind(0);
  EXPECT_EQ(session.generate("Once", greedy(4)).ids, before.ids);
  session = Session(with_tokenizer());
  EXPECT_TRUE(watched.expired()) << "the negative control: nobody else holds it";
}

TEST(ApiSession, PiecesAreTheTextAndStopStringsAreNotPartOfIt) {
  Session session(with_tokenizer());
  std::string heard;
  std::vector<std::int32_t> ids;
  const Generated all = session.generate("Once upon", greedy(24), [&](const Piece& p) {
    heard += p.text;
    if (p.id >= 0) ids.push_back(p.id);
    return true;
  });
  EXPECT_EQ(all.finish, Finish::kLength);
  EXPECT_EQ(all.ids.size(), 24u);
  EXPECT_EQ(ids, all.ids);
  EXPECT_EQ(heard, all.text);
  EXPECT_EQ(session.model().tokenizer()->decode(all.ids, {.skip_special = true}), all.text);

  ASSERT_GT(all.text.size(), 6u);
  GenerateOptions until = greedy(24);
  until.stop = {all.text.substr(all.text.size() / 2, 2)};
  session.rewind(0);
  const Generated some = session.generate("Once upon", until);
  EXPECT_EQ(some.finish, Finish::kStopped);
  EXPECT_EQ(some.text, all.text.substr(0, all.text.find(until.stop.front())));

  session.rewind(0);
  int pieces = 0;
  EXPECT_EQ(session.generate("Once upon", greedy(24), [&](const Piece&) { return ++pieces < 3; }).ids.size(), 3u);
}

TEST(ApiSession, ChatRunsOnlyWhatIsNew) {
  Session session(with_tokenizer());
  session.set_chat_template(
      ChatTemplate("{% for m in messages %}{{ m['role'] + ': ' + m['content'] + '\n' }}{% endfor %}"));
  ASSERT_TRUE(session.has_chat_template());
  std::vector<ChatMessage> messages = {{"user", "Who are you?"}};
  const Generated first = session.chat(messages, greedy(3));
  const auto whole =
      static_cast<Index>(session.model().tokenizer()->encode("user: Who are you?\n", {.add_bos = false}).size());
  EXPECT_EQ(first.prompt_tokens, whole);
  messages.push_back({"assistant", "x"});
  messages.push_back({"user", "And now?"});
  const Generated second = session.chat(messages, greedy(3));
  Session fresh(with_tokenizer());
  fresh.set_chat_template(ChatTemplate("{% for m in messages %}{{ m['role'] + ': ' + m['content'] + '\n' }}{% endfor %}"));
  const Generated again = fresh.chat(messages, greedy(3));
  EXPECT_EQ(second.ids, again.ids) << "the cache changes nothing";
  EXPECT_LT(second.prompt_tokens, again.prompt_tokens) << "but the common prefix is not run again";
}

TEST(ApiSession, RefusesWithTheOptionsName) {
  const std::shared_ptr<Model> model = with_tokenizer(), mute = Model::random(tiny(), 1);
  EXPECT_TRUE(testing::throws_error([&] { Session(model, {.context = -1}); }, {"context is -1; it must be at least 0"}));
  EXPECT_TRUE(testing::throws_error([&] { Session(nullptr); }, {"needs a model"}));
  Session session(model), silent(mute);
  GenerateOptions o;
  o.sampler.top_p = 0;
  EXPECT_TRUE(testing::throws_error([&] { session.generate("x", o); }, {"top-p is 0; it must be over 0"}));
  EXPECT_TRUE(testing::throws_error([&] { silent.generate("x"); }, {"no tokenizer", "token ids"}));
  const Tokenizer plain =
      Tokenizer::from_json(model->tokenizer()->to_json());  // without its config, which has the template
  Session base(Model::random(tiny(), 1, DType::kF32, plain));
  EXPECT_TRUE(testing::throws_error([&] { base.chat(std::vector<ChatMessage>{{"user", "x"}}); }, {"no chat template"}));
  EXPECT_TRUE(testing::throws_error([&] { Model::load("no/such/model"); }, {"there is no model", ".gguf"}));
}

TEST(ApiModel, SavesWhatItLoads) {
  const testing::TempFolder folder;
  const std::shared_ptr<Model> made = with_tokenizer();
  made->save(folder / "model");
  EXPECT_TRUE(testing::throws_error([&] { made->save(folder / "model"); }, {"already holds a model", "overwrite"}));
  made->save(folder / "model", true);
  const std::shared_ptr<Model> loaded = Model::load(folder / "model");
  EXPECT_EQ(loaded->dtype(), DType::kF32);
  EXPECT_EQ(loaded->path(), folder / "model");
  ASSERT_TRUE(loaded->tokenizer());
  Session a(made), b(loaded);
  EXPECT_EQ(a.generate("Once", greedy(6)).ids, b.generate("Once", greedy(6)).ids);
  EXPECT_EQ(Model::load(folder / "model", {.dtype = DType::kBF16})->dtype(), DType::kBF16);
}

TEST(ApiEvaluate, TextAndIdsAgree) {
  const testing::TempFolder folder;
  const std::shared_ptr<Model> model = with_tokenizer();
  const std::string text = "Once upon a time there was a clever fox.";
  std::ofstream(folder / "a.txt") << text;
  EvaluateOptions o;
  o.data = folder / "a.txt";
  const TokenSequences sequences = read_sequences(*model, o);
  ASSERT_EQ(sequences.size(), 1u);
  int heard = 0;
  EvaluateHooks hooks;
  hooks.progress = [&](Index, const Evaluation&) { ++heard; };
  const Evaluation e = evaluate(*model, sequences, o, hooks);
  EXPECT_EQ(heard, 1);
  EXPECT_EQ(e.predicted, static_cast<Index>(sequences.front().size()) - 1);
  EXPECT_NEAR(e.mean(), std::log(512.0), 0.5) << "random weights know nothing";
  o.score_from = 5;
  EXPECT_LT(evaluate(*model, sequences, o).predicted, e.predicted);
  o.data = folder / "none.txt";
  EXPECT_TRUE(testing::throws_error([&] { read_sequences(*model, o); }, {"none.txt"}));
}

}  // namespace
}  // namespace dsmoe
