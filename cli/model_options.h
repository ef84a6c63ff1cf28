// Flags that several commands share: the model, the context and sampling.
#pragma once

#include <CLI/App.hpp>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cli/option_flags.h"
#include "dsmoe/generate_options.h"
#include "dsmoe/model.h"

namespace dsmoe::cli {

struct ModelFlags {
  std::string path;
  ModelOptions load;
  SessionOptions session;
  bool one_session = false;  // of the model, and so it is known how large the KV cache will be

  CLI::Option* add(CLI::App& command);  // the model and how it is loaded
  void add_threads(CLI::App& command);
  void add_context(CLI::App& command);  // context and type of the KV cache
  std::shared_ptr<Model> open() const;  // behind a progress bar when that takes long
};

// A note when sequences of `length` tokens go beyond the positions that the model was made for.
void note_long_context(const ModelConfig& config, Index length);

struct SamplingFlags {
  GenerateOptions generate;
  std::string grammar_file, schema_file;

  void add(CLI::App& command);
  // What was given; else what the model's generation_config.json says; else the defaults.
  GenerateOptions options(const Model& model) const;
  static constexpr const char* kFooter =
      "Sampling defaults are those of the model's generation_config.json (or the keys general.sampling.* of a GGUF file)\n"
      "where it has them; options given here win.\n";

 private:
  OptionMap flags_;  // of the sampler
};

// The whole of a file, or of standard input for "-".
std::string read_text(const std::string& path);

// A text, from the command line, a file or standard input.
struct TextFlags {
  std::optional<std::string> text;
  std::string file;

  void add(CLI::App& command, const std::string& what);  // --prompt and --file
  bool given() const { return text || !file.empty(); }
  std::string read() const;
};

// Token ids that are arguments of their own or share one, with spaces or commas between them.
struct TokenIdFlags {
  std::vector<std::string> words;

  CLI::Option* add(CLI::App& command, const std::string& flag, const std::string& description);
  std::vector<std::int32_t> ids() const;

 private:
  std::string flag_;
};

}  // namespace dsmoe::cli
