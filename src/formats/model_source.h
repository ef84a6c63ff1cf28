// A model on disk, whatever its format: a Hugging Face folder, or a GGUF file that holds everything. This is the only
// code that asks which of them a path is (docs/design/formats.md).
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "dsmoe/error.h"
#include "dsmoe/generation_config.h"
#include "dsmoe/model_config.h"
#include "dsmoe/tokenizer.h"
#include "formats/model_io.h"
#include "io/gguf_metadata.h"
#include "model/transformer.h"

namespace dsmoe {

// Parts are read when they are first asked for, and what is missing or damaged is named then: a folder with nothing but
// config.json has a config, one with nothing but tokenizer.json has a tokenizer. Several threads may use one source.
class ModelSource {
 public:
  // A folder, one .safetensors file (the rest is looked for beside it), a config.json or tokenizer.json, a GGUF file.
  static std::unique_ptr<const ModelSource> open(const std::filesystem::path& path);
  virtual ~ModelSource() = default;
  ModelSource(const ModelSource&) = delete;
  ModelSource& operator=(const ModelSource&) = delete;

  virtual const ModelConfig& config() const = 0;
  virtual std::optional<Tokenizer> tokenizer() const = 0;  // none when the model has none
  std::string chat_template() const;                       // of the tokenizer; "" for none
  virtual GenerationConfig generation() const = 0;         // defaults for sampling, tokens that end a text

  // What the model is computed in, so that no weight changes: bf16 if all matrices are stored so, else f32.
  virtual DType compute_dtype() const = 0;
  // The dtype of the largest part of the matrices' bytes.
  DType stored_dtype() const;
  std::uint64_t stored_bytes() const;  // of all tensors

  // All weights of a model of this config, the source's own unless the caller knows better. Without a dtype as they are
  // stored, quantized ones included; with one, all in that dtype. Tensors that need no conversion stay where the options
  // say. Missing, unexpected, misshaped and mistyped tensors are refused by name.
  virtual ModelWeights load_weights(const ModelConfig& config, std::optional<DType> dtype,
                                    const LoadOptions& options) const = 0;

  // For those who read parameter by parameter, without holding the model.
  virtual void check_tensors() const = 0;                       // refuses missing and unexpected tensors by name
  virtual Tensor tensor(const Parameter& parameter) const = 0;  // as it is stored
  virtual void release(const Parameter& parameter) const = 0;   // its pages are not needed any more

  // At the end of reading so: throws when a file was truncated or written to meanwhile.
  virtual void check_files() const = 0;
  // Runs what reads so; what it throws is the files' fault first: a write from lost pages fails too.
  template <class Read>
  void checked(Read&& read) const {
    try {
      read();
    } catch (const Error&) {
      check_files();
      throw;
    }
  }

  // For writing the model as a GGUF file: a GGUF file's own, with nothing lost; else made anew for a model of this name.
  virtual io::GgufMetadata export_metadata(const std::string& name) const = 0;

 protected:
  ModelSource() = default;
  struct StoredTensor {
    std::optional<DType> dtype;  // none for a type that is not known here
    Index rank;
    std::uint64_t bytes;
  };
  virtual std::vector<StoredTensor> stored_tensors() const = 0;
};

// Refuses a path that has no whole model, in the same words whatever part of it is read first.
void check_is_model(const std::filesystem::path& path);

// One part of the model at the path.
std::optional<Tokenizer> load_tokenizer(const std::filesystem::path& path);
ModelWeights load_weights(const std::filesystem::path& path, const ModelConfig& config, DType dtype,
                          const LoadOptions& options = {});
// The model, ready to run. Without a dtype, as the weights are stored, quantized ones included.
Transformer load_model(const std::filesystem::path& path, std::optional<DType> dtype = {},
                       const LoadOptions& options = {.storage = Storage::kAuto});

}  // namespace dsmoe
