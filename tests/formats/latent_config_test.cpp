// config.json and GGUF keys of families with latent attention (MLA). Each is a trap that some reader fell into.
#include <gtest/gtest.h>

#include <cmath>
#include <tuple>

#include "dsmoe/model_config.h"
#include "formats/gguf_config.h"
#include "formats/gguf_export.h"
#include "formats/model_source.h"
#include "io/gguf_writer.h"
#include "model/families/family.h"
#include "model/modules.h"
#include "model/row_order.h"
#include "support/expect_error.h"
#include "support/run_model.h"
#include "support/temp_folder.h"
#include "support/tolerance.h"

namespace dsmoe {
namespace {

namespace fs = std::filesystem;
using testing::throws_error;

const fs::path kGoldenFolders = DSMOE_TEST_DATA "/model/golden_families";
const std::vector<std::int32_t> kSomeIds = {5, 9, 40, 3, 17, 30, 2, 8, 41};

ModelConfig read_config(const std::string& text) { return ModelConfig::from_json(text, "config.json"); }
bool is_refused(const std::string& text, std::initializer_list<std::string_view> parts) {
  return throws_error([&] { read_config(text); }, parts, ErrorCode::kUnsupported) ||
         throws_error([&] { read_config(text); }, parts, ErrorCode::kFormat) ||
         throws_error([&] { read_config(text); }, parts, ErrorCode::kInvalidArgument);
}
MlaSpec latent_of(const ModelConfig& c) { return std::get<MlaSpec>(spec_of(c).layers.back().attention); }
// A small model of a type with more fields.
std::string of(const char* type, const std::string& more = "") {
  return R"({"model_type": ")" + std::string(type) + R"(", "num_experts_per_tok": 2)" + more + "}";
}
std::string yarn(const std::string& more) {
  return R"(, "rope_scaling": {"type": "yarn", "factor": 40, "original_max_position_embeddings": 4096)" + more + "}";
}

TEST(LatentConfig, DefaultsAreTheClasses) {
  const ModelConfig v2 = read_config(of("deepseek_v2"));
  EXPECT_TRUE(latent_of(v2).q_rank == 1536 && latent_of(v2).kv_rank == 512 && latent_of(v2).value == 128);
  EXPECT_EQ(v2.moe(1).score, ScoreFunction::kSoftmax);
  EXPECT_EQ(latent_of(read_config(of("deepseek_v2", R"(, "q_lora_rank": null)"))).q_rank, 0) << "Lite: the token itself";
  const MoeConfig v3 = read_config(of("deepseek_v3")).moe(3);
  EXPECT_TRUE(v3.score == ScoreFunction::kSigmoid && v3.selection_bias && v3.norm_topk_prob && v3.groups == 8);
  EXPECT_EQ(v3.group_score, GroupScore::kTop2Sum);
  const ModelConfig glm = read_config(of("glm4_moe_lite"));
  EXPECT_TRUE(latent_of(glm).value == 256 && latent_of(glm).query() == 256 && latent_of(glm).heads == 20)
      << "20 heads do not divide 2048, and need not";
  EXPECT_EQ(glm.moe(1).score, ScoreFunction::kSigmoid) << "files have no scoring_func; softmax gave fluent nonsense";
  EXPECT_EQ(read_config(of("kimi_k2")).model_type, "kimi_k2") << "its architectures say DeepseekV3ForCausalLM";
}

TEST(LatentConfig, GroupsAreScoredByTheBestWithoutABias) {
  const MoeConfig m =
      read_config(of("deepseek_v2", R"(, "topk_method": "group_limited_greedy", "n_group": 8, "topk_group": 3)")).moe(0);
  EXPECT_TRUE(m.group_score == GroupScore::kMax && m.groups == 8 && m.groups_per_token == 3);
}

// transformers writes head_dim = qk_rope_head_dim, and num_local_experts or num_experts besides.
TEST(LatentConfig, HeadDimIsNotTheHead) {
  const ModelConfig c = read_config(of("deepseek_v3", R"(, "head_dim": 64, "qk_head_dim": 192, "num_local_experts": 256)"));
  EXPECT_EQ(c.head_dim(), 192);
  EXPECT_EQ(c.rotary_width(), 64);
  EXPECT_EQ(spec_of(c).rope.head_dim, 64);
  EXPECT_NE(c.to_json().find("\"head_dim\": 64"), std::string::npos) << "a file keeps its words";
}

// References leave 1e-6 to the latent's norm, whatever rms_norm_eps is (1e-5 in Moonlight and GLM-4.7-Flash).
TEST(LatentConfig, TheLatentsNormHasItsOwnEps) {
  const ModelConfig moonlight = ModelConfig::preset("moonlight-16b-a3b");
  EXPECT_EQ(spec_of(moonlight).norm_eps, 1e-5);
  EXPECT_EQ(latent_of(moonlight).norm_eps, 1e-6);
}

TEST(LatentConfig, YarnSharpensScores) {
  const auto scale = [](const char* preset) { return latent_of(ModelConfig::preset(preset)).scale; };
  EXPECT_NEAR(scale("deepseek-v2-lite"), 0.1147214, 1e-7);
  EXPECT_NEAR(scale("deepseek-v2"), 0.1147214, 1e-7);
  EXPECT_NEAR(scale("deepseek-v3"), 0.1352338, 1e-7);
  EXPECT_NEAR(scale("kimi-k2"), 0.1308608, 1e-7);
  EXPECT_NEAR(scale("moonlight-16b-a3b"), 1 / std::sqrt(192.0), 1e-9) << "no scaling, no sharpening";
  EXPECT_NEAR(scale("glm-4.7-flash"), 1.0 / 16, 1e-9);
  for (const char* preset : {"deepseek-v2-lite", "deepseek-v3", "kimi-k2"})
    EXPECT_EQ(ModelConfig::preset(preset).rope_scaling.angle_factor(), 1) << preset;
  // Without the two, cosines and sines are sharpened instead.
  const ModelConfig plain = read_config(of("deepseek_v3", yarn("")));
  EXPECT_NEAR(plain.rope_scaling.angle_factor(), 0.1 * std::log(40.0) + 1, 1e-12);
  EXPECT_NEAR(latent_of(plain).scale, 1 / std::sqrt(192.0), 1e-9);
  EXPECT_EQ(read_config(of("deepseek_v3", yarn(R"(, "attention_factor": 1.5)"))).rope_scaling.angle_factor(), 1.5);
  // "default" with a factor is no scaling.
  const ModelConfig none =
      read_config(of("deepseek_v3", R"(, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "factor": 40})"));
  EXPECT_NEAR(latent_of(none).scale, 1 / std::sqrt(192.0), 1e-9);
}

// The words of released files, with 8-bit weights, a layer for further tokens, and fields of other programs.
TEST(LatentConfig, ReleasedFilesAreThePresets) {
  const auto same = [](const char* text, const char* preset) {
    const ModelSpec a = spec_of(read_config(text)), b = spec_of(ModelConfig::preset(preset));
    const auto attention = [](const ModelSpec& s) {
      const MlaSpec& l = std::get<MlaSpec>(s.layers.back().attention);
      return std::tuple(l.heads, l.q_rank, l.kv_rank, l.nope, l.rope, l.value, l.scale, l.norm_eps);
    };
    const MoeConfig x = std::get<MoeConfig>(a.layers.back().feed_forward),
                    y = std::get<MoeConfig>(b.layers.back().feed_forward);
    return attention(a) == attention(b) && a.rope.scaling == b.rope.scaling && a.rope.theta == b.rope.theta &&
           a.layers.size() == b.layers.size() && a.norm_eps == b.norm_eps && x.routed_experts == y.routed_experts &&
           x.experts_per_token == y.experts_per_token && x.groups == y.groups && x.group_score == y.group_score &&
           x.routed_scaling_factor == y.routed_scaling_factor && x.norm_topk_prob == y.norm_topk_prob;
  };
  EXPECT_TRUE(same(R"({"model_type": "deepseek_v3", "architectures": ["DeepseekV3ForCausalLM"], "attention_bias": false,
    "ep_size": 1, "first_k_dense_replace": 3, "hidden_size": 7168, "intermediate_size": 18432, "kv_lora_rank": 512,
    "max_position_embeddings": 163840, "moe_intermediate_size": 2048, "moe_layer_freq": 1, "n_group": 8, "n_routed_experts": 256,
    "n_shared_experts": 1, "norm_topk_prob": true, "num_attention_heads": 128, "num_experts_per_tok": 8,
    "num_hidden_layers": 61, "num_key_value_heads": 128, "num_nextn_predict_layers": 1, "q_lora_rank": 1536,
    "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "quantization_config": {"activation_scheme": "dynamic", "fmt": "e4m3",
    "quant_method": "fp8", "weight_block_size": [128, 128]}, "rms_norm_eps": 1e-06, "rope_scaling": {"beta_fast": 32,
    "beta_slow": 1, "factor": 40, "mscale": 1.0, "mscale_all_dim": 1.0, "original_max_position_embeddings": 4096,
    "type": "yarn"}, "rope_theta": 10000, "routed_scaling_factor": 2.5, "scoring_func": "sigmoid", "tie_word_embeddings": false,
    "topk_group": 4, "topk_method": "noaux_tc", "torch_dtype": "bfloat16", "v_head_dim": 128, "vocab_size": 129280})",
                   "deepseek-v3"));
  EXPECT_TRUE(
      same(R"({"model_type": "deepseek_v2", "aux_loss_alpha": 0.001, "first_k_dense_replace": 1, "hidden_size": 2048,
    "intermediate_size": 10944, "kv_lora_rank": 512, "max_position_embeddings": 163840, "moe_intermediate_size": 1408,
    "moe_layer_freq": 1, "n_group": 1, "n_routed_experts": 64, "n_shared_experts": 2, "norm_topk_prob": false,
    "num_attention_heads": 16, "num_experts_per_tok": 6, "num_hidden_layers": 27, "num_key_value_heads": 16, "q_lora_rank": null,
    "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "rope_scaling": {"beta_fast": 32, "beta_slow": 1, "factor": 40,
    "mscale": 0.707, "mscale_all_dim": 0.707, "original_max_position_embeddings": 4096, "type": "yarn"}, "rope_theta": 10000,
    "routed_scaling_factor": 1.0, "scoring_func": "softmax", "seq_aux": true, "topk_group": 1, "topk_method": "greedy",
    "v_head_dim": 128, "vocab_size": 102400})",
           "deepseek-v2-lite"));
  EXPECT_TRUE(same(R"({"model_type": "glm4_moe_lite", "attention_bias": false, "eos_token_id": [154820, 154827, 154829],
    "first_k_dense_replace": 1, "hidden_size": 2048, "kv_lora_rank": 512, "n_group": 1, "num_attention_heads": 20,
    "num_hidden_layers": 47, "num_key_value_heads": 20, "num_nextn_predict_layers": 1, "partial_rotary_factor": 1.0,
    "q_lora_rank": 768, "qk_nope_head_dim": 192, "qk_rope_head_dim": 64, "rms_norm_eps": 1e-05, "rope_scaling": null,
    "rope_theta": 1000000, "routed_scaling_factor": 1.8, "topk_group": 1, "topk_method": "noaux_tc", "v_head_dim": 256})",
                   "glm-4.7-flash"));
}

TEST(LatentConfig, YarnIsWrittenAsItWasRead) {
  ModelConfig c = read_config(of("deepseek_v3", yarn(R"(, "mscale": 0.5, "mscale_all_dim": 0.25, "beta_fast": 16)")));
  EXPECT_EQ(c.rope_scaling.beta_fast, 16);
  c.rope_scaling.beta_slow = 2, c.rope_scaling.truncate = false;
  EXPECT_EQ(read_config(c.to_json()).rope_scaling, c.rope_scaling);
  // transformers 5 has all of it in one object.
  const ModelConfig new_words =
      read_config(of("deepseek_v3", R"(, "rope_parameters": {"rope_type": "yarn", "rope_theta": 5e4,
    "factor": 32, "original_max_position_embeddings": 4096, "beta_fast": 1.0, "beta_slow": 1.0, "mscale": 1.0,
    "mscale_all_dim": 1.0})"));
  EXPECT_EQ(new_words.rope_scaling, ModelConfig::preset("kimi-k2").rope_scaling);
  EXPECT_EQ(new_words.rope_theta, 5e4);
}

TEST(LatentConfig, WhatIsNotDoneIsRefused) {
  EXPECT_TRUE(is_refused(of("deepseek_v3", R"(, "rope_interleave": false)"), {"rope_interleave is false"}));
  EXPECT_TRUE(is_refused(of("deepseek_v3", R"(, "attention_bias": true)"), {"attention_bias is true"}));
  EXPECT_TRUE(is_refused(of("deepseek_v3", R"(, "scoring_func": "softmax")"), {"softmax", "sigmoid"}));
  EXPECT_TRUE(is_refused(of("deepseek_v3", R"(, "topk_method": "greedy")"), {"greedy", "noaux_tc"}));
  EXPECT_TRUE(is_refused(of("deepseek_v2", R"(, "norm_topk_prob": true)"), {"norm_topk_prob is true"}))
      << "the references differ";
  EXPECT_TRUE(is_refused(of("deepseek_v2", R"(, "scoring_func": "sigmoid")"), {"sigmoid"}));
  EXPECT_TRUE(is_refused(of("deepseek_v3", R"(, "kv_lora_rank": null)"), {"kv_lora_rank is missing"}));
  EXPECT_TRUE(is_refused(of("deepseek_v3", R"(, "kv_lora_rank": 0)"), {"kv_lora_rank is 0"}));
  EXPECT_TRUE(is_refused(of("deepseek_v3", R"(, "qk_rope_head_dim": 63)"), {"qk_rope_head_dim is 63", "even"}));
  EXPECT_TRUE(is_refused(of("deepseek_v3", R"(, "num_key_value_heads": 1)"), {"num_key_value_heads is 1"}));
  EXPECT_TRUE(is_refused(of("deepseek_v3", R"(, "kv_lora_rank": 2147483647)"), {"kv_lora_rank 2147483647"}));
  EXPECT_TRUE(
      is_refused(of("glm4_moe_lite", R"(, "mlp_layer_types": ["sparse"], "num_hidden_layers": 1)"), {"mlp_layer_types"}));
  // Of families that have none of it.
  EXPECT_TRUE(is_refused(R"({"model_type": "qwen3_moe", "kv_lora_rank": 512})", {"kv_lora_rank is 512", "MLA"}));
  EXPECT_TRUE(is_refused(R"({"model_type": "deepseek", "rope_scaling": {"type": "yarn", "factor": 4}})",
                         {"rope_scaling type", "yarn", "linear"}))
      << "its reference has no such scaling";
  for (const char* wrong : {R"(, "beta_fast": 0)", R"(, "beta_slow": -1)", R"(, "mscale": -1)",
                            R"(, "attention_factor": 0)", R"(, "short_factor": [1])", R"(, "mscale": "1")",
                            // Infinite, nothing or no number in f32.
                            R"(, "mscale": 1e300, "mscale_all_dim": 1e300)", R"(, "mscale": 1e300, "mscale_all_dim": 1)",
                            R"(, "attention_factor": 1e39)", R"(, "attention_factor": 1e-50)", R"(, "beta_fast": 1e-320)"})
    EXPECT_TRUE(is_refused(of("deepseek_v3", yarn(wrong)), {"rope_scaling"})) << wrong;
  EXPECT_TRUE(is_refused(of("deepseek_v3", yarn("") + R"(, "rope_theta": 1)"), {"rope_theta over 1"}));
}

// The latent's rows and those that are not turned stay where they are; the rope's pairs are put in halves.
TEST(LatentRows, OnlyTheTurnedPartChangesPlaces) {
  const RowOrder order{.head_dim = 6, .rotary = 4, .pairs = true, .before = 2};
  std::vector<Index> places;
  for (Index r = 0; r < 12; ++r) places.push_back(order.in_file(r));
  EXPECT_EQ(places, (std::vector<Index>{0, 1, 2, 4, 3, 5, 6, 7, 8, 10, 9, 11}));
  EXPECT_TRUE(order.changes());
  EXPECT_FALSE((RowOrder{.head_dim = 6, .rotary = 4, .pairs = false, .before = 2}.changes()));
}

// A GGUF file of a golden folder, with other keys and tensors.
class LatentGguf : public ::testing::Test {
 protected:
  using Change = std::function<void(io::GgufMetadata&, std::vector<std::pair<std::string, Tensor>>&)>;

  fs::path write(const char* golden, const Change& change) {
    const auto source = ModelSource::open(kGoldenFolders / golden);
    io::GgufMetadata m = source->export_metadata("x");
    m.remove("dsmoe.config_json");
    write_gguf(ctx_, dir_ / "plain.gguf", *source, m, gguf_file_type("f32"), {});
    const auto plain = io::GgufFile::open(dir_ / "plain.gguf");
    std::vector<std::pair<std::string, Tensor>> tensors;
    for (const io::GgufTensorInfo& t : plain.tensors()) tensors.emplace_back(t.name, plain.tensor(t.name));
    change(m, tensors);
    std::vector<io::TensorSpec> specs;
    for (const auto& [name, t] : tensors) specs.push_back({name, t.dtype(), t.shape()});
    io::GgufWriter writer(dir_ / "changed.gguf", m, specs);
    for (const auto& [name, t] : tensors) writer.append(name, {static_cast<const std::byte*>(t.raw()), t.bytes()});
    writer.finish();
    return dir_ / "changed.gguf";
  }
  Tensor logits(const fs::path& model) { return test::logits_of(ctx_, load_model(model), kSomeIds); }
  bool as_the_folder(const char* golden, const fs::path& file) {
    return test::same_bits(logits(file), logits(kGoldenFolders / golden));
  }

  testing::TempFolder dir_;
  Context ctx_{1};
};

constexpr std::string_view kBlocks[] = {"blk.0.", "blk.1."};

// Before April 2025: kv_b whole, real heads in the usual keys.
TEST_F(LatentGguf, OlderFilesHaveTheSecondProjectionWhole) {
  const auto old = [](const char* golden) {
    return [golden](io::GgufMetadata& m, std::vector<std::pair<std::string, Tensor>>& tensors) {
      const auto source = ModelSource::open(kGoldenFolders / golden);
      const ModelConfig& c = source->config();
      for (const Parameter& p : parameter_list(c))
        if (p.role == "attention.kv_b.weight")
          tensors.emplace_back(std::string(kBlocks[p.layer]) + "attn_kv_b.weight", source->tensor(p));
      std::erase_if(tensors,
                    [](const auto& t) { return t.first.ends_with("_k_b.weight") || t.first.ends_with("_v_b.weight"); });
      const auto put = [&](const char* key, Index value) {
        m.set(std::string("deepseek2.attention.") + key, io::GgufValue::u32(static_cast<std::uint32_t>(value)));
      };
      put("head_count_kv", c.num_attention_heads), put("key_length", c.head_dim()), put("value_length", c.v_head_dim);
      m.remove("deepseek2.attention.key_length_mla"), m.remove("deepseek2.attention.value_length_mla");
    };
  };
  for (const char* golden : {"deepseek_v2_lite", "deepseek_v3"}) {
    EXPECT_TRUE(as_the_folder(golden, write(golden, old(golden)))) << golden;
    // Both at once, or none, is no model.
    EXPECT_TRUE(throws_error(
        [&] {
          load_model(write(golden, [](auto&, auto& tensors) {
            std::erase_if(tensors, [](const auto& t) { return t.first == "blk.1.attn_v_b.weight"; });
          }));
        },
        {"blk.1.attn_v_b.weight"}, ErrorCode::kFormat));
  }
}

TEST_F(LatentGguf, TheFamilyFollowsFromTheScores) {
  const auto unchanged = [](auto&, auto&) {};
  EXPECT_EQ(ModelConfig::load(write("deepseek_v2_lite", unchanged)).model_type, "deepseek_v2");
  EXPECT_EQ(ModelConfig::load(write("deepseek_v3", unchanged)).model_type, "deepseek_v3");
  // Kimi's and GLM's say the same as DeepSeek-V3's would.
  for (const char* golden : {"kimi_k2", "glm4_moe_lite", "moonlight"})
    EXPECT_TRUE(as_the_folder(golden, write(golden, unchanged)));
  // GLM-4.7-Flash was converted without a gating function for a while, which means softmax in any other file.
  const auto mute = [](io::GgufMetadata& m, auto&) {
    m.remove("deepseek2.expert_gating_func");
    m.set("deepseek2.vocab_size", io::GgufValue::u32(154880));
  };
  const ModelConfig glm = ModelConfig::load(write("glm4_moe_lite", mute));
  EXPECT_TRUE(glm.model_type == "glm4_moe_lite" && glm.scoring_func == "sigmoid");
}

TEST_F(LatentGguf, ARankOfQueriesWithoutTheTensorsIsNone) {
  EXPECT_TRUE(as_the_folder("deepseek_v2_lite", write("deepseek_v2_lite", [](io::GgufMetadata& m, auto&) {
                              m.set("deepseek2.attention.q_lora_rank", io::GgufValue::u32(1536));
                            })));
}

// DeepSeek-V2 of 236B: other readers score such groups by their two best, the reference by the best.
TEST_F(LatentGguf, GroupsWithoutABiasAreScoredByTheBest) {
  const ModelConfig c = ModelConfig::load(write("deepseek_v2_lite", [](io::GgufMetadata& m, auto&) {
    m.set("deepseek2.expert_group_count", io::GgufValue::u32(3));
    m.set("deepseek2.expert_group_used_count", io::GgufValue::u32(2));
  }));
  const MoeConfig gate = c.moe(1);
  EXPECT_TRUE(c.topk_method == "group_limited_greedy" && gate.groups == 3 && gate.groups_per_token == 2);
  EXPECT_EQ(gate.group_score, GroupScore::kMax);
}

TEST_F(LatentGguf, HostileSizesAreRefused) {
  const auto with = [&](const char* key, std::uint32_t value) {
    return write("deepseek_v3",
                 [=](io::GgufMetadata& m, auto&) { m.set(std::string("deepseek2.") + key, io::GgufValue::u32(value)); });
  };
  for (const char* key : {"attention.kv_lora_rank", "attention.key_length_mla", "attention.value_length_mla",
                          "rope.dimension_count", "attention.q_lora_rank"})
    for (const std::uint32_t value : {0u, 3u, 4'294'967'295u})
      EXPECT_ANY_THROW(load_model(with(key, value))) << key << " " << value;
  EXPECT_TRUE(throws_error([&] { ModelConfig::load(with("rope.dimension_count", 99)); }, {"rope.dimension_count is 99"},
                           ErrorCode::kFormat));
}

TEST_F(LatentGguf, WhatReadersTakeForGrantedIsRefusedOtherwise) {
  ModelConfig c = ModelConfig::preset("deepseek-v2-lite");
  EXPECT_NO_THROW(check_gguf_carries(c));
  c.rope_scaling.mscale = 1;
  EXPECT_TRUE(throws_error([&] { check_gguf_carries(c); }, {"rope_scaling", "mscale"}, ErrorCode::kUnsupported));
  EXPECT_TRUE(throws_error([&] { check_gguf_carries(ModelConfig::preset("deepseek-v2")); }, {"n_group is 8", "two best"},
                           ErrorCode::kUnsupported));
  for (const char* preset : {"deepseek-v3", "moonlight-16b-a3b", "kimi-k2", "glm-4.7-flash"})
    EXPECT_NO_THROW(check_gguf_carries(ModelConfig::preset(preset))) << preset;
  ModelConfig qwen = ModelConfig::preset("qwen3-30b-a3b");
  qwen.rope_scaling = {.type = RopeScalingType::kYarn, .factor = 4};
  EXPECT_TRUE(throws_error([&] { check_gguf_carries(qwen); }, {"rope_scaling", "yarn"}, ErrorCode::kUnsupported));
}

}  // namespace
}  // namespace dsmoe
