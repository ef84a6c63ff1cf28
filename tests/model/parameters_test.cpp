#include "model/parameters.h"

#include <gtest/gtest.h>

#include <set>

#include "model/weights.h"
#include "support/expect_error.h"

namespace dsmoe {
namespace {

std::vector<std::string> names_and_shapes(const std::vector<Parameter>& list) {
  std::vector<std::string> out;
  for (const Parameter& p : list) out.push_back(p.name + " " + p.shape.str());
  return out;
}

TEST(ParameterList, IsTheStateDictOfTheReference) {
  ModelConfig c = ModelConfig::preset("tiny");
  c.num_hidden_layers = 2;
  c.num_key_value_heads = 2;
  c.n_routed_experts = 2;
  c.num_experts_per_tok = 1;
  EXPECT_EQ(names_and_shapes(parameter_list(c)), (std::vector<std::string>{
                                                     "model.embed_tokens.weight [512, 128]",
                                                     "model.layers.0.self_attn.q_proj.weight [128, 128]",
                                                     "model.layers.0.self_attn.k_proj.weight [64, 128]",
                                                     "model.layers.0.self_attn.v_proj.weight [64, 128]",
                                                     "model.layers.0.self_attn.o_proj.weight [128, 128]",
                                                     "model.layers.0.mlp.gate_proj.weight [512, 128]",
                                                     "model.layers.0.mlp.up_proj.weight [512, 128]",
                                                     "model.layers.0.mlp.down_proj.weight [128, 512]",
                                                     "model.layers.0.input_layernorm.weight [128]",
                                                     "model.layers.0.post_attention_layernorm.weight [128]",
                                                     "model.layers.1.self_attn.q_proj.weight [128, 128]",
                                                     "model.layers.1.self_attn.k_proj.weight [64, 128]",
                                                     "model.layers.1.self_attn.v_proj.weight [64, 128]",
                                                     "model.layers.1.self_attn.o_proj.weight [128, 128]",
                                                     "model.layers.1.mlp.experts.0.gate_proj.weight [64, 128]",
                                                     "model.layers.1.mlp.experts.0.up_proj.weight [64, 128]",
                                                     "model.layers.1.mlp.experts.0.down_proj.weight [128, 64]",
                                                     "model.layers.1.mlp.experts.1.gate_proj.weight [64, 128]",
                                                     "model.layers.1.mlp.experts.1.up_proj.weight [64, 128]",
                                                     "model.layers.1.mlp.experts.1.down_proj.weight [128, 64]",
                                                     "model.layers.1.mlp.gate.weight [2, 128]",
                                                     "model.layers.1.mlp.shared_experts.gate_proj.weight [128, 128]",
                                                     "model.layers.1.mlp.shared_experts.up_proj.weight [128, 128]",
                                                     "model.layers.1.mlp.shared_experts.down_proj.weight [128, 128]",
                                                     "model.layers.1.input_layernorm.weight [128]",
                                                     "model.layers.1.post_attention_layernorm.weight [128]",
                                                     "model.norm.weight [128]",
                                                     "lm_head.weight [512, 128]",
                                                 }));
}

TEST(ParameterList, FollowsBiasTyingAndHeadDim) {
  ModelConfig c = ModelConfig::preset("tiny");
  const std::size_t plain = parameter_list(c).size();
  c.tie_word_embeddings = true;
  EXPECT_EQ(parameter_list(c).size(), plain - 1);
  c.attention_bias = true;
  EXPECT_EQ(parameter_list(c).size(), plain - 1 + 4 * 4);
  c.explicit_head_dim = 64;
  const auto list = parameter_list(c);
  EXPECT_EQ(list[1].shape, (Shape{256, 128}));  // q_proj.weight
  EXPECT_EQ(list[2].name, "model.layers.0.self_attn.q_proj.bias");
  EXPECT_EQ(list[2].shape, (Shape{256}));
  EXPECT_EQ(list[7].shape, (Shape{128, 256}));  // o_proj.weight
  EXPECT_EQ(list[8].shape, (Shape{128}));       // o_proj.bias
  EXPECT_EQ(list[8].role, "attention.o.bias");
  EXPECT_TRUE(list[8].in(ParameterGroup::kAttention));
  c.n_shared_experts = 0;
  EXPECT_EQ(parameter_list(c).size(), plain - 1 + 4 * 4 - 3 * 3) << "no tensors of width 0";
}

TEST(ParameterList, ASelectionBiasIsF32AndHasNoGradient) {
  ModelConfig c = ModelConfig::preset("tiny");
  const std::size_t plain = parameter_list(c).size();
  c.topk_method = "noaux_tc";
  const auto list = parameter_list(c);
  EXPECT_EQ(list.size(), plain + 3);  // layer 0 is dense
  Context ctx(1);
  ModelWeights weights = random_weights(c, 1, DType::kBF16, ctx);
  int found = 0;
  for (const Parameter& p : list) {
    EXPECT_EQ(p.traits.gradient, p.role != "router.bias") << p.name;
    EXPECT_EQ(p.traits.always_f32, p.role == "router.bias") << p.name;
    if (p.role != "router.bias") continue;
    ++found;
    EXPECT_EQ(p.name, "model.layers." + std::to_string(p.layer) + ".mlp.gate.e_score_correction_bias");
    EXPECT_EQ(p.shape, Shape({30}));
    EXPECT_EQ(weights.dense(p).dtype(), DType::kF32);
    for (const float b : weights.dense(p).span<float>()) EXPECT_EQ(b, 0.0f);
  }
  EXPECT_EQ(found, 3);
  EXPECT_EQ(zero_gradients(c).layers.size(), 4u);
}

TEST(ParameterList, NamesAreUniqueAndTraitsFitTheNames) {
  ModelConfig c = ModelConfig::preset("tiny");
  c.attention_bias = true;
  c.topk_method = "noaux_tc";
  std::set<std::string> names;
  using Group = ParameterGroup;
  for (const Parameter& p : parameter_list(c)) {
    EXPECT_TRUE(names.insert(p.name).second) << p.name;
    const auto has = [&](const char* part) { return p.name.find(part) != std::string::npos; };
    EXPECT_EQ(p.in(Group::kNorm), has("norm")) << p.name;
    EXPECT_EQ(p.traits.initial == InitialValue::kOnes, has("norm")) << p.name;
    EXPECT_EQ(p.traits.initial == InitialValue::kZeros, has("bias")) << p.name;
    EXPECT_EQ(p.traits.initial == InitialValue::kUniform, has("mlp.gate.weight")) << p.name;
    EXPECT_EQ(p.traits.decay, !has("norm") && !has("bias")) << p.name;
    EXPECT_EQ(p.in(Group::kAttention), has("self_attn")) << p.name;
    EXPECT_EQ(p.in(Group::kRoutedExperts), has("mlp.experts.")) << p.name;
    EXPECT_EQ(p.in(Group::kRoutedExperts), p.expert >= 0) << p.name;
    EXPECT_EQ(p.in(Group::kSharedExperts), has("shared_experts")) << p.name;
    EXPECT_EQ(p.in(Group::kRouter), has("mlp.gate.")) << p.name;
    EXPECT_EQ(p.in(Group::kDenseMlp), has("layers.0.mlp.")) << p.name;
    EXPECT_EQ(p.traits.adapter, p.shape.rank() == 2 && (has("self_attn") || has("mlp.")) && !has("mlp.gate.")) << p.name;
    EXPECT_EQ(p.layer >= 0, has("layers.")) << p.name;
  }
}

TEST(ParameterList, Has5466TensorsAt16B) {
  EXPECT_EQ(parameter_list(ModelConfig::preset("deepseek-moe-16b")).size(), 5466u);
}

TEST(ParameterList, RefusesABadConfig) {
  ModelConfig c = ModelConfig::preset("tiny");
  c.num_hidden_layers = Index{1} << 30;
  EXPECT_TRUE(testing::throws_error([&] { parameter_list(c); }, {"num_hidden_layers"}));
}

}  // namespace
}  // namespace dsmoe
