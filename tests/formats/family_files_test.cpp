// Models of other families as files: the golden folders to GGUF and back, quantized, and the traps of both formats.
#include <gtest/gtest.h>

#include "formats/folder_export.h"
#include "formats/gguf_config.h"
#include "formats/gguf_export.h"
#include "formats/gguf_layout.h"
#include "formats/model_source.h"
#include "io/checkpoint.h"
#include "io/gguf_writer.h"
#include "io/safetensors_writer.h"
#include "model/families/family.h"
#include "support/expect_error.h"
#include "support/files.h"
#include "support/run_model.h"
#include "support/temp_folder.h"
#include "support/tolerance.h"

namespace dsmoe {
namespace {

namespace fs = std::filesystem;
using testing::throws_error;

const fs::path kGolden = DSMOE_TEST_DATA "/model/golden_families";
const std::vector<std::int32_t> kIds = {5, 9, 40, 3, 17, 30, 2, 8, 41};

Tensor logits(Context& ctx, const fs::path& model) { return test::logits_of(ctx, load_model(model), kIds); }

std::vector<std::string> goldens() {
  std::vector<std::string> all;
  for (const auto& entry : fs::directory_iterator(kGolden))
    if (entry.is_directory()) all.push_back(entry.path().filename().string());
  std::sort(all.begin(), all.end());
  return all;
}

bool gguf_can_carry(const ModelConfig& c) {
  try {
    check_gguf_carries(c);
    return true;
  } catch (const Error&) {
    return false;
  }
}

class FamilyFiles : public ::testing::TestWithParam<std::string> {
 protected:
  fs::path write(const fs::path& from, const char* type, bool bare = false) {
    const auto source = ModelSource::open(from);
    io::GgufMetadata m = source->export_metadata("test");
    if (bare) m.remove("dsmoe.config_json");
    const fs::path path = dir_ / (std::string(type) + (bare ? "-bare" : "") + ".gguf");
    write_gguf(ctx_, path, *source, std::move(m), gguf_file_type(type), {});
    return path;
  }

  testing::TempFolder dir_;
  Context ctx_{2};
};

TEST_P(FamilyFiles, AFolderIsWrittenAsItWasRead) {
  const fs::path golden = kGolden / GetParam();
  save_model(dir_ / "copy", *ModelSource::open(golden), DType::kF32, 1 << 30);
  EXPECT_TRUE(test::same_bits(logits(ctx_, dir_ / "copy"), logits(ctx_, golden)));
  if (GetParam().find("stacked") != std::string::npos || GetParam().ends_with("air")) return;  // written one by one
  const auto a = io::Checkpoint::open(golden / "model.safetensors"), b = io::Checkpoint::open(dir_ / "copy");
  std::vector<std::string> x = a.names(), y = b.names();
  std::sort(x.begin(), x.end()), std::sort(y.begin(), y.end());
  ASSERT_EQ(x, y) << "the names that transformers gives them";
  for (const std::string& name : x) {
    EXPECT_EQ(a.info(name).dims, b.info(name).dims) << name;
    EXPECT_TRUE(test::same_bits(a.tensor(name), b.tensor(name))) << name;
  }
}

TEST_P(FamilyFiles, ToGgufAndBack) {
  save_model(dir_ / "folder", *ModelSource::open(kGolden / GetParam()), DType::kF32, 1 << 30);
  const ModelConfig config = ModelConfig::load(dir_ / "folder");
  if (!gguf_can_carry(config)) GTEST_SKIP() << "GGUF cannot carry it";
  const fs::path file = write(dir_ / "folder", "f32");
  EXPECT_TRUE(test::same_bits(logits(ctx_, file), logits(ctx_, dir_ / "folder")));
  save_model(dir_ / "back", *ModelSource::open(file), DType::kF32, 1 << 30);
  for (const char* name : {"model.safetensors", "config.json"})
    EXPECT_EQ(testing::read_bytes(dir_ / "back" / name), testing::read_bytes(dir_ / "folder" / name)) << name;
}

TEST_P(FamilyFiles, TheKeysOfAFileSayEnough) {
  if (!gguf_can_carry(ModelConfig::load(kGolden / GetParam()))) GTEST_SKIP() << "GGUF cannot carry it";
  const fs::path bare = write(kGolden / GetParam(), "f32", /*bare=*/true);
  EXPECT_TRUE(test::same_bits(logits(ctx_, bare), logits(ctx_, kGolden / GetParam())));
}

INSTANTIATE_TEST_SUITE_P(Golden, FamilyFiles, ::testing::ValuesIn(goldens()), [](const auto& p) { return p.param; });

// A model wide enough for blocks of 32, of a family's own rules.
ModelConfig wide(const Family& family) {
  ModelConfig c = family.default_config();
  c.vocab_size = 64, c.hidden_size = 64, c.num_hidden_layers = 2, c.num_attention_heads = 2;
  c.num_key_value_heads = family.model_type == "olmoe" ? 2 : 1;
  c.explicit_head_dim = 32;
  if (c.latent_attention()) {
    c.num_key_value_heads.reset(), c.explicit_head_dim.reset();
    c.kv_lora_rank = 32, c.qk_nope_head_dim = 32, c.qk_rope_head_dim = 32, c.v_head_dim = 64;
    if (c.q_lora_rank) c.q_lora_rank = 32;
    c.n_group = c.topk_group = 1;
    c.first_k_dense_replace = 1;
  }
  c.moe_intermediate_size = 32, c.intermediate_size = 32;
  c.n_routed_experts = 4, c.num_experts_per_tok = 4;  // rounded scores change no choice
  if (family.model_type == "qwen3_moe") c.norm_topk_prob = true;
  if (family.model_type == "deepseek" || family.model_type == "dots1") c.n_shared_experts = 1;
  if (family.model_type == "minimax_m2") c.rotary_dim = 16;
  if (family.model_type == "qwen2_moe") c.shared_expert_intermediate_size = 64, c.n_shared_experts = 2;
  c.pad_token_id.reset(), c.bos_token_id.reset(), c.eos_token_id.clear();
  c.max_position_embeddings = 64, c.initializer_range = 0.15;
  return c;
}

TEST(AllFamilies, AreQuantizedRoundedAndRun) {
  const testing::TempFolder dir;
  Context ctx(2);
  for (const Family* const family : all_families()) {
    SCOPED_TRACE(family->model_type);
    const ModelConfig c = wide(*family);
    const fs::path folder = dir / std::string(family->model_type), file = folder.string() + ".gguf";
    const auto parameters = parameter_list(c);
    const ModelWeights w = random_weights(c, 7, DType::kF32, ctx);
    save_model(
        folder, c, DType::kF32, [&](const Parameter& p, std::size_t) { return w.dense(p); }, 1 << 30);
    const Tensor exact = logits(ctx, folder);
    EXPECT_TRUE(test::same_bits(exact, test::logits_of(ctx, Transformer(c, w), kIds)));
    const auto source = ModelSource::open(folder);
    write_gguf(ctx, file, *source, source->export_metadata("x"), gguf_file_type("q8_0"), {});
    EXPECT_TRUE(test::close(logits(ctx, file), exact, 0.06));
    EXPECT_FALSE(test::same_bits(logits(ctx, file), exact));
    save_model(dir / "bf16", *source, DType::kBF16, 1 << 30);
    EXPECT_TRUE(test::close(logits(ctx, dir / "bf16"), exact, 0.06));
  }
}

// A copy of a folder with other tensors.
void write_with(const fs::path& from, const fs::path& to,
                const std::function<void(std::vector<std::pair<std::string, Tensor>>&)>& change) {
  fs::create_directories(to);
  fs::copy_file(from / "config.json", to / "config.json");
  const auto checkpoint = io::Checkpoint::open(from / "model.safetensors");
  std::vector<std::pair<std::string, Tensor>> tensors;
  for (const std::string& name : checkpoint.names()) tensors.emplace_back(name, checkpoint.tensor(name));
  change(tensors);
  std::vector<io::TensorSpec> specs;
  for (const auto& [name, t] : tensors) specs.push_back({name, t.dtype(), t.shape()});
  io::SafetensorsWriter writer(to / "model.safetensors", specs);
  for (const auto& [name, t] : tensors) writer.write(name, t);
  writer.finish();
}

TEST(FamilyTensors, LayersForFurtherTokensArePassedOver) {
  const testing::TempFolder dir;
  Context ctx(1);
  for (const char* const golden : {"deepseek_v3", "kimi_k2", "glm4_moe_lite", "glm4_moe"}) {
    write_with(kGolden / golden, dir / golden, [](auto& tensors) {
      tensors.emplace_back("model.layers.2.enorm.weight", Tensor::zeros(DType::kF32, {24}));
      tensors.emplace_back("model.layers.2.self_attn.q_proj.weight", Tensor::zeros(DType::kF32, {32, 24}));
    });
    EXPECT_TRUE(test::same_bits(logits(ctx, dir / golden), logits(ctx, kGolden / golden))) << golden;
  }
  save_model(dir / "out", *ModelSource::open(dir / "glm4_moe"), DType::kF32, 1 << 30);
  EXPECT_EQ(ModelConfig::load(dir / "out").num_nextn_predict_layers, 0) << "what is not written is not promised";
  write_with(kGolden / "ernie4_5_moe", dir / "ernie", [](auto& tensors) {
    for (const char* name : {"model.mtp_block.0.input_layernorm.weight", "model.mtp_emb_norm.0.weight"})
      tensors.emplace_back(name, Tensor::zeros(DType::kF32, {24}));
  });
  EXPECT_TRUE(test::same_bits(logits(ctx, dir / "ernie"), logits(ctx, kGolden / "ernie4_5_moe")));
  // Of a family that has none, and two layers behind the last, they are unexpected.
  write_with(kGolden / "qwen3_moe", dir / "qwen",
             [](auto& tensors) { tensors.emplace_back("model.layers.2.enorm.weight", Tensor::zeros(DType::kF32, {24})); });
  EXPECT_TRUE(throws_error([&] { load_model(dir / "qwen"); }, {"model.layers.2.enorm.weight"}, ErrorCode::kFormat));
  write_with(kGolden / "glm4_moe", dir / "far",
             [](auto& tensors) { tensors.emplace_back("model.layers.3.enorm.weight", Tensor::zeros(DType::kF32, {24})); });
  EXPECT_TRUE(throws_error([&] { load_model(dir / "far"); }, {"model.layers.3.enorm.weight"}, ErrorCode::kFormat));
}

TEST(FamilyTensors, AStackOfAnotherShapeIsRefusedByName) {
  const testing::TempFolder dir;
  write_with(kGolden / "qwen3_moe_stacked", dir / "wrong", [](auto& tensors) {
    for (auto& [name, t] : tensors)
      if (name == "model.layers.1.mlp.experts.gate_up_proj") t = Tensor::zeros(DType::kF32, {6, 24, 20});
  });
  EXPECT_TRUE(
      throws_error([&] { load_model(dir / "wrong"); }, {"model.layers.1.mlp.experts.gate_up_proj"}, ErrorCode::kFormat));
  write_with(kGolden / "qwen3_moe_stacked", dir / "missing", [](auto& tensors) {
    std::erase_if(tensors, [](const auto& t) { return t.first == "model.layers.0.mlp.experts.down_proj"; });
  });
  EXPECT_TRUE(throws_error([&] { load_model(dir / "missing"); }, {"model.layers.0.mlp.experts.0.down_proj.weight"},
                           ErrorCode::kFormat));
  write_with(kGolden / "qwen3_moe", dir / "no-norm", [](auto& tensors) {
    std::erase_if(tensors, [](const auto& t) { return t.first == "model.layers.0.self_attn.q_norm.weight"; });
  });
  EXPECT_TRUE(
      throws_error([&] { load_model(dir / "no-norm"); }, {"model.layers.0.self_attn.q_norm.weight"}, ErrorCode::kFormat));
}

TEST(FamilyGguf, WhatReadersTakeForGrantedIsRefusedOtherwise) {
  const auto cannot = [](const char* model_type, const char* field, const std::function<void(ModelConfig&)>& change) {
    ModelConfig c = wide(family_of(model_type));
    EXPECT_NO_THROW(check_gguf_carries(c)) << model_type;
    change(c);
    EXPECT_TRUE(throws_error([&] { check_gguf_carries(c); }, {field, "Hugging Face folder"}, ErrorCode::kUnsupported));
  };
  cannot("qwen3_moe", "norm_topk_prob is false", [](ModelConfig& c) { c.norm_topk_prob = false; });
  cannot("qwen3_moe", "attention_bias", [](ModelConfig& c) { c.attention_bias = true; });
  cannot("qwen3_moe", "routed_scaling_factor is 2", [](ModelConfig& c) { c.routed_scaling_factor = 2; });
  cannot("olmoe", "norm_topk_prob is true", [](ModelConfig& c) { c.norm_topk_prob = true; });
  cannot("olmoe", "num_key_value_heads is 1", [](ModelConfig& c) { c.num_key_value_heads = 1; });
  cannot("olmoe", "tie_word_embeddings", [](ModelConfig& c) { c.tie_word_embeddings = true; });
  cannot("qwen2_moe", "norm_topk_prob is true", [](ModelConfig& c) { c.norm_topk_prob = true; });
  cannot("qwen2_moe", "tie_word_embeddings", [](ModelConfig& c) { c.tie_word_embeddings = true; });
  cannot("qwen2_moe", "n_shared_experts is 0",
         [](ModelConfig& c) { c.shared_expert_intermediate_size = c.n_shared_experts.emplace(0); });
  cannot("glm4_moe", "n_group is 2", [](ModelConfig& c) { c.n_group = 2, c.topk_group = 1; });
  cannot("mixtral", "topk_method", [](ModelConfig& c) { c.topk_method = "noaux_tc"; });
}

TEST(FamilyGguf, BlocksForFurtherTokensCountAmongTheLayers) {
  const testing::TempFolder dir;
  Context ctx(1);
  const auto source = ModelSource::open(kGolden / "glm4_moe");
  io::GgufMetadata m = source->export_metadata("x");
  m.remove("dsmoe.config_json");
  write_gguf(ctx, dir / "plain.gguf", *source, m, gguf_file_type("f32"), {});
  // The same with a third block, as llama.cpp's converter writes it.
  const auto plain = io::GgufFile::open(dir / "plain.gguf");
  m.set("glm4moe.block_count", io::GgufValue::u32(3));
  m.set("glm4moe.nextn_predict_layers", io::GgufValue::u32(1));
  m.remove("glm4moe.expert_gating_func");  // missing, it means sigmoid in this architecture
  std::vector<io::TensorSpec> specs;
  for (const io::GgufTensorInfo& t : plain.tensors()) specs.push_back({t.name, DType::kF32, t.shape});
  specs.push_back({"blk.2.nextn.enorm.weight", DType::kF32, {24}});
  io::GgufWriter writer(dir / "mtp.gguf", m, specs);
  const Tensor extra = Tensor::zeros(DType::kF32, {24});
  for (const io::TensorSpec& s : specs) {
    const Tensor t = plain.contains(s.name) ? plain.tensor(s.name) : extra;
    writer.append(s.name, {static_cast<const std::byte*>(t.raw()), t.bytes()});
  }
  writer.finish();
  EXPECT_EQ(ModelConfig::load(dir / "mtp.gguf").num_hidden_layers, 2);
  EXPECT_TRUE(test::same_bits(logits(ctx, dir / "mtp.gguf"), logits(ctx, kGolden / "glm4_moe")));
}

// The golden folder as a file whose keys and shapes were changed, without our own keys.
fs::path changed_gguf(const testing::TempFolder& dir, const char* golden,
                      const std::function<void(io::GgufMetadata&)>& keys,
                      const std::function<void(io::TensorSpec&)>& shape) {
  Context ctx(1);
  const auto source = ModelSource::open(kGolden / golden);
  io::GgufMetadata m = source->export_metadata("x");
  m.remove("dsmoe.config_json");
  write_gguf(ctx, dir / "plain.gguf", *source, m, gguf_file_type("f32"), {});
  const auto plain = io::GgufFile::open(dir / "plain.gguf");
  keys(m);
  std::vector<io::TensorSpec> specs;
  for (const io::GgufTensorInfo& t : plain.tensors())
    shape(specs.emplace_back(io::TensorSpec{t.name, DType::kF32, t.shape}));
  io::GgufWriter writer(dir / "changed.gguf", m, specs);
  for (const io::TensorSpec& s : specs) {
    const Tensor t = plain.tensor(s.name);
    writer.append(s.name, {static_cast<const std::byte*>(t.raw()), t.bytes()});
  }
  writer.finish();
  return dir / "changed.gguf";
}

// llama.cpp's converter writes intermediate_size / num_key_value_heads there, right for released sizes alone; its reader
// wants the key that says that every layer is a MoE layer.
TEST(FamilyGguf, SharedExpertsOfErnieAreAsWideAsTheirTensors) {
  const testing::TempFolder dir;
  Context ctx(1);
  const fs::path file = changed_gguf(
      dir, "ernie4_5_moe",
      [](io::GgufMetadata& m) {
        EXPECT_EQ(m.integer("ernie4_5-moe.interleave_moe_layer_step"), 1);
        m.set("ernie4_5-moe.expert_shared_feed_forward_length", io::GgufValue::u32(10));
      },
      [](io::TensorSpec&) {});
  EXPECT_TRUE(test::same_bits(logits(ctx, file), logits(ctx, kGolden / "ernie4_5_moe")));
}

// A file of llama.cpp's converter has an alpha in the base alone; ours says it besides, as long as the base is not changed.
TEST(FamilyGguf, AnAlphaIsPartOfTheBase) {
  const testing::TempFolder dir;
  Context ctx(1);
  const auto source = ModelSource::open(kGolden / "hunyuan_v1_moe");
  io::GgufMetadata m = source->export_metadata("x");
  EXPECT_EQ(m.number("hunyuan-moe.rope.freq_base"), 1600);
  EXPECT_EQ(m.text("hunyuan-moe.rope.scaling.type"), "none");
  EXPECT_EQ(m.integer("hunyuan-moe.expert_shared_feed_forward_length"), 10);
  write_gguf(ctx, dir / "ours.gguf", *source, m, gguf_file_type("f32"), {});
  EXPECT_EQ(ModelConfig::load(dir / "ours.gguf").rope_scaling.alpha, 8.0);
  m.set("hunyuan-moe.rope.freq_base", io::GgufValue::f32(500));
  write_gguf(ctx, dir / "edited.gguf", *source, m, gguf_file_type("f32"), {});
  const ModelConfig edited = ModelConfig::load(dir / "edited.gguf");
  EXPECT_TRUE(edited.rope_theta == 500 && edited.rope_scaling == RopeScaling());
  m.remove("dsmoe.config_json");
  write_gguf(ctx, dir / "bare.gguf", *source, m, gguf_file_type("f32"), {});
  EXPECT_TRUE(test::same_bits(logits(ctx, dir / "bare.gguf"), logits(ctx, dir / "edited.gguf")));
  ModelConfig c = source->config();
  c.rope_scaling.alpha.reset(), c.rope_scaling.factor = 2;
  EXPECT_TRUE(throws_error([&] { check_gguf_carries(c); }, {"rope_scaling is dynamic"}, ErrorCode::kUnsupported));
}

// As the same converter writes it; the format does not tell the two apart.
TEST(FamilyGguf, TheGateOfSharedExpertsMayBeARow) {
  const testing::TempFolder dir;
  Context ctx(1);
  const fs::path file = changed_gguf(
      dir, "qwen2_moe", [](io::GgufMetadata& m) { m.remove("qwen2moe.expert_shared_count"); },
      [](io::TensorSpec& t) {
        if (t.name.ends_with("ffn_gate_inp_shexp.weight")) t.shape = {1, 24};
      });
  EXPECT_EQ(ModelConfig::load(file).shared_experts(), 2) << "from the width of their tensors";
  EXPECT_TRUE(test::same_bits(logits(ctx, file), logits(ctx, kGolden / "qwen2_moe")));
}

}  // namespace
}  // namespace dsmoe
