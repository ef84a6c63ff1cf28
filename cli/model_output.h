// What the commands that write a model share: init, convert, quantize, prune, upcycle, merge.
#pragma once

#include <CLI/App.hpp>
#include <cstdint>
#include <functional>
#include <string>

#include "dsmoe/convert.h"
#include "dsmoe/model_config.h"
#include "formats/folder_export.h"
#include "io/sharded_writer.h"

namespace dsmoe::cli {

// How a model is written, as a folder or as a file.
struct WriteOptions {
  double shard_gb = static_cast<double>(io::kDefaultShardBytes) * 1e-9;
  int threads = 0;
  bool force = false, json = false;

  void add(CLI::App& command);
  std::uint64_t shard_bytes() const { return static_cast<std::uint64_t>(shard_gb * 1e9); }
};

inline constexpr const char* kForceModel = "Replace a model that is already there; other files stay";

bool is_gguf_name(const std::string& path);  // ends with .gguf: the model goes into that file, else into a folder

// Throws when a file of a model is there already (weights, config.json, tokenizer: model_files()), unless forced; always in
// the folder of a training run, and when nothing can be written there. Makes nothing.
void check_output(const std::string& path, bool force);

// The same, and throws when the disk has no room for the bytes. Then makes the folder of a model.
void prepare_output(const std::string& path, std::uint64_t bytes, bool force);

std::int64_t parameter_count(const ModelConfig& config);

// Runs `work` with something to report bytes to, behind a progress bar.
void with_progress(const char* label, std::uint64_t bytes, const std::function<void(const ByteProgress&)>& work);

// convert() behind a progress bar, and by the command line's rule for what is already there.
Converted write_converted(const char* label, const std::string& in, const std::string& out, bool force,
                          ConvertOptions options);

}  // namespace dsmoe::cli
