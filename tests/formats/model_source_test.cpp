// One door to model files: whatever the format, the same model with the same words when something is wrong.
#include "formats/model_source.h"

#include <gtest/gtest.h>

#include <fstream>
#include <functional>

#include "formats/folder_export.h"
#include "formats/gguf_export.h"
#include "io/checkpoint.h"
#include "io/gguf.h"
#include "io/gguf_writer.h"
#include "io/io_test_support.h"
#include "io/safetensors_writer.h"
#include "io/sharded_writer.h"
#include "support/expect_error.h"
#include "support/run_model.h"
#include "support/tolerance.h"

namespace dsmoe {
namespace {

namespace fs = std::filesystem;

Tokenizer tiny_tokenizer() {
  TokenizerParts parts;
  parts.vocab = {"a", "b", "ab"};
  parts.merges = {"a b"};
  parts.pre_tokenizer = pre_tokenizer_json("deepseek-llm");
  parts.chat_template = "{{ messages[0].content }}";
  return Tokenizer::from_parts(parts);
}

ModelConfig small() {
  ModelConfig c;
  c.vocab_size = 50, c.hidden_size = 32, c.intermediate_size = 48, c.moe_intermediate_size = 32;
  c.num_hidden_layers = 2, c.num_attention_heads = 2, c.num_key_value_heads = 1, c.first_k_dense_replace = 1;
  c.n_routed_experts = 3, c.num_experts_per_tok = 2, c.n_shared_experts = 1, c.max_position_embeddings = 64;
  return c;
}

class Sources : public ::testing::Test {
 protected:
  fs::path write_folder(const ModelConfig& c, DType dtype = DType::kF32) {
    const fs::path folder = dir_ / fmt::format("folder-{}", files_++);
    ModelWeights w = random_weights(c, 5, dtype, ctx_);
    save_model(
        folder, c, dtype, [&](const Parameter& p, std::size_t) { return w.dense(p); }, 1 << 30);
    return folder;
  }
  fs::path write_file(const ModelSource& source, const char* type) {
    const fs::path path = dir_ / fmt::format("{}.gguf", files_++);
    write_gguf(ctx_, path, source, source.export_metadata("test"), gguf_file_type(type), {});
    return path;
  }

  testing::TempFolder dir_;
  Context ctx_{2};
  int files_ = 0;
};

TEST_F(Sources, AConfigOfFarMoreTensorsThanThereAre) {
  const fs::path folder = write_folder(small());
  ModelConfig c = small();
  c.n_routed_experts = 60'000;
  std::ofstream(folder / "config.json") << c.to_json();
  const auto source = ModelSource::open(folder);
  c = small(), c.vocab_size = 2'000'000'000;
  const fs::path wide = write_folder(small());
  std::ofstream(wide / "config.json") << c.to_json();
  EXPECT_TRUE(testing::throws_error([&] { ModelSource::open(wide)->check_tensors(); },
                                    {"embed_tokens", "[2000000000, 32]", "[50, 32]"}, ErrorCode::kFormat));
  EXPECT_TRUE(testing::throws_error([&] { source->check_tensors(); }, {"tensors, but the model of its config.json has 180"},
                                    ErrorCode::kFormat));
}

TEST_F(Sources, AFolderAndAFileAreTheSameModel) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const ModelConfig c = small();
    const auto folder = ModelSource::open(write_folder(c, dtype));
    const fs::path path = write_file(*folder, to_string(dtype));
    const auto file = ModelSource::open(path);
    ModelWeights want = random_weights(c, 5, dtype, ctx_);
    for (const ModelSource* source : {folder.get(), file.get()}) {
      EXPECT_EQ(source->config().num_hidden_layers, 2);
      EXPECT_EQ(source->config().torch_dtype, dtype);
      EXPECT_EQ(source->compute_dtype(), dtype);
      EXPECT_EQ(source->stored_dtype(), dtype);
      EXPECT_FALSE(source->tokenizer());
      EXPECT_EQ(source->chat_template(), "");
      EXPECT_NO_THROW(source->check_tensors());
      ModelWeights got = source->load_weights(source->config(), {}, {});
      for (const Parameter& p : parameter_list(c)) {
        const Tensor stored = source->tensor(p);
        EXPECT_TRUE(test::same_bits(stored.to(want.dense(p).dtype()), want.dense(p))) << p.name;
        EXPECT_TRUE(test::same_bits(got.dense(p).to(want.dense(p).dtype()), want.dense(p))) << p.name;
        source->release(p);
      }
    }
    // And back: a folder from either has the same bytes.
    const fs::path a = dir_ / fmt::format("a{}", files_++), b = dir_ / fmt::format("b{}", files_++);
    save_model(a, *folder, dtype, 1 << 30);
    save_model(b, *file, dtype, 1 << 30);
    for (const char* name : {"config.json", "model.safetensors"})
      EXPECT_EQ(io::read_bytes(a / name), io::read_bytes(b / name)) << name;
    EXPECT_EQ(io::read_bytes(write_file(*file, to_string(dtype))), io::read_bytes(path)) << "from file to file";
  }
}

TEST_F(Sources, QuantizedFilesSayWhatTheyHold) {
  const auto folder = ModelSource::open(write_folder(small()));
  const auto file = ModelSource::open(write_file(*folder, "q8_0"));
  EXPECT_EQ(file->stored_dtype(), DType::kQ8_0);
  EXPECT_EQ(file->compute_dtype(), DType::kF32);
  EXPECT_EQ(file->load_weights(file->config(), {}, {}).head.dtype(), DType::kQ8_0);
  EXPECT_EQ(file->load_weights(file->config(), DType::kBF16, {}).head.dtype(), DType::kBF16);
}

// f16 has three bits more than bf16, so computing in bf16 would change the weights.
TEST_F(Sources, AnF16FolderIsComputedWithItsOwnNumbers) {
  const fs::path f16 = dir_ / "f16";
  save_model(f16, *ModelSource::open(write_folder(small())), DType::kF16, 1 << 30);
  const auto folder = ModelSource::open(f16);
  EXPECT_EQ(folder->compute_dtype(), DType::kF32);
  EXPECT_EQ(folder->stored_dtype(), DType::kF16);
  const Transformer from_folder = load_model(f16), from_file = load_model(write_file(*folder, "f16"));
  const Transformer widened = load_model(f16, DType::kF32), narrowed = load_model(f16, DType::kBF16);
  EXPECT_EQ(from_folder.dtype(), DType::kF32);
  EXPECT_EQ(from_folder.weights().head.dtype(), DType::kF16) << "no more memory than the file";
  EXPECT_EQ(from_folder.weights().layers[0].input_norm.dtype(), DType::kF32);
  const std::vector<std::int32_t> ids = {3, 1, 4, 1, 5, 9, 2, 6};
  const Tensor logits = test::logits_of(ctx_, from_folder, ids);
  EXPECT_TRUE(test::same_bits(logits, test::logits_of(ctx_, from_file, ids)));
  EXPECT_LT(test::relative_error(logits, test::logits_of(ctx_, widened, ids)), 2e-6);
  EXPECT_GT(test::relative_error(logits, test::logits_of(ctx_, narrowed, ids)), 1e-4) << "the check sees bf16";
}

// Each parameter in the dtype that `of` gives it.
void write_mixed(const fs::path& folder, const ModelConfig& c, const ModelWeights& weights,
                 const std::function<DType(const Parameter&)>& of) {
  fs::create_directories(folder);
  std::vector<io::TensorSpec> specs;
  for (const Parameter& p : parameter_list(c)) specs.push_back({p.name, of(p), p.shape});
  io::ShardedWriter writer(folder, specs, 1 << 30);
  for (const Parameter& p : parameter_list(c)) writer.write(p.name, weights.dense(p).to(of(p)));
  writer.finish();
  std::ofstream(folder / "config.json") << c.to_json();
}

TEST_F(Sources, NoNumberOfAMixedFolderIsRounded) {
  const ModelConfig c = small();
  const ModelWeights weights = random_weights(c, 5, DType::kF32, ctx_);
  const auto one_f32 = [](const Parameter& p) {
    return p.name == "lm_head.weight" ? DType::kF32 : p.layer == 0 ? DType::kF16 : DType::kBF16;
  };
  const auto matrices_bf16 = [](const Parameter& p) { return is_matrix(p) ? DType::kBF16 : DType::kF32; };
  write_mixed(dir_ / "one", c, weights, one_f32);
  write_mixed(dir_ / "router", c, weights, matrices_bf16);
  const auto one = ModelSource::open(dir_ / "one"), router = ModelSource::open(dir_ / "router");
  EXPECT_EQ(one->compute_dtype(), DType::kF32);
  EXPECT_EQ(router->compute_dtype(), DType::kBF16);
  const ModelWeights all_f32 = one->load_weights(c, {}, {}), f32_router = router->load_weights(c, {}, {});
  EXPECT_EQ(f32_router.head.dtype(), DType::kBF16);
  for (const Parameter& p : parameter_list(c)) {
    EXPECT_TRUE(test::same_bits(all_f32.dense(p), weights.dense(p).to(one_f32(p)).to(DType::kF32))) << p.name;
    EXPECT_TRUE(test::same_bits(f32_router.dense(p), weights.dense(p).to(matrices_bf16(p)))) << p.name;
  }
}

TEST_F(Sources, PartsOfAModelAreEnoughForWhatTheyHold) {
  std::ofstream(dir_ / "config.json") << small().to_json();
  for (const fs::path& path : {dir_.path(), dir_ / "config.json"}) {
    const auto source = ModelSource::open(path);
    EXPECT_EQ(source->config().hidden_size, 32);
    EXPECT_EQ(ModelConfig::load(path).hidden_size, 32);
  }
  EXPECT_FALSE(load_tokenizer(dir_.path()));
  EXPECT_FALSE(load_tokenizer(dir_ / "nothing"));
  const fs::path tokenizer = dir_ / "tokenizer";
  tiny_tokenizer().save(tokenizer);
  for (const fs::path& path : {tokenizer, tokenizer / "tokenizer.json"}) {
    const auto source = ModelSource::open(path);
    ASSERT_TRUE(source->tokenizer()) << path;
    EXPECT_EQ(source->tokenizer()->encode("ab"), std::vector<std::int32_t>{2});
    EXPECT_EQ(source->chat_template(), "{{ messages[0].content }}");
  }
  EXPECT_TRUE(testing::throws_error([&] { ModelSource::open(tokenizer)->config(); }, {"cannot open", "config.json"},
                                    ErrorCode::kIo));
  EXPECT_TRUE(testing::throws_error([&] { ModelSource::open(dir_.path())->compute_dtype(); }, {"no model.safetensors"},
                                    ErrorCode::kIo));
  // A file of weights: the rest lies beside it.
  const fs::path folder = write_folder(small());
  const auto weights = ModelSource::open(folder / "model.safetensors");
  EXPECT_EQ(weights->config().hidden_size, 32);
  EXPECT_FALSE(weights->tokenizer());
  EXPECT_NO_THROW(weights->check_tensors());
}

TEST_F(Sources, WhatIsNoModelIsRefusedInTheSameWords) {
  EXPECT_NO_THROW(check_is_model(write_folder(small())));
  EXPECT_NO_THROW(check_is_model(write_file(*ModelSource::open(write_folder(small())), "f32")));
  EXPECT_TRUE(
      testing::throws_error([&] { check_is_model(dir_ / "nowhere"); }, {"nowhere", "there is no model"}, ErrorCode::kIo));
  EXPECT_TRUE(testing::throws_error([&] { check_is_model(dir_.path()); }, {"no config.json"}, ErrorCode::kIo));
  for (const char* name : {"checkpoint-9", "checkpoint-10", "checkpoint-11"}) {
    std::filesystem::create_directories(dir_ / "run" / name);
    if (name != std::string_view("checkpoint-11")) std::ofstream(dir_ / "run" / name / "config.json") << "{}";
  }
  EXPECT_TRUE(testing::throws_error([&] { check_is_model(dir_ / "run"); }, {"run/checkpoint-10 is a model", "give that"},
                                    ErrorCode::kIo));
  std::ofstream(dir_ / "text.gguf") << "GGU";
  EXPECT_TRUE(testing::throws_error([&] { check_is_model(dir_ / "text.gguf"); }, {"neither a folder nor a GGUF file"},
                                    ErrorCode::kFormat));
}

TEST_F(Sources, WhatIsNearlyAModelIsRefusedWithTheOneThatIsMeant) {
  const auto refused = [](const fs::path& path, std::initializer_list<std::string_view> words) {
    EXPECT_TRUE(testing::throws_error([&] { check_is_model(path); }, words)) << path;
  };
  const fs::path folder = write_folder(small());
  refused(folder / "model.safetensors", {"a part of a model", "give its folder"});
  fs::create_directories(dir_ / "quantized");
  std::ofstream(dir_ / "quantized" / "a.gguf") << "no GGUF";
  for (const char* name : {"c.gguf", "b.gguf"})
    fs::copy_file(write_file(*ModelSource::open(folder), "f32"), dir_ / "quantized" / name);
  refused(dir_ / "quantized", {"quantized/b.gguf is a model"});
  fs::create_directories(dir_ / "models--a--b" / "snapshots");
  fs::copy(folder, dir_ / "models--a--b" / "snapshots" / "0123");
  refused(dir_ / "models--a--b", {"snapshots/0123 is a model"});
  fs::create_directories(dir_ / "lora");
  std::ofstream(dir_ / "lora" / "adapter_config.json") << "{}";
  refused(dir_ / "lora", {"an adapter", "merge it"});
  refused("some/name", {"nothing is downloaded"});
}

// Loading and reading one by one refuse the same tensors, in either format.
TEST_F(Sources, MissingAndUnexpectedTensorsAreRefusedByName) {
  const ModelConfig c = small();
  const fs::path folder = write_folder(c);
  const auto file = io::GgufFile::open(write_file(*ModelSource::open(folder), "f32"));
  const auto refused = [&](const fs::path& path, std::string_view missing) {
    const auto source = ModelSource::open(path);
    EXPECT_TRUE(testing::throws_error([&] { source->check_tensors(); }, {missing, "extra.weight"}, ErrorCode::kFormat));
    EXPECT_TRUE(testing::throws_error([&] { source->load_weights(source->config(), {}, {}); }, {missing, "extra.weight"},
                                      ErrorCode::kFormat));
  };
  {
    const io::Checkpoint from = io::Checkpoint::open(folder);
    const fs::path to = dir_ / "other";
    fs::create_directory(to);
    fs::copy_file(folder / "config.json", to / "config.json");
    std::vector<io::TensorSpec> specs;
    for (const std::string& name : from.names())
      specs.push_back({name == "model.norm.weight" ? "extra.weight" : name, DType::kF32, from.tensor(name).shape()});
    io::SafetensorsWriter writer(to / "model.safetensors", specs);
    for (std::size_t i = 0; i < specs.size(); ++i) writer.write(specs[i].name, from.tensor(from.names()[i]));
    writer.finish();
    refused(to, "model.norm.weight");
  }
  std::vector<io::TensorSpec> specs;
  for (const io::GgufTensorInfo& t : file.tensors())
    specs.push_back({t.name == "output_norm.weight" ? "extra.weight" : t.name, *t.type->dtype, t.shape});
  const fs::path to = dir_ / "other.gguf";
  io::GgufWriter writer(to, file.metadata(), specs);
  for (std::size_t i = 0; i < specs.size(); ++i) {
    const Tensor t = file.tensor(file.tensors()[i].name);
    writer.append(specs[i].name, {static_cast<const std::byte*>(t.raw()), t.bytes()});
  }
  writer.finish();
  refused(to, "output_norm.weight");
}

TEST_F(Sources, AParameterOfAnotherModelIsRefused) {
  const auto source = ModelSource::open(write_file(*ModelSource::open(write_folder(small())), "f32"));
  Parameter p = parameter_list(small()).front();
  p.name = "model.layers.7.x";
  EXPECT_TRUE(
      testing::throws_error([&] { source->tensor(p); }, {".gguf", "model.layers.7.x"}, ErrorCode::kInvalidArgument));
}

TEST_F(Sources, CompanionsOfAFolder) {
  ModelConfig c = small();
  c.bos_token_id = 3, c.eos_token_id = {1, 2};
  write_companions(dir_.path(), c, tiny_tokenizer());
  const std::string text = io::read_bytes(dir_ / "generation_config.json");
  for (const char* part : {"\"bos_token_id\": 3", "\"eos_token_id\": [", "_from_model_config"})
    EXPECT_NE(text.find(part), std::string::npos) << text;
  EXPECT_TRUE(load_tokenizer(dir_.path()));
  // In a GGUF file they are part of the metadata.
  const fs::path folder = write_folder(c);
  write_companions(folder, c, tiny_tokenizer());
  const auto file = ModelSource::open(write_file(*ModelSource::open(folder), "f32"));
  ASSERT_TRUE(file->tokenizer());
  EXPECT_EQ(file->tokenizer()->encode("ab"), std::vector<std::int32_t>{2});
  EXPECT_EQ(file->chat_template(), "{{ messages[0].content }}");
  EXPECT_EQ(file->config().eos_token_id, c.eos_token_id);
}

}  // namespace
}  // namespace dsmoe
