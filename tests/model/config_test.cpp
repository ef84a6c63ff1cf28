#include <gtest/gtest.h>

#include <functional>
#include <limits>

#include "dsmoe/model_config.h"
#include "support/expect_error.h"

namespace dsmoe {
namespace {

::testing::AssertionResult refused(const std::function<void(ModelConfig&)>& spoil,
                                   std::initializer_list<std::string_view> words) {
  ModelConfig c = ModelConfig::preset("tiny");
  spoil(c);
  return testing::throws_error([&] { c.validate(); }, words);
}

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

TEST(ModelConfig, DefaultsAndPresetsAreValid) {
  EXPECT_NO_THROW(ModelConfig().validate());
  const std::vector<std::string> own = {"tiny", "paper-2b", "deepseek-moe-16b", "paper-145b"};
  EXPECT_TRUE(std::equal(own.begin(), own.end(), ModelConfig::preset_names().begin()));
  for (const std::string& name : ModelConfig::preset_names()) EXPECT_NO_THROW(ModelConfig::preset(name).validate()) << name;
  EXPECT_TRUE(testing::throws_error([] { ModelConfig::preset("huge"); }, {"huge", "tiny, paper-2b"}));
  EXPECT_FALSE(refused([](ModelConfig&) {}, {})) << "the checker must be able to fail";
}

TEST(ModelConfig, RefusesAttentionThatCannotWork) {
  EXPECT_TRUE(refused([](ModelConfig& c) { c.num_attention_heads = 0; }, {"num_attention_heads is 0"}));
  EXPECT_TRUE(refused([](ModelConfig& c) { c.num_attention_heads = 3; },
                      {"num_attention_heads is 3", "hidden_size 128", "head_dim"}));
  EXPECT_TRUE(
      refused([](ModelConfig& c) { c.num_key_value_heads = 3; }, {"num_key_value_heads is 3", "num_attention_heads 4"}));
  EXPECT_TRUE(refused([](ModelConfig& c) { c.num_key_value_heads = 8; }, {"num_key_value_heads is 8"}));
  EXPECT_TRUE(refused([](ModelConfig& c) { c.num_key_value_heads = 0; }, {"num_key_value_heads is 0"}));
  EXPECT_TRUE(refused([](ModelConfig& c) { c.explicit_head_dim = 0; }, {"head_dim is 0"}));
  EXPECT_TRUE(refused([](ModelConfig& c) { c.explicit_head_dim = 33; }, {"head_dim is 33", "even"}));
  EXPECT_TRUE(
      refused([](ModelConfig& c) { c.explicit_head_dim = 1 << 30; }, {"num_attention_heads 4", "head_dim 1073741824"}));
  EXPECT_TRUE(refused([](ModelConfig& c) { c.attention_dropout = 1; }, {"attention_dropout is 1"}));
  EXPECT_TRUE(refused([](ModelConfig& c) { c.rope_theta = 0; }, {"rope_theta is 0"}));
  EXPECT_TRUE(refused(
      [](ModelConfig& c) {
        c.rope_scaling = {RopeScalingType::kLinear, 1.0};
      },
      {"rope_scaling factor is 1"}));
  EXPECT_TRUE(refused(
      [](ModelConfig& c) {
        c.rope_scaling = {RopeScalingType::kDynamic, kNan};
      },
      {"rope_scaling factor is nan"}));
  EXPECT_TRUE(refused(
      [](ModelConfig& c) {
        c.explicit_head_dim = 2, c.rope_scaling = {RopeScalingType::kDynamic, 2};
      },
      {"dynamic", "head_dim"}));
}

TEST(ModelConfig, RefusesGroupsThatCannotWork) {
  const auto grouped = [](Index groups, std::optional<Index> chosen, const char* method = "noaux_tc") {
    return [=](ModelConfig& c) {
      c.n_routed_experts = 16, c.num_experts_per_tok = 4;
      c.n_group = groups, c.topk_group = chosen, c.topk_method = method;
    };
  };
  EXPECT_FALSE(refused(grouped(4, 2), {}));
  EXPECT_TRUE(refused(grouped(0, 1), {"n_group is 0"}));
  EXPECT_TRUE(refused(grouped(3, 1), {"n_group is 3", "n_routed_experts 16"}));
  EXPECT_TRUE(refused(grouped(4, {}), {"topk_group is missing"}));
  EXPECT_TRUE(refused(grouped(4, 5), {"topk_group is 5", "n_group 4"}));
  EXPECT_TRUE(refused(grouped(8, 1), {"2 experts", "num_experts_per_tok 4"}));
  EXPECT_TRUE(refused(grouped(16, 8), {"n_group is 16", "two best"}));
  EXPECT_FALSE(refused(grouped(16, 8, "group_limited_greedy"), {}));
  EXPECT_TRUE(refused(grouped(4, 2, "greedy"), {"n_group is 4", "greedy"}));
  EXPECT_TRUE(refused([](ModelConfig& c) { c.routed_scaling_factor = 0; }, {"routed_scaling_factor is 0"}));
  EXPECT_TRUE(refused([](ModelConfig& c) { c.routed_scaling_factor = kNan; }, {"routed_scaling_factor is nan"}));
  EXPECT_TRUE(refused([](ModelConfig& c) { c.scoring_func = "relu"; }, {"scoring_func is \"relu\""}));
  EXPECT_TRUE(refused([](ModelConfig& c) { c.topk_method = "best"; }, {"topk_method is \"best\"", "noaux_tc"}));
  EXPECT_TRUE(refused([](ModelConfig& c) { c.scoring_func = "sigmoid", c.router_z_loss_alpha = 1; }, {"router_z_loss"}));
}

TEST(ModelConfig, AcceptsAttentionOfVariants) {
  EXPECT_FALSE(refused([](ModelConfig& c) { c.num_key_value_heads = 2; }, {}));
  EXPECT_FALSE(refused([](ModelConfig& c) { c.num_key_value_heads.reset(); }, {}));
  EXPECT_FALSE(
      refused([](ModelConfig& c) { c.num_attention_heads = 3, c.num_key_value_heads = 1, c.explicit_head_dim = 64; }, {}))
      << "heads need not divide hidden_size when head_dim is given";
  ModelConfig c = ModelConfig::preset("tiny");
  EXPECT_EQ(c.head_dim(), 32);
  c.explicit_head_dim = 64;
  EXPECT_EQ(c.head_dim(), 64);
  c.num_key_value_heads.reset();
  EXPECT_EQ(c.kv_heads(), 4);
}

TEST(ModelConfig, RefusesSizesAndNumbers) {
  EXPECT_TRUE(refused([](ModelConfig& c) { c.vocab_size = 0; }, {"vocab_size is 0"}));
  EXPECT_TRUE(refused([](ModelConfig& c) { c.hidden_size = -8; }, {"hidden_size is -8"}));
  EXPECT_TRUE(refused([](ModelConfig& c) { c.num_hidden_layers = 0; }, {"num_hidden_layers is 0"}));
  EXPECT_TRUE(refused([](ModelConfig& c) { c.intermediate_size = 0; }, {"intermediate_size is 0"}));
  EXPECT_TRUE(refused([](ModelConfig& c) { c.max_position_embeddings = 0; }, {"max_position_embeddings is 0"}));
  EXPECT_TRUE(refused([](ModelConfig& c) { c.rms_norm_eps = 0; }, {"rms_norm_eps is 0"}));
  EXPECT_TRUE(refused([](ModelConfig& c) { c.rms_norm_eps = kNan; }, {"rms_norm_eps is nan"}));
  EXPECT_TRUE(refused([](ModelConfig& c) { c.initializer_range = -1; }, {"initializer_range is -1"}));
  EXPECT_TRUE(refused([](ModelConfig& c) { c.pad_token_id = 512; }, {"pad_token_id is 512", "vocab_size 512"}));
  EXPECT_TRUE(refused([](ModelConfig& c) { c.bos_token_id = -1; }, {"bos_token_id is -1"}));
  EXPECT_TRUE(refused([](ModelConfig& c) { c.eos_token_id = {1, -2}; }, {"eos_token_id is -2"}));
}

TEST(ModelConfig, RefusesSizesThatOverflow) {
  const Index big = std::numeric_limits<std::int32_t>::max();
  EXPECT_TRUE(
      refused([](ModelConfig& c) { c.vocab_size = Index{1} << 40; }, {"vocab_size is 1099511627776", "2147483647"}));
  EXPECT_TRUE(refused([&](ModelConfig& c) { c.num_hidden_layers = big; }, {"num_hidden_layers 2147483647", "tensors"}));
  EXPECT_TRUE(refused([&](ModelConfig& c) { c.n_routed_experts = 60000, c.num_hidden_layers = 6; },
                      {"n_routed_experts", "1048576 tensors"}));
  EXPECT_TRUE(refused([&](ModelConfig& c) { c.n_routed_experts = big; }, {"n_routed_experts", "65536 experts"}));
  EXPECT_TRUE(refused([&](ModelConfig& c) { c.n_shared_experts = 65536, c.moe_intermediate_size = 1; },
                      {"n_shared_experts", "65536 experts"}));
  EXPECT_TRUE(
      refused([&](ModelConfig& c) { c.moe_intermediate_size = big; }, {"moe_intermediate_size 2147483647", "width"}));
  EXPECT_TRUE(
      refused([&](ModelConfig& c) { c.hidden_size = c.vocab_size = c.intermediate_size = big, c.explicit_head_dim = 2; },
              {"hidden_size 2147483647", "parameters"}));
}

TEST(ModelConfig, RefusesMoeThatCannotWork) {
  EXPECT_TRUE(refused([](ModelConfig& c) { c.n_routed_experts = 0; }, {"n_routed_experts is 0", "null"}));
  EXPECT_TRUE(refused([](ModelConfig& c) { c.n_routed_experts = -1; }, {"n_routed_experts is -1"}));
  EXPECT_TRUE(refused([](ModelConfig& c) { c.num_experts_per_tok.reset(); }, {"num_experts_per_tok is missing"}));
  EXPECT_TRUE(
      refused([](ModelConfig& c) { c.num_experts_per_tok = 31; }, {"num_experts_per_tok is 31", "n_routed_experts 30"}));
  EXPECT_TRUE(refused([](ModelConfig& c) { c.num_experts_per_tok = 0; }, {"num_experts_per_tok is 0"}));
  EXPECT_TRUE(refused([](ModelConfig& c) { c.n_shared_experts = -1; }, {"n_shared_experts is -1"}));
  EXPECT_TRUE(refused([](ModelConfig& c) { c.moe_intermediate_size = 0; }, {"moe_intermediate_size is 0"}));
  EXPECT_TRUE(refused([](ModelConfig& c) { c.moe_layer_freq = 0; }, {"moe_layer_freq is 0"}));
  EXPECT_TRUE(refused([](ModelConfig& c) { c.first_k_dense_replace = -1; }, {"first_k_dense_replace is -1"}));
  EXPECT_TRUE(refused([](ModelConfig& c) { c.aux_loss_alpha = -0.1; }, {"aux_loss_alpha is -0.1"}));
}

TEST(ModelConfig, RefusesWhatIsNotSupported) {
  EXPECT_TRUE(refused([](ModelConfig& c) { c.model_type = "deepseek_v4"; }, {"model_type", "deepseek_v4", "\"deepseek\""}));
  EXPECT_FALSE(refused([](ModelConfig& c) { c.scoring_func = "sigmoid"; }, {}));
  EXPECT_TRUE(refused([](ModelConfig& c) { c.hidden_act = "gelu"; }, {"hidden_act", "gelu", "silu"}));
  EXPECT_TRUE(refused([](ModelConfig& c) { c.pretraining_tp = 2; }, {"pretraining_tp is 2", "MoE"}));
  EXPECT_TRUE(refused([](ModelConfig& c) { c.mlp_bias = true; }, {"mlp_bias is true"}));
}

TEST(ModelConfig, KnowsItsMoeLayers) {
  ModelConfig c = ModelConfig::preset("deepseek-moe-16b");
  EXPECT_FALSE(c.is_moe_layer(0));
  EXPECT_TRUE(c.is_moe_layer(1));
  EXPECT_EQ(c.moe_layers(), 27);
  c.moe_layer_freq = 2;  // the modulo is on the layer's own index
  EXPECT_FALSE(c.is_moe_layer(1));
  EXPECT_TRUE(c.is_moe_layer(2));
  EXPECT_EQ(c.moe_layers(), 13);
  c.n_routed_experts.reset();
  EXPECT_EQ(c.moe_layers(), 0);
}

TEST(ModelConfig, MakesTheConfigOfALayer) {
  ModelConfig c = ModelConfig::preset("deepseek-moe-16b");
  c.norm_topk_prob = true;
  const MoeConfig m = c.moe(3);
  EXPECT_EQ(m.hidden_size, 2048);
  EXPECT_EQ(m.expert_size, 1408);
  EXPECT_EQ(m.routed_experts, 64);
  EXPECT_EQ(m.shared_experts, 2);
  EXPECT_EQ(m.experts_per_token, 6);
  EXPECT_TRUE(m.norm_topk_prob);
  EXPECT_EQ(m.score, ScoreFunction::kSoftmax);
  EXPECT_EQ(m.seq_balance_alpha, 0.001f);
  EXPECT_EQ(m.batch_balance_alpha, 0.0f);
  EXPECT_EQ(m.layer_index, 3);
  c.seq_aux = false;
  EXPECT_EQ(c.moe(1).seq_balance_alpha, 0.0f);
  EXPECT_EQ(c.moe(1).batch_balance_alpha, 0.001f);
  EXPECT_TRUE(testing::throws_error([&] { c.moe(0); }, {"layer 0", "not a MoE layer"}));
  EXPECT_TRUE(testing::throws_error([&] { c.moe(28); }, {"layer 28"}));
}

}  // namespace
}  // namespace dsmoe
