// Flags that several commands share: the model and where it runs, and sampling.
#pragma once

#include <CLI/App.hpp>
#include <optional>
#include <string>

#include "dsmoe/tokenizer.h"
#include "infer/session.h"
#include "model/transformer.h"

namespace dsmoe::cli {

struct ModelOptions {
  std::string folder;                // or a GGUF file
  std::string dtype = "auto";        // of the weights in memory
  std::string load_to = "auto";      // where weights are that are used as stored
  std::string cache_dtype = "auto";  // of the keys and values
  Index context = 0;
  int threads = 0;

  void add(CLI::App& command);
  void add_context(CLI::App& command);
  void check_folder() const;  // throws when there is none: the same words whatever a command opens first
  Transformer load() const;
  Tokenizer tokenizer() const;  // throws when the model has none
  SessionOptions session() const;
};

struct SamplingOptions {
  SamplerOptions sampler;
  Index max_tokens = 256;
  std::vector<std::string> stop;
  bool ignore_eos = false;

  void add(CLI::App& command);
  GenerateOptions generate(const ModelConfig& config, const Tokenizer* tokenizer) const;
};

std::optional<DType> parse_dtype(const std::string& name);  // none for "auto"

// The whole of a file, or of standard input for "-".
std::string read_text(const std::string& path);

}  // namespace dsmoe::cli
