// A model from a file on a GPU: quantized GGUF files generate what the same weights in bf16 do, loading says how far it is,
// and what cannot be is one line that names it.
#include <gtest/gtest.h>

#include <cstring>
#include <limits>

#include "api/model_impl.h"
#include "core/device.h"
#include "cuda/gpu_test.h"
#include "dsmoe/session.h"
#include "formats/gguf_export.h"
#include "formats/model_source.h"
#include "support/expect_error.h"
#include "support/temp_folder.h"
#include "support/tolerance.h"

namespace dsmoe::test {
namespace {

using ::dsmoe::testing::TempFolder;
using ::dsmoe::testing::throws_error;
using Ids = std::vector<std::int32_t>;

// Bytes as tokens, and some merges of them.
Tokenizer tokenizer() {
  TokenizerParts parts;
  for (char c = ' '; c < 127; ++c) parts.vocab.push_back(c == ' ' ? "\xc4\xa0" : std::string(1, c));
  parts.pre_tokenizer = pre_tokenizer_json("gpt-2");
  return Tokenizer::from_parts(parts);
}

class CudaFiles : public GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (IsSkipped()) return;
    ModelConfig c;
    c.vocab_size = 128, c.hidden_size = 256, c.intermediate_size = 512, c.moe_intermediate_size = 256;
    c.num_hidden_layers = 3, c.num_attention_heads = 4, c.num_key_value_heads = 4, c.first_k_dense_replace = 1;
    c.n_routed_experts = 12, c.num_experts_per_tok = 3, c.n_shared_experts = 2;
    c.max_position_embeddings = 512, c.initializer_range = 0.1, c.bos_token_id = 1, c.eos_token_id = {};
    Model::random(c, 3, DType::kF32, tokenizer())->save(folder / "model");
  }
  std::filesystem::path written(const std::string& type) {
    const auto path = folder / (type + ".gguf");
    const auto source = ModelSource::open(folder / "model");
    Context host(0);
    write_gguf(host, path, *source, source->export_metadata("test"), gguf_file_type(type), {});
    return path;
  }
  static Generated answer(const std::shared_ptr<Model>& model, const SessionOptions& options = {}) {
    Session session(model, options);
    return session.generate("An attention function", {.max_tokens = 40, .sampler = {.temperature = 0}});
  }

  TempFolder folder;
};

TEST_F(CudaFiles, QuantizedFilesGenerateWhatTheirUnpackedWeightsDo) {
  for (const char* const type : {"q8_0", "q4_0", "q4_k_m"}) {
    SCOPED_TRACE(type);
    const auto path = written(type);
    const auto packed = Model::load(path, {.device = Device::kCuda}),
               plain = Model::load(path, {.device = Device::kCuda, .dtype = DType::kBF16});
    EXPECT_TRUE(has_quantized(packed->impl().transformer->spec(), packed->impl().transformer->weights()));
    EXPECT_FALSE(has_quantized(plain->impl().transformer->spec(), plain->impl().transformer->weights()));
    EXPECT_EQ(packed->device(), Device::kCuda);
    const Generated got = answer(packed), want = answer(plain);
    EXPECT_EQ(got.ids, want.ids);
    EXPECT_EQ(got.text, want.text);
    EXPECT_EQ(got.ids.size(), 40u);
    EXPECT_EQ(answer(packed, {.kv_type = KvType::kQ8_0}).ids, answer(plain, {.kv_type = KvType::kQ8_0}).ids);
  }
}

TEST_F(CudaFiles, FoldersAndPlainFilesAreCopiedAsTheyAre) {
  const auto from_folder = Model::load(folder / "model", {.device = Device::kCuda, .dtype = DType::kBF16}),
             from_bf16 = Model::load(written("bf16"), {.device = Device::kCuda}),
             from_f32 = Model::load(written("f32"), {.device = Device::kCuda, .dtype = DType::kBF16});
  const Ids want = answer(from_folder).ids;
  EXPECT_EQ(answer(from_bf16).ids, want);
  EXPECT_EQ(answer(from_f32).ids, want);
  EXPECT_EQ(Model::load(folder / "model", {.device = Device::kCuda})->dtype(), DType::kF32);
}

TEST_F(CudaFiles, LoadingSaysHowFarItIs) {
  for (const char* const type : {"bf16", "q8_0"}) {
    std::vector<std::uint64_t> done;
    std::uint64_t all = 0;
    Model::load(written(type), {.device = Device::kCuda, .progress = [&](std::uint64_t d, std::uint64_t total) {
                                  done.push_back(d);
                                  all = total;
                                }});
    ASSERT_GT(done.size(), 20u) << type;
    EXPECT_TRUE(std::is_sorted(done.begin(), done.end()));
    EXPECT_GT(all, 0u);
    EXPECT_EQ(done.back(), all);
    EXPECT_EQ(std::count(done.begin(), done.end(), all), 1) << "the end is said once";
  }
}

TEST_F(CudaFiles, WhatDoesNotFitIsSaidBeforeLoading) {
  int calls = 0;
  ModelOptions o{.device = Device::kCuda, .dtype = DType::kBF16, .cache_tokens = Index{1} << 36};
  o.progress = [&](std::uint64_t, std::uint64_t) { ++calls; };
  EXPECT_TRUE(throws_error(
      [&] { Model::load(folder / "model", o); },
      {"GPU memory", "68719476736 tokens of context in bf16", "what would fit: a context of", "the device cpu"},
      ErrorCode::kUnsupported));
  EXPECT_EQ(calls, 0);
  // Without a wish for a device such a model runs on the CPU.
  o.device.reset();
  EXPECT_EQ(Model::load(folder / "model", o)->device(), Device::kCpu);
}

TEST_F(CudaFiles, TooMuchMemoryIsOneLine) {
  const auto model = Model::load(folder / "model", {.device = Device::kCuda, .dtype = DType::kBF16});
  EXPECT_TRUE(throws_error([&] { Session(model, {.context = Index{1} << 32}); }, {"not enough free memory"},
                           ErrorCode::kUnsupported));
  EXPECT_EQ(answer(model).ids.size(), 40u) << "and the device is as it was";
}

// A layer whose numbers are damaged is named.
TEST_F(CudaFiles, NanInALayerIsNamed) {
  const auto model = Model::load(folder / "model", {.device = Device::kCuda, .dtype = DType::kBF16});
  Tensor& gate = model->impl().transformer->weights().layers[2].gate;
  Tensor damaged = ctx().fetch(gate).clone();
  std::memset(damaged.rows(4, 5).raw_mutable(), 0xff, damaged.rows(4, 5).bytes());
  device::upload(gate.raw_mutable(), damaged.raw(), damaged.bytes(), ctx().stream());
  EXPECT_TRUE(throws_error([&] { answer(model); }, {"layer 2", "token 0"}, ErrorCode::kNumeric));
}

}  // namespace
}  // namespace dsmoe::test
