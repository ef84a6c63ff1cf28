#include "api/model_impl.h"
#include "core/fail.h"
#include "formats/folder_export.h"
#include "formats/model_source.h"
#include "io/sharded_writer.h"
#include "train/checkpoints.h"

namespace dsmoe {

namespace fs = std::filesystem;

void require_model(const fs::path& path) { check_is_model(path); }

Model::Model(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Model::~Model() = default;

std::optional<Tokenizer> Model::load_tokenizer(const fs::path& path) { return dsmoe::load_tokenizer(path); }

std::shared_ptr<Model> Model::load(const fs::path& path, const ModelOptions& options) {
  require_model(path);
  const std::unique_ptr<const ModelSource> source = ModelSource::open(path);
  auto impl = std::make_unique<Impl>();
  impl->tokenizer = source->tokenizer();
  impl->transformer = std::make_shared<Transformer>(
      source->config(),
      source->load_weights(source->config(), options.dtype, {.storage = options.storage, .progress = options.progress}));
  impl->path = path;
  return std::make_shared<Model>(std::move(impl));
}

std::shared_ptr<Model> Model::random(const ModelConfig& config, std::uint64_t seed, DType dtype,
                                     std::optional<Tokenizer> tokenizer) {
  require(dtype == DType::kF32 || dtype == DType::kBF16, "dtype is {}; random weights are f32 or bf16", to_string(dtype));
  require(!tokenizer || tokenizer->vocab_size() <= config.vocab_size,
          "the tokenizer has {} tokens, but the model's vocab_size is {}", tokenizer ? tokenizer->vocab_size() : 0,
          config.vocab_size);
  config.validate();
  Context ctx;
  auto impl = std::make_unique<Impl>();
  impl->transformer = std::make_shared<Transformer>(config, random_weights(config, seed, dtype, ctx));
  impl->tokenizer = std::move(tokenizer);
  return std::make_shared<Model>(std::move(impl));
}

const ModelConfig& Model::config() const { return impl_->transformer->config(); }
const std::optional<Tokenizer>& Model::tokenizer() const { return impl_->tokenizer; }
DType Model::dtype() const { return impl_->transformer->dtype(); }
const fs::path& Model::path() const { return impl_->path; }

void Model::save(const fs::path& folder, bool overwrite) const {
  const ModelWeights& weights = impl_->transformer->weights();
  require(impl_->transformer->trainable(),
          "the weights are quantized or of several dtypes; load the model with the dtype f32 or bf16");
  if (const std::vector<std::string> files = model_files(folder); !overwrite && !files.empty())
    fail(ErrorCode::kInvalidArgument, "{} already holds a model ({}); choose another folder, or overwrite it",
         folder.string(), files.front());
  if (train::is_part_of_run(folder))
    fail(ErrorCode::kInvalidArgument, "{} is part of a training run; choose another folder", folder.string());
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) fail(ErrorCode::kIo, "cannot make the folder {}: {}", folder.string(), error.message());
  save_model(
      folder, config(), dtype(), [&](const Parameter& p, std::size_t) { return weights.dense(p); }, io::kDefaultShardBytes,
      {}, tokenizer());
}

}  // namespace dsmoe
