// Checkpoints in 8-bit floats with a scale per block of 128 x 128.
#include "formats/fp8.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>

#include "formats/folder_export.h"
#include "formats/model_source.h"
#include "support/expect_error.h"
#include "support/files.h"
#include "support/run_model.h"
#include "support/temp_folder.h"
#include "support/tolerance.h"

namespace dsmoe {
namespace {

using Json = nlohmann::ordered_json;
using testing::throws_error;

struct Raw {
  std::string name, dtype;
  std::vector<Index> dims;
  std::string bytes;
};

// A safetensors file with types that tensors have not.
void write_raw(const std::filesystem::path& path, const std::vector<Raw>& tensors) {
  Json header;
  std::size_t at = 0;
  for (const Raw& t : tensors) {
    header[t.name] = {{"dtype", t.dtype}, {"shape", t.dims}, {"data_offsets", {at, at + t.bytes.size()}}};
    at += t.bytes.size();
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const std::uint64_t size = text.size();
  std::ofstream out(path, std::ios::binary);
  out.write(reinterpret_cast<const char*>(&size), 8);
  out << text;
  for (const Raw& t : tensors) out << t.bytes;
}

template <class T>
std::string as_bytes(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

TEST(Fp8, EveryValueOfTheFormat) {
  const testing::TempFolder dir;
  std::string all;
  for (int i = 0; i < 254; ++i) all += static_cast<char>(i < 127 ? i : i + 1);  // without the two NaN
  write_raw(dir / "model.safetensors",
            {{"x.weight", "F8_E4M3", {2, 127}, all}, {"x.weight_scale_inv", "F32", {1, 1}, as_bytes<float>({2.0f})}});
  const Tensor t = read_fp8(io::Checkpoint::open(dir / "model.safetensors"), "x.weight", {2, 127}).to(DType::kF32);
  const auto v = std::as_const(t).span<float>();
  EXPECT_EQ(v[0], 0);
  EXPECT_EQ(v[1], 2 * std::ldexp(1.0f, -9)) << "the smallest";
  EXPECT_EQ(v[8], 2 * std::ldexp(1.0f, -6)) << "the smallest normal one";
  EXPECT_EQ(v[0x38], 2.0f) << "1 times the scale";
  EXPECT_EQ(v[126], 2 * 448.0f) << "the largest";
  EXPECT_EQ(v[127 + 126], -2 * 448.0f);
  for (std::size_t i = 1; i < 127; ++i) {
    EXPECT_GT(v[i], v[i - 1]);
    EXPECT_EQ(v[127 + i], -v[i]);
  }
}

TEST(Fp8, BlocksAtTheEdgeAreCut) {
  const testing::TempFolder dir;
  const Index rows = 130, columns = 257;
  const std::string ones(static_cast<std::size_t>(rows * columns), '\x38');
  const std::vector<float> scales = {1, 2, 3, 4, 5, 6};
  write_raw(dir / "model.safetensors",
            {{"x.weight", "F8_E4M3", {rows, columns}, ones}, {"x.weight_scale_inv", "F32", {2, 3}, as_bytes(scales)}});
  const auto checkpoint = io::Checkpoint::open(dir / "model.safetensors");
  const Tensor t = read_fp8(checkpoint, "x.weight", {rows, columns}).to(DType::kF32);
  for (Index r : {0, 127, 128, 129})
    for (Index c : {0, 127, 128, 255, 256})
      EXPECT_EQ(std::as_const(t).span<float>()[static_cast<std::size_t>(r * columns + c)],
                static_cast<float>(1 + c / 128 + 3 * (r / 128)));
  EXPECT_TRUE(throws_error([&] { read_fp8(checkpoint, "x.weight", {rows, 256}); }, {"x.weight", "[130, 257]"}));
}

TEST(Fp8, PowersOfTwoAndWhatIsRefused) {
  const testing::TempFolder dir;
  const auto with = [&](const Raw& scale, char value = '\x38') {
    write_raw(dir / "model.safetensors", {{"x.weight", "F8_E4M3", {1, 2}, {value, value}}, scale});
    return read_fp8(io::Checkpoint::open(dir / "model.safetensors"), "x.weight", {1, 2}).to(DType::kF32);
  };
  const Tensor t = with({"x.weight_scale_inv", "F8_E8M0", {1, 1}, std::string(1, '\x82')});
  EXPECT_EQ(std::as_const(t).span<float>()[0], 8.0f);
  const Raw one = {"x.weight_scale_inv", "F32", {1, 1}, as_bytes<float>({1.0f})};
  EXPECT_TRUE(throws_error([&] { with(one, '\x7f'); }, {"x.weight", "not finite"}, ErrorCode::kFormat));
  // Finite as a float, but bf16 rounds it to infinity.
  const Raw largest = {"x.weight_scale_inv", "F32", {1, 1}, as_bytes<float>({std::numeric_limits<float>::max()})};
  EXPECT_TRUE(throws_error([&] { with(largest); }, {"x.weight", "not finite"}, ErrorCode::kFormat));
  EXPECT_TRUE(throws_error([&] { with(largest, '\xb8'); }, {"x.weight", "not finite"}, ErrorCode::kFormat)) << "negative";
  EXPECT_NO_THROW(with(largest, '\x30')) << "half of it";
  EXPECT_TRUE(throws_error([&] { with({"y", "F32", {1, 1}, as_bytes<float>({1.0f})}); }, {"x.weight_scale_inv"}));
  EXPECT_TRUE(throws_error(
      [&] {
        with({"x.weight_scale_inv", "F32", {2, 1}, as_bytes<float>({1, 1})});
      },
      {"x.weight_scale_inv"}, ErrorCode::kFormat));
  EXPECT_TRUE(throws_error(
      [&] {
        with({"x.weight_scale_inv", "F8_E8M0", {1, 2}, "xx"});
      },
      {"x.weight_scale_inv"}, ErrorCode::kFormat));
}

// A whole model: what is read is the model of the numbers that the bytes stand for, and it is saved as bf16.
void is_read_to_bf16(const ModelConfig& c) {
  const testing::TempFolder dir;
  Context ctx(2);
  const ModelWeights w = random_weights(c, 3, DType::kBF16, ctx);
  std::vector<Raw> fp8, plain;
  for (const Parameter& p : parameter_list(c)) {
    const Tensor t = w.dense(p);
    std::vector<Index> dims;
    for (Index i = 0; i < p.shape.rank(); ++i) dims.push_back(p.shape[i]);
    const bool narrow = p.in(ParameterGroup::kAttention) || p.in(ParameterGroup::kRoutedExperts);
    if (!narrow) {
      const char* const dtype = t.dtype() == DType::kBF16 ? "BF16" : "F32";
      const Raw raw = {p.name, dtype, dims, {static_cast<const char*>(t.raw()), t.bytes()}};
      fp8.push_back(raw), plain.push_back(raw);
      continue;
    }
    // Any bytes will do, as long as none is NaN.
    const Index across = (dims[1] + 127) / 128, down = (dims[0] + 127) / 128;
    std::string bytes;
    std::vector<float> scales;
    for (Index i = 0; i < t.numel(); ++i)
      bytes += static_cast<char>((i * 37 + p.layer * 11 + p.expert + 1) % 120 + (i % 3 == 0 ? 128 : 0));
    for (Index i = 0; i < down * across; ++i) scales.push_back(std::ldexp(1.0f + 0.25f * static_cast<float>(i), -12));
    fp8.push_back({p.name, "F8_E4M3", dims, bytes});
    fp8.push_back({p.name + "_scale_inv", "F32", {down, across}, as_bytes(scales)});
    write_raw(dir / "one.safetensors", {fp8[fp8.size() - 2], fp8.back()});
    const Tensor want = read_fp8(io::Checkpoint::open(dir / "one.safetensors"), p.name, p.shape);
    plain.push_back({p.name, "BF16", dims, {static_cast<const char*>(want.raw()), want.bytes()}});
  }
  Json config = Json::parse(c.to_json());
  const auto write = [&](const char* name, const std::vector<Raw>& tensors) {
    std::filesystem::create_directory(dir / name);
    std::ofstream(dir / name / "config.json") << config.dump(2) << "\n";
    write_raw(dir / name / "model.safetensors", tensors);
    return dir / name;
  };
  const auto bf16 = write("bf16", plain);
  config["quantization_config"] = {{"quant_method", "fp8"},
                                   {"activation_scheme", "dynamic"},
                                   {"fmt", "e4m3"},
                                   {"weight_block_size", {128, 128}},
                                   {"modules_to_not_convert", {"lm_head"}}};
  const auto small = write("fp8", fp8);
  const std::vector<std::int32_t> ids = {1, 9, 4, 33, 7};
  const Transformer model = load_model(small);
  EXPECT_EQ(model.dtype(), DType::kBF16);
  EXPECT_TRUE(test::same_bits(test::logits_of(ctx, model, ids), test::logits_of(ctx, load_model(bf16), ids)));
  save_model(dir / "a", *ModelSource::open(small), DType::kBF16, 1 << 30);
  save_model(dir / "b", *ModelSource::open(bf16), DType::kBF16, 1 << 30);
  for (const char* name : {"model.safetensors", "config.json"})
    EXPECT_EQ(testing::read_bytes(dir / "a" / name), testing::read_bytes(dir / "b" / name)) << name;
  // A scale that is missing is named before anything is read, and one that belongs to nothing is unexpected.
  const std::string o_proj = "model.layers.0.self_attn.o_proj.weight_scale_inv";
  std::erase_if(fp8, [&](const Raw& r) { return r.name == o_proj; });
  EXPECT_TRUE(throws_error([&] { load_model(write("missing", fp8)); }, {o_proj}, ErrorCode::kFormat));
  plain.push_back({o_proj, "F32", {2, 2}, as_bytes<float>({1, 1, 1, 1})});
  config.erase("quantization_config");
  EXPECT_TRUE(throws_error([&] { load_model(write("extra", plain)); }, {o_proj}, ErrorCode::kFormat));
}

TEST(Fp8, AModelIsReadToBf16) {
  ModelConfig c = ModelConfig::preset("qwen3-30b-a3b");
  c.vocab_size = 64, c.hidden_size = 160, c.num_hidden_layers = 2, c.num_attention_heads = 2, c.num_key_value_heads = 1;
  c.moe_intermediate_size = 136, c.n_routed_experts = 4, c.num_experts_per_tok = 2, c.explicit_head_dim = 72;
  c.max_position_embeddings = 64;
  is_read_to_bf16(c);
}

// Rows of queries and of the latent's rotary part are put in another order after their blocks are scaled, which are cut in
// the middle of heads; kv_b is used in parts.
TEST(Fp8, LatentAttentionIsReadToBf16) {
  ModelConfig c = ModelConfig::preset("deepseek-v3");
  c.vocab_size = 64, c.hidden_size = 160, c.num_hidden_layers = 2, c.num_attention_heads = 9;
  c.q_lora_rank = 136, c.kv_lora_rank = 132, c.qk_nope_head_dim = 10, c.qk_rope_head_dim = 8, c.v_head_dim = 12;
  c.moe_intermediate_size = 136, c.intermediate_size = 140, c.n_routed_experts = 4, c.num_experts_per_tok = 2;
  c.n_group = c.topk_group = 1, c.first_k_dense_replace = 1, c.max_position_embeddings = 64;
  is_read_to_bf16(c);
}

TEST(Fp8, OtherWaysToQuantizeAreRefused) {
  const auto refused = [](const char* text) {
    const std::string config = std::string(R"({"model_type": "qwen3_moe", "quantization_config": )") + text + "}";
    return throws_error([&] { ModelConfig::from_json(config, "x"); }, {"quantization_config"}, ErrorCode::kUnsupported);
  };
  EXPECT_TRUE(refused(R"({"quant_method": "fp8", "weight_block_size": [64, 64]})"));
  EXPECT_TRUE(refused(R"({"quant_method": "fp8", "weight_block_size": [128, 128], "activation_scheme": "static"})"));
  EXPECT_TRUE(refused(R"({"quant_method": "fp8", "weight_block_size": [128, 128], "fmt": "e5m2"})"));
  EXPECT_TRUE(refused(R"({"quant_method": "gptq", "bits": 4})"));
  EXPECT_TRUE(refused(R"([1])"));
}

}  // namespace
}  // namespace dsmoe
