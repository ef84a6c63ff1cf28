#include "study/compare.h"

#include <gtest/gtest.h>

#include <fstream>

#include "io/json_text.h"
#include "study/report.h"
#include "support/expect_error.h"
#include "support/temp_folder.h"
#include "train/corpus/builtin_tokenizer.h"

namespace dsmoe::study {
namespace {

using dsmoe::testing::throws_error;

ModelConfig base() {
  ModelConfig c;
  c.vocab_size = 300, c.hidden_size = 16, c.intermediate_size = 32, c.moe_intermediate_size = 8;
  c.num_hidden_layers = 2, c.num_attention_heads = 2, c.num_key_value_heads = 2, c.first_k_dense_replace = 1;
  c.n_routed_experts = 7, c.num_experts_per_tok = 3, c.n_shared_experts = 1,
  c.max_position_embeddings = 64;  // N 4, K 2, m 2, Ks 1
  return c;
}

TEST(Compare, ArchitecturesAreEqualInExperts) {
  const std::vector<Contender> all = contenders(base(), 0, 32);
  ASSERT_EQ(all.size(), 4u);
  EXPECT_EQ(all[0].architecture, (Architecture{4, 2, 0, 16}));
  EXPECT_EQ(all[1].architecture, (Architecture{8, 4, 0, 8}));
  EXPECT_EQ(all[2].architecture, (Architecture{7, 3, 1, 8}));
  EXPECT_EQ(all[3].config.intermediate_size, 32);
  for (const Contender& c : all) EXPECT_EQ(c.active_expert_parameters, 2 * 3 * 16 * 16) << c.label;
  for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(all[i].expert_parameters, 4 * 3 * 16 * 16);
  EXPECT_EQ(all[1].parameters - all[0].parameters, 4 * 16) << "four more rows of a router";
  ModelConfig unshared = base();
  unshared.n_shared_experts = {}, unshared.n_routed_experts = 8, unshared.num_experts_per_tok = 4;
  EXPECT_TRUE(throws_error([&] { contenders(unshared, 2, 32); }, {"0 shared"}));
}

TEST(Compare, FurtherModels) {
  const std::vector<Contender> all = contenders(base(), 0, 32, {"1+1/3", "3+1/13", "0+2/4x1.5", "densex2", "1+1/7"});
  ASSERT_EQ(all.size(), 9u);
  EXPECT_EQ(all[4].architecture, (Architecture{3, 1, 1, 16}));
  EXPECT_EQ(all[5].architecture, (Architecture{13, 1, 3, 4}));
  EXPECT_EQ(all[6].architecture, (Architecture{4, 2, 0, 24}));
  EXPECT_EQ(all[7].config.intermediate_size, 64);
  EXPECT_EQ(all[4].expert_parameters, all[0].expert_parameters);
  EXPECT_EQ(all[4].active_expert_parameters, all[0].active_expert_parameters);
  EXPECT_EQ(all[5].expert_parameters, all[0].expert_parameters);
  EXPECT_EQ(2 * all[6].expert_parameters, 3 * all[0].expert_parameters);
  EXPECT_EQ(all[7].expert_parameters, 2 * all[3].expert_parameters);
  EXPECT_EQ(2 * all[8].active_expert_parameters, all[0].active_expert_parameters) << "half of the experts run";
  EXPECT_EQ(all[6].key.find('/'), std::string::npos) << "it names a folder";
  for (const char* text : {"", "1", "1+1", "1+1/", "1+1/3x", "1+1/3x0", "1+1/3y", "a+1/3", "-1+1/3", "0+5/4", "0+0/4",
                           "densex", "densex1.01", "0+2/3", "dense 2", "0+2/4x1e9"})
    EXPECT_TRUE(throws_error([&] { contenders(base(), 0, 32, {text}); }, {"also is '" + std::string(text) + "'"})) << text;
  EXPECT_TRUE(throws_error([&] { contenders(base(), 0, 32, {"1+3/7"}); }, {"1+3/7", "which is (c)"}));
}

TEST(Compare, VerdictsAreHonest) {
  const Statistic s = Statistic::of({1, 2, 3});
  EXPECT_EQ(s.mean, 2);
  EXPECT_EQ(s.sd, 1);
  const Verdict clear = verdict("x", {1.00, 1.10, 1.20}, "y", {1.50, 1.61, 1.69});
  EXPECT_TRUE(clear.sure) << clear.text;
  EXPECT_NE(clear.text.find("lower"), std::string::npos);
  // The differences are -0.1, +0.1, -0.1: as large as their spread.
  const Verdict unclear = verdict("x", {1.0, 1.2, 1.0}, "y", {1.1, 1.1, 1.1});
  EXPECT_FALSE(unclear.sure);
  EXPECT_NE(unclear.text.find("within the spread"), std::string::npos) << unclear.text;
  EXPECT_NE(verdict("x", {1.0}, "y", {2.0}).text.find("chance"), std::string::npos);
  // Pairs by seed: seeds that differ much do not hide a steady difference.
  EXPECT_TRUE(verdict("x", {1.0, 5.0, 9.0}, "y", {1.1, 5.1, 9.1001}).sure);
}

TEST(Compare, GoesOnWhereItWasStopped) {
  const testing::TempFolder folder;
  CompareOptions o;
  o.base = base();
  o.seeds = 2;
  o.also = {"1+1/3"};
  o.ablation_sequences = 2;
  o.train.steps = 4, o.train.batch_size = 2, o.train.seq_len = 32, o.train.eval_every = 2, o.train.eval_sequences = 2,
  o.train.save_every = 0, o.train.keep = 1;
  const Tokenizer tokenizer = train::builtin_tokenizer(300);
  Context ctx(1);

  int steps = 0;
  CompareHooks hooks;
  std::string notes;
  hooks.note = [&](std::string_view line) { notes.append(line).append("\n"); };
  hooks.stop = [&] { return steps == 5; };
  hooks.progress = [&](Index, const Contender&, std::uint64_t, Index, double) { ++steps; };
  EXPECT_FALSE(compare(ctx, o, tokenizer, folder / "stopped", hooks).has_value());
  EXPECT_EQ(steps, 5) << "no step begins after it";
  hooks.stop = {};
  const std::optional<Comparison> resumed = compare(ctx, o, tokenizer, folder / "stopped", hooks),
                                  whole = compare(ctx, o, tokenizer, folder / "whole");
  ASSERT_TRUE(resumed && whole);
  ASSERT_EQ(whole->outcomes.size(), 10u);
  for (std::size_t i = 0; i < 10; ++i) {
    EXPECT_EQ(resumed->outcomes[i].loss, whole->outcomes[i].loss) << i;
    EXPECT_EQ(resumed->outcomes[i].curve, whole->outcomes[i].curve);
    EXPECT_EQ(whole->outcomes[i].curve.size(), 2u);
    EXPECT_EQ(whole->outcomes[i].ablations.empty(), whole->outcomes[i].contender == 3);
  }
  EXPECT_GT(whole->outcomes[0].domains.size(), 1u);
  int removed = 0;
  for (const auto& run : std::filesystem::directory_iterator(folder / "stopped/runs"))
    for (const char* name : {"checkpoint-1", "checkpoint-2", "checkpoint-3"})
      removed += notes.find("removed " + (run.path() / name).string() + ":") != std::string::npos;
  EXPECT_EQ(removed, 1) << "the one that was made when it was stopped, and not without a word; " << notes;
  EXPECT_FALSE(std::filesystem::exists(folder / "whole/runs/dense-seed0/checkpoint-2")) << "only the last is kept";
  const Plot difference = curve_plots(*whole)[1];
  ASSERT_EQ(difference.lines.size(), 5u);
  for (std::size_t m = 0; m < 5; ++m) {
    const std::vector<double> a = whole->losses(0), b = whole->losses(m);
    EXPECT_NEAR(difference.lines[m].points.back().y, (b[0] - a[0] + b[1] - a[1]) / 2, 1e-12) << m;
    EXPECT_EQ(difference.lines[m].points.size(), 2u);
  }
  const auto j = comparison_json(*whole, {{"name", "x"}});
  EXPECT_EQ(j["models"].size(), 5u);
  EXPECT_EQ(j["models"][2]["losses"].size(), 2u);
  EXPECT_EQ(j["verdicts"].size(), 6u) << "the fifth model against (c)";
  EXPECT_FALSE(j["domains"].empty());
  EXPECT_NE(html_report(ReportKind::kCompare, "t", j).find("svg"), std::string::npos);

  // A folder of a version that did not have an option yet.
  nlohmann::json settings = io::read_json(folder / "whole" / "settings.json");
  ASSERT_EQ(settings["train"].erase("label-by"), 1u);
  ASSERT_EQ(settings.erase("data"), 1u);
  std::ofstream(folder / "whole" / "settings.json") << settings.dump();
  EXPECT_TRUE(compare(ctx, o, tokenizer, folder / "whole").has_value());
  EXPECT_TRUE(throws_error([&] { compare(ctx, o, train::builtin_tokenizer(299), folder / "whole"); },
                           {"the tokenizer", "changed since it was begun", "another folder"}));
  o.train.lr = 0.5;
  EXPECT_TRUE(throws_error([&] { compare(ctx, o, tokenizer, folder / "whole"); }, {"other options"}));
}

TEST(Compare, DataThatChangedAreNotCompared) {
  const testing::TempFolder folder;
  ::setenv("XDG_CACHE_HOME", folder.path().c_str(), 1);  // not the user's
  const auto write = [&](const char* word) {
    std::ofstream file(folder / "a.txt");
    for (int i = 0; i < 300; ++i) file << i << " the cat sat on the " << word << "\n";
  };
  CompareOptions o;
  o.base = base();
  o.seeds = 1;
  o.ablation_sequences = 1;
  o.train.data = {(folder / "a.txt").string()};
  o.train.steps = 1, o.train.batch_size = 1, o.train.seq_len = 16, o.train.eval_sequences = 1, o.train.holdout = 0.2;
  const Tokenizer tokenizer = train::builtin_tokenizer(300);
  Context ctx(1);
  write("mat");
  ASSERT_TRUE(compare(ctx, o, tokenizer, folder / "out"));
  write("hat");
  EXPECT_TRUE(throws_error([&] { compare(ctx, o, tokenizer, folder / "out"); }, {"the data", "put the old one back"}));
  write("mat");
  EXPECT_TRUE(compare(ctx, o, tokenizer, folder / "out"));
}

}  // namespace
}  // namespace dsmoe::study
