// A model on disk, whatever the format: a Hugging Face folder, or a GGUF file that holds everything.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>

#include "dsmoe/model_config.h"
#include "dsmoe/tokenizer.h"
#include "io/gguf_metadata.h"
#include "model/parameters.h"

namespace dsmoe {

// None when the model has no tokenizer.
std::optional<Tokenizer> load_tokenizer(const std::filesystem::path& path);

// Reads the weights parameter by parameter, without holding them.
class ModelFiles {
 public:
  static ModelFiles open(const std::filesystem::path& path);
  ~ModelFiles();
  ModelFiles(ModelFiles&&) noexcept;

  const ModelConfig& config() const;
  std::optional<Tokenizer> tokenizer() const;
  DType stored_dtype() const;  // of the largest part of the matrices

  Tensor tensor(const Parameter& parameter) const;           // as it is stored
  void release(const Parameter& parameter) const;            // its pages are not needed any more
  io::GgufMetadata metadata(const std::string& name) const;  // a GGUF file's own, with nothing lost; else made anew

 private:
  struct Impl;
  explicit ModelFiles(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace dsmoe
