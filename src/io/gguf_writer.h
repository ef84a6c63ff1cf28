// Writes a GGUF file (version 3) tensor by tensor, holding none of them: declare all, write them in that order, finish.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "io/atomic_file.h"
#include "io/gguf_metadata.h"
#include "io/safetensors_writer.h"

namespace dsmoe::io {

class GgufWriter {
 public:
  // Writes metadata and the list of tensors at once. The tensors' bytes are aligned as general.alignment says.
  GgufWriter(const std::filesystem::path& path, const GgufMetadata& metadata, std::vector<TensorSpec> tensors);

  // Some bytes of the tensor whose turn it is; the next one's turn comes when all its bytes are there.
  // An empty tensor takes one call with no bytes.
  void append(std::string_view name, std::span<const std::byte> bytes);
  void finish();  // all tensors must be there; puts the file in place

 private:
  std::string path_;
  std::vector<TensorSpec> tensors_;
  std::size_t alignment_;
  AtomicFile file_;
  std::size_t next_ = 0;       // the tensor whose turn it is
  std::uint64_t written_ = 0;  // its bytes so far
};

}  // namespace dsmoe::io
