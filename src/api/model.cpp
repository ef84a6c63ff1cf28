#include "api/model_impl.h"
#include "core/device.h"
#include "core/fail.h"
#include "formats/folder_export.h"
#include "formats/model_source.h"
#include "io/sharded_writer.h"
#include "model/families/family.h"
#include "train/checkpoints.h"

namespace dsmoe {

namespace fs = std::filesystem;

void require_model(const fs::path& path) { check_is_model(path); }

Model::Model(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Model::~Model() = default;

std::optional<Tokenizer> Model::load_tokenizer(const fs::path& path) { return dsmoe::load_tokenizer(path); }

namespace {

// Bytes of all weights in a dtype.
std::uint64_t weight_bytes(const ModelConfig& config, DType dtype) {
  std::uint64_t bytes = 0;
  for (const Parameter& p : parameter_list(config)) bytes += row_bytes(stored_dtype(p, dtype), p.shape.numel());
  return bytes;
}

// Without a wish a GPU keeps quantized weights as they are (packed_copy()).
bool stays_quantized(const ModelSource& source, const ModelOptions& options) {
  return !options.dtype && is_quantized(source.stored_dtype());
}

// What a GPU computes with: the dtype asked for, or the model's own. F16 weights become bf16 there, quantized ones take
// bf16.
DType gpu_dtype(const ModelSource& source, const ModelOptions& options) {
  return options.dtype.value_or(source.stored_dtype() == DType::kF32 ? DType::kF32 : DType::kBF16);
}

// Without a wish: the GPU, if it computes with the weights as they are stored and they fit it.
Device device_for(const ModelSource& source, const ModelOptions& options) {
  const DType dtype = gpu_dtype(source, options);
  const bool quantized = stays_quantized(source, options);
  const auto needed = [&] { return quantized ? source.stored_bytes() : weight_bytes(source.config(), dtype); };
  if (!options.device) {
    const bool as_stored = quantized || source.stored_dtype() == dtype || options.dtype.has_value();
    return device::available() && as_stored && needed() < device::memory().free / 10 * 9 ? Device::kCuda : Device::kCpu;
  }
  if (*options.device == Device::kCuda) {
    const std::uint64_t bytes = needed(), free = device::memory().free;
    require(bytes < free,
            "the weights take {:.1f} GB in {}, the GPU has {:.1f} GB free; use the device cpu, or a smaller dtype or model",
            static_cast<double>(bytes) * 1e-9, to_string(quantized ? source.stored_dtype() : dtype),
            static_cast<double>(free) * 1e-9);
  }
  return *options.device;
}

}  // namespace

std::shared_ptr<Model> Model::load(const fs::path& path, const ModelOptions& options) {
  require_model(path);
  const std::unique_ptr<const ModelSource> source = ModelSource::open(path);
  auto impl = std::make_unique<Impl>();
  impl->tokenizer = source->tokenizer();
  impl->generation = source->generation();
  const ModelConfig& config = source->config();
  const LoadOptions load{.storage = options.storage, .progress = options.progress};
  if (device_for(*source, options) == Device::kCuda) {
    // Straight from the mapped file where the dtype is the file's.
    const DType dtype = gpu_dtype(*source, options);
    const bool quantized = stays_quantized(*source, options);
    const ModelWeights here = source->load_weights(config, quantized ? std::nullopt : std::optional(dtype),
                                                   {.storage = Storage::kMapped, .progress = options.progress});
    Context ctx(1, Backend::kCuda);
    impl->transformer =
        std::make_shared<Transformer>(config, quantized ? packed_copy(spec_of(config), here, ctx)
                                                        : owned_copy(spec_of(config), here, dtype, Device::kCuda));
  } else {
    impl->transformer = std::make_shared<Transformer>(config, source->load_weights(config, options.dtype, load));
  }
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
const GenerationConfig& Model::generation() const { return impl_->generation; }
DType Model::dtype() const { return impl_->transformer->dtype(); }
Device Model::device() const { return impl_->transformer->device(); }
const fs::path& Model::path() const { return impl_->path; }

void Model::save(const fs::path& folder, bool overwrite) const {
  const ModelWeights& weights = impl_->transformer->weights();
  require(device() == Device::kCpu, "the model is on a GPU; load it with the device cpu to save it");
  require(impl_->transformer->trainable(),
          "the weights are quantized, f16 or of several dtypes; load the model with the dtype f32 or bf16");
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
      {}, {tokenizer(), generation()}, [&] { weights.check(); });
}

}  // namespace dsmoe
