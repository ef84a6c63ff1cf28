// Reads a GGUF file (versions 2 and 3, little-endian): metadata, a list of tensors, then the tensors' bytes, each at a
// multiple of the alignment.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "dsmoe/tensor.h"
#include "io/gguf_metadata.h"
#include "io/mapped_file.h"

namespace dsmoe::io {

constexpr std::uint64_t kGgufAlignment = 32;  // where the metadata says nothing else

// A way to store numbers that the format knows: its number and name there, and what is stored as one piece.
struct GgufTensorType {
  std::uint32_t number;
  const char* name;
  std::uint32_t block_numbers, block_bytes;
  std::optional<DType> dtype;  // empty: may be in a file, but cannot be asked for
};
const GgufTensorType& gguf_tensor_type(DType dtype);  // throws for types that the format has no number for

struct GgufTensorInfo {
  std::string name;
  const GgufTensorType* type = nullptr;
  Shape shape;               // row-major: the file writes the dimensions the other way round
  std::uint64_t offset = 0;  // from the start of the tensors' bytes
  std::uint64_t bytes = 0;
};

class GgufFile {
 public:
  // Checks the whole header; the tensors' bytes are not touched before they are used.
  static GgufFile open(const std::filesystem::path& path);
  // `bytes` must stay valid as long as keep_alive (or, when that is empty, as any tensor of this file).
  static GgufFile from_memory(std::span<const std::byte> bytes, std::string name,
                              std::shared_ptr<const void> keep_alive = {});
  static bool is_gguf(const std::filesystem::path& path);  // a regular file that begins with the format's magic

  const std::string& path() const { return metadata_.where(); }
  std::uint32_t version() const { return version_; }
  const GgufMetadata& metadata() const { return metadata_; }
  const std::vector<GgufTensorInfo>& tensors() const { return tensors_; }  // in the order of the file
  bool contains(std::string_view name) const { return index_.contains(std::string(name)); }
  const GgufTensorInfo& info(std::string_view name) const;  // throws Error when there is none
  std::size_t file_bytes() const { return file_bytes_; }

  // What the tensors' bytes lie in: one file, none for from_memory().
  std::vector<std::shared_ptr<const MappedFile>> maps() const {
    return map_ ? std::vector{map_} : std::vector<std::shared_ptr<const MappedFile>>();
  }

  // From now on tensors are views of a copy in memory, which is read here (MappedFile::in_memory).
  void read_into_memory(const MappedFile::Progress& progress = {});

  // A read-only view of the file, or one of its copy in memory, which may be written. A copy when the bytes are not aligned
  // for the type.
  Tensor tensor(std::string_view name) const;
  void advise(std::string_view name, Advice advice) const;  // a hint for one tensor's bytes; never an error

 private:
  GgufFile() = default;
  void read_tensors(std::span<const std::byte> bytes, std::size_t at, std::uint64_t count);
  void check_layout(std::span<const std::byte> bytes, std::size_t header_end);

  std::uint32_t version_ = 0;
  GgufMetadata metadata_;
  std::vector<GgufTensorInfo> tensors_;
  std::unordered_map<std::string, std::size_t> index_;
  std::shared_ptr<const MappedFile> map_;  // empty for from_memory
  std::shared_ptr<const void> keep_alive_;
  std::span<const std::byte> data_;
  std::size_t data_begin_ = 0;  // in the file
  bool own_memory_ = false;     // after read_into_memory()
  std::size_t file_bytes_ = 0;
};

}  // namespace dsmoe::io
