// A second family that no source file knows of: two dense layers of different widths, then a MoE layer, under names of its
// own. It is defined here and nowhere else, so what these tests do with it needs no change elsewhere.
#include "model/families/family.h"

#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "formats/folder_export.h"
#include "formats/gguf_export.h"
#include "formats/model_source.h"
#include "io/checkpoint.h"
#include "model/plan.h"
#include "support/expect_error.h"
#include "support/temp_folder.h"
#include "support/tolerance.h"

namespace dsmoe {
namespace {

using testing::throws_error;

constexpr RoleName kNames[] = {
    {"embedding.weight", "tokens"},
    {"attention.q.weight", "cousin.{layer}.wq"},
    {"attention.k.weight", "cousin.{layer}.wk"},
    {"attention.v.weight", "cousin.{layer}.wv"},
    {"attention.o.weight", "cousin.{layer}.wo"},
    {"experts.gate.weight", "cousin.{layer}.expert_{expert}.w1"},
    {"experts.up.weight", "cousin.{layer}.expert_{expert}.w3"},
    {"experts.down.weight", "cousin.{layer}.expert_{expert}.w2"},
    {"router.weight", "cousin.{layer}.router"},
    {"router.bias", "cousin.{layer}.router_bias"},
    {"dense.gate.weight", "cousin.{layer}.w1"},
    {"dense.up.weight", "cousin.{layer}.w3"},
    {"dense.down.weight", "cousin.{layer}.w2"},
    {"attention_norm.weight", "cousin.{layer}.norm_a"},
    {"feed_forward_norm.weight", "cousin.{layer}.norm_b"},
    {"final_norm.weight", "norm"},
};

ModelSpec cousin_spec(const ModelConfig& c) {
  ModelSpec s{.vocab = c.vocab_size, .width = c.hidden_size, .norm_eps = c.rms_norm_eps};
  s.rope = {c.head_dim(), c.rope_theta, c.rope_scaling, c.max_position_embeddings};
  s.tied_head = true;
  const GqaSpec wide{c.num_attention_heads, c.kv_heads(), c.head_dim()};
  const GqaSpec narrow{c.num_attention_heads / 2, 1, c.head_dim()};  // attention, too, differs between layers
  s.layers.push_back({wide, DenseSpec{c.intermediate_size}});
  s.layers.push_back({narrow, DenseSpec{2 * c.intermediate_size}});
  MoeConfig moe{.hidden_size = c.hidden_size, .expert_size = 24, .routed_experts = 5, .experts_per_token = 2};
  moe.score = ScoreFunction::kSigmoid;
  moe.norm_topk_prob = true;
  moe.selection_bias = true;
  moe.layer_index = 2;
  s.layers.push_back({wide, moe});
  return s;
}

Family cousin() {
  return {"test_cousin", "CousinForCausalLM", [](const ModelConfig&) {}, cousin_spec, kNames};
}

ModelConfig small() {
  ModelConfig c;
  c.model_type = "test_cousin";
  c.vocab_size = 50, c.hidden_size = 32, c.intermediate_size = 48, c.num_hidden_layers = 3;
  c.num_attention_heads = 4, c.num_key_value_heads = 2, c.max_position_embeddings = 64, c.tie_word_embeddings = true;
  return c;
}

const std::vector<std::string> kExpected = {
    "tokens [50, 32]",
    "cousin.0.wq [32, 32]",
    "cousin.0.wk [16, 32]",
    "cousin.0.wv [16, 32]",
    "cousin.0.wo [32, 32]",
    "cousin.0.w1 [48, 32]",
    "cousin.0.w3 [48, 32]",
    "cousin.0.w2 [32, 48]",
    "cousin.0.norm_a [32]",
    "cousin.0.norm_b [32]",
    "cousin.1.wq [16, 32]",
    "cousin.1.wk [8, 32]",
    "cousin.1.wv [8, 32]",
    "cousin.1.wo [32, 16]",
    "cousin.1.w1 [96, 32]",
    "cousin.1.w3 [96, 32]",
    "cousin.1.w2 [32, 96]",
    "cousin.1.norm_a [32]",
    "cousin.1.norm_b [32]",
    "cousin.2.wq [32, 32]",
    "cousin.2.wk [16, 32]",
    "cousin.2.wv [16, 32]",
    "cousin.2.wo [32, 32]",
    "cousin.2.expert_0.w1 [24, 32]",
    "cousin.2.expert_0.w3 [24, 32]",
    "cousin.2.expert_0.w2 [32, 24]",
    "cousin.2.expert_1.w1 [24, 32]",
    "cousin.2.expert_1.w3 [24, 32]",
    "cousin.2.expert_1.w2 [32, 24]",
    "cousin.2.expert_2.w1 [24, 32]",
    "cousin.2.expert_2.w3 [24, 32]",
    "cousin.2.expert_2.w2 [32, 24]",
    "cousin.2.expert_3.w1 [24, 32]",
    "cousin.2.expert_3.w3 [24, 32]",
    "cousin.2.expert_3.w2 [32, 24]",
    "cousin.2.expert_4.w1 [24, 32]",
    "cousin.2.expert_4.w3 [24, 32]",
    "cousin.2.expert_4.w2 [32, 24]",
    "cousin.2.router [5, 32]",
    "cousin.2.router_bias [5]",
    "cousin.2.norm_a [32]",
    "cousin.2.norm_b [32]",
    "norm [32]",
};

const std::vector<std::int32_t> kIds = {3, 1, 4, 1, 5, 9, 2, 6};

Tensor logits(Context& ctx, const Transformer& model) {
  KvSequence sequence(model.make_kv_pool(static_cast<Index>(kIds.size()), DType::kF32));
  return model.logits(ctx, ForwardBatch::of(ctx, sequence, kIds, static_cast<Index>(kIds.size())));
}

TEST(SecondFamily, ListsItsParametersByItsOwnNames) {
  const FamilyRegistration known(cousin());
  std::vector<std::string> names;
  for (const Parameter& p : parameter_list(small())) names.push_back(p.name + " " + p.shape.str());
  EXPECT_EQ(names, kExpected);
}

TEST(SecondFamily, RunsAndIsSavedAndLoadedByItsOwnNames) {
  const FamilyRegistration known(cousin());
  Context ctx(2);
  const ModelConfig c = small();
  const Transformer model(c, random_weights(c, 7, DType::kF32, ctx));
  const Tensor want = logits(ctx, model);
  EXPECT_EQ(want.shape(), (Shape{8, 50}));
  for (const float x : want.span<float>()) ASSERT_TRUE(std::isfinite(x) && x != 0);

  const testing::TempFolder folder;
  const auto tensor = [&](const Parameter& p, std::size_t) { return model.weights().dense(p); };
  save_model(folder / "model", c, DType::kF32, tensor, 1 << 30);
  std::set<std::string> stored, expected;
  const io::Checkpoint checkpoint = io::Checkpoint::open(folder / "model");
  for (const std::string& name : checkpoint.names()) stored.insert(name);
  for (const std::string& name : kExpected) expected.insert(name.substr(0, name.find(' ')));
  EXPECT_EQ(stored, expected);
  EXPECT_EQ(nlohmann::json::parse(c.to_json())["architectures"][0], "CousinForCausalLM");

  EXPECT_TRUE(test::same_bits(logits(ctx, load_model(folder / "model")), want));
}

TEST(SecondFamily, HasGradientsThatLowerTheLoss) {
  const FamilyRegistration known(cousin());
  Context ctx(2);
  const ModelConfig c = small();
  Transformer model(c, random_weights(c, 7, DType::kF32, ctx));
  const std::vector<std::int32_t> targets = {1, 4, 1, 5, 9, 2, 6, 5};
  ModelGradients grads = zero_gradients(c);
  const auto loss = [&] {
    grads = zero_gradients(c);
    return model.loss_and_gradients(ctx, kIds, targets, 8, 1.0f / 8, 1.0f, grads).mean();
  };
  const double before = loss();
  for (const Parameter& p : parameter_list(c)) {
    if (!p.traits.gradient) continue;
    Tensor w = model.weights().dense(p).clone();
    const Tensor g = grads.dense(p);
    EXPECT_EQ(g.shape(), w.shape()) << p.name;
    for (Index i = 0; i < w.numel(); ++i) w.data<float>()[i] -= 0.1f * g.data<float>()[i];
    model.weights().view(p).assign(w);
  }
  EXPECT_LT(loss(), before - 0.01);
}

TEST(SecondFamily, IsCountedFromWhatItsModulesSay) {
  const FamilyRegistration known(cousin());
  const ParameterCount n = count_parameters(small());
  EXPECT_EQ(n.tensors, static_cast<Index>(kExpected.size()));
  EXPECT_EQ(n.attention, 2 * 2 * 32 * (32 + 16) + 2 * 32 * (16 + 8));
  EXPECT_EQ(n.dense_mlp, 3 * 32 * (48 + 96));
  EXPECT_EQ(n.routed_experts, 5 * 3 * 32 * 24);
  EXPECT_EQ(n.total - n.activated, 3 * 3 * 32 * 24);  // 3 of 5 experts
  const Index attended = 2 * 10 * (32 + 16 + 32);
  EXPECT_EQ(forward_flops(small(), 10), 2 * (50 * 32 + n.attention + n.dense_mlp + 2 * 3 * 32 * 24 + 5 * 32 + attended));
  EXPECT_EQ(inference_memory(small(), 10).kv_per_token, 2 * 2 * (16 + 8 + 16));
}

TEST(SecondFamily, IsRefusedWhereItHasNoNames) {
  const FamilyRegistration known(cousin());
  EXPECT_TRUE(throws_error([] { gguf_layout(small(), parameter_list(small())); }, {"test_cousin", "GGUF"}));
  ModelConfig c = small();
  c.model_type = "another";
  EXPECT_TRUE(
      throws_error([&] { c.validate(); }, {"model_type is \"another\"", "\"deepseek\"", "\"test_cousin\" are supported"}));
}

TEST(SecondFamily, IsKnownAsLongAsItsRegistrationLives) {
  {
    const FamilyRegistration known(cousin());
    EXPECT_NO_THROW(small().validate());
    EXPECT_TRUE(throws_error([] { FamilyRegistration again(cousin()); }, {"test_cousin", "known already"}));
    EXPECT_NO_THROW(small().validate());
  }
  EXPECT_TRUE(
      throws_error([] { small().validate(); }, {"model_type is \"test_cousin\"; only \"deepseek\", ", "are supported"}));
}

TEST(Families, HaveANameForEveryRole) {
  ModelConfig c = ModelConfig::preset("tiny");
  c.attention_bias = true;
  c.topk_method = "noaux_tc";
  std::set<std::string_view> roles;
  for (const Parameter& p : parameter_list(c)) roles.insert(p.role);
  for (const Family* const family : all_families()) {
    ModelConfig other = family->default_config();
    other.num_hidden_layers = 2, other.explicit_head_dim = 128, other.attention_bias = !other.latent_attention();
    if (!other.n_routed_experts) other.n_routed_experts = 8;
    if (!other.num_experts_per_tok) other.num_experts_per_tok = 2;
    for (const Parameter& p : parameter_list(other)) {  // a role without a name is an error
      roles.insert(p.role);
      EXPECT_EQ(family->spellings(p.role, p.layer, p.expert).front(), p.name);
    }
  }
  roles.insert({"experts.gate_up.stack", "experts.down.stack"});
  for (const Family* const family : all_families())
    for (const auto& table : {family->names, family->more_names})
      for (const RoleName& n : table) EXPECT_TRUE(roles.contains(n.role)) << family->model_type << ": " << n.role;
  EXPECT_TRUE(
      throws_error([] { family_of("deepseek").name("attention.kv_a.weight"); }, {"deepseek", "attention.kv_a.weight"}));
}

}  // namespace
}  // namespace dsmoe
