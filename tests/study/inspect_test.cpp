#include "study/inspect.h"

#include <gtest/gtest.h>

#include <fstream>

#include "study/random_routing.h"
#include "support/expect_error.h"
#include "support/temp_folder.h"
#include "train/corpus/builtin_tokenizer.h"
#include "train/corpus/corpus.h"

namespace dsmoe::study {
namespace {

using dsmoe::testing::throws_error;

class Inspect : public ::testing::Test {
 protected:
  void SetUp() override {
    test::Draw draw(2);
    for (const char* name : {"a.ids", "b.ids"}) {
      std::ofstream file(folder_ / name);
      for (int line = 0; line < 5; ++line) {
        for (Index n = draw.between(3, 60); n > 0; --n) file << draw(50) << ' ';
        file << '\n';
      }
    }
  }
  std::string path(const char* name) const { return (folder_ / name).string(); }
  LabelledData data(Index limit = 0, Index context = 40) const {
    return LabelledData({DataSource::parse(path("a.ids")), DataSource::parse("second=" + path("b.ids"))}, {},
                        {.vocab_size = 50, .context = context, .tokens_per_domain = limit});
  }
  testing::TempFolder folder_;
};

TEST_F(Inspect, DataAreCutLabelledAndLimited) {
  LabelledData all = data();
  Index tokens[2] = {};
  for (LabelledSequence s; all.next(s);) {
    EXPECT_LE(s.ids.size(), 40u);
    EXPECT_GE(s.ids.size(), 2u);
    tokens[s.domain] += static_cast<Index>(s.ids.size());
  }
  EXPECT_EQ(all.domains(), (std::vector<std::string>{"a", "second"}));
  EXPECT_GT(tokens[1], 50);
  LabelledData some = data(30);
  Index limited[2] = {};
  for (LabelledSequence s; some.next(s);) limited[s.domain] += static_cast<Index>(s.ids.size());
  EXPECT_EQ(limited[0], 30);
  EXPECT_EQ(limited[1], 30);
  EXPECT_TRUE(throws_error([&] { LabelledData({{"none.ids", ""}}, {}, {.vocab_size = 50, .context = 40}); }, {"none.ids"}));
  std::ofstream(path("x.txt")) << "text";
  EXPECT_TRUE(throws_error(
      [&] {
        LabelledData({{path("x.txt"), ""}}, {}, {.vocab_size = 50, .context = 40});
      },
      {"tokenizer"}));
}

TEST_F(Inspect, JsonLinesNameTheirDomains) {
  std::ofstream(path("x.jsonl")) << R"({"text": "one two three", "domain": "numbers"})"
                                 << "\n\n"
                                 << R"({"text": "four five six"})"
                                 << "\n";
  const Tokenizer tokenizer = Tokenizer::load(DSMOE_TEST_DATA "/tokenizer/data/deepseek-llm");
  LabelledData d({DataSource::parse(path("x.jsonl"))}, tokenizer, {.vocab_size = 102400, .context = 64});
  LabelledSequence s;
  ASSERT_TRUE(d.next(s));
  EXPECT_EQ(tokenizer.decode(s.ids, {.skip_special = true}), "one two three");
  EXPECT_EQ(s.ids.front(), 100000) << "begins with the bos token";
  ASSERT_TRUE(d.next(s));
  EXPECT_FALSE(d.next(s));
  EXPECT_EQ(d.domains(), (std::vector<std::string>{"numbers", "x"}));
  std::ofstream(path("bad.jsonl")) << R"({"other": 1})";
  LabelledData bad({DataSource::parse(path("bad.jsonl"))}, tokenizer, {.vocab_size = 102400, .context = 64});
  EXPECT_TRUE(throws_error([&] { bad.next(s); }, {"bad.jsonl:1", "'text'"}));
}

TEST_F(Inspect, TheBuiltInCorpusEndsAtItsLimit) {
  for (const Index limit : {0, 100}) {
    LabelledData d({DataSource::parse("builtin")}, train::builtin_tokenizer(300),
                   {.vocab_size = 300, .context = 64, .tokens_per_domain = limit});
    std::vector<Index> tokens(train::corpus_domains().size());
    for (LabelledSequence s; d.next(s);) tokens.at(static_cast<std::size_t>(s.domain)) += static_cast<Index>(s.ids.size());
    EXPECT_EQ(d.domains().size(), tokens.size());
    for (const Index n : tokens) {
      EXPECT_GE(n, limit > 0 ? limit - 1 : 8000);
      EXPECT_TRUE(limit == 0 || n <= limit) << n;
    }
  }
}

TEST_F(Inspect, TheTraceTellsTheSameAsTheModel) {
  const Transformer model = small_model();
  Context ctx(2);
  LabelledData d = data();
  TraceWriter writer(path("x.trace"), RoutingShape::of(model.config()));
  const Inspection live = inspect(ctx, model, d, {.trace = &writer});
  writer.finish();
  TraceReader reader(path("x.trace"));
  const Inspection replayed = inspect(ctx, reader);
  EXPECT_EQ(replayed.study.tokens(), live.study.tokens());
  EXPECT_EQ(replayed.study.sequences(), live.study.sequences());
  EXPECT_EQ(replayed.domains, live.domains);
  EXPECT_EQ(replayed.study.token_counts(), live.study.token_counts());
  for (std::size_t l = 0; l < 2; ++l) {
    const LayerStudy &a = replayed.study.layers()[l], &b = live.study.layers()[l];
    EXPECT_EQ(a.statistics().coactivation(), b.statistics().coactivation());
    EXPECT_EQ(a.combinations().count(), b.combinations().count());
    for (std::size_t e = 0; e < 8; ++e)
      EXPECT_NEAR(a.statistics().mean_weight()[e], b.statistics().mean_weight()[e], 1.0 / 256);
  }
  ASSERT_EQ(replayed.samples.size(), live.samples.size());
  EXPECT_EQ(replayed.samples[0].ids, live.samples[0].ids);
  EXPECT_EQ(replayed.samples[0].experts, live.samples[0].experts);
}

TEST_F(Inspect, LossesAreThoseOfAnEvaluation) {
  const Transformer model = small_model();
  Context ctx(1);
  LabelledData d = data();
  std::int64_t heard = 0;
  const Inspection got = inspect(ctx, model, d, {.progress = [&](std::int64_t tokens, double) { heard = tokens; }});
  EXPECT_EQ(heard, got.study.tokens());
  Evaluator want(ctx, model, DType::kF32);
  LabelledData again = data();
  for (LabelledSequence s; again.next(s);) want.add(s.ids);
  EXPECT_NEAR(got.loss().mean(), want.result().mean(), 1e-12);
  EXPECT_EQ(got.losses.size(), 2u);
  EXPECT_NE(got.losses[0].mean(), got.losses[1].mean());
}

TEST_F(Inspect, TwoModelsAreComparedOnTheSameTokens) {
  const Transformer a = small_model(5), b = small_model(6);
  Context ctx(2);
  const auto overlap = [&](const Transformer& other) {
    LabelledData d = data();
    return inspect(ctx, a, d, {.other = &other}).agreement->layers()[0].overlap();
  };
  EXPECT_EQ(overlap(a), 1);
  EXPECT_LT(overlap(b), 0.9);
  ModelConfig c = small_config();
  c.n_routed_experts = 9;
  const Transformer different(c, random_weights(c, 1, DType::kF32, ctx));
  EXPECT_TRUE(throws_error([&] { overlap(different); }, {"differ"}));
}

TEST_F(Inspect, SamplesAreBoundedAndShareTheRoom) {
  const Transformer model = small_model();
  Context ctx(1);
  LabelledData d = data(0, 16);
  const Inspection got = inspect(ctx, model, d, {.sample_tokens = 150});
  std::size_t tokens[2] = {};
  for (const TextSample& s : got.samples) {
    tokens[s.domain] += s.ids.size();
    EXPECT_EQ(s.experts.size(), 2u);
    EXPECT_EQ(s.experts[1].size(), 3 * s.ids.size());
  }
  EXPECT_LE(tokens[0], 100u);
  EXPECT_GT(tokens[1], 10u);
  EXPECT_LE(tokens[0] + tokens[1], 150u);
}

}  // namespace
}  // namespace dsmoe::study
