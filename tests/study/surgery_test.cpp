#include "study/surgery.h"

#include <gtest/gtest.h>

#include "model/transformer.h"
#include "study/random_routing.h"
#include "support/expect_error.h"
#include "support/expert_tensors.h"
#include "support/run_model.h"
#include "support/tolerance.h"

namespace dsmoe::study {
namespace {

using dsmoe::testing::throws_error;

const std::vector<std::int32_t> kSequence = {3, 9, 27, 31, 4, 12, 36, 8, 24, 7, 7, 20, 1, 0, 44};

ModelConfig dense_config() {
  ModelConfig c = small_config();
  c.n_routed_experts = c.num_experts_per_tok = c.n_shared_experts = {};
  return c;
}

LoadedModel loaded(const ModelConfig& c, std::uint64_t seed, DType dtype = DType::kF32) {
  Context ctx(1);
  return {c, random_weights(c, seed, dtype, ctx)};
}

Tensor logits(const ModelConfig& config, const ModelWeights& weights, Index* routed = nullptr) {
  Context ctx(2);
  const Transformer model(config, weights);
  const RoutingProbe probe = [&](Index, const Routing& r) {
    if (routed) *routed += r.experts.dim(0);
  };
  return test::logits_of(ctx, model, kSequence, static_cast<Index>(kSequence.size()), DType::kF32, {.routing = probe});
}

TEST(Upcycle, TheOutputIsThatOfTheDenseModel) {
  for (const bool tied : {false, true}) {
    ModelConfig c = dense_config();
    c.tie_word_embeddings = tied;
    const LoadedModel dense = loaded(c, 5);
    const Tensor want = logits(c, dense.weights);
    for (const UpcycleOptions& o :
         {UpcycleOptions{}, UpcycleOptions{.copies = 3, .slices = 2},
          UpcycleOptions{.copies = 5, .slices = 3, .shared = 1, .active = 2},
          UpcycleOptions{.copies = 4, .slices = 1, .active = 3},
          UpcycleOptions{.copies = 2, .slices = 16, .shared = 7, .keep_dense = 2}, UpcycleOptions{.copies = 1, .slices = 4},
          UpcycleOptions{.copies = 7, .slices = 6, .shared = 4, .active = 7, .seed = 9}}) {
      const Surgery moe = upcycle(std::span(&dense, 1), o);
      EXPECT_EQ(moe.config.routed_experts(), o.copies * (o.slices - o.shared));
      Index routed = 0;
      const Tensor got = logits(moe.config, moe.weights(), &routed);
      EXPECT_EQ(routed, static_cast<Index>(kSequence.size()) * (3 - o.keep_dense));
      // Through three layers, each with other orders of the same sums.
      EXPECT_TRUE(test::close(got, want, 10 * test::limit(DType::kF32, 48)))
          << o.copies << " " << o.slices << " " << o.shared;
    }
  }
}

TEST(Upcycle, TheCheckCanFail) {
  const LoadedModel dense = loaded(dense_config(), 5);
  const Surgery moe = upcycle(std::span(&dense, 1), {});
  const Tensor want = logits(dense.config, dense.weights);
  ModelConfig unnormalised = moe.config;
  unnormalised.norm_topk_prob = false;
  EXPECT_FALSE(test::close(logits(unnormalised, moe.weights()), want, 10 * test::limit(DType::kF32, 48)));
  ModelWeights mixed = moe.weights();  // groups that no longer tie
  mixed.layers[1].gate = test::random_tensor(DType::kF32, mixed.layers[1].gate.shape(), 1);
  EXPECT_FALSE(test::close(logits(moe.config, mixed), want, 10 * test::limit(DType::kF32, 48)));
}

TEST(Upcycle, WeightsInBf16StayAsClose) {
  const LoadedModel dense = loaded(dense_config(), 5, DType::kBF16);
  // A slice's weights times a power of two are the same numbers in bf16.
  const Surgery moe = upcycle(std::span(&dense, 1), {.copies = 4, .slices = 4});
  ModelWeights w = empty_weights(moe.config, DType::kBF16);
  const std::vector<Parameter> list = parameter_list(moe.config);
  for (std::size_t i = 0; i < list.size(); ++i) w.view(list[i]).assign(moe.tensor(list[i], i));
  EXPECT_TRUE(test::close(logits(moe.config, w), logits(dense.config, dense.weights), 10 * test::limit(DType::kBF16, 48)));
}

TEST(Upcycle, SeveralModelsGiveTheirExperts) {
  const LoadedModel a = loaded(dense_config(), 5), b = loaded(dense_config(), 6);
  const std::vector<LoadedModel> same = {a, a}, both = {a, b};
  const UpcycleOptions o{.copies = 4, .slices = 2};
  EXPECT_TRUE(test::close(logits(upcycle(same, o).config, upcycle(same, o).weights()), logits(a.config, a.weights),
                          10 * test::limit(DType::kF32, 48)));
  const ModelWeights w = upcycle(both, o).weights();
  const auto first = [](const Tensor& t) { return t.data<float>()[0]; };
  const auto gate = [&](const ModelWeights& of, Index expert) {
    return first(test::expert_tensors(of.layers[0].experts, expert).gate_proj);
  };
  EXPECT_EQ(gate(w, 0), gate(a.weights, 0));
  EXPECT_EQ(gate(w, 2), gate(b.weights, 0));
  EXPECT_EQ(gate(w, 4), gate(a.weights, 0));
  EXPECT_NEAR(first(w.embedding), (first(a.weights.embedding) + first(b.weights.embedding)) / 2, 1e-7);
}

TEST(Upcycle, RefusesWhatWouldChangeTheOutput) {
  const LoadedModel dense = loaded(dense_config(), 5), moe = loaded(small_config(), 5);
  const auto refused = [&](const LoadedModel& m, const UpcycleOptions& o, std::initializer_list<std::string_view> words) {
    return throws_error([&] { upcycle(std::span(&m, 1), o); }, words);
  };
  EXPECT_TRUE(refused(moe, {}, {"experts already"}));
  EXPECT_TRUE(refused(dense, {.slices = 5}, {"48", "5"}));
  EXPECT_TRUE(refused(dense, {.slices = 4, .shared = 4}, {"at least one"}));
  EXPECT_TRUE(refused(dense, {.slices = 4, .shared = 3}, {"one expert per token"}));
  EXPECT_TRUE(refused(dense, {.copies = 2, .active = 3}, {"3 of 2"}));
  EXPECT_TRUE(refused(dense, {.keep_dense = 3}, {"3 of 3"}));
  ModelConfig wide = dense_config();
  wide.intermediate_size = 96;
  const std::vector<LoadedModel> different = {dense, loaded(wide, 1)};
  EXPECT_TRUE(throws_error([&] { upcycle(different, {}); }, {"differ"}));
}

TEST(Prune, KeepsTheMostUsedAndTheirWeights) {
  const LoadedModel m = loaded(small_config(), 5);
  const Surgery pruned = prune(m, {{0, 2, 3, 7}, {1, 4, 5, 6}});
  EXPECT_EQ(pruned.config.routed_experts(), 4);
  const ModelWeights w = pruned.weights();
  const Index s = m.config.shared_experts();
  const auto expert = [](const ModelWeights& of, std::size_t layer, Index e) {
    return test::expert_tensors(of.layers[layer].experts, e);
  };
  EXPECT_TRUE(test::same_bits(expert(w, 1, s + 3).down_proj, expert(m.weights, 1, s + 7).down_proj));
  EXPECT_TRUE(test::same_bits(expert(w, 2, s + 0).up_proj, expert(m.weights, 2, s + 1).up_proj));
  EXPECT_TRUE(test::same_bits(w.layers[2].gate.rows(3, 4), m.weights.layers[2].gate.rows(6, 7)));
  EXPECT_TRUE(test::same_bits(expert(w, 2, 0).up_proj, expert(m.weights, 2, 0).up_proj));

  const Surgery all = prune(m, {{0, 1, 2, 3, 4, 5, 6, 7}, {0, 1, 2, 3, 4, 5, 6, 7}});
  EXPECT_TRUE(test::same_bits(logits(all.config, all.weights()), logits(m.config, m.weights)));
}

TEST(Prune, ExpertsThatNobodyUsesAreNotMissed) {
  // Softmax over fewer experts gives the others more; with normalised weights nothing changes.
  ModelConfig c = small_config();
  c.norm_topk_prob = true;
  const LoadedModel m = loaded(c, 5);
  Context ctx(1);
  const Transformer model(c, m.weights);
  RoutingStudy study(RoutingShape::of(c));
  Recorder recorder(RoutingShape::of(c), [&](const RoutingBatch& b) { study.add(ctx, b); });
  const std::vector<std::int32_t> two = {3, 9};
  recorder.start(two, 0);
  const Tensor want = test::logits_of(ctx, model, two, {.routing = recorder.probe()});
  const Surgery pruned = prune(m, most_used(study, 6));  // two tokens of three choices: at most six experts
  const Transformer smaller(pruned.config, pruned.weights());
  EXPECT_TRUE(test::close(test::logits_of(ctx, smaller, two), want, 10 * test::limit(DType::kF32, 48)));
}

// A group's experts lie side by side, so all groups lose as many: else experts would change their group.
TEST(Prune, GroupsKeepAsManyEach) {
  ModelConfig c = small_config();
  c.topk_method = "noaux_tc", c.n_group = 2, c.topk_group = 2;
  const LoadedModel m = loaded(c, 5);
  RoutingStudy study(RoutingShape::of(c));
  Context ctx(1);
  const Transformer model(c, m.weights);
  Recorder recorder(RoutingShape::of(c), [&](const RoutingBatch& b) { study.add(ctx, b); });
  recorder.start(kSequence, 0);
  test::logits_of(ctx, model, kSequence, {.routing = recorder.probe()});
  for (const std::vector<Index>& layer : most_used(study, 6, 2)) {
    EXPECT_EQ(layer.size(), 6u);
    EXPECT_EQ(std::count_if(layer.begin(), layer.end(), [](Index e) { return e < 4; }), 3);
  }
  EXPECT_EQ(prune(m, most_used(study, 6, 2)).config.routed_experts(), 6);
  EXPECT_NO_THROW(prune(m, {{0, 1, 4, 5}, {2, 3, 6, 7}}));
  EXPECT_TRUE(throws_error([&] { prune(m, {{0, 1, 4, 5}, {1, 2, 3, 6}}); }, {"layer 2", "2 groups"}));
  EXPECT_TRUE(throws_error([&] { most_used(study, 5, 2); }, {"5 of 8", "2 equal groups"}));
  EXPECT_TRUE(throws_error([&] { pruned_config(c, 5); }, {"5 experts per layer cannot be kept", "n_group is 2"}));
}

TEST(Prune, RefusesTooFewAndUneven) {
  const LoadedModel m = loaded(small_config(), 5);
  EXPECT_TRUE(throws_error([&] { prune(m, {{0, 1}, {0, 1}}); }, {"2 experts", "3"}));
  EXPECT_TRUE(throws_error([&] { prune(m, {{0, 1, 2}, {0, 1, 2, 3}}); }, {"as many"}));
  EXPECT_TRUE(throws_error([&] { prune(m, {{0, 1, 2}}); }, {"1 layers of 2"}));
  EXPECT_TRUE(throws_error([&] { prune(m, {{0, 1, 8}, {0, 1, 2}}); }, {"no expert 8"}));
  RoutingStudy study(small_shape());
  EXPECT_TRUE(throws_error([&] { most_used(study, 9); }, {"9", "8"}));
}

}  // namespace
}  // namespace dsmoe::study
