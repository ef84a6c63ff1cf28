#include "dsmoe/session.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

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

TEST(ApiSession, SpecialTokensInMessagesAreText) {
  Session session(with_tokenizer());
  session.set_chat_template(ChatTemplate("{{ bos_token }}{% for m in messages %}{{ m.content }}{% endfor %}"));
  const Tokenizer& t = *session.model().tokenizer();
  const std::string eos(t.bytes(*t.eos_id()));
  const std::vector<ChatMessage> messages = {{"user", "a" + eos + "b"}};
  const std::vector<std::int32_t> tokens = session.chat_tokens(messages);
  EXPECT_EQ(tokens.front(), *t.bos_id());
  EXPECT_EQ(std::count(tokens.begin(), tokens.end(), *t.eos_id()), 0);
  EXPECT_EQ(t.decode(tokens, {.skip_special = true}), messages[0].content);
  session.chat(messages, greedy(1));
  EXPECT_EQ(session.history(), tokens) << "chat() runs these";
}

TEST(ApiSession, TheOldestTurnsMakeRoom) {
  Session session(with_tokenizer(), {.context = 60});
  session.set_chat_template(ChatTemplate("{% for m in messages %}{{ m.content }}{% endfor %}"));
  std::vector<ChatMessage> messages = {{"system", "0123456789"}};
  for (const char* name : {"a", "b", "c", "d"}) {
    messages.push_back({"user", std::string(10, name[0])});
    messages.push_back({"assistant", std::string(10, name[0])});
  }
  messages.pop_back();
  const auto size = [&](const std::vector<ChatMessage>& m) { return static_cast<Index>(session.chat_tokens(m).size()); };
  std::vector<ChatMessage> kept = messages;
  EXPECT_EQ(session.drop_oldest_turns(kept, 60 - size(messages)), 0u) << "they fit to the token";
  EXPECT_EQ(session.drop_oldest_turns(kept, 61 - size(messages)), 2u);
  ASSERT_EQ(kept.size(), 6u);
  EXPECT_EQ(kept[0].role, "system");
  EXPECT_EQ(kept[1].content, "bbbbbbbbbb");
  EXPECT_EQ(session.drop_oldest_turns(kept, 60), 4u) << "the last turn stays, even if it does not fit";
  ASSERT_EQ(kept.size(), 2u);
  EXPECT_EQ(kept[1].content, "dddddddddd");
  std::vector<ChatMessage> without_user = {{"system", std::string(100, 'x')}};
  EXPECT_EQ(session.drop_oldest_turns(without_user, 1), 0u);
}

// As in llama.cpp: the token is never chosen, so nothing behind an end of the text is generated.
TEST(ApiSession, IgnoreEosNeverChoosesIt) {
  ModelConfig c = tiny();
  const std::vector<std::int32_t> free = Session(with_tokenizer()).generate("Once", greedy(6)).ids;
  ASSERT_NE(free[0], free[1]);
  c.eos_token_id = {free[1]};
  const auto model = Model::random(c, 1, DType::kF32, train::builtin_tokenizer(512));
  GenerateOptions o = greedy(6);
  o.ignore_eos = false;
  const Generated ended = Session(model).generate("Once", o);
  EXPECT_EQ(ended.finish, Finish::kEos);
  EXPECT_EQ(ended.ids, std::vector{free[0]});
  const Generated on = Session(model).generate("Once", greedy(6));
  EXPECT_EQ(on.ids.size(), 6u);
  EXPECT_EQ(std::count(on.ids.begin(), on.ids.end(), free[1]), 0);
  EXPECT_EQ(on.ids[0], free[0]);
}

// Some tokenizers put eos behind a text; a prompt goes on, and a window of a text neither begins nor ends with it.
TEST(ApiSession, ATextThatGoesOnHasNoBos) {
  const auto model = with_tokenizer();
  const Tokenizer& t = *model->tokenizer();
  ASSERT_EQ(t.encode("").size(), 1u) << "this one adds it";
  Session session(model, {.threads = 1});
  session.generate("Once", greedy(1));
  session.generate(" upon", greedy(1));
  const auto& all = session.history();
  EXPECT_EQ(std::count(all.begin(), all.end(), *t.bos_id()), 1);
  EXPECT_EQ(all.front(), *t.bos_id());
}

TEST(ApiSession, PromptsAndWindowsHaveNoEos) {
  const testing::TempFolder folder;
  auto config = nlohmann::json::parse(train::builtin_tokenizer(512).config_json());
  config["add_eos_token"] = true;
  const Tokenizer t = Tokenizer::from_json(train::builtin_tokenizer(512).to_json(), config.dump());
  ASSERT_EQ(t.encode("").size(), 2u) << "bos and eos";
  const auto model = Model::random(tiny(), 1, DType::kF32, t);
  Session session(model);
  session.generate("Once", greedy(1));
  EXPECT_EQ(session.history(), t.encode("Once", {.add_eos = false}));
  std::ofstream(folder / "a.txt") << "Once upon a time " << t.bytes(*t.eos_id());
  EvaluateOptions o;
  o.data = folder / "a.txt";
  for (const Index context : {2, 3, 8}) {
    o.context = context;
    std::vector<std::int32_t> joined;
    for (const auto& window : read_sequences(*model, o)) {
      EXPECT_EQ(window.front(), *t.bos_id());
      EXPECT_LE(window.size(), static_cast<std::size_t>(context));
      EXPECT_EQ(std::count(window.begin(), window.end(), *t.eos_id()), 0) << "a corpus is text";
      joined.insert(joined.end(), window.begin() + 1, window.end());
    }
    EXPECT_EQ(t.decode(joined), "Once upon a time " + std::string(t.bytes(*t.eos_id())));
  }
  o.parse_special = true;
  EXPECT_EQ(read_sequences(*model, o).back().back(), *t.eos_id());
}

TEST(ApiModel, GenerationConfigIsReadAndKept) {
  const testing::TempFolder folder;
  with_tokenizer()->save(folder / "model");
  const std::vector<std::int32_t> free = Session(with_tokenizer()).generate("Once", greedy(6)).ids;
  const std::string text = "{\"eos_token_id\": [3, " + std::to_string(free[1]) +
                           "], \"do_sample\": true, \"temperature\": 0.7,\n \"top_p\": 0.9, \"top_k\": 5, "
                           "\"repetition_penalty\": 1.1, \"transformers_version\": \"4\"}";
  std::ofstream(folder / "model/generation_config.json") << text;
  const auto model = Model::load(folder / "model");
  const SamplerOptions s = model->generation().sampler();
  EXPECT_FLOAT_EQ(s.temperature, 0.7f);
  EXPECT_FLOAT_EQ(s.top_p, 0.9f);
  EXPECT_FLOAT_EQ(s.repetition_penalty, 1.1f);
  EXPECT_EQ(s.top_k, 5);
  EXPECT_EQ(s.min_p, SamplerOptions().min_p) << "not in the file";
  GenerateOptions o = greedy(6);
  o.ignore_eos = false;
  EXPECT_EQ(Session(model).generate("Once", o).ids, std::vector{free[0]}) << "any of the list ends";
  model->save(folder / "copy");
  std::ifstream copy(folder / "copy/generation_config.json");
  EXPECT_EQ(std::string(std::istreambuf_iterator<char>(copy), {}), text) << "to the byte";
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
  std::ofstream(folder / "zero.txt") << std::string(std::size_t{2} << 20, 'a') << '\0';
  o.data = folder / "zero.txt";
  EXPECT_TRUE(testing::throws_error([&] { read_sequences(*model, o); }, {"zero.txt", "not a text file"}));
  o.data = folder / "none.txt";
  EXPECT_TRUE(testing::throws_error([&] { read_sequences(*model, o); }, {"none.txt"}));
}

}  // namespace
}  // namespace dsmoe
