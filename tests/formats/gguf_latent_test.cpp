// kv_b of latent attention in GGUF files: in the file's own blocks where it is multiplied in them, whole where it must be.
#include "formats/gguf_latent.h"

#include <gtest/gtest.h>

#include <cstring>

#include "formats/gguf_export.h"
#include "formats/gguf_rows.h"
#include "formats/gguf_weights.h"
#include "formats/model_source.h"
#include "io/gguf_writer.h"
#include "model/families/family.h"
#include "ops/mixed.h"
#include "support/run_model.h"
#include "support/temp_folder.h"
#include "support/tolerance.h"

namespace dsmoe {
namespace {

namespace fs = std::filesystem;

const std::vector<std::int32_t> kFewIds = {5, 9, 40, 3, 17, 30, 2, 8, 41};

class GgufLatent : public ::testing::Test {
 protected:
  GgufLatent() : config(family_of("deepseek_v2").default_config()) {
    ModelConfig& c = config;
    c.vocab_size = 64, c.hidden_size = 64, c.intermediate_size = 32, c.moe_intermediate_size = 32;
    c.num_hidden_layers = 2, c.num_attention_heads = 2, c.num_key_value_heads.reset(), c.first_k_dense_replace = 1;
    c.q_lora_rank.reset(), c.kv_lora_rank = 64, c.qk_nope_head_dim = 32, c.qk_rope_head_dim = 32, c.v_head_dim = 48;
    c.n_routed_experts = 4, c.num_experts_per_tok = 4, c.n_shared_experts = 1, c.n_group = c.topk_group = 1;
    c.pad_token_id.reset(), c.bos_token_id.reset(), c.eos_token_id.clear();
    c.max_position_embeddings = 64, c.initializer_range = 0.15;
    weights = random_weights(c, 7, DType::kF32, ctx);
  }
  fs::path write(const char* type) {
    const fs::path path = dir / (std::string(type) + ".gguf");
    write_gguf(ctx, path, config, gguf_export_metadata(config, {}, {}, "x"), gguf_file_type(type),
               [&](const Parameter& p, std::size_t) { return weights.dense(p); }, {}, {});
    return path;
  }
  // The same file with other tensors.
  fs::path changed(const fs::path& from,
                   const std::function<void(io::GgufMetadata&, std::vector<std::pair<std::string, Tensor>>&)>& change) {
    const auto file = io::GgufFile::open(from);
    io::GgufMetadata m = file.metadata();
    m.remove("general.alignment");
    std::vector<std::pair<std::string, Tensor>> tensors;
    for (const io::GgufTensorInfo& t : file.tensors()) tensors.emplace_back(t.name, file.tensor(t.name));
    change(m, tensors);
    std::vector<io::TensorSpec> specs;
    for (const auto& [name, t] : tensors) specs.push_back({name, t.dtype(), t.shape()});
    io::GgufWriter writer(dir / "changed.gguf", m, specs);
    for (const auto& [name, t] : tensors) writer.append(name, {static_cast<const std::byte*>(t.raw()), t.bytes()});
    writer.finish();
    return dir / "changed.gguf";
  }
  // With kv_b whole, as before April 2025, stored in `dtype`.
  fs::path older(const fs::path& from, DType dtype) {
    return changed(from, [&](auto&, auto& tensors) {
      std::erase_if(tensors,
                    [](const auto& t) { return t.first.ends_with("_k_b.weight") || t.first.ends_with("_v_b.weight"); });
      for (std::size_t l = 0; l < weights.layers.size(); ++l) {
        const Tensor& whole = weights.layers[l].kv_b.weight;
        Tensor stored(dtype, whole.shape());
        for (Index r = 0; r < whole.dim(0); ++r)
          write_row(dtype, whole.rows(r, r + 1).span<float>(), stored.rows(r, r + 1).raw_mutable());
        tensors.emplace_back("blk." + std::to_string(l) + ".attn_kv_b.weight", stored);
      }
    });
  }
  Tensor logits(const fs::path& model) { return test::logits_of(ctx, load_model(model), kFewIds); }

  testing::TempFolder dir;
  Context ctx{2};
  ModelConfig config;
  ModelWeights weights;
};

TEST_F(GgufLatent, PartsAreUsedWhereTheyLie) {
  const Tensor exact = test::logits_of(ctx, Transformer(config, weights), kFewIds);
  for (const char* type : {"q8_0", "q5_0", "f16"}) {
    SCOPED_TRACE(type);
    const auto path = write(type);
    const auto file = io::GgufFile::open(path);
    const ModelWeights w = load_gguf_weights(file, config);
    for (std::size_t l = 0; l < 2; ++l) {
      const LatentWeights& kv_b = w.layers[l].kv_b;
      ASSERT_TRUE(kv_b.in_parts());
      EXPECT_EQ(kv_b.weight.numel(), 0);
      const std::string block = "blk." + std::to_string(l) + ".attn_";
      EXPECT_EQ(kv_b.keys.raw(), file.tensor(block + "k_b.weight").raw());
      EXPECT_EQ(kv_b.values.raw(), file.tensor(block + "v_b.weight").raw());
      EXPECT_EQ(kv_b.keys.shape(), Shape({2 * 64, 32}));
      EXPECT_EQ(kv_b.values.shape(), Shape({2 * 48, 64}));
      EXPECT_EQ(kv_b.keys.dtype(), gguf_file_type(type).dtype);
    }
    EXPECT_TRUE(w.check_files) << "they lie in the file";
    EXPECT_TRUE(test::close(logits(path), exact, std::strcmp(type, "q5_0") == 0 ? 0.3 : 0.06));
  }
}

// Read into memory and repacked: the keys, whose heads have whole groups of rows here. The same bits.
TEST_F(GgufLatent, PartsAreRepackedInMemory) {
  const auto path = write("q8_0");
  const ModelWeights mapped = load_gguf_weights(io::GgufFile::open(path), config),
                     repacked = load_gguf_weights(io::GgufFile::open(path), config, {},
                                                  {.storage = Storage::kMemory, .repack = true});
  for (std::size_t l = 0; l < 2; ++l) {
    EXPECT_EQ(repacked.layers[l].kv_b.keys.dtype(), DType::kQ8_0R);
    EXPECT_EQ(repacked.layers[l].kv_b.values.dtype(), DType::kQ8_0) << "48 rows of a head are no groups of 32";
    EXPECT_TRUE(test::same_bits(repacked.layers[l].kv_b.whole(), mapped.layers[l].kv_b.whole()));
  }
  const auto run = [&](const ModelWeights& w) { return test::logits_of(ctx, Transformer(config, w), kFewIds); };
  EXPECT_TRUE(test::same_bits(run(repacked), run(mapped)));
}

// What it can be trained in, it has whole: also with a dtype that was asked for.
TEST_F(GgufLatent, IsWholeInF32AndBf16) {
  for (const char* type : {"f32", "bf16"}) {
    const ModelWeights w = load_gguf_weights(io::GgufFile::open(write(type)), config);
    EXPECT_FALSE(w.layers[0].kv_b.in_parts());
    EXPECT_TRUE(trainable(spec_of(config), w));
    EXPECT_TRUE(test::same_bits(w.layers[1].kv_b.weight, weights.layers[1].kv_b.weight.to(gguf_file_type(type).dtype)));
  }
  const auto file = io::GgufFile::open(write("q8_0"));
  const ModelWeights stored = load_gguf_weights(file, config), wide = load_gguf_weights(file, config, DType::kF32);
  EXPECT_FALSE(wide.layers[1].kv_b.in_parts());
  EXPECT_TRUE(test::same_bits(wide.layers[1].kv_b.weight, stored.layers[1].kv_b.whole()));
  EXPECT_FALSE(trainable(spec_of(config), stored));
  EXPECT_TRUE(trainable(spec_of(config), wide));
}

// A file in which some tool has left the two tensors alone: all matrices but kv_b are in blocks, or none but kv_b.
TEST_F(GgufLatent, MayHaveAnotherTypeThanTheRest) {
  const auto replace = [&](const char* from, const char* with) {
    const auto other = io::GgufFile::open(write(with));
    return changed(write(from), [&](auto&, auto& tensors) {
      for (auto& [name, t] : tensors)
        if (name.ends_with("_k_b.weight") || name.ends_with("_v_b.weight")) t = other.tensor(name);
    });
  };
  const Tensor exact = test::logits_of(ctx, Transformer(config, weights), kFewIds);
  for (const auto& [from, with] : {std::pair{"q8_0", "bf16"}, {"q8_0", "f32"}, {"f32", "q8_0"}, {"bf16", "q8_0"}}) {
    SCOPED_TRACE(std::string(from) + " " + with);
    const fs::path path = replace(from, with);
    const ModelWeights w = load_gguf_weights(io::GgufFile::open(path), config);
    EXPECT_EQ(w.layers[0].kv_b.in_parts(), std::strcmp(with, "f32") != 0);
    EXPECT_EQ(activation_dtype(spec_of(config), w), DType::kF32);
    EXPECT_FALSE(trainable(spec_of(config), w));
    EXPECT_TRUE(test::close(logits(path), exact, 0.06));
  }
}

// Products would have to run across the blocks of the keys' rows.
TEST_F(GgufLatent, BlocksOfOlderFilesAreUnpacked) {
  const Tensor exact = test::logits_of(ctx, Transformer(config, weights), kFewIds);
  for (const DType dtype : {DType::kQ8_0, DType::kF16, DType::kF32}) {
    const fs::path path = older(write("q8_0"), dtype);
    const ModelWeights w = load_gguf_weights(io::GgufFile::open(path), config);
    EXPECT_FALSE(w.layers[0].kv_b.in_parts());
    EXPECT_EQ(w.layers[0].kv_b.weight.dtype(), DType::kF32);
    EXPECT_TRUE(test::close(logits(path), exact, 0.06));
  }
}

TEST_F(GgufLatent, ASourceGivesTheParameterWhole) {
  const auto path = write("q8_0");
  const auto source = ModelSource::open(path);
  const ModelWeights w = load_gguf_weights(io::GgufFile::open(path), config);
  for (const Parameter& p : parameter_list(config))
    EXPECT_TRUE(p.parts == nullptr || test::same_bits(source->tensor(p), w.dense(p))) << p.name;
}

}  // namespace
}  // namespace dsmoe
