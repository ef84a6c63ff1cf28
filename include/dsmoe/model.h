// A language model with its tokenizer, from a Hugging Face folder or a GGUF file. Held by shared_ptr: sessions and training
// runs keep their model alive.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>

#include "dsmoe/model_config.h"
#include "dsmoe/options.h"
#include "dsmoe/storage.h"
#include "dsmoe/tokenizer.h"

namespace dsmoe {

struct ModelOptions {
  std::optional<DType> dtype;
  Storage storage = Storage::kAuto;
  std::function<void(std::uint64_t done, std::uint64_t total)> progress;  // bytes read into memory

  template <class Self, class Visitor>
  static void visit(Self& o, Visitor&& v) {
    v(o.dtype, {"dtype", "Dtype of the weights in memory (auto: as stored, including quantized)"});
    v(o.storage, {"load",
                  "Read the weights into memory (fastest), or mmap the file (starts at once; processes share it); "
                  "auto: memory if they fit"});
  }
};

class Model {
 public:
  // The path of a folder or of a .gguf file. Throws with what to do when there is no model.
  static std::shared_ptr<Model> load(const std::filesystem::path& path, const ModelOptions& options = {});
  // Random weights to train from, f32 or bf16.
  static std::shared_ptr<Model> random(const ModelConfig& config, std::uint64_t seed, DType dtype = DType::kF32,
                                       std::optional<Tokenizer> tokenizer = {});
  // The tokenizer alone, also from a tokenizer.json; none when there is no tokenizer.
  static std::optional<Tokenizer> load_tokenizer(const std::filesystem::path& path);
  ~Model();

  const ModelConfig& config() const;
  const std::optional<Tokenizer>& tokenizer() const;
  DType dtype() const;                        // of the activations
  const std::filesystem::path& path() const;  // that it was loaded from; empty for none

  // As a Hugging Face folder, in the dtype that it has in memory. Quantized weights are refused: load them with a dtype.
  // So are folders with files of a model, unless `overwrite`, and always those of a training run. Other files are left
  // alone.
  void save(const std::filesystem::path& folder, bool overwrite = false) const;

  struct Impl;  // the library's own
  explicit Model(std::unique_ptr<Impl> impl);
  Impl& impl() const { return *impl_; }

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace dsmoe
