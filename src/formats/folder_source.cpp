#include "formats/folder_source.h"

#include "core/fail.h"
#include "core/log.h"
#include "formats/config_json.h"
#include "formats/folder_names.h"
#include "formats/generation_config.h"
#include "formats/gguf_export.h"
#include "formats/lazy.h"
#include "formats/mapped_tensors.h"
#include "io/checkpoint.h"
#include "tokenizer/tiktoken.h"

namespace dsmoe {

namespace {

namespace fs = std::filesystem;

class FolderSource final : public ModelSource {
 public:
  explicit FolderSource(fs::path path) : path_(std::move(path)) {}

  const ModelConfig& config() const override {
    return config_.get([&] { return read_config_json(part("config.json")); });
  }

  std::optional<Tokenizer> tokenizer() const override {
    return tokenizer_.get([&] {
      const fs::path file = part("tokenizer.json");
      if (fs::exists(file)) return std::optional(Tokenizer::load(file));
      if (const fs::path ranks = ranks_file(file.parent_path()); !ranks.empty())
        return std::optional(Tokenizer::load(ranks));
      if (const std::string other = unread_tokenizer(file.parent_path()); !other.empty()) note("{}", other);
      return std::optional<Tokenizer>();
    });
  }

  GenerationConfig generation() const override {
    const fs::path file = part("generation_config.json");
    return file == path_ ? GenerationConfig() : read_generation_config(file);
  }

  DType compute_dtype() const override {
    FolderNames(checkpoint(), config()).check();
    return matrix_dtype(config()) == DType::kBF16 ? DType::kBF16 : DType::kF32;
  }

  ModelWeights load_weights(const ModelConfig& config, std::optional<DType> dtype,
                            const LoadOptions& options) const override {
    io::Checkpoint from = checkpoint();  // shares the maps, until it is read into memory
    const FolderNames names(from, config);
    names.check();
    const DType wanted = dtype ? *dtype : matrix_dtype(config);
    const std::vector<Parameter> parameters = parameter_list(config);
    // Not for weights that are converted: they get memory of their own.
    const bool as_stored = names.is_stored_as(wanted);
    if (as_stored && read_into_memory(options.storage, from.total_bytes())) from.read_into_memory(options.progress);

    std::vector<Tensor> tensors;
    for (const Parameter& p : parameters) {
      const Tensor t = names.read(p);
      // Norms, biases and the router lose nothing either: as f32, unless the whole model is bf16.
      const bool narrow = dtype || is_matrix(p) || (wanted == DType::kBF16 && t.dtype() == DType::kBF16);
      tensors.push_back(t.to(narrow ? dsmoe::stored_dtype(p, wanted) : DType::kF32));
    }
    auto check = check_of(from.maps(), tensors);
    ModelWeights weights = listed_weights(config, parameters, std::move(tensors));
    weights.check_files = std::move(check);
    return weights;
  }

  void check_tensors() const override {
    FolderNames(checkpoint(), config()).check();
    tensor(parameter_list(config()).front());  // its shape: a tokenizer is written for as many tokens as the embedding has
  }
  Tensor tensor(const Parameter& p) const override { return FolderNames(checkpoint(), config()).read(p); }
  void release(const Parameter& p) const override {
    const FolderNames names(checkpoint(), config());
    if (names.last_of_its_tensor(p)) checkpoint().advise(names.name_of(p), io::Advice::kDontNeed);
  }

  void check_files() const override { dsmoe::check_files(checkpoint().maps()); }

  io::GgufMetadata export_metadata(const std::string& name) const override {
    return gguf_export_metadata(config(), tokenizer(), generation(), name);
  }

 private:
  // What the matrices are kept in so that no number changes: their own dtype, or f32 where they have several.
  DType matrix_dtype(const ModelConfig& config) const {
    const FolderNames names(checkpoint(), config);
    std::optional<DType> all;
    for (const Parameter& p : parameter_list(config)) {
      if (!is_matrix(p)) continue;
      const std::optional<DType> dtype = names.dtype_of(p);
      if (all && all != dtype) return DType::kF32;
      all = dtype;
    }
    return all.value_or(DType::kF32);
  }

  std::vector<StoredTensor> stored_tensors() const override {
    std::vector<StoredTensor> all;
    for (const std::string& name : checkpoint().names()) {
      const io::TensorInfo& t = checkpoint().info(name);
      all.push_back({io::dtype_from_file(t.dtype), static_cast<Index>(t.dims.size()), t.bytes});
    }
    return all;
  }

  // A file of the folder; or the file that was given, unless that has nothing but weights.
  fs::path part(const char* name) const {
    std::error_code ignored;
    if (fs::is_directory(path_, ignored)) return path_ / name;
    return path_.extension() == ".safetensors" ? path_.parent_path() / name : path_;
  }
  const io::Checkpoint& checkpoint() const {
    return checkpoint_.get([&] { return io::Checkpoint::open(path_); });
  }

  fs::path path_;
  Lazy<ModelConfig> config_;
  Lazy<std::optional<Tokenizer>> tokenizer_;
  Lazy<io::Checkpoint> checkpoint_;
};

}  // namespace

std::string unread_tokenizer(const fs::path& folder) {
  std::error_code ignored;
  if (fs::exists(folder / "tokenizer.json", ignored) || !ranks_file(folder).empty()) return {};
  if (fs::exists(folder / "tokenizer.model", ignored))
    return "tokenizer.model is not read; save the tokenizer with transformers, which writes tokenizer.json beside it";
  // Its code, which is part of the model, writes no other file.
  if (fs::exists(folder / "qwen.tiktoken", ignored))
    return "qwen.tiktoken is not read, and transformers writes no tokenizer.json for it; use a GGUF file of this model "
           "made by "
           "llama.cpp's converter, or a tokenizer.json that someone made of it";
  return {};
}

std::unique_ptr<const ModelSource> open_folder_source(const fs::path& path) { return std::make_unique<FolderSource>(path); }

}  // namespace dsmoe
