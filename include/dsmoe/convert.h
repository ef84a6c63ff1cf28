// A model on disk in another form, tensor by tensor: between a Hugging Face folder and a GGUF file, in another dtype, or
// quantized. Memory holds a few tensors at a time.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <string>

#include "dsmoe/tensor.h"

namespace dsmoe {

struct ConvertOptions {
  // What the weights are stored as: "f32", "f16", "bf16", or "auto", as they are (f32 where they are quantized). In a GGUF
  // file also, from largest to smallest, "q8_0", "q6_k", "q5_0", "q4_k_m", "q4_k", "q4_0".
  std::string type = "auto";
  int threads = 0;                // 0: one per physical core
  std::uint64_t shard_bytes = 0;  // of one safetensors file at most; 0: the library's default
  bool overwrite = false;         // replace a model that is already there

  std::function<void(std::uint64_t bytes)>
      begin;  // once, with the size, before anything is written; may refuse by an Error
  std::function<void(std::uint64_t done, std::uint64_t total)> progress;  // an exception ends the work
};

struct Converted {
  Index parameters = 0;
  std::uint64_t bytes = 0;
  std::string type;
  std::map<std::string, std::uint64_t> bytes_by_dtype;  // several where rows do not fit a type's blocks, or in a mixture
};

// `out` is a file when it ends with .gguf, else a folder.
Converted convert(const std::filesystem::path& in, const std::filesystem::path& out, const ConvertOptions& options = {});

}  // namespace dsmoe
