#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>

#include "core/log.h"
#include "dsmoe/model_config.h"
#include "support/expect_error.h"
#include "support/temp_folder.h"

namespace dsmoe {
namespace {

using Json = nlohmann::ordered_json;

::testing::AssertionResult refused(const std::string& text, std::initializer_list<std::string_view> words) {
  return testing::throws_error([&] { ModelConfig::from_json(text, "x/config.json"); }, words);
}

// The released 16B file as far as it is known, with fields this library does not know in between.
constexpr const char* k16B = R"({
  "architectures": ["DeepseekForCausalLM"],
  "attention_bias": false,
  "attention_dropout": 0.0,
  "auto_map": {"AutoConfig": "configuration_deepseek.DeepseekConfig"},
  "aux_loss_alpha": 0.001,
  "bos_token_id": 100000,
  "eos_token_id": 100001,
  "first_k_dense_replace": 1,
  "hidden_act": "silu",
  "hidden_size": 2048,
  "initializer_range": 0.02,
  "intermediate_size": 10944,
  "max_position_embeddings": 4096,
  "model_type": "deepseek",
  "moe_intermediate_size": 1408,
  "moe_layer_freq": 1,
  "n_routed_experts": 64,
  "n_shared_experts": 2,
  "norm_topk_prob": false,
  "num_attention_heads": 16,
  "num_experts_per_tok": 6,
  "num_hidden_layers": 28,
  "num_key_value_heads": 16,
  "pretraining_tp": 1,
  "rms_norm_eps": 1e-06,
  "rope_scaling": null,
  "rope_theta": 10000,
  "scoring_func": "softmax",
  "seq_aux": true,
  "tie_word_embeddings": false,
  "torch_dtype": "bfloat16",
  "transformers_version": "4.36.2",
  "use_cache": true,
  "vocab_size": 102400
})";

TEST(ConfigJson, ReadsTheReleasedFile) {
  const ModelConfig c = ModelConfig::from_json(k16B, "16B");
  ModelConfig preset = ModelConfig::preset("deepseek-moe-16b");
  Json from_file = Json::parse(c.to_json()), from_preset = Json::parse(preset.to_json());
  for (const char* only_in_file : {"auto_map", "transformers_version"}) from_file.erase(only_in_file);
  EXPECT_EQ(nlohmann::json(from_file), nlohmann::json(from_preset)) << "the preset is the released model";
  EXPECT_EQ(c.torch_dtype, DType::kBF16);
  EXPECT_EQ(c.head_dim(), 128);
}

TEST(ConfigJson, KeepsUnknownFieldsOrderAndText) {
  ModelConfig c = ModelConfig::from_json(k16B, "16B");
  EXPECT_EQ(c.to_json(), Json::parse(k16B).dump(2) + "\n") << "nothing changed, so nothing may change";
  c.hidden_size = 4096;
  c.explicit_head_dim = 256;
  const Json saved = Json::parse(c.to_json());
  EXPECT_EQ(saved["hidden_size"], 4096);
  EXPECT_EQ(saved["auto_map"]["AutoConfig"], "configuration_deepseek.DeepseekConfig");
  EXPECT_EQ(saved["head_dim"], 256);
  EXPECT_EQ(saved.size(), Json::parse(k16B).size() + 1) << "only what changed is added";
  EXPECT_NE(c.to_json().find("\"rope_theta\": 10000,"), std::string::npos);
  EXPECT_EQ(std::next(saved.begin(), 9).key(), "hidden_size") << "in its old place";
}

TEST(ConfigJson, MissingFieldsHaveTheDefaultsOfTheReference) {
  const ModelConfig c = ModelConfig::from_json("{}", "empty");
  EXPECT_EQ(c.vocab_size, 102400);
  EXPECT_EQ(c.hidden_size, 4096);
  EXPECT_EQ(c.intermediate_size, 11008);
  EXPECT_EQ(c.moe_intermediate_size, 1407);
  EXPECT_EQ(c.num_hidden_layers, 30);
  EXPECT_EQ(c.num_attention_heads, 32);
  EXPECT_EQ(c.num_key_value_heads, 32);
  EXPECT_FALSE(c.n_shared_experts || c.n_routed_experts || c.num_experts_per_tok || c.pad_token_id);
  EXPECT_EQ(c.moe_layer_freq, 1);
  EXPECT_EQ(c.first_k_dense_replace, 0);
  EXPECT_EQ(c.aux_loss_alpha, 0.001);
  EXPECT_TRUE(c.seq_aux && c.use_cache);
  EXPECT_FALSE(c.norm_topk_prob || c.tie_word_embeddings || c.attention_bias || c.mlp_bias);
  EXPECT_EQ(c.max_position_embeddings, 2048);
  EXPECT_EQ(c.rms_norm_eps, 1e-6);
  EXPECT_EQ(c.initializer_range, 0.02);
  EXPECT_EQ(c.bos_token_id, 100000);
  EXPECT_EQ(c.eos_token_id, std::vector<Index>{100001});
  EXPECT_EQ(c.rope_theta, 10000.0);
  EXPECT_EQ(c.rope_scaling, RopeScaling());
  EXPECT_EQ(c.to_json(), "{}\n");
}

TEST(ConfigJson, ANewFileHasEveryField) {
  ModelConfig c = ModelConfig::preset("tiny");
  c.rope_scaling = {RopeScalingType::kDynamic, 2.5};
  c.eos_token_id = {1, 2};
  const Json saved = Json::parse(c.to_json());
  EXPECT_EQ(saved["model_type"], "deepseek");
  EXPECT_EQ(saved["architectures"][0], "DeepseekForCausalLM");
  EXPECT_EQ(saved["num_hidden_layers"], 4);
  EXPECT_EQ(saved["rope_scaling"], (Json{{"type", "dynamic"}, {"factor", 2.5}}));
  EXPECT_FALSE(saved.contains("head_dim"));
  EXPECT_FALSE(saved.contains("mlp_bias"));
  ModelConfig again = ModelConfig::from_json(c.to_json(), "again");
  EXPECT_EQ(again.rope_scaling, c.rope_scaling);
  EXPECT_EQ(again.eos_token_id, c.eos_token_id);
  again.source_json.clear();
  EXPECT_EQ(again.to_json(), c.to_json()) << "every field survives the way through a file";
}

TEST(ConfigJson, NullIsNone) {
  const ModelConfig c = ModelConfig::from_json(
      R"({"num_key_value_heads": null, "num_attention_heads": 16, "n_routed_experts": null, "n_shared_experts": null,
          "rope_scaling": null, "pad_token_id": null, "bos_token_id": null, "eos_token_id": null, "torch_dtype": null,
          "head_dim": null, "seq_aux": null})",
      "nulls");
  EXPECT_EQ(c.kv_heads(), 16);
  EXPECT_EQ(c.moe_layers(), 0);
  EXPECT_FALSE(c.bos_token_id.has_value());
  EXPECT_TRUE(c.eos_token_id.empty());
  EXPECT_FALSE(c.seq_aux) << "None is false";
  EXPECT_TRUE(refused(R"({"hidden_size": null})", {"hidden_size is null", "whole number"}));
}

TEST(ConfigJson, ReadsVariants) {
  const ModelConfig c = ModelConfig::from_json(
      R"({"hidden_size": 1792, "num_attention_heads": 14, "num_key_value_heads": 2, "head_dim": 128, "mlp_bias": false,
          "dtype": "float16", "rope_theta": 1.4e6, "rope_scaling": {"factor": 4, "type": "linear"}, "eos_token_id": [1, 2]})",
      "variant");
  EXPECT_EQ(c.head_dim(), 128);
  EXPECT_EQ(c.torch_dtype, DType::kF16);
  EXPECT_EQ(c.rope_scaling, (RopeScaling{RopeScalingType::kLinear, 4}));
  EXPECT_EQ(c.eos_token_id, (std::vector<Index>{1, 2}));
  ModelConfig changed = c;
  changed.torch_dtype = DType::kF32;
  EXPECT_EQ(Json::parse(changed.to_json())["dtype"], "float32");
  EXPECT_FALSE(Json::parse(changed.to_json()).contains("torch_dtype"));
}

TEST(ConfigJson, RefusesWrongTypesByName) {
  EXPECT_TRUE(refused(R"({"hidden_size": "2048"})", {"x/config.json", "hidden_size is \"2048\"", "whole number"}));
  EXPECT_TRUE(refused(R"({"hidden_size": 2048.5})", {"hidden_size is 2048.5", "whole number"}));
  EXPECT_TRUE(refused(R"({"hidden_size": true})", {"hidden_size is true"}));
  EXPECT_TRUE(refused(R"({"hidden_size": 18446744073709551615})", {"hidden_size", "63 bits"}));
  EXPECT_TRUE(refused(R"({"seq_aux": 1})", {"seq_aux is 1", "true or false"}));
  EXPECT_TRUE(refused(R"({"rope_theta": []})", {"rope_theta is []", "a number"}));
  EXPECT_TRUE(refused(R"({"hidden_act": 3})", {"hidden_act is 3", "a string"}));
  EXPECT_TRUE(refused("{\"hidden_act\": \"a\\nb\"}", {"hidden_act", "\"a\\nb\"", "plain name"}));
  EXPECT_TRUE(refused(R"({"eos_token_id": [1, "x"]})", {"eos_token_id is \"x\""}));
  EXPECT_TRUE(refused(R"({"torch_dtype": "int3"})", {"torch_dtype is \"int3\"", "bfloat16"}));
  EXPECT_TRUE(refused(R"({"hidden_act": ")" + std::string(100000, 'x') + "\"}", {"hidden_act", "xxx..."}));
}

TEST(ConfigJson, RefusesValuesByName) {
  EXPECT_TRUE(refused(R"({"rope_scaling": {"type": "yarn", "factor": 4}})", {"rope_scaling type", "yarn", "linear"}));
  EXPECT_TRUE(refused(R"({"rope_scaling": {"factor": 4}})", {"rope_scaling", "\"type\""}));
  EXPECT_TRUE(refused(R"({"rope_scaling": {"type": "linear"}})", {"rope_scaling", "\"factor\""}));
  EXPECT_TRUE(refused(R"({"rope_scaling": {"type": "linear", "rope_type": "dynamic", "factor": 4}})", {"remove one"}));
  EXPECT_TRUE(refused(R"({"rope_scaling": {"type": "dynamic", "alpha": 1000, "factor": 2}})", {"'alpha' 1000"}));
  EXPECT_TRUE(refused(R"({"rope_scaling": {"type": "dynamic", "factor": 2, "original_max_position_embeddings": 77}})",
                      {"original_max_position_embeddings 77", "2048"}));
  EXPECT_TRUE(refused(R"({"rope_scaling": {"type": "linear", "factor": 1}})", {"rope_scaling factor is 1"}));
  EXPECT_TRUE(refused(R"({"rope_scaling": {"type": "linear", "factor": "4"}})", {"rope_scaling factor is \"4\""}));
  EXPECT_TRUE(refused(R"({"rope_parameters": 5})", {"rope_parameters is 5"}));
  EXPECT_TRUE(refused(R"({"rope_parameters": {"rope_type": "yarn", "factor": 4}})", {"rope_parameters type", "yarn"}));
  EXPECT_TRUE(refused(R"({"rope_parameters": {"partial_rotary_factor": 0.5}})", {"partial_rotary_factor 0.5"}));
  EXPECT_TRUE(refused(R"({"rope_theta": 10000, "rope_parameters": {"rope_theta": 5}})", {"rope_theta", "remove one"}));
  EXPECT_TRUE(refused(
      R"({"rope_scaling": {"type": "linear", "factor": 4}, "rope_parameters": {"rope_type": "linear", "factor": 2}})",
      {"rope_scaling", "remove one"}));
  EXPECT_TRUE(refused(R"({"num_attention_heads": 33})", {"x/config.json: num_attention_heads is 33"}));
  EXPECT_TRUE(refused(R"({"num_attention_heads": 16})", {"num_key_value_heads is 32", "null"}));
  EXPECT_TRUE(refused(R"({"model_type": "llama", "rope_scaling": {"type": "x"}, "hidden_size": "?"})",
                      {"model_type is \"llama\"", "only \"deepseek\", ", "are supported"}));
}

TEST(ConfigJson, ReadsRopeAsNewerFilesHaveIt) {
  const char* const text = R"({"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 500000.0}})";
  ModelConfig c = ModelConfig::from_json(text, "new");
  EXPECT_EQ(c.rope_theta, 500000);
  EXPECT_EQ(c.rope_scaling, (RopeScaling{RopeScalingType::kLinear, 4}));
  EXPECT_EQ(Json::parse(c.to_json()), Json::parse(text)) << "nothing changed";
  c.rope_theta = 10000;  // the default of ModelConfig, but not what the file said
  const Json saved = Json::parse(c.to_json());
  EXPECT_FALSE(saved.contains("rope_parameters")) << "it says something else now";
  EXPECT_EQ(saved["rope_theta"], 10000);
  EXPECT_EQ(saved["rope_scaling"]["factor"], 4);
  const ModelConfig plain =
      ModelConfig::from_json(R"({"rope_parameters": {"rope_type": "default"}, "rope_theta": 5})", "x");
  EXPECT_EQ(plain.rope_theta, 5);
  EXPECT_EQ(plain.rope_scaling, RopeScaling());
  const ModelConfig both = ModelConfig::from_json(
      R"({"rope_scaling": {"type": "dynamic", "rope_type": "dynamic", "factor": 2, "original_max_position_embeddings": 2048}})",
      "x");
  EXPECT_EQ(both.rope_scaling, (RopeScaling{RopeScalingType::kDynamic, 2}));
}

TEST(ConfigJson, ReadsHowExpertsAreChosen) {
  const char* const text =
      R"({"n_routed_experts": 16, "num_experts_per_tok": 4, "moe_intermediate_size": 8, "scoring_func": "sigmoid",
          "topk_method": "noaux_tc", "n_group": 4, "topk_group": 2, "norm_topk_prob": true, "routed_scaling_factor": 2.5})";
  ModelConfig c = ModelConfig::from_json(text, "v3");
  MoeConfig m = c.moe(0);
  EXPECT_EQ(m.score, ScoreFunction::kSigmoid);
  EXPECT_TRUE(m.selection_bias && m.norm_topk_prob);
  EXPECT_EQ(m.groups, 4);
  EXPECT_EQ(m.groups_per_token, 2);
  EXPECT_EQ(m.group_score, GroupScore::kTop2Sum);
  EXPECT_EQ(m.routed_scaling_factor, 2.5f);
  EXPECT_EQ(Json::parse(c.to_json()), Json::parse(text));
  c.source_json.clear();
  EXPECT_EQ(ModelConfig::from_json(c.to_json(), "again").moe(0).groups_per_token, 2) << "a new file has them as well";
  c.topk_method = "group_limited_greedy", c.scoring_func = "softmax";
  m = c.moe(0);
  EXPECT_EQ(m.group_score, GroupScore::kMax);
  EXPECT_FALSE(m.selection_bias);
  c = ModelConfig::from_json(R"({"n_group": 1, "topk_group": 1, "topk_method": "greedy"})", "v2-lite");
  EXPECT_EQ(c.expert_groups(), 1);
}

TEST(ConfigJson, RefusesFieldsThatChangeTheModel) {
  const std::pair<const char*, const char*> refusals[] = {
      {"quantization_config", R"({"quant_method": "fp8"})"},
      {"sliding_window", "4096"},
      {"layer_types", R"(["sliding_attention"])"},
      {"kv_lora_rank", "512"},
      {"partial_rotary_factor", "0.5"},
      {"rotary_dim", "64"},
      {"use_qk_norm", "true"},
      {"clip_qkv", "8.0"},
      {"attention_multiplier", "0.5"},
      {"final_logit_softcapping", "30.0"},
      {"embedding_multiplier", "12"},
      {"num_experts", "8"},
      {"moe_k", "2"},
      {"shared_expert_intermediate_size", "512"},
      {"score_function", R"("sigmoid")"},
      {"mlp_only_layers", "[1]"},
      {"decoder_sparse_step", "2"},
      {"add_cross_attention", "true"},
  };
  for (const auto& [field, value] : refusals) {
    const std::string text = fmt::format(R"({{"{}": {}}})", field, value);
    EXPECT_TRUE(testing::throws_error([&] { ModelConfig::from_json(text, "x/config.json"); },
                                      {"x/config.json: ", field, " is "}, ErrorCode::kUnsupported));
    EXPECT_NO_THROW(ModelConfig::from_json(fmt::format(R"({{"{}": null}})", field), "x"));
  }
  // What says nothing new passes.
  EXPECT_NO_THROW(ModelConfig::from_json(
      R"({"sliding_window": 4096, "use_sliding_window": false, "layer_types": ["full_attention"], "rotary_dim": 128,
          "partial_rotary_factor": 1.0, "use_qk_norm": false, "num_experts": 0, "score_function": "softmax",
          "mlp_only_layers": [], "final_logit_softcapping": 0, "embedding_multiplier": 1, "decoder_sparse_step": 1})",
      "x"));
}

// What is neither known nor refused is said once per reading, with the file; what Hugging Face writes everywhere is not.
TEST(ConfigJson, NotesUnknownFields) {
  std::vector<std::string> notes;
  set_log_sink([&](std::string_view topic, std::string_view line) {
    if (topic == kNoteTopic) notes.emplace_back(line);
  });
  ModelConfig::from_json(k16B, "16B");
  EXPECT_TRUE(notes.empty()) << notes.front();
  const ModelConfig c = ModelConfig::from_json(
      R"({"num_nextn_predict_layers": 1, "ep_size": 1, "_x": 2, "hidden_sise": 4096, "max_length": 20})", "x/config.json");
  c.to_json();
  set_log_sink({});
  ASSERT_EQ(notes.size(), 1u);
  EXPECT_EQ(notes[0], "x/config.json: unknown fields have no effect: 'num_nextn_predict_layers', 'hidden_sise'");
}

TEST(ConfigJson, RefusesWhatIsNotJson) {
  EXPECT_TRUE(refused("", {"x/config.json: not valid JSON"}));
  EXPECT_TRUE(refused("{\"hidden_size\": 2048,\n", {"not valid JSON", "line 2"}));
  EXPECT_TRUE(refused("[1]", {"expected a JSON object", "[1]"}));
  EXPECT_TRUE(refused("{\"a\": 1e999}", {"not valid JSON"}));
  EXPECT_TRUE(refused(R"({"hidden_size": 2048, "hidden_size": 4096})", {"x/config.json", "'hidden_size'", "twice"}));
  EXPECT_TRUE(refused("{\"a\": \"\xff\"}", {"not valid JSON"}));
  EXPECT_TRUE(refused("{\"a\": " + std::string(200000, '[') + std::string(200000, ']') + "}", {"nested deeper"}));
  std::string many = "{\"k\": 0";
  for (int i = 0; i < 10000; ++i) many += ", \"" + std::to_string(i) + "\": 0";
  EXPECT_TRUE(refused(many + "}", {"more than 10000 keys"}));
}

TEST(ConfigJson, LoadsAFolderOrAFile) {
  const testing::TempFolder folder;
  const std::filesystem::path& dir = folder.path();
  EXPECT_TRUE(testing::throws_error([&] { ModelConfig::load(dir); }, {"cannot open", "config.json", "No such file"}));
  std::ofstream(dir / "config.json") << k16B;
  EXPECT_EQ(ModelConfig::load(dir).hidden_size, 2048);
  EXPECT_EQ(ModelConfig::load(dir / "config.json").hidden_size, 2048);
  std::ofstream(dir / "bad.json") << R"({"hidden_size": 0})";
  EXPECT_TRUE(
      testing::throws_error([&] { ModelConfig::load(dir / "bad.json"); }, {dir.c_str(), "bad.json: hidden_size is 0"}));
  EXPECT_TRUE(testing::throws_error([&] { ModelConfig::load("/dev/zero"); }, {"/dev/zero", "not a config.json"}));
}

TEST(ConfigJson, TrainingFieldsAreWrittenWhenSet) {
  ModelConfig c = ModelConfig::preset("tiny");
  for (const char* field : {"topk_method", "device_aux_loss_alpha", "aux_loss_devices", "router_z_loss_alpha"})
    EXPECT_EQ(c.to_json().find(field), std::string::npos) << field;
  c.topk_method = "noaux_tc";
  c.device_aux_loss_alpha = 0.05;
  c.aux_loss_devices = 5;
  c.router_z_loss_alpha = 0.001;
  const ModelConfig again = ModelConfig::from_json(c.to_json(), "x");
  EXPECT_TRUE(again.selection_bias());
  const MoeConfig moe = again.moe(1);
  EXPECT_TRUE(moe.selection_bias);
  EXPECT_EQ(moe.devices, 5);
  EXPECT_FLOAT_EQ(moe.device_balance_alpha, 0.05f);
  EXPECT_FLOAT_EQ(moe.router_z_alpha, 0.001f);
  EXPECT_TRUE(refused(R"({"topk_method": "best"})", {"topk_method", "noaux_tc"}));
  EXPECT_TRUE(
      refused(R"({"n_routed_experts": 8, "num_experts_per_tok": 2, "aux_loss_devices": 3})", {"aux_loss_devices is 3"}));
}

TEST(ConfigJson, FieldsCanBeChangedByName) {
  const ModelConfig tiny = ModelConfig::preset("tiny");
  const ModelConfig c =
      tiny.with({"num_hidden_layers=3", "scoring_func=sigmoid", "rope_theta=5e5", "n_group=null", "eos_token_id=[1,2]"});
  EXPECT_EQ(c.num_hidden_layers, 3);
  EXPECT_EQ(c.scoring_func, "sigmoid");
  EXPECT_EQ(c.rope_theta, 5e5);
  EXPECT_EQ(c.eos_token_id, (std::vector<Index>{1, 2}));
  EXPECT_EQ(c.hidden_size, tiny.hidden_size);
  EXPECT_TRUE(c.source_json.empty()) << "a preset has no file";
  // Neither is possible without the other.
  const ModelConfig wide = tiny.with({"hidden_size=96", "num_attention_heads=3", "num_key_value_heads=3"});
  EXPECT_EQ(wide.head_dim(), 32);
  // What the file says besides stays, and the newer spelling of what is changed goes.
  const ModelConfig read = ModelConfig::from_json(
      R"({"model_type": "deepseek", "mine": 1, "dtype": "float32", "rope_parameters": {"rope_theta": 10.0}})", "x");
  const Json changed = Json::parse(read.with({"rope_theta=20", "torch_dtype=bfloat16"}).to_json());
  EXPECT_EQ(changed["rope_theta"], 20);
  EXPECT_FALSE(changed.contains("rope_parameters"));
  EXPECT_EQ(changed["dtype"], "bfloat16");
  EXPECT_EQ(changed["mine"], 1);

  const auto refused_set = [&](const char* assignment, std::initializer_list<std::string_view> words) {
    return testing::throws_error([&] { tiny.with({assignment}); }, words);
  };
  EXPECT_TRUE(refused_set("num_layers=3", {"num_layers", "num_hidden_layers"}));
  EXPECT_TRUE(refused_set("num_hidden_layers", {"FIELD=VALUE"}));
  EXPECT_TRUE(refused_set("num_hidden_layers=many", {"num_hidden_layers", "whole number"}));
  EXPECT_TRUE(refused_set("num_hidden_layers=-1", {"num_hidden_layers"}));
  const ModelConfig lists = ModelConfig::preset("hunyuan-a13b");  // whose file has an entry for each layer
  for (const char* layers : {"-1", "0", "2000000000"})
    EXPECT_TRUE(
        testing::throws_error([&] { lists.with({std::string("num_hidden_layers=") + layers}); }, {"num_hidden_layers"}))
        << layers;
}

TEST(ConfigJson, WidthsWithoutRoutedExpertsDoNotOverflow) {
  EXPECT_TRUE(refused(R"({"n_shared_experts": 4611686018427387904, "moe_intermediate_size": 4,
                          "moe_shared_expert_intermediate_size": 1})",
                      {"moe_shared_expert_intermediate_size"}));
}

}  // namespace
}  // namespace dsmoe
