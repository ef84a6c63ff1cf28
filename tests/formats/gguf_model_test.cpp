// Models as GGUF files: config, names, the order of rows, types, and what is refused.
#include <gtest/gtest.h>

#include <cstring>
#include <numeric>

#include "core/log.h"
#include "formats/folder_export.h"
#include "formats/gguf_config.h"
#include "formats/gguf_export.h"
#include "formats/gguf_rows.h"
#include "formats/gguf_weights.h"
#include "formats/model_source.h"
#include "io/gguf.h"
#include "io/gguf_writer.h"
#include "io/io_test_support.h"
#include "ops/mixed.h"
#include "support/run_model.h"
#include "support/tolerance.h"

namespace dsmoe {
namespace {

using io::GgufFile;
using io::GgufMetadata;
using io::GgufValue;
using testing::TempFolder;
using testing::throws_error;

ModelConfig small() {
  ModelConfig c;
  c.vocab_size = 50, c.hidden_size = 64, c.intermediate_size = 96, c.moe_intermediate_size = 32;
  c.num_hidden_layers = 3, c.num_attention_heads = 4, c.num_key_value_heads = 2, c.first_k_dense_replace = 1;
  c.n_routed_experts = 5, c.num_experts_per_tok = 2, c.n_shared_experts = 2;
  c.max_position_embeddings = 64, c.initializer_range = 0.1, c.rms_norm_eps = 3e-6, c.rope_theta = 1.4e6;
  c.bos_token_id = 0, c.eos_token_id = {1};
  return c;
}

class GgufModel : public ::testing::Test {
 protected:
  std::filesystem::path write(const ModelConfig& c, const char* type = "f32", const ModelWeights* weights = nullptr) {
    const auto path = dir_ / fmt::format("{}.gguf", files_++);
    ModelWeights w = weights ? *weights : random_weights(c, 5, DType::kF32, ctx_);
    write_gguf(ctx_, path, c, metadata(c), gguf_file_type(type),
               [&](const Parameter& p, std::size_t) { return w.dense(p); }, {}, {});
    return path;
  }
  static GgufMetadata metadata(const ModelConfig& c) {
    GgufMetadata m = gguf_metadata(c, "test");
    m.set("tokenizer.ggml.bos_token_id", GgufValue::u32(0));
    m.set("tokenizer.ggml.eos_token_id", GgufValue::u32(1));
    return m;
  }
  // A copy of a file with other metadata and, by name, other tensors.
  std::filesystem::path edited(const std::filesystem::path& path, const std::function<void(GgufMetadata&)>& edit,
                               const std::function<void(std::vector<io::TensorSpec>&)>& edit_tensors = {}) {
    const GgufFile f = GgufFile::open(path);
    GgufMetadata m = f.metadata();
    if (edit) edit(m);
    std::vector<io::TensorSpec> specs;
    for (const io::GgufTensorInfo& t : f.tensors()) specs.push_back({t.name, *t.type->dtype, t.shape});
    if (edit_tensors) edit_tensors(specs);
    const auto out = dir_ / fmt::format("{}.gguf", files_++);
    io::GgufWriter writer(out, m, specs);
    for (const io::TensorSpec& spec : specs) {
      std::string bytes(spec.bytes(), '\0');
      if (f.contains(spec.name) && f.info(spec.name).bytes == bytes.size())
        std::memcpy(bytes.data(), f.tensor(spec.name).raw(), bytes.size());
      writer.append(spec.name, std::as_bytes(std::span(bytes)));
    }
    writer.finish();
    return out;
  }

  TempFolder dir_;
  Context ctx_{2};
  int files_ = 0;
};

TEST_F(GgufModel, TheConfigSurvives) {
  std::vector<ModelConfig> configs{small()};
  configs.push_back(small()), configs.back().rope_scaling = {RopeScalingType::kLinear, 2.5};
  configs.push_back(small()), configs.back().tie_word_embeddings = true;
  configs.push_back(small()), configs.back().num_key_value_heads.reset();
  configs.push_back(small()), configs.back().first_k_dense_replace = 0;
  configs.push_back(small()), configs.back().n_routed_experts = configs.back().num_experts_per_tok = std::nullopt;
  configs.push_back(small()), configs.back().norm_topk_prob = true, configs.back().num_experts_per_tok = 1;
  for (const ModelConfig& c : configs) {
    const auto path = write(c);
    EXPECT_EQ(ModelConfig::load(path).to_json(), c.to_json());
    // By the architecture's own keys alone: what it has no key for gets the defaults.
    const ModelConfig bare = ModelConfig::load(edited(path, [](GgufMetadata& m) { m.remove("dsmoe.config_json"); }));
    EXPECT_EQ(bare.rms_norm_eps, 3e-6) << "by way of f32";
    EXPECT_EQ(bare.rope_theta, 1.4e6);
    EXPECT_EQ(bare.rope_scaling, c.rope_scaling);
    EXPECT_EQ(bare.bos_token_id, c.bos_token_id);
    EXPECT_EQ(bare.eos_token_id, c.eos_token_id);
    EXPECT_EQ(bare.max_position_embeddings, 64);
    EXPECT_EQ(bare.moe_layers(), c.moe_layers());
    const auto names = [](const ModelConfig& of) {
      std::vector<std::string> all;
      for (const Parameter& p : parameter_list(of)) all.push_back(p.name + p.shape.str());
      return all;
    };
    EXPECT_EQ(names(bare), names(c));
  }
}

// Numbers of the file are believed only as far as its tensors go, before anything loops or allocates by them.
TEST_F(GgufModel, SizesThatTheTensorsContradict) {
  const auto path = write(small());
  const auto refused = [&](const char* key, GgufValue value, std::initializer_list<std::string_view> words) {
    const auto file = edited(path, [&](GgufMetadata& m) { m.set(key, std::move(value)); });
    return throws_error([&] { ModelConfig::load(file); }, words, ErrorCode::kFormat);
  };
  const auto u64 = [](std::uint64_t v) {
    return GgufValue{io::GgufType::kU64, std::string(reinterpret_cast<const char*>(&v), sizeof v)};
  };
  EXPECT_TRUE(refused("deepseek.block_count", u64(std::uint64_t{1} << 50),
                      {"deepseek.block_count is 1125899906842624", "tensors"}));
  EXPECT_TRUE(refused("deepseek.block_count", u64(0), {"deepseek.block_count is 0"}));
  EXPECT_TRUE(refused("deepseek.expert_count", u64(std::uint64_t{1} << 40),
                      {"deepseek.expert_count is 1099511627776", "ffn_gate_inp.weight' is [5, 64]"}));
  EXPECT_TRUE(refused("deepseek.leading_dense_block_count", GgufValue::u32(0), {"blk.0.ffn_gate_inp.weight"}));
}

TEST_F(GgufModel, KeysWinOverTheTextOfConfigJson) {
  const auto path = edited(write(small()), [](GgufMetadata& m) {
    m.set("deepseek.context_length", GgufValue::u32(4096));
    m.set("deepseek.rope.freq_base", GgufValue::f32(500));
    m.set("deepseek.attention.head_count", GgufValue::i32s(std::vector<std::int32_t>{4, 4, 4}));
  });
  const ModelConfig c = ModelConfig::load(path);
  EXPECT_EQ(c.max_position_embeddings, 4096);
  EXPECT_EQ(c.rope_theta, 500);
  EXPECT_EQ(c.initializer_range, 0.1) << "the rest is kept";
}

// Keys of the gate are read, whoever wrote them, and reach a folder's config.json.
TEST_F(GgufModel, KeysOfTheGateAreRead) {
  const auto path = edited(write(small()), [](GgufMetadata& m) {
    m.remove("dsmoe.config_json");
    m.set("deepseek.expert_weights_scale", GgufValue::f32(2.446f));
    m.set("deepseek.expert_weights_norm", GgufValue::boolean(true));
    m.set("deepseek.expert_gating_func", GgufValue::u32(2));
  });
  const ModelConfig c = ModelConfig::load(path);
  EXPECT_EQ(c.routed_scaling_factor, 2.446);
  EXPECT_TRUE(c.norm_topk_prob);
  EXPECT_EQ(c.scoring_func, "sigmoid");
  const auto folder = dir_ / "folder";
  save_model(folder, *ModelSource::open(path), DType::kF32, 1 << 30);
  const MoeConfig moe = ModelConfig::load(folder).moe(1);
  EXPECT_EQ(moe.score, ScoreFunction::kSigmoid);
  EXPECT_TRUE(moe.norm_topk_prob);
  EXPECT_EQ(moe.routed_scaling_factor, 2.446f);
  Context ctx(1);
  const std::vector<std::int32_t> ids = {1, 2, 3, 4};
  EXPECT_TRUE(test::same_bits(test::logits_of(ctx, load_model(path), ids), test::logits_of(ctx, load_model(folder), ids)));
  const auto zero = edited(path, [](GgufMetadata& m) { m.set("deepseek.expert_weights_scale", GgufValue::f32(0)); });
  EXPECT_EQ(ModelConfig::load(zero).routed_scaling_factor, 1) << "0 is none";
}

TEST_F(GgufModel, RoundTripsKeepWhatTheFormatCarries) {
  ModelConfig c = small();
  c.routed_scaling_factor = 2.5, c.n_group = 1, c.topk_group = 1;
  c.rope_scaling = {RopeScalingType::kLinear, 4};
  const auto path = write(c);
  const ModelConfig read = ModelConfig::load(path);
  EXPECT_EQ(read.routed_scaling_factor, 2.5);
  EXPECT_EQ(read.n_group, 1);
  const auto bare = edited(path, [](GgufMetadata& m) { m.remove("dsmoe.config_json"); });
  EXPECT_EQ(ModelConfig::load(bare).routed_scaling_factor, 2.5) << "llama.cpp reads the key";
  EXPECT_EQ(ModelConfig::load(bare).rope_scaling, c.rope_scaling);
}

TEST_F(GgufModel, UnknownKeysAreNoted) {
  const auto path = edited(write(small()), [](GgufMetadata& m) {
    m.set("deepseek.wonderful", GgufValue::u32(1));
    m.set("general.wonderful", GgufValue::u32(1));
  });
  std::vector<std::string> notes;
  set_log_sink([&](std::string_view, std::string_view line) { notes.emplace_back(line); });
  ModelConfig::load(path);
  set_log_sink({});
  ASSERT_EQ(notes.size(), 1u);
  EXPECT_NE(notes[0].find("unknown keys have no effect: 'deepseek.wonderful'"), std::string::npos) << notes[0];
}

TEST_F(GgufModel, WhatTheArchitectureCannotCarryIsRefused) {
  const auto refused = [&](std::initializer_list<std::string_view> parts, auto change) {
    ModelConfig c = small();
    change(c);
    EXPECT_TRUE(throws_error([&] { gguf_metadata(c, "x"); }, parts, ErrorCode::kUnsupported));
    EXPECT_TRUE(
        throws_error([&] { write_random_gguf(ctx_, dir_ / "no.gguf", c, GgufMetadata(), gguf_file_type("f32"), 1, {}); },
                     parts, ErrorCode::kUnsupported));
  };
  refused({"norm_topk_prob", "Hugging Face folder"}, [](ModelConfig& c) { c.norm_topk_prob = true; });
  refused({"moe_layer_freq is 2"}, [](ModelConfig& c) { c.moe_layer_freq = 2; });
  refused({"n_shared_experts"}, [](ModelConfig& c) { c.n_shared_experts.reset(); });
  refused({"attention_bias"}, [](ModelConfig& c) { c.attention_bias = true; });
  refused({"topk_method", "noaux_tc"}, [](ModelConfig& c) { c.topk_method = "noaux_tc"; });
  refused({"scoring_func is sigmoid"}, [](ModelConfig& c) { c.scoring_func = "sigmoid"; });
  refused({"n_group is 2"}, [](ModelConfig& c) {
    c.topk_method = "group_limited_greedy", c.n_group = 2, c.topk_group = 1;
    c.n_routed_experts = 8;
  });
  refused({"rope_scaling is dynamic"}, [](ModelConfig& c) { c.rope_scaling = {RopeScalingType::kDynamic, 2}; });
  refused({"head_dim is 32"}, [](ModelConfig& c) { c.explicit_head_dim = 32; });
  EXPECT_TRUE(std::filesystem::is_empty(dir_.path()));
  ModelConfig same = small();  // a modulo that changes nothing is carried
  same.first_k_dense_replace = 2, same.moe_layer_freq = 2;
  EXPECT_NO_THROW(gguf_metadata(same, "x"));
}

TEST_F(GgufModel, FilesOfOthersAreRefusedByTheirKey) {
  const auto path = write(small());
  const auto refused = [&](ErrorCode code, std::initializer_list<std::string_view> parts, const char* key,
                           GgufValue value) {
    const auto other = edited(path, [&](GgufMetadata& m) { m.set(key, value); });
    EXPECT_TRUE(throws_error([&] { ModelConfig::load(other); }, parts, code));
  };
  constexpr ErrorCode kNo = ErrorCode::kUnsupported;
  refused(kNo, {"'llama'", "deepseek"}, "general.architecture", GgufValue::string("llama"));
  refused(kNo, {"expert_gating_func is 3", "sigmoid"}, "deepseek.expert_gating_func", GgufValue::u32(3));
  refused(kNo, {"expert_group_count is 2", "exp_probs_b"}, "deepseek.expert_group_count", GgufValue::u32(2));
  refused(kNo, {"attention.sliding_window is 512"}, "deepseek.attention.sliding_window", GgufValue::u32(512));
  refused(kNo, {"attention.causal is 0"}, "deepseek.attention.causal", GgufValue::boolean(false));
  refused(kNo, {"attention.scale is 0.5"}, "deepseek.attention.scale", GgufValue::f32(0.5f));
  refused(kNo, {"final_logit_softcapping is 30"}, "deepseek.final_logit_softcapping", GgufValue::f32(30));
  refused(kNo, {"rope.scaling.attn_factor is 2"}, "deepseek.rope.scaling.attn_factor", GgufValue::f32(2));
  refused(kNo, {"nextn_predict_layers is 1"}, "deepseek.nextn_predict_layers", GgufValue::u32(1));
  refused(kNo, {"sliding_window", "a list"}, "deepseek.attention.sliding_window",
          GgufValue::i32s(std::vector<std::int32_t>{0, 512}));
  refused(kNo, {"3 parts", "merge"}, "split.count", GgufValue::u32(3));
  refused(kNo, {"rope.dimension_count is 8"}, "deepseek.rope.dimension_count", GgufValue::u32(8));
  refused(kNo, {"head_count", "differs"}, "deepseek.attention.head_count",
          GgufValue::i32s(std::vector<std::int32_t>{4, 2, 4}));
  refused(ErrorCode::kFormat, {"block_count", "string"}, "deepseek.block_count", GgufValue::string("3"));
  refused(ErrorCode::kFormat, {"block_count is 0"}, "deepseek.block_count", GgufValue::u32(0));
  refused(ErrorCode::kInvalidArgument, {"attention heads"}, "deepseek.attention.head_count", GgufValue::u32(0));
  const auto missing = edited(path, [](GgufMetadata& m) { m.remove("deepseek.embedding_length"); });
  EXPECT_TRUE(
      throws_error([&] { ModelConfig::load(missing); }, {"deepseek.embedding_length", "missing"}, ErrorCode::kFormat));
  const auto yarn = edited(path, [](GgufMetadata& m) {
    m.set("deepseek.rope.scaling.type", GgufValue::string("yarn"));
    m.set("deepseek.rope.scaling.factor", GgufValue::f32(4));
  });
  EXPECT_TRUE(throws_error([&] { ModelConfig::load(yarn); }, {"rope.scaling.type", "'yarn'"}, kNo));
}

TEST_F(GgufModel, TensorsOfOthersAreRefusedByTheirName) {
  const auto path = write(small());
  const auto refused = [&](ErrorCode code, std::initializer_list<std::string_view> parts, auto change) {
    const auto other = edited(path, {}, change);
    EXPECT_TRUE(throws_error([&] { load_model(other); }, parts, code));
  };
  const auto at = [](std::vector<io::TensorSpec>& all, std::string_view name) -> io::TensorSpec& {
    return *std::find_if(all.begin(), all.end(), [&](const auto& t) { return t.name == name; });
  };
  refused(ErrorCode::kFormat, {"missing", "blk.1.ffn_up_exps.weight"},
          [&](auto& all) { at(all, "blk.1.ffn_up_exps.weight").name = "x"; });
  refused(ErrorCode::kFormat, {"rope_freqs"}, [&](auto& all) { all.push_back({"rope_freqs.weight", DType::kF32, {8}}); });
  refused(ErrorCode::kFormat, {"blk.1.ffn_up_exps.weight", "[5, 16, 64]", "[5, 32, 64]"}, [&](auto& all) {
    at(all, "blk.1.ffn_up_exps.weight").shape = {5, 16, 64};
  });
  refused(ErrorCode::kUnsupported, {"blk.1.ffn_gate_inp.weight", "q8_0"},
          [&](auto& all) { at(all, "blk.1.ffn_gate_inp.weight").dtype = DType::kQ8_0; });
  refused(ErrorCode::kUnsupported, {"output.weight", "i32"},
          [&](auto& all) { at(all, "output.weight").dtype = DType::kI32; });
}

TEST_F(GgufModel, RowsOfQueryAndKeyAreInterleaved) {
  // Of a head of 6: pairs (0, 3), (1, 4), (2, 5) stand side by side in the file.
  std::vector<Index> order;
  for (Index r = 0; r < 12; ++r) order.push_back(gguf_row(r, 6));
  EXPECT_EQ(order, (std::vector<Index>{0, 3, 1, 4, 2, 5, 6, 9, 7, 10, 8, 11}));

  const ModelConfig c = small();
  ModelWeights w = random_weights(c, 5, DType::kF32, ctx_);
  for (Tensor* t : {&w.layers[1].q.weight, &w.layers[1].k.weight})
    for (Index r = 0; r < t->dim(0); ++r) std::fill_n(t->data<float>() + r * 64, 64, static_cast<float>(r));
  const auto path = write(c, "f32", &w);
  const GgufFile f = GgufFile::open(path);
  for (const char* name : {"blk.1.attn_q.weight", "blk.1.attn_k.weight"}) {
    const Tensor t = f.tensor(name);
    for (Index r = 0; r < t.dim(0); ++r)
      EXPECT_EQ(t.data<float>()[r * 64], static_cast<float>(gguf_row(r, 16))) << name << r;
  }
}

TEST_F(GgufModel, EveryParameterComesBackBitForBit) {
  const ModelConfig c = small();
  ModelWeights want = random_weights(c, 5, DType::kF32, ctx_);
  const GgufFile f = GgufFile::open(write(c));
  ModelWeights got = load_gguf_weights(f, c);
  for (const Parameter& p : parameter_list(c)) EXPECT_TRUE(test::same_bits(got.dense(p), want.dense(p))) << p.name;
  EXPECT_EQ(f.tensor("blk.2.ffn_down_exps.weight").shape(), Shape({5, 64, 32}));
  // Experts are slices of the map, and nothing but the rows that change places is copied.
  EXPECT_EQ(got.layers[2].experts.down_matrix(2 + 3).data, f.tensor("blk.2.ffn_down_exps.weight").rows(3, 4).raw());
  EXPECT_EQ(got.embedding.raw(), f.tensor("token_embd.weight").raw());
  EXPECT_NE(got.layers[0].q.weight.raw(), f.tensor("blk.0.attn_q.weight").raw());

  for (const char* type : {"bf16", "q8_0", "q4_0"}) {
    const auto path = write(c, type);
    const GgufFile small_file = GgufFile::open(path);
    ModelWeights stored = load_gguf_weights(small_file, c), plain = load_weights(path, c, DType::kF32);
    const DType dtype = gguf_file_type(type).dtype;
    for (const Parameter& p : parameter_list(c)) {
      const bool matrix = is_matrix(p);
      EXPECT_EQ(plain.dense(p).dtype(), DType::kF32);
      if (matrix && !p.in(ParameterGroup::kHead)) {
        EXPECT_EQ(stored.dense(p).dtype(), dtype) << p.name;
      }
      std::vector<float> row(static_cast<std::size_t>(p.shape[p.shape.rank() - 1]));
      std::vector<char> bytes(row_bytes(stored.dense(p).dtype(), static_cast<Index>(row.size())));
      write_row(stored.dense(p).dtype(), {want.dense(p).data<float>(), row.size()}, bytes.data());
      EXPECT_EQ(std::memcmp(bytes.data(), stored.dense(p).raw(), bytes.size()), 0) << type << " " << p.name;
      ops::to_floats(stored.dense(p).dtype(), stored.dense(p).raw(), row);
      EXPECT_EQ(std::memcmp(row.data(), plain.dense(p).raw(), row.size() * 4), 0) << type << " " << p.name;
    }
  }
}

TEST_F(GgufModel, BiasesOfQueryKeyAndValueAreRead) {
  const ModelConfig c = small();
  const auto path = edited(
      write(c), [](GgufMetadata& m) { m.remove("dsmoe.config_json"); },
      [](std::vector<io::TensorSpec>& all) {
        for (int l = 0; l < 3; ++l)
          for (const auto& [name, n] : {std::pair{"q", 64}, {"k", 32}, {"v", 32}})
            all.push_back({fmt::format("blk.{}.attn_{}.bias", l, name), DType::kF32, {n}});
      });
  const Transformer model = load_model(path);
  EXPECT_TRUE(model.config().attention_bias);
  EXPECT_EQ(test::logits_of(ctx_, model, std::vector<std::int32_t>{1, 2}).dim(1), 50);
  // The file has no bias of attention's output; a folder needs one.
  save_model(dir_ / "folder", *ModelSource::open(path), DType::kF32, 1 << 30);
  EXPECT_TRUE(test::same_bits(load_model(dir_ / "folder").weights().layers[1].o.bias, Tensor::zeros(DType::kF32, {64})));
}

TEST_F(GgufModel, TheSameLogitsAsFromAFolder) {
  const std::vector<std::int32_t> ids{3, 9, 27, 31, 4, 12, 36, 8, 24};
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const ModelConfig c = small();
    ModelWeights w = random_weights(c, 5, dtype, ctx_);
    const auto folder = dir_ / fmt::format("folder-{}", to_string(dtype));
    save_model(
        folder, c, dtype, [&](const Parameter& p, std::size_t) { return w.dense(p); }, 1 << 30);
    const auto logits = [&](const std::filesystem::path& path, Storage storage) {
      const Transformer model = load_model(path, {}, {storage});
      EXPECT_EQ(model.dtype(), dtype);
      return test::logits_of(ctx_, model, ids);
    };
    const Tensor want = logits(folder, Storage::kMapped);
    const auto file = write(c, to_string(dtype), &w);
    EXPECT_TRUE(test::same_bits(logits(file, Storage::kMapped), want));
    for (const auto& path : {folder, file})
      for (const Storage storage : {Storage::kMemory, Storage::kAuto})
        EXPECT_TRUE(test::same_bits(logits(path, storage), want)) << path;
  }
}

// Weights that are repacked for the CPU's products, as a model for generation has them.
TEST_F(GgufModel, RepackedWeightsGiveTheSameLogits) {
  ModelConfig c = small();
  c.hidden_size = 256, c.intermediate_size = 512, c.moe_intermediate_size = 256;
  const auto path = write(c, "q4_k_m");
  const std::vector<std::int32_t> ids{3, 9, 27, 31, 4, 12, 36, 8, 24};
  const Transformer mapped = load_model(path, {}, {.storage = Storage::kMapped, .repack = true});
  const Transformer memory = load_model(path, {}, {.storage = Storage::kMemory, .repack = true});
  EXPECT_FALSE(is_repacked(mapped.weights().layers[1].o.weight.dtype())) << "the file is not written to";
  EXPECT_TRUE(is_repacked(memory.weights().layers[1].o.weight.dtype()));
  EXPECT_TRUE(is_repacked(memory.weights().layers[1].experts.list()[0].mlp.down_proj.dtype()));
  EXPECT_FALSE(is_repacked(memory.weights().embedding.dtype())) << "single rows are read";
  EXPECT_TRUE(test::same_bits(test::logits_of(ctx_, memory, ids), test::logits_of(ctx_, mapped, ids)));
}

// What is in memory does not change with the file.
TEST_F(GgufModel, StorageIsWhereItWasAskedFor) {
  const ModelConfig c = small();
  ModelWeights w = random_weights(c, 5, DType::kF32, ctx_);
  for (const Storage storage : {Storage::kMapped, Storage::kMemory}) {
    const auto path = write(c, "f32", &w);
    std::uint64_t read = 0;
    Transformer model = load_model(path, {}, {storage, [&](std::uint64_t done, std::uint64_t) { read = done; }});
    EXPECT_EQ(read, storage == Storage::kMemory ? std::filesystem::file_size(path) : 0u);
    const Tensor& embedding = model.weights().embedding;
    const float before = embedding.data<float>()[0];
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);  // in place: a map sees it
    const std::string zeros(1 << 12, 0);
    for (auto left = static_cast<std::int64_t>(std::filesystem::file_size(path)); left > 0; left -= 1 << 12)
      file.write(zeros.data(), std::min<std::int64_t>(left, 1 << 12));
    file.close();
    EXPECT_EQ(embedding.data<float>()[0], storage == Storage::kMemory ? before : 0.0f);
  }
}

TEST(ReadIntoMemory, WhereThereIsRoom) {
  EXPECT_TRUE(read_into_memory(Storage::kMemory, std::uint64_t{1} << 60));
  EXPECT_FALSE(read_into_memory(Storage::kAuto, std::uint64_t{1} << 60));
  EXPECT_TRUE(read_into_memory(Storage::kAuto, 1)) << "more than a gigabyte must be free for this";
  EXPECT_FALSE(read_into_memory(Storage::kMapped, 1));
}

TEST(GgufTypes, MixturesAndRowsThatDoNotFit) {
  const ModelConfig c = ModelConfig::preset("deepseek-moe-16b");
  // The sizes of llama.cpp's own files of this shape, in GB.
  EXPECT_NEAR(static_cast<double>(gguf_bytes(c, gguf_file_type("q8_0"))) * 1e-9, 17.4, 0.05);
  EXPECT_NEAR(static_cast<double>(gguf_bytes(c, gguf_file_type("q4_0"))) * 1e-9, 9.3, 0.05);
  EXPECT_NEAR(static_cast<double>(gguf_bytes(c, gguf_file_type("q4_k_m"))) * 1e-9, 10.8, 0.05);
  EXPECT_EQ(gguf_bytes(c, gguf_file_type("bf16")) / 1000000000, 32u);
  const auto dtype_of = [](const ModelConfig& config, const char* type, const std::string& name) {
    for (const GgufTensor& t : gguf_layout(config, parameter_list(config)))
      if (t.name == name) return std::string(to_string(gguf_dtype(gguf_file_type(type), config, t)));
    return std::string("no such tensor");
  };
  const char* expected[][3] = {
      {"q4_k_m", "token_embd.weight", "q4_k"},
      {"q4_k_m", "output.weight", "q6_k"},
      {"q4_0", "output.weight", "q6_k"},
      {"q8_0", "output.weight", "q8_0"},
      {"q4_k_m", "blk.0.attn_v.weight", "q6_k"},
      {"q4_k_m", "blk.3.attn_v.weight", "q4_k"},
      {"q4_k_m", "blk.5.attn_v.weight", "q6_k"},
      {"q4_k_m", "blk.27.attn_q.weight", "q4_k"},
      {"q4_k_m", "blk.3.ffn_down_exps.weight", "q5_0"},  // 1408 is no multiple of 256
      {"q4_k_m", "blk.1.ffn_down_exps.weight", "q8_0"},
      {"q4_k", "blk.1.ffn_down_exps.weight", "q5_0"},
      {"q4_k", "blk.1.ffn_down_shexp.weight", "q4_k"},
      {"q6_k", "blk.1.ffn_down_exps.weight", "q8_0"},
      {"q4_0", "blk.1.ffn_gate_inp.weight", "f32"},
      {"q4_0", "blk.1.ffn_norm.weight", "f32"},
  };
  for (const auto& [type, tensor, dtype] : expected) EXPECT_EQ(dtype_of(c, type, tensor), dtype) << type << ' ' << tensor;
  ModelConfig odd = small();
  odd.moe_intermediate_size = 24, odd.tie_word_embeddings = true;
  EXPECT_EQ(dtype_of(odd, "q4_0", "blk.1.ffn_down_exps.weight"), "f16");
  EXPECT_EQ(dtype_of(odd, "q4_k", "blk.1.ffn_down_exps.weight"), "f16");
  EXPECT_EQ(dtype_of(odd, "q4_0", "token_embd.weight"), "q8_0") << "the head's 6 bits at least, in rows of 64";
  EXPECT_THROW(gguf_file_type("q3_k"), Error);
}

TEST_F(GgufModel, ARandomModelIsTheSameForAnyNumberOfThreads) {
  const ModelConfig c = small();
  for (const char* type : {"f32", "bf16", "f16", "q8_0", "q4_0", "q4_k_m"}) {
    const auto make = [&](int threads, std::uint64_t seed) {
      Context ctx(threads);
      const auto path = dir_ / fmt::format("{}.gguf", files_++);
      write_random_gguf(ctx, path, c, metadata(c), gguf_file_type(type), seed, {});
      return path;
    };
    const auto one = make(1, 1);
    EXPECT_EQ(io::read_bytes(one), io::read_bytes(make(2, 1))) << type;
    EXPECT_NE(io::read_bytes(one), io::read_bytes(make(1, 2))) << type;
    // Normal numbers of the config's deviation, whatever they are stored as.
    ModelWeights w = load_weights(one, c, DType::kF32);
    const auto numbers = std::as_const(w.embedding).span<float>();
    double square = 0, sum = 0;
    for (const float x : numbers) sum += x, square += static_cast<double>(x) * x;
    const auto n = static_cast<double>(numbers.size());
    EXPECT_NEAR(std::sqrt(square / n), 0.1, 0.01) << type;
    EXPECT_NEAR(sum / n, 0, 5 * 0.1 / std::sqrt(n)) << type;
    EXPECT_EQ(std::as_const(w.final_norm).data<float>()[7], 1.0f);
  }
  const auto f32 = dir_ / "f32.gguf";
  write_random_gguf(ctx_, f32, c, metadata(c), gguf_file_type("f32"), 5, {});
  EXPECT_EQ(io::read_bytes(f32), io::read_bytes(write(c))) << "a plain file has the numbers of a folder";
}

TEST_F(GgufModel, NumbersThatAStorageCannotHoldAreRefusedWithTheTensor) {
  const ModelConfig c = small();
  for (const auto& [type, value] : {std::pair{"f16", 1e6f}, {"f16", NAN}, {"q4_0", INFINITY}, {"q8_0", NAN}}) {
    const char* const name = type;  // a structured binding cannot be captured
    ModelWeights w = random_weights(c, 5, DType::kF32, ctx_);
    w.layers[1].o.weight.data<float>()[70] = value;
    EXPECT_TRUE(throws_error([&] { write(c, name, &w); }, {"blk.1.attn_output.weight"}, ErrorCode::kInvalidArgument));
  }
  EXPECT_TRUE(std::filesystem::is_empty(dir_.path()));
}

class LlamaGolden : public ::testing::TestWithParam<const char*> {};

// Logits of llama.cpp; see golden_gguf/README.md for the limits.
TEST_P(LlamaGolden, Logits) {
  const std::filesystem::path folder = DSMOE_TEST_DATA "/formats/golden_gguf";
  const std::string name = GetParam();
  std::vector<std::int32_t> ids;
  std::ifstream list(folder / "ids.txt");
  for (std::int32_t id = 0; list >> id;) ids.push_back(id);
  const std::string want = io::read_bytes(folder / (name + ".logits"));
  const Transformer model = load_model(folder / (name + ".gguf"));
  const Index vocab = model.config().vocab_size, tokens = static_cast<Index>(ids.size());
  ASSERT_EQ(want.size(), ids.size() * static_cast<std::size_t>(vocab) * sizeof(float));
  const auto* const expected = reinterpret_cast<const float*>(want.data());
  const double layers = static_cast<double>(model.config().num_hidden_layers);
  const double limit = name == "f32" ? 1e-4 : 1.5 * 2 * 0.0064 * std::sqrt(4 * layers + 1);

  Context ctx(2);
  const Tensor logits = test::logits_of(ctx, model, ids);
  const auto distance = [&](Index t, Index other) {
    double difference = 0, norm = 0;
    for (Index v = 0; v < vocab; ++v) {
      const double w = expected[other * vocab + v], g = logits.data<float>()[t * vocab + v];
      difference += (g - w) * (g - w), norm += w * w;
    }
    return std::sqrt(difference / norm);
  };
  for (Index t = 0; t < tokens; ++t) {
    EXPECT_LT(distance(t, t), limit) << "token " << t;
    EXPECT_GT(distance(t, (t + 1) % tokens), 4 * limit) << "the limit tells tokens apart";
    const float *w = expected + t * vocab, *g = logits.data<float>() + t * vocab;
    EXPECT_EQ(std::max_element(g, g + vocab) - g, std::max_element(w, w + vocab) - w) << "token " << t;
  }
}

INSTANTIATE_TEST_SUITE_P(Files, LlamaGolden, ::testing::Values("f32", "q4_k_m"));

}  // namespace
}  // namespace dsmoe
