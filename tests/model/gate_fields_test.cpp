// The fields of config.json that say how experts are scored, chosen and weighed reach the model. What each of them means is
// checked against PyTorch for one layer (tests/moe/golden).
#include <gtest/gtest.h>

#include "model/transformer.h"
#include "support/run_model.h"
#include "support/tolerance.h"

namespace dsmoe {
namespace {

ModelConfig gated() {
  ModelConfig c;
  c.vocab_size = 50, c.hidden_size = 32, c.intermediate_size = 48, c.moe_intermediate_size = 16;
  c.num_hidden_layers = 2, c.num_attention_heads = 2, c.num_key_value_heads = 1, c.first_k_dense_replace = 1;
  c.n_routed_experts = 8, c.num_experts_per_tok = 2, c.n_shared_experts = 1;
  c.max_position_embeddings = 64, c.initializer_range = 0.3;
  return c;
}

const std::vector<std::int32_t> kIds = {3, 9, 27, 31, 4, 12, 36, 8, 24, 22, 17, 1};

ModelWeights weights_of(const ModelConfig& c, Context& ctx) {
  ModelWeights w = random_weights(c, 5, DType::kF32, ctx);
  if (c.selection_bias())  // drawn as zeros
    for (Index e = 0; e < c.routed_experts(); ++e) w.layers[1].gate_bias.data<float>()[e] = 0.05f * static_cast<float>(e);
  return w;
}

// Logits, and what layer 1 chose, on both backends.
struct Ran {
  Tensor logits, reference;
  Routing routing;

  explicit Ran(const ModelConfig& c) {
    Context cpu(2), ref(1, Backend::kRef);
    const Transformer model(c, weights_of(c, cpu));
    logits = test::logits_of(cpu, model, kIds, {.routing = [&](Index, const Routing& r) {
                               routing = {r.experts.clone(), r.weights.clone(), r.scores.clone()};
                             }});
    reference = test::logits_of(ref, model, kIds);
  }
};

TEST(GateFields, EachChangesTheModelAndAgreesWithTheReference) {
  std::vector<ModelConfig> variants(7, gated());
  variants[1].routed_scaling_factor = 2.5;
  variants[2].scoring_func = "sigmoid";
  variants[3].norm_topk_prob = true;
  variants[4].topk_method = "noaux_tc";
  variants[5].topk_method = "group_limited_greedy", variants[5].n_group = 4, variants[5].topk_group = 1;
  variants[6].topk_method = "noaux_tc", variants[6].n_group = 2, variants[6].topk_group = 1;
  std::vector<Tensor> all;
  for (const ModelConfig& c : variants) {
    const Ran run(c);
    EXPECT_TRUE(test::close(run.logits, run.reference, 1e-5));
    for (const Tensor& other : all) EXPECT_GT(test::relative_error(run.logits, other), 1e-3) << all.size();
    all.push_back(run.logits);
  }
}

// Powers of two change no rounding: scaled weights are scaled experts, bit by bit.
TEST(GateFields, ScalingTheGateIsScalingTheExperts) {
  ModelConfig c = gated();
  Context ctx(1);
  ModelWeights larger = weights_of(c, ctx);
  for (const Parameter& p : parameter_list(c)) {
    if (p.role != "experts.down.weight") continue;
    Tensor down = larger.dense(p).clone();
    for (float& x : down.span<float>()) x *= 4;
    larger.view(p).assign(down);
  }
  const Tensor want = test::logits_of(ctx, Transformer(c, larger), kIds);
  c.routed_scaling_factor = 4;
  EXPECT_TRUE(test::same_bits(Ran(c).logits, want));
}

TEST(GateFields, AGroupLimitsTheChoice) {
  ModelConfig c = gated();
  const auto groups_of_tokens = [&](Index size) {
    Index most = 0;
    const Ran run(c);
    for (Index t = 0; t < run.routing.experts.dim(0); ++t) {
      const std::int32_t* const chosen = run.routing.experts.data<std::int32_t>() + 2 * t;
      most = std::max<Index>(most, chosen[0] / size == chosen[1] / size ? 1 : 2);
    }
    return most;
  };
  EXPECT_EQ(groups_of_tokens(4), 2) << "the check sees a free choice";
  c.topk_method = "group_limited_greedy", c.n_group = 2, c.topk_group = 1;
  EXPECT_EQ(groups_of_tokens(4), 1);
  c.topk_method = "noaux_tc", c.scoring_func = "sigmoid";
  EXPECT_EQ(groups_of_tokens(4), 1);
}

TEST(GateFields, SigmoidScoresAndNormalisedWeights) {
  ModelConfig c = gated();
  c.scoring_func = "sigmoid", c.norm_topk_prob = true, c.routed_scaling_factor = 2.5;
  const Ran run(c);
  for (Index t = 0; t < run.routing.weights.dim(0); ++t) {
    double scores = 0;
    for (Index e = 0; e < 8; ++e) scores += run.routing.scores.data<float>()[t * 8 + e];
    EXPECT_GT(std::fabs(scores - 1), 1e-3) << "not a softmax";
    const float* const w = run.routing.weights.data<float>() + 2 * t;
    EXPECT_NEAR(w[0] + w[1], 2.5, 1e-5) << "normalised, then scaled";
  }
}

}  // namespace
}  // namespace dsmoe
