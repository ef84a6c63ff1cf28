#include <algorithm>
#include <string>
#include <unordered_map>

#include "api/model_impl.h"
#include "core/device.h"
#include "core/fail.h"
#include "formats/folder_export.h"
#include "formats/model_source.h"
#include "io/sharded_writer.h"
#include "model/families/family.h"
#include "model/fit.h"
#include "parallel/mesh.h"
#include "parallel/same.h"
#include "parallel/world.h"
#include "train/checkpoints.h"
#include "train/hash.h"
#include "train/origin.h"

namespace dsmoe {

namespace fs = std::filesystem;

void require_model(const fs::path& path) { check_is_model(path); }

Model::Model(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Model::~Model() = default;

std::optional<Tokenizer> Model::load_tokenizer(const fs::path& path) { return dsmoe::load_tokenizer(path); }

namespace {

// Bytes of all weights that are here, in a dtype.
std::uint64_t weight_bytes(const ModelConfig& config, DType dtype, ExpertShare share) {
  ModelWeights here;
  here.share = share;
  std::uint64_t bytes = 0;
  for (const Parameter& p : parameter_list(config))
    if (here.holds(p)) bytes += row_bytes(stored_dtype(p, dtype), p.shape.numel());
  return bytes;
}

// Without a wish a GPU keeps quantized weights as they are (packed_copy()), but not those of experts that are spread.
bool stays_quantized(const ModelSource& source, const ModelOptions& options, ExpertShare share = {}) {
  return !options.dtype && is_quantized(source.stored_dtype()) && share.ranks == 1;
}

// What a GPU computes with: the dtype asked for, or the model's own. F16 weights become bf16 there, quantized ones take
// bf16.
DType gpu_dtype(const ModelSource& source, const ModelOptions& options) {
  return options.dtype.value_or(source.stored_dtype() == DType::kF32 ? DType::kF32 : DType::kBF16);
}

FitRequest fit_request(const ModelSource& source, const ModelOptions& options, ExpertShare share) {
  const DType dtype = gpu_dtype(source, options);
  const bool quantized = stays_quantized(source, options, share);
  FitRequest r{.weights = quantized ? source.stored_bytes() : weight_bytes(source.config(), dtype, share),
               .dtype = quantized ? source.stored_dtype() : dtype};
  if (options.cache_tokens)
    r.context = *options.cache_tokens > 0 ? *options.cache_tokens : source.config().max_position_embeddings;
  r.cache = options.kv_type ? dtype_of(*options.kv_type) : dtype;
  return r;
}

// Without a wish: the GPU, if it computes with the weights as they are stored, and they and the context fit it.
Device device_for(const ModelSource& source, const ModelOptions& options, ExpertShare share) {
  // Ranks could not agree by each looking at its own GPU.
  if (!options.device && share.ranks > 1) return Device::kCpu;
  if (options.device == Device::kCpu || (!options.device && !device::available())) return Device::kCpu;
  const std::uint64_t free = device::memory().free;
  const FitRequest request = fit_request(source, options, share);
  const std::string why = why_it_does_not_fit(source.config(), request, free);
  if (options.device) {
    if (!why.empty()) fail(ErrorCode::kUnsupported, "{}", why);
    return *options.device;
  }
  const bool as_stored = request.dtype == source.stored_dtype() || options.dtype.has_value();
  return as_stored && why.empty() ? Device::kCuda : Device::kCpu;
}

// From the mapped files to the GPU, one parameter after another: this machine's memory holds one of them at a time.
ModelWeights copy_to_gpu(const ModelSource& source, const ModelOptions& options, ExpertShare share) {
  source.check_tensors();
  const std::uint64_t total = source.stored_bytes();
  std::uint64_t bytes = 0;
  std::unordered_map<std::string, std::uint64_t> sizes;  // of parameters that are being copied
  const auto read = [&](const Parameter& p) {
    Tensor t = source.tensor(p);
    sizes[p.name] = t.bytes();
    return t;
  };
  const auto done = [&](const Parameter& p) {
    source.release(p);
    bytes = std::min(total, bytes + sizes[p.name]);
    sizes.erase(p.name);
    if (options.progress && bytes < total) options.progress(bytes, total);
  };
  const ParameterReader reader{read, done};
  const std::vector<Parameter> parameters = parameter_list(source.config());
  const ModelSpec spec = spec_of(source.config());
  ModelWeights out;
  source.checked([&] {
    Context ctx(1, Backend::kCuda);
    out = stays_quantized(source, options, share)
              ? packed_copy(spec, parameters, reader, ctx)
              : owned_copy(spec, parameters, reader, gpu_dtype(source, options), Device::kCuda, share);
    ctx.synchronize();
  });
  source.check_files();
  device::end_uploads();
  if (options.progress) options.progress(total, total);
  return out;
}

}  // namespace

namespace {

// The ranks over which experts are spread; null for a process alone.
std::shared_ptr<const parallel::Mesh> mesh_for(const ModelOptions& options) {
  const std::shared_ptr<parallel::Comm> world = options.spread_experts ? parallel::world() : nullptr;
  if (!world || world->alone()) return nullptr;
  if (options.device == Device::kCuda) parallel::link_gpus_of_world();
  auto mesh = std::make_shared<parallel::Mesh>(parallel::make_mesh(world, world->size()));
  mesh->same_tokens = true;
  return mesh;
}

// Ranks may have file systems of their own, with other files at the same paths.
parallel::Facts contents_of(const ModelSource& source) {
  return {{"a config with the fingerprint", train::Hash::of(source.config().to_json())},
          {"weights with the fingerprint", train::fingerprint(source)},
          {"a tokenizer with the fingerprint", train::fingerprint(source.tokenizer())}};
}

}  // namespace

std::shared_ptr<Model> Model::load(const fs::path& path, const ModelOptions& options) {
  require_model(path);
  if (options.numa != Numa::kOff) set_numa(options.numa);
  const std::unique_ptr<const ModelSource> source = ModelSource::open(path);
  auto impl = std::make_unique<Impl>();
  impl->tokenizer = source->tokenizer();
  impl->generation = source->generation();
  const ModelConfig& config = source->config();
  LoadOptions load{.storage = options.storage, .progress = options.progress, .repack = true};
  impl->mesh = mesh_for(options);
  const auto& mesh = impl->mesh;
  const ExpertShare share = mesh ? ExpertShare{mesh->experts->rank(), mesh->experts->size()} : ExpertShare{};
  if (mesh) {
    parallel::require_same(*mesh->world, contents_of(*source), parallel::kSameFiles);
    load.storage = Storage::kMapped;  // what is not touched is not read
  }
  ModelWeights weights = device_for(*source, options, share) == Device::kCuda
                             ? copy_to_gpu(*source, options, share)
                             : source->load_weights(config, options.dtype, load);
  impl->transformer = std::make_shared<Transformer>(config, std::move(weights), mesh);
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
