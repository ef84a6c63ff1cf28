// config.json of other families: spellings, defaults, what is refused. Each is a trap that some reader fell into.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "dsmoe/model_config.h"
#include "model/families/family.h"
#include "support/expect_error.h"

namespace dsmoe {
namespace {

using Json = nlohmann::ordered_json;
using testing::throws_error;

ModelConfig read(const std::string& text) { return ModelConfig::from_json(text, "config.json"); }
bool refused(const std::string& text, std::initializer_list<std::string_view> parts) {
  return throws_error([&] { read(text); }, parts, ErrorCode::kFormat) ||
         throws_error([&] { read(text); }, parts, ErrorCode::kUnsupported) ||
         throws_error([&] { read(text); }, parts, ErrorCode::kInvalidArgument);
}
const GqaSpec& attention(const ModelSpec& spec) { return std::get<GqaSpec>(spec.layers.back().attention); }
const MlaSpec& latent(const ModelSpec& spec) { return std::get<MlaSpec>(spec.layers.back().attention); }

TEST(FamilyConfig, SpellingsOfOneFieldMustAgree) {
  for (const char* name : {"num_experts", "num_local_experts", "n_routed_experts"})
    EXPECT_EQ(read(R"({"model_type": "qwen3_moe", ")" + std::string(name) + R"(": 16})").routed_experts(), 16) << name;
  EXPECT_TRUE(refused(R"({"model_type": "qwen3_moe", "num_experts": 16, "num_local_experts": 8})",
                      {"num_experts is 16", "num_local_experts is 8", "remove one"}));
  // Another family's word is not taken for one's own.
  EXPECT_TRUE(refused(R"({"model_type": "qwen3_moe", "moe_num_experts": 16})", {"moe_num_experts is 16"}));
}

TEST(FamilyConfig, MissingFieldsMeanWhatTheReferenceMeans) {
  const ModelConfig qwen = read(R"({"model_type": "qwen3_moe"})");
  EXPECT_FALSE(qwen.norm_topk_prob) << "all releases say true, the class's default is false";
  EXPECT_EQ(qwen.routed_experts(), 128);
  EXPECT_EQ(qwen.max_position_embeddings, 32768);
  const ModelConfig olmoe = read(R"({"model_type": "olmoe", "intermediate_size": 1024})");
  EXPECT_EQ(olmoe.rms_norm_eps, 1e-5) << "the first released files do not say it";
  EXPECT_EQ(olmoe.moe_intermediate_size, 1024);
  EXPECT_EQ(olmoe.kv_heads(), 16);
  const ModelConfig glm = read(R"({"model_type": "glm4_moe", "head_dim": 128})");
  EXPECT_EQ(glm.rotary_width(), 64) << "half a head unless the file says otherwise";
  const MoeConfig gate = glm.moe(1);
  EXPECT_TRUE(gate.score == ScoreFunction::kSigmoid && gate.selection_bias && gate.norm_topk_prob);
  EXPECT_EQ(read(R"({"model_type": "mixtral"})").rope_theta, 1e6);
  EXPECT_TRUE(read(R"({"model_type": "ernie4_5_moe"})").tie_word_embeddings);
}

TEST(FamilyConfig, BiasesAreThoseOfTheFamily) {
  const ModelSpec glm = spec_of(read(R"({"model_type": "glm4_moe", "head_dim": 128, "attention_bias": true})"));
  EXPECT_TRUE(attention(glm).bias && !attention(glm).output_bias);
  const ModelSpec qwen = spec_of(read(R"({"model_type": "qwen3_moe", "attention_bias": true})"));
  EXPECT_TRUE(attention(qwen).bias && attention(qwen).output_bias);
}

TEST(FamilyConfig, PartsOfAHeadInAllSpellings) {
  // transformers dropped rotary_dim for a while, and turned whole heads.
  EXPECT_EQ(read(R"({"model_type": "minimax_m2", "head_dim": 128, "rotary_dim": 64})").rotary_width(), 64);
  EXPECT_EQ(read(R"({"model_type": "minimax_m2", "head_dim": 128, "partial_rotary_factor": 0.5})").rotary_width(), 64);
  EXPECT_EQ(read(R"({"model_type": "minimax_m2", "head_dim": 128,
                     "rope_parameters": {"rope_type": "default", "rope_theta": 5e6, "partial_rotary_factor": 0.5}})")
                .rotary_width(),
            64);
  for (const char* part : {"0", "-0.5", "1.5", "0.3"})
    EXPECT_TRUE(refused(R"({"model_type": "glm4_moe", "head_dim": 10, "partial_rotary_factor": )" + std::string(part) + "}",
                        {"partial_rotary_factor is " + std::string(part)}))
        << part;
  for (const char* part : {"0", "7", "130", "-2"})
    EXPECT_TRUE(refused(R"({"model_type": "minimax_m2", "rotary_dim": )" + std::string(part) + "}", {"rotary_dim is"}))
        << part;
  // Where a family has none, it is refused as ever.
  EXPECT_TRUE(refused(R"({"model_type": "qwen3_moe", "partial_rotary_factor": 0.5})", {"partial_rotary_factor is 0.5"}));
  EXPECT_TRUE(refused(R"({"model_type": "deepseek", "rotary_dim": 64})", {"rotary_dim is 64"}));
}

TEST(FamilyConfig, ChangedRopeKeepsThePartOfAHead) {
  ModelConfig c = read(R"({"model_type": "glm4_moe", "head_dim": 16,
                           "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.25}})");
  c.rope_theta = 5e5;
  const ModelConfig again = read(c.to_json());
  EXPECT_EQ(again.rope_theta, 5e5);
  EXPECT_EQ(again.rotary_width(), 4);
}

TEST(FamilyConfig, WordsOfReleasedFiles) {
  // dots.llm1 names its scores after the method.
  const char* const dots =
      R"({"model_type": "dots1", "scoring_func": "noaux_tc", "n_routed_experts": 8, "n_shared_experts": 2,
    "num_experts_per_tok": 2, "norm_topk_prob": true, "routed_scaling_factor": 2.5, "hidden_size": 4096})";
  EXPECT_EQ(read(dots).moe(0).score, ScoreFunction::kSigmoid);
  EXPECT_EQ(Json::parse(read(dots).to_json())["scoring_func"], "noaux_tc") << "a file keeps its words";
  const char* const minimax = R"({"model_type": "minimax_m2", "use_routing_bias": true, "qk_norm_type": "per_layer",
    "attn_type_list": [1, 1], "shared_intermediate_size": 0, "num_mtp_modules": 3, "scoring_func": "sigmoid"})";
  EXPECT_EQ(attention(spec_of(read(minimax))).qk_norm, QkNorm::kWidth);
  EXPECT_TRUE(refused(R"({"model_type": "minimax_m2", "qk_norm_type": "per_head"})", {"qk_norm_type is \"per_head\""}));
  EXPECT_TRUE(refused(R"({"model_type": "minimax_m2", "attn_type_list": [1, 0]})", {"attn_type_list"}));
  const char* const ernie =
      R"({"model_type": "ernie4_5_moe", "moe_k": 4, "moe_num_experts": 32, "moe_num_shared_experts": 1,
    "moe_layer_start_index": 3, "moe_layer_end_index": 27, "moe_layer_interval": 1, "use_bias": false})";
  const ModelConfig c = read(ernie);
  EXPECT_EQ(c.experts_per_token(), 4);
  EXPECT_EQ(c.routed_experts(), 32);
  EXPECT_EQ(c.shared_experts(), 1);
  EXPECT_EQ(c.moe_layers(), 25);
  EXPECT_TRUE(refused(R"({"model_type": "ernie4_5_moe", "moe_layer_end_index": 20})", {"moe_layer_end_index is 20"}));
  EXPECT_TRUE(refused(R"({"model_type": "ernie4_5_moe", "moe_layer_interval": 2})", {"moe_layer_interval is 2"}));
}

TEST(FamilyConfig, WhatIsNotDoneIsRefused) {
  const auto qwen = [](const std::string& more) { return R"({"model_type": "qwen3_moe", )" + more + "}"; };
  EXPECT_TRUE(refused(qwen(R"("mlp_only_layers": [0])"), {"mlp_only_layers"}));
  EXPECT_TRUE(refused(qwen(R"("decoder_sparse_step": 2)"), {"decoder_sparse_step"}));
  EXPECT_TRUE(refused(qwen(R"("sliding_window": 4096)"), {"sliding_window is 4096"}));
  EXPECT_NO_THROW(read(qwen(R"("sliding_window": 4096, "use_sliding_window": false)")));
  EXPECT_NO_THROW(read(qwen(R"("sliding_window": 4096, "layer_types": ["full_attention", "full_attention"])")));
  EXPECT_TRUE(refused(qwen(R"("sliding_window": 4096, "layer_types": ["sliding_attention"])"), {"sliding_window"}));
  EXPECT_TRUE(refused(qwen(R"("rope_scaling": {"rope_type": "longrope", "factor": 4.0})"), {"\"longrope\""}));
  EXPECT_TRUE(refused(qwen(R"("norm_topk_prob": true, "num_experts_per_tok": 1)"), {"num_experts_per_tok 1"}));
  EXPECT_TRUE(refused(qwen(R"("quantization_config": {"quant_method": "fp8"})"), {"quantization_config"}));
  EXPECT_TRUE(refused(qwen(R"("num_experts": 0)"), {"n_routed_experts is 0"}));
  EXPECT_TRUE(refused(qwen(R"("num_experts": 1e9)"), {"num_experts is"}));
  EXPECT_TRUE(refused(qwen(R"("num_experts": 100000000)"), {"n_routed_experts"}));
  EXPECT_TRUE(refused(qwen(R"("head_dim": 9223372036854775807)"), {"head_dim"}));
  EXPECT_TRUE(refused(qwen(R"("use_qk_norm": false, "clip_qkv": 8.0)"), {"clip_qkv"}));
  EXPECT_TRUE(refused(R"({"model_type": "olmoe", "clip_qkv": 8.0})", {"clip_qkv"}));
  EXPECT_TRUE(refused(R"({"model_type": "glm4_moe", "head_dim": 128, "num_nextn_predict_layers": -1})",
                      {"num_nextn_predict_layers is -1"}));
  EXPECT_TRUE(refused(R"({"model_type": "deepseek_v4"})", {"deepseek_v4", "qwen3_moe"}));
}

// Files say the width of all shared experts together, and never how many they are.
TEST(FamilyConfig, SharedExpertsOfQwen2AreAWidth) {
  const auto qwen = [](const std::string& more) { return R"({"model_type": "qwen2_moe", )" + more + "}"; };
  const ModelConfig c = read(qwen(R"("moe_intermediate_size": 2560, "shared_expert_intermediate_size": 20480)"));
  EXPECT_EQ(c.shared_experts(), 8);
  EXPECT_TRUE(c.moe(0).shared_gate);
  EXPECT_FALSE(c.norm_topk_prob) << "no release normalises, nor does the class";
  EXPECT_TRUE(attention(spec_of(c)).bias && !attention(spec_of(c)).output_bias) << "qkv_bias is true by default";
  EXPECT_FALSE(attention(spec_of(read(qwen(R"("qkv_bias": false)")))).bias);
  EXPECT_EQ(read(qwen(R"("shared_expert_intermediate_size": 0)")).shared_experts(), 0);
  EXPECT_FALSE(read(qwen(R"("shared_expert_intermediate_size": 0)")).moe(0).shared_gate);
  for (const char* width : {"1000", "1409", "-1408"})
    EXPECT_TRUE(refused(qwen(R"("shared_expert_intermediate_size": )" + std::string(width)),
                        {"shared_expert_intermediate_size is " + std::string(width), "moe_intermediate_size 1408"}))
        << width;
  EXPECT_TRUE(refused(qwen(R"("mlp_only_layers": [0])"), {"mlp_only_layers"}));
  EXPECT_TRUE(refused(qwen(R"("decoder_sparse_step": 2)"), {"decoder_sparse_step"}));
  // A changed width is written where it stands, and the count follows.
  const ModelConfig one = c.with({"shared_expert_intermediate_size=2560"});
  EXPECT_EQ(one.shared_experts(), 1);
  EXPECT_FALSE(Json::parse(one.to_json()).contains("n_shared_experts"));
}

// Dots1Config has a window of 4096 and max_window_layers 62 where a file says nothing.
TEST(FamilyConfig, WindowOfDots1) {
  const auto dots = [](Index layers, const std::string& more) {
    return R"({"model_type": "dots1", "hidden_size": 4096, "n_routed_experts": 8, "num_experts_per_tok": 2,
               "num_hidden_layers": )" +
           std::to_string(layers) + more + "}";
  };
  const auto all = [](std::size_t layers) {
    return R"(, "layer_types": )" + Json(std::vector<std::string>(layers, "full_attention")).dump();
  };
  EXPECT_NO_THROW(read(dots(62, "")));
  EXPECT_NO_THROW(read(dots(62, R"(, "sliding_window": 4096)"))) << "no layer is that far";
  EXPECT_NO_THROW(read(dots(63, R"(, "sliding_window": null)")));
  EXPECT_NO_THROW(read(dots(63, R"(, "max_window_layers": 63)")));
  EXPECT_NO_THROW(read(dots(63, all(63))));
  EXPECT_NO_THROW(read(dots(63, R"(, "sliding_window": 4096)" + all(63))));
  EXPECT_TRUE(refused(dots(63, ""), {"sliding_window is missing"}));
  EXPECT_TRUE(refused(dots(63, R"(, "sliding_window": 4096)"), {"sliding_window is 4096"}));
  EXPECT_TRUE(refused(dots(4, R"(, "max_window_layers": 3)"), {"sliding_window is missing"}));
  EXPECT_TRUE(refused(dots(4, R"(, "max_window_layers": "9")"), {"sliding_window is missing"}));
  EXPECT_TRUE(refused(dots(4, R"(, "max_window_layers": 0, "sliding_window": 16)"), {"sliding_window is 16"}));
  EXPECT_TRUE(refused(dots(4, R"(, "max_window_layers": 3, "use_sliding_window": false)"), {"sliding_window"}))
      << "the class has no such field";
  // What is written says what is computed here, whatever it began with.
  for (const char* more : {"", R"(, "sliding_window": 4096)", R"(, "max_window_layers": 62)"}) {
    const Json out = Json::parse(read(dots(62, more)).with({"num_hidden_layers=63"}).to_json());
    EXPECT_TRUE(out.contains("sliding_window") && out["sliding_window"].is_null()) << more;
  }
  EXPECT_NO_THROW(read(ModelConfig::preset("dots.llm1").with({"num_hidden_layers=63"}).to_json()));
}

std::string hunyuan(const std::string& more, int layers = 2) {
  return R"({"model_type": "hunyuan_v1_moe", "hidden_size": 64, "num_attention_heads": 4, "num_experts": 8, "moe_topk": [2, 2],
             "intermediate_size": 32, "num_hidden_layers": )" +
         std::to_string(layers) + more + "}";
}

TEST(FamilyConfig, NumbersPerLayerOfHunyuan) {
  const ModelConfig c = read(hunyuan(R"(, "num_shared_expert": [1, 1], "moe_intermediate_size": [32, 32, 32])"));
  EXPECT_EQ(c.experts_per_token(), 2);
  EXPECT_EQ(c.shared_experts(), 1);
  EXPECT_EQ(c.moe_intermediate_size, 32);
  EXPECT_EQ(read(hunyuan("")).moe_intermediate_size, 32) << "the reference's class has no such field";
  EXPECT_EQ(read(hunyuan("")).shared_experts(), 1) << "nor one for shared experts, of which it has one";
  EXPECT_EQ(read(hunyuan(R"(, "num_experts_per_tok": 2, "num_local_experts": [8, 8])")).routed_experts(), 8);
  EXPECT_TRUE(refused(hunyuan(R"(, "num_local_experts": [4, 4])"), {"num_experts is 8", "remove one"}));
  EXPECT_TRUE(
      refused(hunyuan(R"(, "num_shared_expert": [1, 2])"), {"num_shared_expert is 1 in one layer and 2 in another"}));
  EXPECT_TRUE(refused(hunyuan("", 3), {"moe_topk has 2 numbers for 3 layers"}));
  EXPECT_TRUE(refused(hunyuan(R"(, "num_shared_expert": [])"), {"num_shared_expert is []"}));
  EXPECT_TRUE(
      refused(hunyuan(R"(, "moe_intermediate_size": 48)"), {"moe_intermediate_size is 48", "intermediate_size is 32"}));
  EXPECT_TRUE(refused(R"({"model_type": "qwen3_moe", "num_experts_per_tok": [8, 8]})", {"num_experts_per_tok is [8,8]"}))
      << "another family's files have no lists";
  // What is written has as many numbers as layers, in a file's own form.
  const Json deeper = Json::parse(c.with({"num_hidden_layers=3"}).to_json());
  EXPECT_EQ(deeper["moe_topk"], Json({2, 2, 2}));
  EXPECT_EQ(deeper["num_experts"], 8);
  const Json other = Json::parse(c.with({"moe_topk=3", "num_experts=4"}).to_json());
  EXPECT_EQ(other["moe_topk"], Json({3, 3}));
  EXPECT_EQ(other["num_experts"], 4);
  EXPECT_EQ(other["moe_intermediate_size"], Json({32, 32, 32})) << "what did not change stays";
  const ModelConfig ended = read(hunyuan(R"(, "eos_token_id": [5])")).with({"num_hidden_layers=3"});
  EXPECT_EQ(Json::parse(ended.to_json())["eos_token_id"], Json({5})) << "no number per layer";
  const Json fresh = Json::parse(ModelConfig::preset("hunyuan-a13b").to_json());
  for (const char* list : {"moe_topk", "moe_intermediate_size", "num_shared_expert"})
    EXPECT_EQ(fresh[list].size(), 32u) << list << ", which llama.cpp's converter reads as lists";
  EXPECT_TRUE(fresh["use_qk_norm"] == true && fresh["use_mixed_mlp_moe"] == true) << "missing, they are false for vLLM";
}

// The words of the released file. Its type is "dynamic", but an alpha stretches the base whatever the length.
TEST(FamilyConfig, RotaryBaseOfHunyuan) {
  const auto rope = [](const std::string& scaling) {
    return hunyuan(R"(, "max_position_embeddings": 16, "rope_scaling": )" + scaling);
  };
  const ModelConfig c = read(rope(R"({"alpha": 1000.0, "beta_fast": 32, "beta_slow": 1, "factor": 1.0, "mscale": 1.0,
                                      "mscale_all_dim": 1.0, "type": "dynamic"})"));
  EXPECT_FALSE(c.rope_scaling.by_length());
  EXPECT_NEAR(c.rope_scaling.base(10000, 128), 11158839.925, 1e-3);
  EXPECT_EQ(read(c.to_json()).rope_scaling, c.rope_scaling);
  const ModelSpec spec = spec_of(c);
  const GqaSpec& a = attention(spec);
  EXPECT_TRUE(a.qk_norm == QkNorm::kHead && a.norm_turned);
  EXPECT_FALSE(attention(spec_of(ModelConfig::preset("qwen3-30b-a3b"))).norm_turned);
  EXPECT_EQ(read(rope(R"({"alpha": 50.0, "type": "dynamic"})")).rope_scaling.alpha, 50.0);
  EXPECT_TRUE(read(rope(R"({"factor": 2.0, "type": "dynamic"})")).rope_scaling.by_length());
  EXPECT_TRUE(refused(rope(R"({"factor": 1.0, "type": "dynamic"})"), {"factor is 1"}));
  EXPECT_TRUE(refused(rope(R"({"alpha": 0.5, "type": "dynamic"})"), {"alpha is 0.5"}));
  EXPECT_TRUE(refused(rope(R"({"alpha": 1e999, "type": "dynamic"})"), {""}));
  EXPECT_TRUE(refused(rope(R"({"alpha": 1e35, "type": "dynamic"})"), {"alpha is 1e+35", "rope_theta", "infinite"}));
  EXPECT_TRUE(refused(rope(R"({"alpha": -1, "type": "dynamic"})"), {"alpha is -1"}));
  EXPECT_TRUE(refused(rope(R"({"alpha": 50.0, "factor": 2.0, "type": "linear"})"), {"alpha"}));
  EXPECT_TRUE(refused(R"({"model_type": "qwen3_moe", "rope_scaling": {"alpha": 50.0, "factor": 2.0, "type": "dynamic"}})",
                      {"alpha"}));
  for (const char* const more :
       {R"(, "use_cla": true)", R"(, "use_mla": true)", R"(, "moe_drop_tokens": true)",
        R"(, "moe_random_routing_dropped_token": true)", R"(, "moe_layer_num_skipped": 1)", R"(, "attention_head_dim": 32)",
        R"(, "use_rotary_pos_emb": false)", R"(, "position_embedding_xdrope": true)", R"(, "use_qk_norm": false)",
        R"(, "norm_topk_prob": false)", R"(, "sliding_window": 64)"}) {
    const std::string field(more + 3, std::string_view(more).find(':') - 4);
    EXPECT_TRUE(refused(hunyuan(more), {field})) << more;
  }
  EXPECT_NO_THROW(read(hunyuan(R"(, "use_cla": false, "cla_share_factor": 2, "use_mla": false, "moe_drop_tokens": false,
    "moe_random_routing_dropped_token": false, "moe_layer_num_skipped": 0, "attention_head_dim": 16, "use_qk_norm": true,
    "use_rotary_pos_emb": true, "kv_lora_rank": null, "use_mixed_mlp_moe": true, "group_limited_greedy": false)")));
}

TEST(FamilyConfig, ANewFileIsReadBackAsItWas) {
  for (const std::string& name : ModelConfig::preset_names()) {
    const ModelConfig c = ModelConfig::preset(name), again = read(c.to_json());
    EXPECT_EQ(again.to_json(), c.to_json()) << name;
    const ModelSpec a = spec_of(c), b = spec_of(again);
    EXPECT_EQ(a.rope.rotary, b.rope.rotary) << name;
    EXPECT_EQ(c.moe(c.num_hidden_layers - 1).routed_scaling_factor,
              again.moe(c.num_hidden_layers - 1).routed_scaling_factor);
    if (c.latent_attention())
      EXPECT_TRUE(latent(a).scale == latent(b).scale && latent(a).q_rank == latent(b).q_rank) << name;
    else
      EXPECT_EQ(attention(a).qk_norm, attention(b).qk_norm) << name;
    EXPECT_EQ(c.rope_scaling, again.rope_scaling) << name;
    EXPECT_EQ(c.eos_token_id, again.eos_token_id) << name;
  }
  const Json qwen = Json::parse(ModelConfig::preset("qwen3-30b-a3b").to_json());
  EXPECT_EQ(qwen["num_experts"], 128) << "as the released file calls it";
  EXPECT_FALSE(qwen.contains("n_routed_experts") || qwen.contains("scoring_func") || qwen.contains("seq_aux"));
  EXPECT_EQ(qwen["architectures"][0], "Qwen3MoeForCausalLM");
  EXPECT_EQ(Json::parse(ModelConfig::preset("mixtral-8x7b").to_json())["intermediate_size"], 14336);
}

TEST(FamilyConfig, AChangedFieldIsWrittenWhereTheFileHasIt) {
  ModelConfig c = read(R"({"model_type": "qwen3_moe", "num_local_experts": 16, "x": 1})");
  c.n_routed_experts = 12;
  const Json out = Json::parse(c.to_json());
  EXPECT_EQ(out["num_local_experts"], 12);
  EXPECT_FALSE(out.contains("num_experts") || out.contains("n_routed_experts"));
}

TEST(FamilyConfig, AChangedFieldKeepsNoOldValueElsewhere) {
  ModelConfig glm = read(R"({"model_type": "glm4_moe", "head_dim": 128, "num_nextn_predict_layers": 1, "num_mtp_layers": 1,
                             "num_experts": 128, "n_routed_experts": 128, "num_local_experts": 128})");
  glm.num_nextn_predict_layers = 0, glm.n_routed_experts = 16;
  const ModelConfig glm_again = read(glm.to_json());
  EXPECT_EQ(glm_again.num_nextn_predict_layers, 0);
  EXPECT_EQ(glm_again.routed_experts(), 16);
  ModelConfig qwen = read(R"({"model_type": "qwen3_moe", "num_experts": 16, "num_local_experts": 16, "dtype": "bfloat16",
                              "torch_dtype": "bfloat16"})");
  const Json same = Json::parse(qwen.to_json());
  EXPECT_TRUE(same.contains("num_experts") && same.contains("num_local_experts")) << "what did not change stays";
  qwen.n_routed_experts = 12, qwen.torch_dtype = DType::kF32;
  EXPECT_EQ(read(qwen.to_json()).routed_experts(), 12);
  EXPECT_FALSE(Json::parse(qwen.to_json()).contains("torch_dtype"));
  // Names that a family does not read, but that must agree with what it reads.
  ModelConfig deepseek = read(R"({"model_type": "deepseek", "n_routed_experts": 64, "num_experts": 64, "rotary_dim": 128,
                                  "n_shared_experts": 2, "num_experts_per_tok": 6, "hidden_size": 4096, "moe_k": 6})");
  deepseek.n_routed_experts = 32;
  const Json out = Json::parse(deepseek.to_json());
  EXPECT_EQ(read(out.dump()).routed_experts(), 32);
  EXPECT_FALSE(out.contains("num_experts"));
  EXPECT_TRUE(out.contains("rotary_dim") && out.contains("moe_k")) << "they still are true";
  // And a part of a head that the file says in rope_parameters.
  ModelConfig part = read(R"({"model_type": "glm4_moe", "head_dim": 16,
                           "rope_parameters": {"rope_type": "default", "rope_theta": 1e5, "partial_rotary_factor": 0.25}})");
  part.partial_rotary_factor = 0.5;
  EXPECT_EQ(read(part.to_json()).rotary_width(), 8);
  EXPECT_EQ(read(part.to_json()).rope_theta, 1e5);
}

}  // namespace
}  // namespace dsmoe
