// What becomes of text on its way in and out: special tokens, bos and eos, full contexts, defaults that a model brings
// along.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "cli/run_program.h"
#include "support/files.h"
#include "support/temp_folder.h"

namespace dsmoe::testing {
namespace {

using Json = nlohmann::json;

class TextCommands : public ::testing::Test {
 protected:
  void SetUp() override {
    std::ofstream(folder_ / "config.json") << R"({"model_type": "deepseek", "vocab_size": 1024, "hidden_size": 16,
      "intermediate_size": 32, "moe_intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
      "num_key_value_heads": 1, "n_routed_experts": 4, "num_experts_per_tok": 2, "n_shared_experts": 1,
      "first_k_dense_replace": 1, "max_position_embeddings": 64})";
    ok(run_program({"init", "--config", path("config.json"), "--seed", "3", "--dtype", "f32", "--tokenizer",
                    kSmallTokenizer, "-o", model_}));
  }
  std::string path(const char* name) const { return (folder_ / name).string(); }
  static ProgramResult ok(ProgramResult r) {
    EXPECT_EQ(r.status, 0) << r.err;
    return r;
  }
  Json generate(std::vector<std::string> more, const std::string& model = "") const {
    more.insert(more.begin(), {"generate", "-m", model.empty() ? model_ : model, "-p", "Hello there", "--json", "-n", "6"});
    return ok(run_program(more)).json();
  }

  TempFolder folder_;
  std::string model_ = path("model");
};

TEST_F(TextCommands, AFullChatGoesOn) {
  std::string lines;
  for (int i = 0; i < 5; ++i) lines += "one two three four five six\n";
  std::string words;
  for (int i = 0; i < 100; ++i) words += "word ";
  const ProgramResult o =
      ok(run_program({"chat", "-m", model_, "-n", "4", "--temp", "0"}, "", lines + words + "\nHello again\n"));
  EXPECT_TRUE(o.err_has("the context of 64 tokens is full: the oldest 2 messages were dropped")) << o.err;
  EXPECT_TRUE(o.err_has("over the context of 64; it was left out")) << o.err;
  std::size_t answers = 0;
  for (std::size_t at = 0; (at = o.out.find("\n\n", at)) != std::string::npos; at += 2) ++answers;
  EXPECT_EQ(answers, 6u) << "one for every message but the one that was left out: " << o.out;
}

TEST_F(TextCommands, NeitherPromptsNorWindowsGetEos) {
  Json config = Json::parse(read_bytes(kSmallTokenizer + "/tokenizer_config.json"));
  config["add_eos_token"] = true;
  std::ofstream(model_ + "/tokenizer_config.json") << config.dump();
  const Json tokenized = ok(run_program({"tokenize", "-m", model_, "-p", "Hello there", "--json"})).json();
  ASSERT_EQ(tokenized["ids"].back(), kSmallEos) << "this tokenizer puts eos behind a text";
  const Json prompt = generate({})["prompt_ids"];
  EXPECT_EQ(prompt, Json(std::vector<int>(tokenized["ids"].begin(), tokenized["ids"].end() - 1)));
  std::ofstream(path("a.txt")) << "Hello there <｜end▁of▁sentence｜>";
  const auto eval = [&](std::vector<std::string> more) {
    more.insert(more.begin(), {"eval", "-m", model_, "--data", path("a.txt"), "--json"});
    return ok(run_program(more)).json();
  };
  const Json two = eval({"-c", "2"});
  const Json whole = eval({});
  EXPECT_EQ(two["predicted_tokens"], whole["predicted_tokens"]) << "every token of the text once";
  EXPECT_EQ(two["tokens"], 2 * two["sequences"].get<int>());
  EXPECT_GT(whole["tokens"].get<int>(), eval({"--parse-special"})["tokens"].get<int>()) << "a corpus is text";
}

TEST_F(TextCommands, AContextBeyondTheModelsPositionsIsNoted) {
  EXPECT_TRUE(ok(run_program({"generate", "-m", model_, "-p", "Hi", "-n", "1", "-c", "65"})).err_has("64 positions"));
  EXPECT_FALSE(ok(run_program({"generate", "-m", model_, "-p", "Hi", "-n", "1", "-c", "64"})).err_has("positions"));
  std::ofstream ids(path("long.ids"));
  for (int i = 0; i < 65; ++i) ids << i << " ";
  ids.close();
  EXPECT_TRUE(ok(run_program({"eval", "-m", model_, "--data", path("long.ids")})).err_has("64 positions"));
}

TEST_F(TextCommands, DefaultsOfTheModelAreUsedUntilOptionsSayOtherwise) {
  const Json greedy = generate({"--temp", "0"})["ids"];
  const int second = greedy[1].get<int>();
  std::ofstream(model_ + "/generation_config.json") << R"({"do_sample": false, "eos_token_id": [7, )" << second << "]}";
  std::ofstream(model_ + "/chat_template.jinja") << "{{ messages[0].content }}";
  ok(run_program({"convert", model_, "-o", path("m.gguf")}));
  for (const std::string& model : {model_, path("m.gguf")}) {
    const Json ended = generate({"--seed", "5"}, model);
    EXPECT_EQ(ended["ids"], Json::array({greedy[0]})) << model << ": greedy, and ended by the second of the list";
    EXPECT_EQ(ended["finish"], "eos");
    const Json on = generate({"--ignore-eos"}, model)["ids"];
    EXPECT_EQ(on.size(), 6u);
    EXPECT_EQ(std::count(on.begin(), on.end(), second), 0) << "never chosen";
    EXPECT_NE(generate({"--temp", "50", "--top-k", "0", "--min-p", "0", "--seed", "5", "--ignore-eos"}, model)["ids"], on)
        << "options win";
  }
  ok(run_program({"convert", path("m.gguf"), "-o", path("back")}));
  for (const char* name : {"generation_config.json", "chat_template.jinja", "tokenizer_config.json", "tokenizer.json"})
    EXPECT_EQ(read_bytes(path("back") + "/" + name), read_bytes(model_ + "/" + name)) << name;
}

TEST_F(TextCommands, TextWithinAGrammarOrASchema) {
  std::ofstream(path("answer.gbnf")) << "root ::= (\"yes\" | \"no\") \",\" [0-9]\n";
  std::ofstream(path("schema.json")) << R"({"enum": ["red", 12, true]})";
  std::ofstream(path("bad.gbnf")) << "root ::= (\"a\"\n";
  std::ofstream(path("bad.json")) << R"({"not": {}})";
  for (const char* seed : {"1", "2", "3"}) {
    const Json a = generate({"--grammar-file", path("answer.gbnf"), "--seed", seed});
    EXPECT_EQ(a["finish"], "eos");
    const std::string text = a["text"];
    EXPECT_TRUE(text.starts_with("yes,") || text.starts_with("no,")) << text;
    const Json b = generate({"--json-schema", path("schema.json"), "--seed", seed, "--ignore-eos"});
    EXPECT_EQ(b["finish"], "eos");
    const Json value = Json::parse(b["text"].get<std::string>());
    EXPECT_TRUE(value == "red" || value == 12 || value == true) << value;
  }
  const auto fails = [&](const char* flag, const char* file, int status, const char* words) {
    const ProgramResult r = run_program({"generate", "-m", model_, "-p", "Hi", flag, path(file)});
    EXPECT_EQ(r.status, status);
    EXPECT_TRUE(r.err_has(words)) << r.err;
  };
  fails("--grammar-file", "bad.gbnf", 1, "grammar: line 2, column 1: expected ')', found the end of the text");
  fails("--json-schema", "bad.json", 1, "json-schema: #: the keyword 'not' is not supported");
  fails("--json-schema", "none.json", 1, "cannot read");
  EXPECT_EQ(run_program({"generate", "-m", model_, "-p", "Hi", "--json-schema", path("schema.json"), "--grammar-file",
                         path("answer.gbnf")})
                .status,
            2);
}

}  // namespace
}  // namespace dsmoe::testing
