// Flags that several commands share: the model, the context and sampling.
#pragma once

#include <CLI/App.hpp>
#include <memory>
#include <string>

#include "cli/option_flags.h"
#include "dsmoe/generate_options.h"
#include "dsmoe/model.h"

namespace dsmoe::cli {

struct ModelFlags {
  std::string path;
  ModelOptions load;
  SessionOptions session;

  CLI::Option* add(CLI::App& command);  // the model and how it is loaded
  void add_threads(CLI::App& command);
  void add_context(CLI::App& command);  // context and type of the KV cache
  std::shared_ptr<Model> open() const;  // behind a progress bar when that takes long
};

struct SamplingFlags {
  GenerateOptions generate;

  void add(CLI::App& command);
};

// The whole of a file, or of standard input for "-".
std::string read_text(const std::string& path);

}  // namespace dsmoe::cli
